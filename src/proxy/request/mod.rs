//! A request from its head to the response: `request.rs` has the order of the phases, the other files have one phase each.

mod admission;
mod attempts;
mod authentication;
mod compression;
pub(super) mod exchange;
mod external_auth;
mod filters;
pub(super) mod headers;
mod mirror;
mod negotiation;
mod policies;
mod policy_refusal;
pub mod preview;
pub(super) mod request;
mod retries;
mod session;
mod spelling;
pub(super) mod subrequest;
pub mod target;
mod view;
pub(super) mod websocket;
