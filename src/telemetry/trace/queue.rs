//! Sampled requests and records of the access log on their way from workers to the exporter, apart for each policy: while collectors are away,
//! the policies of others have their share of the room. Adding never waits; requests that do not fit are dropped and counted.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::batch::{Batch, Counts};
use super::item::Item;
use crate::ir::ObjectRef;

/// Maximum memory of all requests, in bytes. Each policy that has some is entitled to an equal share of it, and the others may use what it leaves.
const MAX_BYTES: usize = 8 * 1024 * 1024;
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

    /// Takes the first ones, at least one, as many as one message of at most `max` bytes may have.
    fn take(&mut self, max: usize) -> Vec<Batch> {
        self.is_sending = true;
        let mut bytes = 0;
        let within = |batch: &&Batch| {
            bytes += batch.bytes();
            bytes <= max
        };
        let count = self.waiting.iter().take_while(within).count().max(1);
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        self.items -= taken.iter().map(|batch| batch.items).sum::<usize>();
        taken
    }

    /// Appends a batch to the last one that waits, if that has room.
    fn absorb(&mut self, batch: &Batch) -> bool {
        let is_absorbed = (self.waiting.back_mut()).is_some_and(|last| last.absorb(batch));
        if is_absorbed {
            self.items += batch.items;
        }
        is_absorbed
    }

    /// Drops the last batch that waits.
    fn drop_last(&mut self) -> Option<Batch> {
        let batch = self.waiting.pop_back()?;
        self.items -= batch.items;
        self.bytes -= batch.bytes();
        Some(batch)
    }
}

impl State {
    /// Reports whether a batch of a policy fits that takes this many bytes. If all room is taken and the policy has less than its share, others lose what they have beyond
    /// theirs, which is added to `dropped`. What is being sent stays: for that time, the batch fits in addition.
    fn make_room(&mut self, policy: &ObjectRef, bytes: usize, dropped: &mut Counts) -> bool {
        let is_full = |state: &Self| state.bytes + bytes > MAX_BYTES;
        if !is_full(self) {
            return true;
        }
        let held = self.policies.get(policy);
        let share = MAX_BYTES / (self.policies.len() + usize::from(held.is_none()));
        if held.map_or(0, |it| it.bytes) + bytes > share {
            return false;
        }
        while is_full(self) {
            let above = self.policies.values_mut().filter(|it| it.bytes > share);
            let above = above.filter(|it| !it.waiting.is_empty());
            let Some(last) = above
                .max_by_key(|it| it.bytes)
                .and_then(OfPolicy::drop_last)
            else {
                break;
            };
            self.bytes -= last.bytes();
            *dropped += last.counts;
        }
        self.policies.retain(|_, it| it.bytes > 0);
        true
    }

    /// Adds a batch, if it fits. What others lose for it is added to `dropped`.
    fn add(&mut self, mut batch: Batch, dropped: &mut Counts) -> bool {
        let policy = self.policies.get_mut(&batch.tracing.policy);
        // While a collector is behind, small batches share memory. They are of many sizes, and stay for long: each would
        // keep a page of the allocator in use.
        let mut behind = policy.filter(|it| it.bytes > MAX_BYTES_OF_MESSAGE);
        if behind.as_mut().is_some_and(|it| it.absorb(&batch)) {
            return true;
        }
        let is_behind = behind.is_some();
        let bytes = if is_behind {
            batch.enlarged_bytes()
        } else {
            batch.bytes()
        };
        if !self.make_room(&batch.tracing.policy, bytes, dropped) {
            return false;
        }
        if is_behind {
            batch.enlarge();
        }
        let policy = self.policies.entry(batch.tracing.policy.clone());
        let policy = policy.or_default();
        self.bytes += batch.bytes();
        policy.bytes += batch.bytes();
        policy.items += batch.items;
        policy.waiting.push_back(batch);
        true
    }

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
                let (policy, counts) = (batch.tracing.policy.clone(), batch.counts);
                if state.is_closed || !state.add(batch, &mut dropped) {
                    dropped += counts;
                    continue;
                }
                let policy = state.policies.get(&policy);
                let has = |count| policy.is_some_and(|policy| policy.has(count));
                is_ready |= awaited.is_some_and(has);
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
        // A message takes no more than a share, since its memory stays taken while the collector is away.
        let share = MAX_BYTES / state.policies.len().max(1);
        let max = share.min(MAX_BYTES_OF_MESSAGE);
        let ready = state.policies.values_mut().filter(|it| it.has(1));
        Some(ready.map(|policy| policy.take(max)).collect())
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
mod tests;
