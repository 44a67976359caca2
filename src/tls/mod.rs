//! Turns the IR's TLS settings into rustls configurations. Knows nothing of sockets, handshakes in progress or objects.

mod client;
mod clients;
#[cfg(test)]
mod fixtures;
mod resolver;
mod server;
mod sessions;

use rustls::{SupportedProtocolVersion, version};

use crate::ir::tls::TlsVersion;

pub use client::{Client, client_config};
pub use server::{Server, ServerConfigs};

/// Returns the protocol versions from the oldest allowed one on.
fn versions(oldest: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    static FROM_12: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
    static FROM_13: [&SupportedProtocolVersion; 1] = [&version::TLS13];
    match oldest {
        TlsVersion::Tls12 => &FROM_12,
        TlsVersion::Tls13 => &FROM_13,
    }
}
