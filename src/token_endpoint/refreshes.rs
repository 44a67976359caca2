//! Sessions that are refreshed, or were lately: each once, however many requests ask for it. Pure: the caller passes the time.

use std::collections::VecDeque;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use rustc_hash::FxHashMap;
use tokio::sync::watch;

use super::error::TokenError;
use crate::ir::ObjectRef;
use crate::ir::sharing::Text;
use crate::table::Session;

/// For how long an outcome is kept, in milliseconds: browsers send the old session until they have got the new one. After a
/// failure the provider is asked again.
const KEPT: u64 = 60_000;
const KEPT_FAILURE: u64 = 10_000;
/// Bytes of the sessions of a namespace. Those that were refreshed first leave before that.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Bytes that a session takes apart from its tokens.
const OVERHEAD: usize = 1024;

/// What a refresh has led to.
pub(super) type Outcome = Result<Arc<Session>, TokenError>;
/// A digest of the policy and of the refresh token.
pub(super) type Key = [u8; 32];

/// The sessions of all namespaces.
#[derive(Default)]
pub(super) struct Refreshes(FxHashMap<Text, OfNamespace>);

#[derive(Default)]
struct OfNamespace {
    entries: FxHashMap<Key, Entry>,
    /// In the order in which they began.
    order: VecDeque<Key>,
    bytes: usize,
}

struct Entry {
    outcome: watch::Receiver<Option<Outcome>>,
    /// When it began, in milliseconds.
    began: u64,
    bytes: usize,
}

/// A refresh that a request waits for. `P` is what admits a new one.
pub(super) enum Joined<P> {
    /// One that another request has begun.
    Known(watch::Receiver<Option<Outcome>>),
    /// A new one.
    New(
        watch::Receiver<Option<Outcome>>,
        watch::Sender<Option<Outcome>>,
        P,
    ),
}

/// Returns the key of a session of a policy.
pub(super) fn key(policy: &ObjectRef, refresh_token: &str) -> Key {
    let mut context = Context::new(&SHA256);
    context.update(policy.to_string().as_bytes());
    context.update(b"\n");
    context.update(refresh_token.as_bytes());
    let mut key = [0; 32];
    key.copy_from_slice(context.finish().as_ref());
    key
}

impl Refreshes {
    /// Joins the refresh of a session of `size` bytes, or begins one, if `enter` admits it.
    ///
    /// # Errors
    /// When a new one is not admitted, or has no room.
    pub(super) fn join<P>(
        &mut self,
        namespace: &Text,
        (key, size): (Key, usize),
        now: u64,
        enter: impl FnOnce() -> Result<P, TokenError>,
    ) -> Result<Joined<P>, TokenError> {
        let sessions = self.0.entry(namespace.clone()).or_default();
        sessions.sweep(now);
        if let Some(entry) = sessions.entries.get(&key) {
            if !entry.is_over(now) {
                return Ok(Joined::Known(entry.outcome.clone()));
            }
            sessions.remove(&key);
        }
        let bytes = 2 * size + OVERHEAD;
        while sessions.bytes + bytes > MAX_BYTES {
            sessions.evict().ok_or(TokenError::Busy)?;
        }
        let entered = enter()?;
        let (sender, outcome) = watch::channel(None);
        let entry = Entry {
            outcome: outcome.clone(),
            began: now,
            bytes,
        };
        sessions.bytes += bytes;
        sessions.order.push_back(key);
        sessions.entries.insert(key, entry);
        Ok(Joined::New(outcome, sender, entered))
    }

    /// Counts what the outcome of a refresh takes: the former session is no longer needed, and the new one may be larger.
    pub(super) fn finish(&mut self, namespace: &Text, key: &Key, size: usize) {
        let Some(sessions) = self.0.get_mut(namespace) else {
            return;
        };
        if let Some(entry) = sessions.entries.get_mut(key) {
            let bytes = size + OVERHEAD;
            sessions.bytes = sessions.bytes.saturating_sub(entry.bytes) + bytes;
            entry.bytes = bytes;
        }
        while sessions.bytes > MAX_BYTES && sessions.evict().is_some() {}
    }

    /// Removes what is over, in all namespaces.
    pub(super) fn sweep(&mut self, now: u64) {
        self.0.retain(|_, sessions| {
            sessions.sweep(now);
            !sessions.entries.is_empty()
        });
    }

    /// Returns the number of namespaces of which something is kept.
    #[cfg(test)]
    pub(super) fn namespaces(&self) -> usize {
        self.0.len()
    }
}

impl OfNamespace {
    /// Removes those that are over, as far as they began before all others.
    fn sweep(&mut self, now: u64) {
        while let Some(key) = self.order.front().copied() {
            match self.entries.get(&key) {
                Some(entry) if !entry.is_over(now) => return,
                _ => self.remove(&key),
            }
        }
    }

    /// Removes the one that began first, unless it still runs.
    fn evict(&mut self) -> Option<()> {
        let key = self.order.front().copied()?;
        let is_running = |entry: &Entry| entry.outcome.borrow().is_none();
        if self.entries.get(&key).is_some_and(is_running) {
            return None;
        }
        self.remove(&key);
        Some(())
    }

    fn remove(&mut self, key: &Key) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes = self.bytes.saturating_sub(entry.bytes);
        }
        match self.order.front() == Some(key) {
            true => drop(self.order.pop_front()),
            false => self.order.retain(|it| it != key),
        }
    }
}

impl Entry {
    fn is_over(&self, now: u64) -> bool {
        let kept = match &*self.outcome.borrow() {
            // Its sender is dropped if the thread has lost it.
            None => return self.outcome.has_changed().is_err(),
            Some(Ok(_)) | Some(Err(TokenError::Denied)) => KEPT,
            Some(Err(_)) => KEPT_FAILURE,
        };
        now.saturating_sub(self.began) >= kept
    }
}
