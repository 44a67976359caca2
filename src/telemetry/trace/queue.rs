//! Sampled requests and records of the access log on their way from workers to the exporter, apart for each policy: while the collector of one is away,
//! those of others have room. Adding never waits; requests that do not fit are dropped and counted.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::batch::{Batch, Counts};
use super::item::Item;
use crate::ir::ObjectRef;

/// Maximum memory of waiting requests, in bytes: of all policies, and of one.
const MAX_BYTES: usize = 8 * 1024 * 1024;
const MAX_BYTES_OF_POLICY: usize = MAX_BYTES / 2;
/// Number of requests that a worker gathers at most.
const FULL: usize = 32;
/// Maximum memory of what one message is made of, in bytes, unless its only request takes more: a quarter of what a collector accepts over gRPC
/// by default (`max_recv_msg_size_mib` of the OpenTelemetry collector).
const MAX_BYTES_OF_MESSAGE: usize = 1024 * 1024;

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
    reader: Option<Reader>,
    is_closed: bool,
}

/// The exporter while it waits.
#[derive(Debug)]
struct Reader {
    waker: Waker,
    /// The number of waiting requests of one policy for which it wakes.
    count: usize,
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
    waiting: VecDeque<Batch>,
    /// Number of requests of these.
    items: usize,
    /// Memory of these, and of those that are being sent.
    bytes: usize,
    /// Whether some are being sent. The others wait meanwhile.
    is_sending: bool,
}

impl OfPolicy {
    /// Reports whether at least `count` can be taken.
    fn has(&self, count: usize) -> bool {
        !self.is_sending && self.items >= count
    }

    /// Takes the first ones, as many as one message may have.
    fn take(&mut self) -> Vec<Batch> {
        self.is_sending = true;
        let mut bytes = 0;
        let within = |batch: &&Batch| {
            bytes += batch.bytes();
            bytes <= MAX_BYTES_OF_MESSAGE
        };
        let count = self.waiting.iter().take_while(within).count().max(1);
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        self.items -= taken.iter().map(|batch| batch.items).sum::<usize>();
        taken
    }
}

impl State {
    fn has_ended(&self) -> bool {
        self.is_closed && self.policies.values().all(|it| it.bytes == 0)
    }

    /// Reports whether the reader has something to do: at least `count` requests of a policy, the last ones, or the end.
    fn is_ready(&self, count: usize) -> bool {
        let count = if self.is_closed { 1 } else { count };
        self.has_ended() || self.policies.values().any(|policy| policy.has(count))
    }

    /// The reader, if it waits for what there is now.
    fn awoken(&mut self) -> Option<Reader> {
        let count = self.reader.as_ref()?.count;
        self.is_ready(count).then(|| self.reader.take()).flatten()
    }
}

impl TraceQueue {
    /// Passes on requests.
    fn push(&self, requests: &mut Vec<Item>) {
        let batches = Batch::of(requests);
        let mut dropped = Counts::default();
        let reader = {
            let mut state = self.lock();
            let state = &mut *state;
            let awaited = state.reader.as_ref().map(|reader| reader.count);
            let mut is_ready = false;
            for batch in batches {
                let bytes = batch.bytes();
                let policy = state.policies.entry(batch.tracing.policy.clone());
                let policy = policy.or_default();
                let fits =
                    state.bytes + bytes <= MAX_BYTES && policy.bytes + bytes <= MAX_BYTES_OF_POLICY;
                if state.is_closed || !fits {
                    dropped += batch.counts;
                    continue;
                }
                state.bytes += bytes;
                policy.bytes += bytes;
                policy.items += batch.items;
                policy.waiting.push_back(batch);
                is_ready |= awaited.is_some_and(|count| policy.has(count));
            }
            is_ready.then(|| state.reader.take()).flatten()
        };
        self.dropped.add(dropped);
        if let Some(reader) = reader {
            reader.waker.wake();
        }
    }

    /// Ready when at least `count` requests of a policy can be sent, and `count` is at least 1; when the queue is closed, as soon as any can be
    /// sent or it has ended.
    pub fn poll_ready(&self, cx: &mut Context<'_>, count: usize) -> Poll<()> {
        let mut state = self.lock();
        if state.is_ready(count) {
            return Poll::Ready(());
        }
        let waker = cx.waker().clone();
        state.reader = Some(Reader { waker, count });
        Poll::Pending
    }

    /// Takes the requests of one message for each policy of which none are being sent. They count for the limits of the queue until
    /// [`Self::release`]. `None` when the queue is closed and empty.
    pub fn take(&self) -> Option<Vec<Vec<Batch>>> {
        let mut state = self.lock();
        if state.has_ended() {
            return None;
        }
        let ready = state.policies.values_mut().filter(|it| it.has(1));
        Some(ready.map(OfPolicy::take).collect())
    }

    /// Reports whether no request is added any more.
    pub fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Gives back the memory of what was taken of one policy, and counts it as exported or dropped: `sent` tells it of spans
    /// and of records. When a closed queue could not export something, what waits for the same collector is dropped, too: the
    /// process ends.
    pub fn release(&self, batches: &[Batch], sent: Sent) {
        let Some(first) = batches.first() else {
            return;
        };
        let Counts { spans, records } = batches.iter().map(|it| it.counts).sum();
        let mut bytes: usize = batches.iter().map(Batch::bytes).sum();
        let mut abandoned = Counts::default();
        let reader = {
            let mut state = self.lock();
            let state = &mut *state;
            if let Some(policy) = state.policies.get_mut(&first.tracing.policy) {
                policy.is_sending = false;
                if state.is_closed && !(sent.spans && sent.records) {
                    abandoned = policy.waiting.iter().map(|it| it.counts).sum();
                    policy.items = 0;
                    policy.waiting.clear();
                    bytes = policy.bytes;
                }
                policy.bytes -= bytes;
                if policy.bytes == 0 {
                    state.policies.remove(&first.tracing.policy);
                }
            }
            state.bytes -= bytes;
            state.awoken()
        };
        let counts = |is_exported: bool| Counts {
            spans: spans * u64::from(sent.spans == is_exported),
            records: records * u64::from(sent.records == is_exported),
        };
        self.exported.add(counts(true));
        self.dropped.add(counts(false));
        self.dropped.add(abandoned);
        if let Some(reader) = reader {
            reader.waker.wake();
        }
    }

