//! Test harness for a running data plane: a server from a temporary folder, YAML builders, raw
//! clients and scripted origins. Everything runs on loopback with free ports and the timeout
//! [`TEST_TIMEOUT`].

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
pub(crate) mod scale;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod yaml;

use std::time::Duration;

/// Timeout of any wait; reached only on failure, also on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A limit that no test reaches: what happens sooner than [`TEST_TIMEOUT`] has another reason.
pub(crate) const UNREACHED: Duration = Duration::from_secs(3600);
