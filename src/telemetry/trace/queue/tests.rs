//! The queue with workers and collectors, some of which are away.

use std::sync::atomic::AtomicUsize;
use std::task::Wake;
use std::time::Instant;

use http::Request;

use super::super::batch;
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
fn requests_beyond_the_limit_are_dropped_and_counted() {
    let (queue, worker) = queue();
    let path = format!("/{}", "a".repeat(1000));
    let full = || (0..FULL).map(|_| request_of("one", &path));
    while queue.dropped().spans == 0 {
        add(&worker, full());
    }
    assert_eq!(queue.dropped().spans, FULL as u64);
    let within = |bytes, max| bytes <= max && bytes > max - 2 * batch::MAX_BYTES;
    assert!(within(queue.lock().bytes, MAX_BYTES));
    let taken = queue.take().unwrap().remove(0);
    let bytes = taken.iter().map(Batch::bytes).sum();
    assert!(within(bytes, MAX_BYTES_OF_MESSAGE), "{bytes}");
    // What is being sent counts for the limit.
    add(&worker, full());
    assert_eq!(queue.dropped().spans, 2 * FULL as u64);
    queue.release(&taken, ALL);
    add(&worker, full());
    assert_eq!(
        (queue.exported().spans, queue.dropped().spans),
        (items(&taken) as u64, 2 * FULL as u64)
    );
}

#[test]
fn small_batches_share_memory_while_their_collector_is_behind() {
    let (queue, worker) = queue();
    let mut spans = 0;
    while queue.dropped().spans == 0 {
        worker.add(request_of("one", "/"));
        worker.flush();
        spans += 1;
    }
    let state = queue.lock();
    let policy = state.policies.values().next().unwrap();
    let is_shared = |it: &&Batch| it.bytes() > batch::MAX_BYTES;
    let shared = policy.waiting.iter().filter(is_shared).count();
    let room = MAX_BYTES - MAX_BYTES_OF_MESSAGE;
    assert_eq!(shared, room / batch::MAX_BYTES - 1);
    assert_eq!(policy.items, spans - 1);
    let waiting = policy.waiting.iter().map(|it| it.items).sum::<usize>();
    assert_eq!(waiting, policy.items);
    let bytes = policy.waiting.iter().map(Batch::bytes).sum::<usize>();
    assert_eq!((state.bytes, policy.bytes), (bytes, bytes));
}

/// The requests that a worker passes on at once.
fn full(policy: &str) -> impl Iterator<Item = Item> {
    let path = format!("/{}", "a".repeat(4000));
    (0..FULL).map(move |_| request_of(policy, &path))
}

/// Passes on requests of a policy, with so many bytes at most. Returns how many.
fn fill(worker: &WorkerTraces, policy: &str, bytes: usize) -> u64 {
    let count = bytes / bytes_of(full(policy));
    for _ in 0..count {
        add(worker, full(policy));
    }
    (count * FULL) as u64
}

#[test]
fn collectors_that_are_away_leave_others_their_share() {
    for away in [2, 20] {
        let (queue, worker) = queue();
        for number in 0..away {
            fill(&worker, &format!("away-{number}"), MAX_BYTES);
            // What is taken is never released.
            queue.take();
        }
        let share = MAX_BYTES / (away + 1);
        let added = fill(&worker, "present", share);
        assert!(added > 0);
        while let Some(taken) = queue.take().unwrap().pop() {
            assert_eq!(&*taken[0].tracing.policy.name, "present");
            queue.release(&taken, ALL);
        }
        assert_eq!(queue.exported().spans, added, "{away} are away");
    }
}

#[test]
fn policy_has_all_room_until_others_need_their_share() {
    let (queue, worker) = queue();
    fill(&worker, "first", MAX_BYTES);
    assert_eq!(queue.dropped().spans, 0);
    fill(&worker, "second", MAX_BYTES);
    let state = queue.lock();
    let bytes: Vec<_> = state.policies.values().map(|it| it.bytes).collect();
    let [first, second] = bytes[..] else {
        panic!("{bytes:?}");
    };
    // The difference is that of whole batches.
    assert!(first.abs_diff(second) <= 2 * batch::MAX_BYTES, "{bytes:?}");
    assert_eq!(state.bytes, first + second);
    assert!(state.bytes <= MAX_BYTES);
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