    /// Lets the reader end when it has taken what waits. Later requests are dropped.
    pub fn close(&self) {
        let reader = {
            let mut state = self.lock();
            state.is_closed = true;
            state.awoken()
        };
        if let Some(reader) = reader {
            reader.waker.wake();
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
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
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

    /// Memory of requests that are passed on at once.
    fn bytes_of(requests: impl Iterator<Item = Item>) -> usize {
        let batches = Batch::of(&mut requests.collect());
        batches.iter().map(Batch::bytes).sum()
    }

    fn add(worker: &WorkerTraces, requests: impl Iterator<Item = Item>) {
        for request in requests {
            worker.add(request);
        }
    }

    fn items(batches: &[Batch]) -> usize {
        batches.iter().map(|batch| batch.items).sum()
    }

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
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
        let full = || (0..FULL).map(|_| request_of("one", &path));
        let bytes = bytes_of(full());
        let fit = MAX_BYTES_OF_POLICY / bytes;
        for _ in 0..fit + 1 {
            add(&worker, full());
        }
        assert_eq!(queue.lock().bytes, fit * bytes);
        assert_eq!(queue.dropped().spans, FULL as u64);
        let taken = queue.take().unwrap().remove(0);
        assert_eq!(taken.len(), MAX_BYTES_OF_MESSAGE / bytes);
        // What is being sent counts for the limit.
        add(&worker, full());
        assert_eq!(queue.dropped().spans, 2 * FULL as u64);
        queue.release(&taken, ALL);
        add(&worker, full());
        assert_eq!(
            (queue.exported().spans, queue.dropped().spans),
            ((taken.len() * FULL) as u64, 2 * FULL as u64)
        );
    }

    #[test]
    fn policy_whose_collector_is_away_leaves_room_and_time_for_others() {
        let (queue, worker) = queue();
        let path = format!("/{}", "a".repeat(1000));
        for _ in 0..MAX_BYTES / path.len() {
            worker.add(request_of("away", &path));
        }
        worker.flush();
        let dropped = queue.dropped().spans;
        assert!(dropped > 0);
        let away = queue.take().unwrap();
        assert_eq!(away.len(), 1);
        worker.add(request_of("other", &path));
        worker.flush();
        assert_eq!(queue.dropped().spans, dropped);
        // Nothing more of the first policy is taken before what is being sent is released.
        let other = queue.take().unwrap();
        assert_eq!((other.len(), other[0].len()), (1, 1));
        assert_eq!(&*other[0][0].tracing.policy.name, "other");
    }

    #[test]
    fn closed_queue_ends_after_its_last_request() {
        let (queue, worker) = queue();
        assert!(worker.add(request_of("one", "/")));
        assert!(!worker.add(request_of("one", "/")));
        worker.flush();
        queue.close();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(queue.poll_ready(&mut cx, 1).is_ready());
        let taken = queue.take().unwrap().remove(0);
        assert_eq!(items(&taken), 2);
        assert!(queue.poll_ready(&mut cx, 1).is_pending());
        queue.release(&taken, ALL);
        assert!(queue.poll_ready(&mut cx, 1).is_ready());
        assert!(queue.take().is_none());
    }

    #[test]
    fn closed_queue_abandons_a_collector_that_is_away() {
        let (queue, worker) = queue();
        worker.add(request_of("one", "/"));
        worker.flush();
        let taken = queue.take().unwrap().remove(0);
        for _ in 0..2 {
            worker.add(request_of("one", "/"));
        }
        worker.flush();
        queue.close();
        queue.release(&taken, NOTHING);
        assert_eq!(queue.dropped().spans, 3);
        assert!(queue.take().is_none());
    }

    #[test]
    fn reader_wakes_for_as_many_requests_as_it_waits_for() {
        let (queue, worker) = queue();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(queue.poll_ready(&mut cx, 3).is_pending());
        for expected in [0, 0, 1] {
            worker.add(request_of("one", "/"));
            worker.add(request_of(&format!("policy-{expected}"), "/"));
            worker.flush();
            assert_eq!(woken.0.load(Ordering::Relaxed), expected);
        }
        assert!(queue.poll_ready(&mut cx, 3).is_ready());
    }

    #[test]
    fn reader_wakes_for_any_request_once_the_queue_is_closed() {
        let (queue, worker) = queue();
        worker.add(request_of("one", "/"));
        worker.flush();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(queue.poll_ready(&mut cx, 2).is_pending());
        queue.close();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(queue.poll_ready(&mut cx, 2).is_ready());
    }

    #[test]
    fn requests_that_exceed_a_message_wait_for_the_next() {
        let (queue, worker) = queue();
        let path = format!("/{}", "a".repeat(60_000));
        let full = || (0..FULL).map(|_| request_of("one", &path));
        let count = MAX_BYTES_OF_MESSAGE / bytes_of(full());
        for _ in 0..=count {
            add(&worker, full());
        }
        let taken = queue.take().unwrap().remove(0);
        assert_eq!(items(&taken), count * FULL);
        queue.release(&taken, ALL);
        assert_eq!(items(&queue.take().unwrap().remove(0)), FULL);
    }
}
