//! The queue between those who add lines and the thread that writes. Holds whole buffers of lines,
//! bounded in bytes; drops and counts the lines of buffers that do not fit.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::sink::Sink;

/// Maximum memory of the buffers that wait or are being written, in bytes.
pub(in crate::telemetry) const QUEUE_BYTES: usize = 8 << 20;
/// Usual size of a buffer in bytes.
pub(in crate::telemetry) const BUFFER: usize = 64 << 10;
/// Maximum number of empty buffers that are kept for reuse.
const MAX_EMPTY: usize = 8;
/// Minimum interval of notices.
const NOTICE_INTERVAL: Duration = Duration::from_secs(1);
/// Time without progress after which a sink is stuck, at the end of the process.
const STALL: Duration = Duration::from_millis(500);
/// Maximum time for the last lines, even with progress.
const FINISH: Duration = Duration::from_secs(3);

/// Called with the number of lines that were dropped since the last call.
pub(in crate::telemetry) type Notice = fn(u64);

/// Buffers on their way to the sink.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Wakes the writer.
    changed: Condvar,
    /// Wakes those who wait for the end of the writer.
    progressed: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Vec<u8>>,
    /// Size of the waiting buffers and of those that the writer has taken but not written.
    bytes: usize,
    empty: Vec<Vec<u8>>,
    reopen: bool,
    closed: bool,
    /// Whether the writer has ended, or is given up.
    ended: bool,
    /// Number of written buffers.
    written: u64,
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
        if state.fits_last(buffer) {
            state.append(buffer);
            return buffer.clear();
        }
        if !state.admits(buffer.capacity()) {
            drop(state);
            self.dropped.fetch_add(lines(buffer), Relaxed);
            return buffer.clear();
        }
        let empty = state.empty.pop().unwrap_or_default();
        let full = std::mem::replace(buffer, empty);
        self.add(state, full);
    }

    /// Adds one line.
    pub(super) fn push_line(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.fits_last(line) {
            return state.append(line);
        }
        let size = line.len().max(BUFFER);
        if !state.admits(size) {
            drop(state);
            self.dropped.fetch_add(lines(line), Relaxed);
            return;
        }
        let mut buffer = state.empty.pop().unwrap_or_default();
        buffer.reserve_exact(size);
        buffer.extend_from_slice(line);
        self.add(state, buffer);
    }

    fn add(&self, mut state: MutexGuard<'_, State>, buffer: Vec<u8>) {
        state.bytes += buffer.capacity();
        state.waiting.push(buffer);
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

    /// Makes the writer end when it has written the waiting lines, and waits for that. Gives up when
    /// the writer makes no progress.
    pub(super) fn finish(&self) {
        let mut state = self.lock();
        state.closed = true;
        self.changed.notify_one();
        let begin = Instant::now();
        while !state.ended {
            let written = state.written;
            let waited = self.progressed.wait_timeout(state, STALL);
            let (next, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            let is_stuck = timeout.timed_out() && state.written == written;
            // Those who wait later do not wait again.
            state.ended |= is_stuck || begin.elapsed() >= FINISH;
        }
    }

    /// Writes until the queue is closed and empty. Calls `notice` when lines are written again after
    /// some were dropped.
    pub(super) fn write_to(&self, mut sink: Sink, notice: Notice) {
        let mut buffers = Vec::new();
        let mut noticed = (0, None::<Instant>);
        while let Some(reopen) = self.take(&mut buffers) {
            if reopen {
                sink.reopen();
            }
            // Before the buffers are written: what `notice` logs follows them, and precedes all
            // later lines.
            let dropped = self.dropped();
            let is_due = noticed
                .1
                .is_none_or(|last| last.elapsed() >= NOTICE_INTERVAL);
            if dropped > noticed.0 && is_due && !sink.is_failing() {
                notice(dropped - noticed.0);
                noticed = (dropped, Some(Instant::now()));
            }
            for buffer in buffers.drain(..) {
                let written = sink.write(&buffer);
                self.dropped.fetch_add(lines(&buffer[written..]), Relaxed);
                self.give_back(buffer);
            }
        }
        self.lock().ended = true;
        self.progressed.notify_all();
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
        state.bytes -= buffer.capacity();
        state.written += 1;
        if state.empty.len() < MAX_EMPTY && buffer.capacity() <= BUFFER {
            state.empty.push(buffer);
        }
        if state.closed {
            self.progressed.notify_all();
        }
    }
}

impl State {
    /// Reports whether the last waiting buffer has room for these lines. It never grows.
    fn fits_last(&self, lines: &[u8]) -> bool {
        let last = self.waiting.last();
        let has_room = |last: &Vec<u8>| last.len() + lines.len() <= last.capacity().min(BUFFER);
        !self.ended && last.is_some_and(has_room)
    }

    fn append(&mut self, lines: &[u8]) {
        if let Some(last) = self.waiting.last_mut() {
            last.extend_from_slice(lines);
        }
    }

    /// Reports whether there is room for another buffer.
    fn admits(&self, size: usize) -> bool {
        !self.ended && self.bytes + size <= QUEUE_BYTES
    }
}

/// Number of lines that end in `text`.
fn lines(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}
