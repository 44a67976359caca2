//! Sampled requests on their way from workers to the exporter. Adding never waits; requests that do not fit are dropped
//! and counted.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::spans::RequestSpan;

/// Maximum memory of waiting requests, in bytes.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Number of requests that a worker gathers at most.
const FULL: usize = 32;

/// A queue of sampled requests.
#[derive(Debug, Default)]
pub struct TraceQueue {
    state: Mutex<State>,
    exported: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<RequestSpan>,
    bytes: usize,
    reader: Option<Waker>,
    is_closed: bool,
}

impl TraceQueue {
    /// Passes on requests.
    fn push(&self, requests: &mut Vec<RequestSpan>) {
        let mut dropped = 0;
        let reader = {
            let mut state = self.lock();
            for request in requests.drain(..) {
                let bytes = request.bytes();
                if state.is_closed || state.bytes + bytes > MAX_BYTES {
                    dropped += request.count();
                    continue;
                }
                state.bytes += bytes;
                state.waiting.push_back(request);
            }
            state.reader.take()
        };
        self.drop_spans(dropped);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Ready when requests wait, or when the queue is closed.
    pub fn poll_filled(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.waiting.is_empty() && !state.is_closed {
            state.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Takes up to `max` requests. They count for the limit of the queue until [`Self::release`]. `None` when the queue is
    /// closed and empty.
    pub fn take(&self, max: usize) -> Option<Vec<RequestSpan>> {
        let mut state = self.lock();
        if state.waiting.is_empty() && state.is_closed {
            return None;
        }
        let count = state.waiting.len().min(max);
        Some(state.waiting.drain(..count).collect())
    }

    /// Reports whether no request is added any more.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Number of requests that wait.
    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Reports whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives back the memory of requests that were taken, and counts their spans as exported or dropped.
    pub fn release(&self, requests: &[RequestSpan], is_exported: bool) {
        let bytes: usize = requests.iter().map(RequestSpan::bytes).sum();
        let spans = requests.iter().map(RequestSpan::count).sum();
        self.lock().bytes -= bytes;
        match is_exported {
            true => drop(self.exported.fetch_add(spans, Ordering::Relaxed)),
            false => self.drop_spans(spans),
        }
    }

    /// Lets the reader end when it has taken what waits. Later requests are dropped.
    pub fn close(&self) {
        let reader = {
            let mut state = self.lock();
            state.is_closed = true;
            state.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Number of spans that the collector has accepted.
    pub fn exported(&self) -> u64 {
        self.exported.load(Ordering::Relaxed)
    }

    /// Number of spans that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn drop_spans(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sampled requests of one worker. Passes them on when there are many, when it is flushed and when it is dropped.
#[derive(Debug)]
pub struct WorkerTraces {
    queue: Arc<TraceQueue>,
    gathered: RefCell<Vec<RequestSpan>>,
}

impl WorkerTraces {
    /// The part of one worker.
    pub fn new(queue: Arc<TraceQueue>) -> Self {
        Self {
            queue,
            gathered: RefCell::default(),
        }
    }

    /// Adds an ended request. Returns true if the caller must [`flush`](Self::flush) later, since this is the first one.
    pub fn add(&self, request: RequestSpan) -> bool {
        let mut gathered = self.gathered.borrow_mut();
        let is_first = gathered.is_empty();
        gathered.push(request);
        if gathered.len() >= FULL {
            self.queue.push(&mut gathered);
        }
        is_first
    }

    /// Passes on what was added.
    pub fn flush(&self) {
        let mut gathered = self.gathered.borrow_mut();
        if !gathered.is_empty() {
            self.queue.push(&mut gathered);
        }
    }
}

impl Drop for WorkerTraces {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use http::Request;

    use super::super::context::tests::tracing;
    use super::super::spans::Peer;
    use super::*;

    fn request(path: &str) -> RequestSpan {
        let (parts, ()) = Request::get(path).body(()).unwrap().into_parts();
        let peer = || Peer {
            client: ([127, 0, 0, 1], 1).into(),
            scheme: "http",
            host: "h".into(),
            port: 80,
        };
        *RequestSpan::sample(&Arc::new(tracing()), &parts, peer, Instant::now()).unwrap()
    }

    #[test]
    fn requests_beyond_the_limit_are_dropped_and_counted() {
        let queue = Arc::new(TraceQueue::default());
        let worker = WorkerTraces::new(queue.clone());
        let path = format!("/{}", "a".repeat(1000));
        let bytes = request(&path).bytes();
        let fit = MAX_BYTES / bytes;
        for _ in 0..fit + FULL {
            worker.add(request(&path));
        }
        worker.flush();
        assert_eq!(queue.len(), fit);
        assert_eq!(queue.dropped(), FULL as u64);
        let taken = queue.take(10).unwrap();
        // What is being sent counts for the limit.
        worker.add(request(&path));
        worker.flush();
        assert_eq!(queue.dropped(), FULL as u64 + 1);
        queue.release(&taken, true);
        worker.add(request(&path));
        worker.flush();
        assert_eq!((queue.exported(), queue.dropped()), (10, FULL as u64 + 1));
    }

    #[test]
    fn closed_queue_ends_after_its_last_request() {
        let queue = Arc::new(TraceQueue::default());
        let worker = WorkerTraces::new(queue.clone());
        assert!(worker.add(request("/")));
        assert!(!worker.add(request("/")));
        worker.flush();
        queue.close();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(queue.poll_filled(&mut cx).is_ready());
        assert_eq!(queue.take(10).map(|taken| taken.len()), Some(2));
        assert!(queue.take(10).is_none());
    }
}
