//! Sampled requests and records of the access log on their way from workers to the exporter, apart for each policy: while the collector of one is away,
//! those of others have room. Adding never waits; requests that do not fit are dropped and counted.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::item::{Counts, Item};
use crate::ir::ObjectRef;

/// Maximum memory of waiting requests, in bytes: of all policies, and of one.
const MAX_BYTES: usize = 8 * 1024 * 1024;
const MAX_BYTES_OF_POLICY: usize = MAX_BYTES / 2;
/// Number of requests that a worker gathers at most.
const FULL: usize = 32;

/// Which of the messages of a policy its collector has accepted.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The spans.
    pub spans: bool,
    /// The records of the access log.
    pub records: bool,
}

/// A queue of sampled requests, and of records of the access log.
#[derive(Debug, Default)]
pub struct TraceQueue {
    state: Mutex<State>,
    exported: Counters,
    dropped: Counters,
}

#[derive(Debug, Default)]
struct State {
    policies: BTreeMap<ObjectRef, OfPolicy>,
    /// Memory of all requests, also of those that are being sent.
    bytes: usize,
    reader: Option<Waker>,
    is_closed: bool,
}

/// Numbers of spans and of records of the access log.
#[derive(Debug, Default)]
struct Counters {
    spans: AtomicU64,
    records: AtomicU64,
}

impl Counters {
    fn add(&self, counts: Counts) {
        self.spans.fetch_add(counts.spans, Ordering::Relaxed);
        self.records.fetch_add(counts.records, Ordering::Relaxed);
    }

    fn read(&self) -> Counts {
        Counts {
            spans: self.spans.load(Ordering::Relaxed),
            records: self.records.load(Ordering::Relaxed),
        }
    }
}

/// The requests of one policy.
#[derive(Debug, Default)]
struct OfPolicy {
    waiting: VecDeque<Item>,
    /// Memory of these, and of those that are being sent.
    bytes: usize,
    /// Whether some are being sent. The others wait meanwhile.
    is_sending: bool,
}

impl OfPolicy {
    fn is_ready(&self) -> bool {
        !self.is_sending && !self.waiting.is_empty()
    }
}

