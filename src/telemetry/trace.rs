//! Traces of sampled requests, and the access log for collectors: spans and records, which workers pass on when requests end, and the messages of OTLP. Must not
//! know how messages are sent.

mod context;
mod events;
mod item;
mod logs;
mod otlp;
mod queue;
mod spans;

pub use self::context::{TRACEPARENT, TRACESTATE, TraceContext};
pub use self::events::{Decision, Event};
pub use self::item::{Counts, Item};
pub use self::logs::{LogRecord, encode_logs};
pub use self::otlp::encode;
pub use self::queue::{Sent, TraceQueue, WorkerTraces};
pub use self::spans::{AttemptSpan, Peer, Purpose, RequestSpan};
