//! The controller's side of the configuration stream, from a pod's point of view: an API server in process says who asks,
//! and the connection is a real one of TLS and HTTP/2.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../api_server/mod.rs"]
mod api_server;
mod feeding;
mod refusals;
mod scene;
mod trust;
