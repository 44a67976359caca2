//! TLS of a listener as QUIC needs it, made once from the configuration that TCP has. Must not know listeners or names.

use std::fmt;
use std::sync::Arc;

use quinn::crypto::rustls::QuicServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::quic::{ServerConnection, Version};
use rustls::server::ResolvesServerCertUsingSni;
use rustls::{Error, ServerConfig, version};

/// The only protocol that is offered: others have no meaning over QUIC.
const ALPN: &[u8] = b"h3";

/// A TLS configuration for QUIC: TLS 1.3, HTTP/3 and no early data.
pub struct QuicTls(pub(super) Arc<QuicServerConfig>);

/// Does not print keys.
impl fmt::Debug for QuicTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicTls").finish_non_exhaustive()
    }
}

impl QuicTls {
    /// Makes the configuration from one for TCP, whose certificates, verifier of clients, suites, groups and tickets it
    /// has.
    ///
    /// # Errors
    /// When the configuration does not support TLS 1.3.
    pub fn new(config: &ServerConfig) -> Result<Self, Error> {
        let mut config = config.clone();
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.max_early_data_size = 0;
        let config = Arc::new(config);
        // What quinn does for each connection, and expects to succeed.
        ServerConnection::new(config.clone(), Version::V1, Vec::new())?;
        Ok(Self(Arc::new(with_initial_suite(config)?)))
    }
}

/// Returns a configuration that only has the keys of Initial packets and Retry packets, and accepts no handshake.
pub(super) fn initial_only() -> Result<QuicServerConfig, Error> {
    let config = ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_protocol_versions(&[&version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
    with_initial_suite(Arc::new(config))
}

/// Adds the suite of Initial packets, which is the same whatever the suites of the configuration (RFC 9001, 5.2).
fn with_initial_suite(config: Arc<ServerConfig>) -> Result<QuicServerConfig, Error> {
    let suite = aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13();
    let suite = suite
        .and_then(|suite| suite.quic_suite())
        .ok_or_else(|| Error::General("no suite for Initial packets".to_owned()))?;
    QuicServerConfig::with_initial(config, suite).map_err(|error| Error::General(error.to_string()))
}
