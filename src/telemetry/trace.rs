//! Traces of sampled requests: their spans, which workers pass on when requests end, and the messages of OTLP. Must not
//! know how messages are sent.

mod context;
mod events;
mod otlp;
mod queue;
mod spans;

pub use self::context::{TRACEPARENT, TRACESTATE, TraceContext};
pub use self::events::{Decision, Event};
pub use self::otlp::encode;
pub use self::queue::{TraceQueue, WorkerTraces};
pub use self::spans::{AttemptSpan, Peer, Purpose, RequestSpan};
