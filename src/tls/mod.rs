//! Turns the IR's TLS settings into rustls configurations. Knows nothing of sockets, handshakes under way or objects.

#[cfg(test)]
mod fixtures;
mod resolver;
mod server;

pub use server::ServerConfigs;
