//! What the exporter sends for a policy: sampled requests, and records of the access log.

use std::iter::Sum;
use std::sync::Arc;

use super::logs::LogRecord;
use super::spans::RequestSpan;
use crate::ir::Tracing;

/// A sampled request, or a record of the access log.
#[derive(Debug)]
pub enum Item {
    /// A sampled request.
    Span(Box<RequestSpan>),
    /// A record of the access log.
    Record(LogRecord),
}

/// Numbers of spans and of records.
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

impl Item {
    /// The policy.
    pub fn tracing(&self) -> &Arc<Tracing> {
        match self {
            Self::Span(request) => &request.tracing,
            Self::Record(record) => &record.tracing,
        }
    }

    /// Number of spans and records.
    pub(super) fn count(&self) -> Counts {
        match self {
            Self::Span(request) => Counts {
                spans: request.count(),
                records: 0,
            },
            Self::Record(_) => Counts {
                spans: 0,
                records: 1,
            },
        }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        let content = match self {
            Self::Span(request) => request.bytes(),
            Self::Record(record) => record.bytes(),
        };
        size_of::<Self>() + content
    }
}
