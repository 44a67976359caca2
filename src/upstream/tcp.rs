//! Connections to backends for what clients send over TCP: selects an endpoint, and another one if that cannot be
//! connected to. Must not know what the bytes are.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::HeaderMap;

use super::balance::{self, Choice};
use super::connect::on_failure;
use super::connector::Connector;
use super::health;
use super::in_flight::InFlight;
use super::release::{self, candidates};
use super::restrictions::MAX_ENDPOINTS;
use super::send_error::SendError;
use super::{Io, Upstream};
use crate::ir::cidr::client_network;
use crate::table::{Backend, RequestSlot, UpstreamFault};

/// A connection to an endpoint of a backend. Counts as a request in flight until it is dropped.
pub struct TcpConnection {
    /// Its bytes.
    pub io: Io,
    in_flight: InFlight,
    _slot: Option<RequestSlot>,
}

impl TcpConnection {
    /// Returns the address of its endpoint.
    pub fn endpoint(&self) -> SocketAddr {
        self.in_flight.endpoint().address
    }
}

/// No endpoint of a backend could be connected to.
#[derive(Clone, Copy, Debug)]
pub struct Unconnected {
    /// Why the last one could not.
    pub error: SendError,
    /// The last one; `None` if none was tried.
    pub endpoint: Option<SocketAddr>,
}

impl From<SendError> for Unconnected {
    fn from(error: SendError) -> Self {
        Self {
            error,
            endpoint: None,
        }
    }
}

/// The client of a connection.
#[derive(Clone, Debug)]
pub struct TcpClient {
    /// Its address; unspecified for the proxy itself.
    pub address: IpAddr,
    /// Its address with the port, and that of the proxy as it sees it; `None` for connections of the proxy itself.
    pub ends: Option<Arc<(SocketAddr, SocketAddr)>>,
}

/// Who secures a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// The proxy, with TLS if the backend has settings for it.
    OfBackend,
    /// The client and the backend, whose TLS the proxy passes through.
    EndToEnd,
}

impl Upstream {
    /// Connects a client to an endpoint of a backend. Tries up to three of them.
    ///
    /// # Errors
    /// When none can be connected to.
    pub async fn connect(
        &self,
        backend: &Backend,
        client: &TcpClient,
        security: Security,
    ) -> Result<TcpConnection, Unconnected> {
        let mut excluded = [0; MAX_ENDPOINTS];
        let slot =
            admit(backend).inspect_err(|_| backend.stats.failed(UpstreamFault::Overloaded))?;
        let mut last = Unconnected::from(SendError::NO_ENDPOINT);
        let network = (!client.address.is_unspecified()).then(|| client_network(client.address));
        for tried in 0..MAX_ENDPOINTS {
            let Some(in_flight) = self.select(backend, client.address, &excluded) else {
                if balance::are_full(backend, &backend.endpoints(), &excluded) {
                    last.error = SendError::ENDPOINT_FULL;
                }
                break;
            };
            let connector = Connector::new(backend, in_flight.endpoint());
            let connector = connector.of_client(client.ends.clone());
            let connector = match security {
                Security::OfBackend => connector,
                Security::EndToEnd => connector.in_plain_text(),
            };
            match self.pool.connect(&connector, network).await {
                Ok(io) => {
                    in_flight.on_sent();
                    health::on_response(&in_flight.endpoint().health);
                    return Ok(TcpConnection {
                        io,
                        in_flight,
                        _slot: slot,
                    });
                }
                Err(failure) => {
                    excluded[tried] = in_flight.endpoint().id;
                    on_failure(backend, &in_flight, failure);
                    last = Unconnected {
                        error: failure,
                        endpoint: Some(in_flight.endpoint().address),
                    };
                }
            }
        }
        if let SendError::Backend(fault, _) = last.error {
            backend.stats.failed(fault);
        }
        Err(last)
    }

    /// Selects an endpoint for a client.
    pub(super) fn select(
        &self,
        backend: &Backend,
        client: IpAddr,
        excluded: &[u64],
    ) -> Option<InFlight> {
        let endpoints = backend.endpoints();
        // Clients of TCP have no cookie that keeps them on a release.
        let release = endpoints
            .releases()
            .map(|releases| release::select(releases, None, &HeaderMap::new()));
        let release = match release {
            None => None,
            Some(selected) => Some(selected?.release),
        };
        let settings = backend.settings.as_deref();
        let affinity = settings.and_then(|settings| settings.affinity_of_client(client));
        let ring = release::ring(&endpoints, release.as_deref());
        let choice = Choice::of(backend, self.pool.worker, ring, affinity);
        let choice = choice.with_near(endpoints.near());
        let tried = excluded.iter().filter(|id| **id != 0).count();
        balance::select(
            &self.pool.endpoints,
            candidates(&endpoints, release.as_deref()),
            &excluded[..tried],
            choice,
        )
    }
}

/// Counts a connection or flow of a client as a request of its backend, if the backend has limits.
pub(super) fn admit(backend: &Backend) -> Result<Option<RequestSlot>, SendError> {
    let settings = backend.settings.as_ref();
    let slot = settings.map(|settings| settings.admit(None)).transpose()?;
    Ok(slot.flatten())
}
