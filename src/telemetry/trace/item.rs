//! What workers gather for a policy: sampled requests, and records of the access log.

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

impl Item {
    /// The policy.
    pub fn tracing(&self) -> &Arc<Tracing> {
        match self {
            Self::Span(request) => &request.tracing,
            Self::Record(record) => &record.tracing,
        }
    }
}
