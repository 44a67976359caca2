//! Ended requests and records of the access log of one policy, encoded by the worker that has them: on its way to the exporter, an item is
//! some bytes instead of many objects. Must not know how long batches wait.

use std::iter::Sum;
use std::sync::Arc;

use bytes::Bytes;

use super::item::Item;
use super::otlp::{export, write_spans};
use super::protobuf::Message;
use crate::ir::Tracing;

/// Room for the spans of most requests, and for most records, in bytes.
const ROOM: usize = 1536;
/// The size from which another batch begins, in bytes.
pub(super) const MAX_BYTES: usize = 128 * 1024;

/// Items of one policy.
#[derive(Debug)]
pub struct Batch {
    /// The policy, as it was when the last of the items began.
    pub tracing: Arc<Tracing>,
    /// Number of items.
    pub(super) items: usize,
    pub(super) counts: Counts,
    spans: Message,
    records: Message,
}

/// Numbers of spans and of records of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Spans.
    pub spans: u64,
    /// Records of the access log.
    pub records: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.spans += other.spans;
        self.records += other.records;
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}

impl Batch {
    /// Encodes items, and leaves none. Those of a policy keep their order.
    pub(super) fn of(items: &mut Vec<Item>) -> Vec<Self> {
        let mut batches: Vec<Self> = Vec::with_capacity(1);
        let count = items.len();
        for item in items.drain(..) {
            let is_same = |it: &Self| it.tracing.policy == item.tracing().policy;
            let known = batches.iter_mut().rev().find(|it| is_same(it));
            match known.filter(|it| it.bytes() < MAX_BYTES) {
                Some(batch) => batch.add(&item, 0),
                None => {
                    let mut batch = Self::new(item.tracing());
                    batch.add(&item, count * ROOM);
                    batches.push(batch);
                }
            }
        }
        batches
    }

    fn new(tracing: &Arc<Tracing>) -> Self {
        Self {
            tracing: tracing.clone(),
            items: 0,
            counts: Counts::default(),
            spans: Message::default(),
            records: Message::default(),
        }
    }

    /// Adds an item, with room for it and others.
    fn add(&mut self, item: &Item, room: usize) {
        self.tracing.clone_from(item.tracing());
        self.items += 1;
        match item {
            Item::Span(request) => {
                self.spans.reserve(room);
                write_spans(&mut self.spans, request);
                self.counts.spans += request.count();
            }
            Item::Record(record) => {
                self.records.reserve(room);
                record.write(&mut self.records);
                self.counts.records += 1;
            }
        }
    }

    /// Appends what another batch of the policy has, if there is room for it.
    pub(super) fn absorb(&mut self, next: &Self) -> bool {
        if !self.spans.has_room(&next.spans) || !self.records.has_room(&next.records) {
            return false;
        }
        self.spans.append(&next.spans);
        self.records.append(&next.records);
        self.tracing.clone_from(&next.tracing);
        self.items += next.items;
        self.counts += next.counts;
        true
    }

    /// Makes room for the batches that follow it.
    pub(super) fn enlarge(&mut self) {
        for message in [&mut self.spans, &mut self.records] {
            if !message.as_bytes().is_empty() {
                message.enlarge(MAX_BYTES);
            }
        }
    }

    /// Memory that it takes once it is [enlarged](Self::enlarge), in bytes.
    pub(super) fn enlarged_bytes(&self) -> usize {
        let messages = [&self.spans, &self.records].into_iter();
        let messages = messages.filter(|it| !it.as_bytes().is_empty());
        size_of::<Self>()
            + messages
                .map(|it| it.capacity().max(MAX_BYTES))
                .sum::<usize>()
    }

    /// Memory that it takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.spans.capacity() + self.records.capacity()
    }
}

/// Encodes the spans of batches of a policy as an `ExportTraceServiceRequest`; `None` if there are none.
pub fn spans_message(tracing: &Tracing, batches: &[Batch]) -> Option<Bytes> {
    export(tracing, batches.iter().map(|it| it.spans.as_bytes()))
}

/// Encodes the records of batches of a policy as an `ExportLogsServiceRequest`; `None` if there are none.
pub fn records_message(tracing: &Tracing, batches: &[Batch]) -> Option<Bytes> {
    export(tracing, batches.iter().map(|it| it.records.as_bytes()))
}
