//! The lines of one tap on their way to its reader: bounded in bytes and per second. Adding never waits.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Maximum number of requests per second that a tap can show.
pub const MAX_RATE: u32 = 1000;
/// Maximum size of the lines that wait, in bytes.
const MAX_BYTES: usize = 256 * 1024;

/// The queue of a tap.
#[derive(Debug)]
pub(super) struct Queue {
    rate: u32,
    start: Instant,
    /// A second since `start`, and below it the number of requests of this second.
    second: AtomicU64,
    waiting: Mutex<Waiting>,
    skipped: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: Vec<u8>,
    reader: Option<Waker>,
}

/// What a reader takes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Lines of JSON.
    pub lines: Vec<u8>,
    /// Number of requests since the last batch that were more than the rate.
    pub skipped: u64,
    /// Number of requests since the last batch that the reader was too slow for.
    pub dropped: u64,
}

impl Queue {
    pub(super) fn new(rate: u32) -> Self {
        Self {
            rate: rate.min(MAX_RATE),
            start: Instant::now(),
            second: AtomicU64::new(0),
            waiting: Mutex::default(),
            skipped: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Counts a request. Returns whether it is within the rate.
    pub(super) fn may_add(&self, now: Instant) -> bool {
        const COUNT: u64 = 1 << 32;
        let second = now.saturating_duration_since(self.start).as_secs() * COUNT;
        let counted = self.second.fetch_update(Relaxed, Relaxed, |seen| {
            let seen = seen.max(second);
            (seen % COUNT < u64::from(self.rate)).then_some(seen + 1)
        });
        if counted.is_err() {
            self.skipped.fetch_add(1, Relaxed);
        }
        counted.is_ok()
    }

    /// Adds a line, or drops and counts it.
    pub(super) fn add(&self, line: &[u8]) {
        let mut waiting = match self.waiting.try_lock() {
            Ok(waiting) => waiting,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Waiting for another thread could take as long as that thread is not scheduled.
            Err(TryLockError::WouldBlock) => return self.drop_line(),
        };
        if waiting.lines.len() + line.len() > MAX_BYTES {
            drop(waiting);
            return self.drop_line();
        }
        waiting.lines.extend_from_slice(line);
        let reader = waiting.reader.take();
        drop(waiting);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn drop_line(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    pub(super) fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Batch> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let batch = Batch {
            lines: std::mem::take(&mut waiting.lines),
            skipped: self.skipped.swap(0, Relaxed),
            dropped: self.dropped.swap(0, Relaxed),
        };
        if batch == Batch::default() {
            waiting.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(batch)
    }
}
