//! Traces of sampled requests, and the access log for collectors: spans and records, which workers pass on when requests end, and the messages of OTLP. Must not
//! know how messages are sent.

mod batch;
mod context;
mod events;
mod item;
mod logs;
mod otlp;
mod protobuf;
mod queue;
mod spans;

pub use self::batch::{Batch, Counts, records_message, spans_message};
pub use self::context::{TRACEPARENT, TRACESTATE, TraceContext};
pub use self::events::{Decision, Event};
pub use self::item::Item;
pub use self::logs::LogRecord;
pub use self::queue::{Sent, TraceQueue, WorkerTraces};
pub use self::spans::{AttemptSpan, Peer, Purpose, RequestSpan};
