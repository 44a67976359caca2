//! Taps: what operators see of requests while these happen. Built from the record of the access log when a request ends, and
//! only while a tap is open. Workers never wait: a line that does not fit is dropped and counted.

mod filter;
mod queue;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use arc_swap::ArcSwap;
use serde::Serialize;

pub use self::filter::{StatusFilter, TapFilter};
use self::queue::Queue;
pub use self::queue::{Batch, MAX_RATE};
use super::access_log::{Begun, Completion, Line};
use crate::ir::ObjectRef;

/// Maximum number of open taps.
pub const MAX_TAPS: usize = 4;

/// The taps of a process.
#[derive(Debug, Default)]
pub struct Taps {
    /// Number of taps, so that requests without one pay one relaxed load.
    count: AtomicUsize,
    /// Number of taps of all routes: the others are about requests whose route is known.
    of_all_routes: AtomicUsize,
    open: ArcSwap<Vec<Arc<Tap>>>,
    /// Held while `open` changes.
    changing: Mutex<()>,
}

#[derive(Debug)]
struct Tap {
    filter: TapFilter,
    queue: Queue,
}

/// What reads an open tap, which closes when this is dropped.
#[derive(Debug)]
pub struct TapReader {
    taps: Arc<Taps>,
    tap: Arc<Tap>,
}

/// A request as a tap shows it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown<'a> {
    #[serde(flatten)]
    begun: &'a Begun,
    status: u16,
    duration_ms: f64,
    route: Option<&'a ObjectRef>,
    rule: Option<usize>,
    backend: Option<String>,
    endpoint: Option<String>,
    reason: Option<&'a str>,
}

impl Taps {
    /// Opens a tap that shows up to `rate` requests per second, at most [`MAX_RATE`]; `None` if too many are open.
    pub fn open(self: &Arc<Self>, filter: TapFilter, rate: u32) -> Option<TapReader> {
        let tap = Arc::new(Tap {
            filter,
            queue: Queue::new(rate),
        });
        let is_open = self.change(|open| {
            let has_room = open.len() < MAX_TAPS;
            if has_room {
                open.push(tap.clone());
            }
            has_room
        });
        let reader = || TapReader {
            taps: self.clone(),
            tap,
        };
        is_open.then(reader)
    }

    /// Reports whether a tap is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Reports whether a tap may show a request whose route is not known yet.
    #[inline]
    pub fn show_all_routes(&self) -> bool {
        self.of_all_routes.load(Relaxed) > 0
    }

    /// Reports whether a tap may show requests of a route.
    #[cold]
    pub fn show_route(&self, route: &ObjectRef) -> bool {
        let open = self.open.load();
        open.iter().any(|tap| tap.filter.admits_route(Some(route)))
    }

    /// Shows a request that has ended to the taps whose filters it meets. `backend` names its backend.
    #[cold]
    pub fn show(&self, line: &Line, end: &Completion<'_>, backend: &dyn Fn() -> Option<String>) {
        let mut begun = None;
        for tap in self.open.load().iter() {
            if !tap.filter.admits_end(end) {
                continue;
            }
            if tap.filter.needs_begin() {
                let Some(begun) = read(&mut begun, line) else {
                    return;
                };
                if !tap.filter.admits_begin(begun) {
                    continue;
                }
            }
            if !tap.queue.may_add(Instant::now()) {
                continue;
            }
            let Some(begun) = read(&mut begun, line) else {
                return;
            };
            tap.queue.add(&text(begun, end, backend()));
        }
    }

    /// Changes the list of taps.
    fn change<T>(&self, change: impl FnOnce(&mut Vec<Arc<Tap>>) -> T) -> T {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open = Vec::clone(&self.open.load());
        let result = change(&mut open);
        self.count.store(open.len(), Relaxed);
        let of_all_routes = open.iter().filter(|tap| tap.filter.route.is_none());
        self.of_all_routes.store(of_all_routes.count(), Relaxed);
        self.open.store(Arc::new(open));
        result
    }
}

/// Reads the begin of a line once.
fn read<'a>(begun: &'a mut Option<Begun>, line: &Line) -> Option<&'a Begun> {
    if begun.is_none() {
        *begun = line.begun();
    }
    begun.as_ref()
}

/// A line of JSON.
fn text(begun: &Begun, end: &Completion<'_>, backend: Option<String>) -> Vec<u8> {
    let shown = Shown {
        begun,
        status: end.status,
        duration_ms: end.duration.as_micros() as f64 / 1e3,
        route: end.rule.map(|(route, _)| route),
        rule: end.rule.map(|(_, index)| index),
        backend,
        endpoint: end.upstream.map(|it| it.to_string()),
        reason: end.error,
    };
    let mut line = serde_json::to_vec(&shown).unwrap_or_default();
    line.push(b'\n');
    line
}

impl TapReader {
    /// Ready with the lines that were added, or with counts of requests that were not.
    pub fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Batch> {
        self.tap.queue.poll_take(cx)
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        self.taps
            .change(|open| open.retain(|it| !Arc::ptr_eq(it, &self.tap)));
    }
}

#[cfg(test)]
mod tests;
