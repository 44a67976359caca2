//! Policies: one file or folder per kind, and the status that they share.

mod affected;
pub(super) mod backend_policy;
pub(super) mod backend_tls;
pub(super) mod index;
pub(super) mod inherited;
pub(super) mod policy_status;
pub(super) mod session_persistence;
pub(super) mod traffic_policy;
mod windows;
