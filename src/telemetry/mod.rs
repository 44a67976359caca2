//! Telemetry: the log on standard error, the access log, metrics, traces, and taps.

pub mod access_log;
mod address;
mod handshake_failure;
mod lines;
pub mod log;
pub mod metrics;
pub mod tap;
pub mod trace;

pub use access_log::AccessLog;
pub use metrics::{ConfigStats, ConnectionStats, ProcessStats, TimeoutKind};
