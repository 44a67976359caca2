//! The queue between workers and the thread that writes. Holds whole buffers of lines, bounded in
//! bytes; drops and counts the lines of buffers that do not fit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::line::LONGEST_LINE;
use super::sink::Sink;

/// Maximum memory of the buffers that wait or are being written, in bytes.
pub(super) const QUEUE_BYTES: usize = 8 << 20;
/// Size of a buffer in bytes.
pub(super) const BUFFER: usize = 64 << 10;
/// Length at which a buffer is full: another line could exceed its size.
pub(super) const FULL: usize = BUFFER - LONGEST_LINE;
/// Maximum number of empty buffers that are kept for reuse.
const MAX_EMPTY: usize = 8;

/// Buffers on their way to the sink.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Vec<u8>>,
    /// Number of waiting buffers and of those that the writer has taken but not written.
    count: usize,
    empty: Vec<Vec<u8>>,
    reopen: bool,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of dropped lines.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Passes on the lines in `buffer` and leaves an empty buffer in its place.
    pub(super) fn push(&self, buffer: &mut Vec<u8>) {
        let mut state = self.lock();
        // While the writer is behind, buffers that are not full share one.
        if let Some(last) = state.waiting.last_mut()
            && last.len() + buffer.len() <= BUFFER
        {
            last.append(buffer);
            return;
        }
        if (state.count + 1) * BUFFER > QUEUE_BYTES {
            drop(state);
            self.dropped.fetch_add(lines(buffer), Relaxed);
            buffer.clear();
            return;
        }
        let empty = state.empty.pop().unwrap_or_default();
        state.waiting.push(std::mem::replace(buffer, empty));
        state.count += 1;
        let is_first = state.waiting.len() == 1;
        drop(state);
        if is_first {
            self.changed.notify_one();
        }
    }

    /// Makes the writer reopen the sink.
    pub(super) fn reopen(&self) {
        self.lock().reopen = true;
        self.changed.notify_one();
    }

    /// Makes the writer end when it has written the waiting lines.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Writes until the queue is closed and empty.
    pub(super) fn write_to(&self, mut sink: Sink) {
        let mut buffers = Vec::new();
        while let Some(reopen) = self.take(&mut buffers) {
            if reopen {
                sink.reopen();
            }
            for buffer in buffers.drain(..) {
                let written = sink.write(&buffer);
                self.dropped.fetch_add(lines(&buffer[written..]), Relaxed);
                self.give_back(buffer);
            }
        }
    }

    /// Moves the waiting buffers into `buffers` once there are some. Returns whether to reopen the
    /// sink, or `None` when the queue is closed and empty.
    fn take(&self, buffers: &mut Vec<Vec<u8>>) -> Option<bool> {
        let is_idle =
            |state: &mut State| state.waiting.is_empty() && !state.reopen && !state.closed;
        let state = self.changed.wait_while(self.lock(), is_idle);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut state.waiting, buffers);
        let reopen = std::mem::take(&mut state.reopen);
        (reopen || !buffers.is_empty()).then_some(reopen)
    }

    fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut state = self.lock();
        state.count -= 1;
        if state.empty.len() < MAX_EMPTY && buffer.capacity() <= BUFFER {
            state.empty.push(buffer);
        }
    }
}

/// Number of lines that end in `text`.
fn lines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}
