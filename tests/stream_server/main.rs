//! The controller's side of the configuration stream as seen by a pod: an API server in the process
//! authenticates it, and the connection uses real TLS and HTTP/2.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../api_server/mod.rs"]
mod api_server;
mod disclosure;
mod feeding;
mod floods;
mod key_sets;
mod refusals;
mod scene;
mod sessions;
mod trust;
