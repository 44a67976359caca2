//! Policies: one file or folder per kind, and the status that they share.

pub(super) mod backend_tls;
mod index;
pub(super) mod policy_status;
pub(super) mod session_persistence;
pub(super) mod telemetry;
mod tracing_settings;
pub(super) mod traffic_policy;
