//! What tests of a running data plane need: a server from a temporary folder, configuration as text, raw clients and
//! scripted origins. Everything is on loopback, on free ports, and bounded by [`PATIENCE`]. Knows no single test.

#![allow(
    dead_code,
    reason = "every test target uses a part of the harness, and none uses all of it"
)]

pub(crate) mod client;
pub(crate) mod dns;
pub(crate) mod h2;
pub(crate) mod http;
pub(crate) mod origin;
pub(crate) mod ports;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod yaml;

use std::time::Duration;

/// Far more than anything takes; only what is broken is waited for this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);