impl TraceQueue {
    /// Passes on requests.
    fn push(&self, requests: &mut Vec<Item>) {
        let mut dropped = Counts::default();
        let reader = {
            let mut state = self.lock();
            let state = &mut *state;
            for request in requests.drain(..) {
                let bytes = request.bytes();
                let policy = state.policies.entry(request.tracing().policy.clone());
                let policy = policy.or_default();
                let fits =
                    state.bytes + bytes <= MAX_BYTES && policy.bytes + bytes <= MAX_BYTES_OF_POLICY;
                if state.is_closed || !fits {
                    dropped += request.count();
                    continue;
                }
                state.bytes += bytes;
                policy.bytes += bytes;
                policy.waiting.push_back(request);
            }
            state.reader.take()
        };
        self.dropped.add(dropped);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Ready when requests can be sent, or when the queue has ended.
    pub fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let has_ended = state.is_closed && state.policies.values().all(|it| it.bytes == 0);
        if has_ended || state.policies.values().any(OfPolicy::is_ready) {
            return Poll::Ready(());
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Takes up to `max` requests of each policy of which none are being sent. They count for the limits of the queue until
    /// [`Self::release`]. `None` when the queue is closed and empty.
    pub fn take(&self, max: usize) -> Option<Vec<Vec<Item>>> {
        let mut state = self.lock();
        if state.is_closed && state.policies.values().all(|it| it.bytes == 0) {
            return None;
        }
        let ready = state.policies.values_mut().filter(|it| it.is_ready());
        let taken = ready.map(|policy| {
            policy.is_sending = true;
            let count = policy.waiting.len().min(max);
            policy.waiting.drain(..count).collect()
        });
        Some(taken.collect())
    }

    /// Reports whether no request is added any more.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Number of requests that wait.
    pub fn len(&self) -> usize {
        let state = self.lock();
        let policies = state.policies.values();
        policies.map(|policy| policy.waiting.len()).sum()
    }

    /// Reports whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives back the memory of what was taken of one policy, and counts it as exported or dropped: `sent` tells it of spans
    /// and of records. When a closed queue could not export something, what waits for the same collector is dropped, too: the
    /// process ends.
    pub fn release(&self, items: &[Item], sent: Sent) {
        let Some(first) = items.first() else {
            return;
        };
        let Counts { spans, records } = items.iter().map(Item::count).sum();
        let mut bytes: usize = items.iter().map(Item::bytes).sum();
        let mut abandoned = Counts::default();
        let reader = {
            let mut state = self.lock();
            let state = &mut *state;
            if let Some(policy) = state.policies.get_mut(&first.tracing().policy) {
                policy.is_sending = false;
                if state.is_closed && !(sent.spans && sent.records) {
                    abandoned = policy.waiting.iter().map(Item::count).sum();
                    policy.waiting.clear();
                    bytes = policy.bytes;
                }
                policy.bytes -= bytes;
                if policy.bytes == 0 {
                    state.policies.remove(&first.tracing().policy);
                }
            }
            state.bytes -= bytes;
            state.reader.take()
        };
        let counts = |is_exported: bool| Counts {
            spans: spans * u64::from(sent.spans == is_exported),
            records: records * u64::from(sent.records == is_exported),
        };
        self.exported.add(counts(true));
        self.dropped.add(counts(false));
        self.dropped.add(abandoned);
        if let Some(reader) = reader {
            reader.wake();
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

    /// What collectors have accepted.
    pub fn exported(&self) -> Counts {
        self.exported.read()
    }

    /// What was dropped.
    pub fn dropped(&self) -> Counts {
        self.dropped.read()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sampled requests and the records of one worker. Passes them on when there are many, when it is flushed and when it is dropped.
#[derive(Debug)]
pub struct WorkerTraces {
    queue: Arc<TraceQueue>,
    gathered: RefCell<Vec<Item>>,
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
    pub fn add(&self, request: Item) -> bool {
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
    use super::super::spans::{Peer, RequestSpan};
    use super::*;

    const ALL: Sent = Sent {
        spans: true,
        records: true,
    };
    const NOTHING: Sent = Sent {
        spans: false,
        records: false,
    };

    fn request_of(policy: &str, path: &str) -> Item {
        let (parts, ()) = Request::get(path).body(()).unwrap().into_parts();
        let peer = || Peer {
            client: ([127, 0, 0, 1], 1).into(),
            scheme: "http",
            host: "h".into(),
            port: 80,
        };
        let mut tracing = tracing();
        tracing.policy = ObjectRef::new("portcullis.dev", "TelemetryPolicy", "infra", policy);
        let request = RequestSpan::sample(&Arc::new(tracing), &parts, peer, Instant::now());
        Item::Span(request.unwrap())
    }

    /// A queue, and its part for one worker.
    fn queue() -> (Arc<TraceQueue>, WorkerTraces) {
        let queue = Arc::new(TraceQueue::default());
        (queue.clone(), WorkerTraces::new(queue))
    }

    #[test]
    fn requests_beyond_the_limit_of_a_policy_are_dropped_and_counted() {
        let (queue, worker) = queue();
        let path = format!("/{}", "a".repeat(1000));
        let bytes = request_of("one", &path).bytes();
        let fit = MAX_BYTES_OF_POLICY / bytes;
        for _ in 0..fit + FULL {
            worker.add(request_of("one", &path));
        }
        worker.flush();
        assert_eq!(queue.len(), fit);
        assert_eq!(queue.dropped().spans, FULL as u64);
        let taken = queue.take(10).unwrap().remove(0);
        // What is being sent counts for the limit.
        worker.add(request_of("one", &path));
        worker.flush();
        assert_eq!(queue.dropped().spans, FULL as u64 + 1);
        queue.release(&taken, ALL);
        worker.add(request_of("one", &path));
        worker.flush();
        assert_eq!(
            (queue.exported().spans, queue.dropped().spans),
            (10, FULL as u64 + 1)
        );
    }

    #[test]
    fn policy_whose_collector_is_away_leaves_room_and_time_for_others() {
        let (queue, worker) = queue();
        let path = format!("/{}", "a".repeat(1000));
        for _ in 0..MAX_BYTES / request_of("away", &path).bytes() {
            worker.add(request_of("away", &path));
        }
        worker.flush();
        let dropped = queue.dropped().spans;
        assert!(dropped > 0);
        let away = queue.take(10).unwrap();
        assert_eq!(away.len(), 1);
        worker.add(request_of("other", &path));
        worker.flush();
        assert_eq!(queue.dropped().spans, dropped);
        // Nothing more of the first policy is taken before what is being sent is released.
        let other = queue.take(10).unwrap();
        assert_eq!((other.len(), other[0].len()), (1, 1));
        assert_eq!(&*other[0][0].tracing().policy.name, "other");
    }

    #[test]
    fn closed_queue_ends_after_its_last_request() {
        let (queue, worker) = queue();
        assert!(worker.add(request_of("one", "/")));
        assert!(!worker.add(request_of("one", "/")));
        worker.flush();
        queue.close();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(queue.poll_ready(&mut cx).is_ready());
        let taken = queue.take(10).unwrap().remove(0);
        assert_eq!(taken.len(), 2);
        assert!(queue.poll_ready(&mut cx).is_pending());
        queue.release(&taken, ALL);
        assert!(queue.poll_ready(&mut cx).is_ready());
        assert!(queue.take(10).is_none());
    }

    #[test]
    fn closed_queue_abandons_a_collector_that_is_away() {
        let (queue, worker) = queue();
        for _ in 0..3 {
            worker.add(request_of("one", "/"));
        }
        worker.flush();
        let taken = queue.take(1).unwrap().remove(0);
        queue.close();
        queue.release(&taken, NOTHING);
        assert_eq!(queue.dropped().spans, 3);
        assert!(queue.take(1).is_none());
    }
}
