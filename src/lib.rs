//! Portcullis: a Kubernetes Gateway API data plane.
//!
//! Configuration flows one way: a [`provider`] publishes an immutable [`snapshot`] of Gateway API objects,
//! [`translate`] turns it into the [`ir`] and a [`status`] report, [`table`] indexes the IR for matching, and the
//! [`proxy`] serves traffic from the table that is current when a request arrives. `controller` is the loop that
//! drives those steps; `tests/layering/layers.rs` pins which module may import which.

pub mod admin;
pub mod api;
pub mod api_server;
pub mod backoff;
pub mod byte_chain;
pub mod cli;
pub mod clock;
pub mod controller;
pub mod data_plane;
pub mod descriptors;
pub mod dns;
pub mod events;
pub mod filter;
mod http2;
pub mod ir;
pub mod location;
pub mod per_worker;
pub mod permissions;
pub mod provider;
pub mod provision;
pub mod proxy;
pub mod server;
pub mod session_key;
pub mod settings;
pub mod shutdown;
pub mod snapshot;
pub mod status;
pub mod stream;
pub mod table;
pub mod telemetry;
pub mod tls;
pub mod translate;
pub mod upstream;
pub mod uptime;
