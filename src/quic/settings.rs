//! The limits and keys of QUIC endpoints, as quinn takes them.

use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hkdf;
use quinn::{EndpointConfig, IdleTimeout, ServerConfig, TransportConfig};

use super::client_hello::ByClientHello;
use super::connection_id::{Router, WorkerIds};
use super::reset_keys::{ResetKeys, ResetSecrets};

/// Maximum number of streams in one direction that a client may have open: HTTP/3 has three, and ignores others (RFC 9114,
/// 6.2).
const UNIDIRECTIONAL_STREAMS: u32 = 8;
/// Maximum number of connections of which the first packet was received, until the worker has its turn.
const MAX_INCOMING: usize = 1024;
/// Maximum number of further bytes of such a connection, and of all of them: the packets of a large ClientHello.
const INCOMING_BYTES: u64 = 16 * 1024;
const ALL_INCOMING_BYTES: u64 = 1024 * 1024;
/// Number of times that a client is asked before its connection ends.
const PINGS: u32 = 3;

/// The limits of connections, for each unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of requests at a time.
    pub streams: u32,
    /// Maximum number of bytes of a stream that were received and not read.
    pub stream_window: u32,
    /// Maximum number of such bytes of a connection.
    pub connection_window: u32,
    /// Maximum number of bytes that were written and not acknowledged.
    pub send_window: u64,
    /// Time after which a connection ends without a word when no packet was received. Until then, its client is asked some
    /// times whether it is there.
    pub idle_timeout: Duration,
    /// Time after which a handshake ends.
    pub handshake_timeout: Duration,
    /// Number of handshakes of a worker from which on clients must prove that they receive what is sent to their address
    /// (RFC 9000, 8.1.2).
    pub retry_from: usize,
    /// Number of handshakes of a worker from which on new clients are ignored. They try again.
    pub handshakes: usize,
}

/// Keys that all pods of a Gateway share: each may receive packets of connections that another one had or has.
#[derive(Clone)]
pub struct EndpointKeys {
    stateless_reset: Arc<ResetKeys>,
    address_validation: Arc<hkdf::Prk>,
}

impl EndpointKeys {
    /// Derives the keys from secrets: those of stateless resets, which may change at any time, and that of the tokens of Retry
    /// packets, with which clients prove their address.
    pub fn new(stateless_reset: Arc<dyn ResetSecrets>, address_validation: &[u8; 32]) -> Self {
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]);
        Self {
            stateless_reset: Arc::new(ResetKeys::new(stateless_reset)),
            address_validation: Arc::new(salt.extract(address_validation)),
        }
    }
}

/// Returns the configuration of an endpoint whose connections have ids of this worker.
pub(super) fn endpoint(keys: &EndpointKeys, router: &Router, worker: usize) -> EndpointConfig {
    let ids = ids(keys, router, worker);
    let mut config = EndpointConfig::new(keys.stateless_reset.clone());
    config
        .cid_generator(move || Box::new(ids.clone()))
        // Clients of a pod that has ended may reach another one all at once. Each gets a reset, which is shorter than its
        // packet, and others get none: they have no valid id.
        .min_reset_interval(Duration::ZERO);
    config
}

/// Returns the source of the ids of a worker's connections.
pub(super) fn ids(keys: &EndpointKeys, router: &Router, worker: usize) -> WorkerIds {
    WorkerIds {
        router: router.clone(),
        worker,
        keys: keys.stateless_reset.clone(),
    }
}

/// Returns the configuration of the connections of an endpoint.
pub(super) fn server(
    keys: &EndpointKeys,
    limits: &Limits,
    crypto: Arc<ByClientHello>,
) -> ServerConfig {
    let mut config = ServerConfig::new(crypto, keys.address_validation.clone());
    config
        .transport_config(Arc::new(transport(limits)))
        .max_incoming(MAX_INCOMING)
        .incoming_buffer_size(INCOMING_BYTES)
        .incoming_buffer_size_total(ALL_INCOMING_BYTES);
    config
}

/// Pacing, congestion control and the discovery of the path MTU are those of quinn.
fn transport(limits: &Limits) -> TransportConfig {
    // Fails only for times that do not end.
    let idle = IdleTimeout::try_from(limits.idle_timeout).ok();
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(limits.streams.into())
        .max_concurrent_uni_streams(UNIDIRECTIONAL_STREAMS.into())
        .stream_receive_window(limits.stream_window.into())
        .receive_window(limits.connection_window.into())
        .send_window(limits.send_window)
        .max_idle_timeout(idle)
        .keep_alive_interval(Some(limits.idle_timeout / PINGS))
        .datagram_receive_buffer_size(None);
    config
}
