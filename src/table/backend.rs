//! Backends and their endpoints. The endpoints sit in a cell of their own, so that they change without a new table and
//! without losing what is in flight. Knows nothing of how an endpoint is chosen or reached.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use rustls::pki_types::ServerName;

use super::releases::{Release, Releases};
use super::stats::BackendStats;
use super::traffic::{Traffic, TrafficCell};
use crate::ir;
use crate::ir::{BackendId, UpstreamProtocol};
use crate::tls::client_config;
use crate::uptime;

/// One port of one referenced object.
#[derive(Debug)]
pub struct Backend {
    /// Its identity.
    pub id: BackendId,
    /// What its endpoints speak.
    pub protocol: UpstreamProtocol,
    /// What carries that protocol.
    pub transport: Transport,
    /// Its counters; they outlive a change of protocol.
    pub stats: Arc<BackendStats>,
    /// In milliseconds; 0 is none.
    slow_start: AtomicU64,
    traffic: TrafficCell,
    endpoints: ArcSwap<Endpoints>,
}

/// What carries the protocol of a backend.
#[derive(Clone, Debug)]
pub enum Transport {
    /// TCP.
    Plain,
    /// TLS over TCP. Where ALPN offers both, the endpoint chooses the protocol.
    Tls(Arc<ClientTls>),
    /// TLS that cannot be set up: connecting fails, and nothing goes out in plain text.
    Unusable,
}

impl Transport {
    /// The transport that these settings ask for.
    pub(super) fn new(tls: Option<&Arc<ir::ClientTls>>) -> Self {
        match tls.map(|tls| client_config(tls)) {
            None => Self::Plain,
            Some(Ok(config)) => Self::Tls(Arc::new(ClientTls {
                config: config.config,
                server_name: config.server_name,
                identity: TlsIdentity::unique(),
            })),
            Some(Err(_)) => Self::Unusable,
        }
    }

    /// What tells connections of this transport from those of another.
    pub fn identity(&self) -> TlsIdentity {
        match self {
            Self::Plain => TlsIdentity::default(),
            Self::Unusable => TlsIdentity(u64::MAX),
            Self::Tls(tls) => tls.identity,
        }
    }
}

/// How TLS to the endpoints of a backend is set up.
#[derive(Debug)]
pub struct ClientTls {
    /// Roots, client certificate, ALPN and session store.
    pub config: Arc<rustls::ClientConfig>,
    /// The name that is sent as SNI and that the certificate must have.
    pub server_name: ServerName<'static>,
    /// Differs wherever `config` or `server_name` differ.
    pub identity: TlsIdentity,
}

/// Tells TLS settings apart, so that a connection is never used under others than it was opened with. The default is
/// no TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TlsIdentity(pub u64);

impl TlsIdentity {
    /// One that no other settings have had in this process.
    fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

impl Backend {
    /// A backend with the endpoints of `ir`; none as long as its hostname is not resolved.
    pub fn new(ir: &ir::Backend, transport: Transport, stats: Arc<BackendStats>) -> Self {
        Self {
            id: ir.id.clone(),
            protocol: ir.protocol,
            transport,
            slow_start: AtomicU64::new(milliseconds(ir.slow_start)),
            traffic: TrafficCell::new(ir.traffic.as_ref(), None),
            endpoints: ArcSwap::from_pointee(
                Endpoints::default().configured(&ir.endpoints, &stats),
            ),
            stats,
        }
    }

    /// The same with the counts of a backend that it takes the place of.
    pub(super) fn in_place_of(mut self, former: &Self, ir: &ir::Backend) -> Self {
        self.traffic = TrafficCell::new(ir.traffic.as_ref(), Some(&former.traffic));
        self
    }

    /// The traffic policy of this moment.
    #[inline]
    pub fn traffic(&self) -> Option<Arc<Traffic>> {
        self.traffic.get()
    }

    /// Replaces the traffic policy. Only one thread may do so at a time.
    pub fn set_traffic(&self, policy: Option<&Arc<ir::traffic::TrafficPolicy>>) {
        self.traffic.set(policy);
    }

    /// The endpoints of this moment.
    #[inline]
    pub fn endpoints(&self) -> Guard<Arc<Endpoints>> {
        self.endpoints.load()
    }

    /// How long the share of an added endpoint grows.
    #[inline]
    pub fn slow_start(&self) -> Option<Duration> {
        match self.slow_start.load(Relaxed) {
            0 => None,
            window => Some(Duration::from_millis(window)),
        }
    }

    /// Replaces how long the share of an added endpoint grows.
    pub fn set_slow_start(&self, window: Option<Duration>) {
        self.slow_start.store(milliseconds(window), Relaxed);
    }

    /// Makes these addresses the backend's endpoints. Those that were there before stay the same endpoints.
    /// Only one thread may do so at a time.
    pub fn set_endpoints(&self, addresses: &[SocketAddr]) {
        let current = self.endpoints.load();
        if !current
            .iter()
            .map(|endpoint| &endpoint.address)
            .eq(addresses)
        {
            self.endpoints.store(Arc::new(Endpoints {
                all: current.at(addresses),
                releases: None,
            }));
        }
    }

    /// Makes the endpoints of a configuration the backend's, with their releases. Those that were there before stay the
    /// same endpoints, in whichever release. Only one thread may do so at a time.
    pub fn configure_endpoints(&self, ir: &ir::Endpoints) {
        let endpoints = self.endpoints.load().configured(ir, &self.stats);
        self.endpoints.store(Arc::new(endpoints));
    }
}

fn milliseconds(window: Option<Duration>) -> u64 {
    window.map_or(0, |window| window.as_millis() as u64)
}

/// The endpoints of a backend, in order of address, and the releases that they are in.
#[derive(Debug, Default)]
pub struct Endpoints {
    all: Box<[Arc<Endpoint>]>,
    /// Boxed, so that endpoints without releases stay small.
    releases: Option<Box<Releases>>,
}

impl Endpoints {
    fn configured(&self, ir: &ir::Endpoints, stats: &BackendStats) -> Self {
        let all = self.at(&ir.addresses());
        let releases = ir.releases();
        Self {
            releases: releases.map(|ir| Box::new(Releases::new(ir, &all, stats))),
            all,
        }
    }

    fn at(&self, addresses: &[SocketAddr]) -> Box<[Arc<Endpoint>]> {
        let known = |address: &SocketAddr| {
            self.iter()
                .find(|endpoint| endpoint.address == *address)
                .cloned()
        };
        // Endpoints that start together start with equal shares.
        let added_at = (!self.is_empty()).then(uptime::now);
        let added = |address| Arc::new(Endpoint::new(address, added_at));
        addresses
            .iter()
            .map(|address| known(address).unwrap_or_else(|| added(*address)))
            .collect()
    }

    /// The releases, if the endpoints are in some.
    #[inline]
    pub fn releases(&self) -> Option<&Releases> {
        self.releases.as_deref()
    }

    /// The endpoint at this address that may get requests, and its release if it is in one.
    pub fn find(&self, address: SocketAddr) -> Option<(&Arc<Endpoint>, Option<&Arc<Release>>)> {
        let at = |all: &[Arc<Endpoint>]| all.binary_search_by_key(&address, |it| it.address).ok();
        let Some(releases) = self.releases() else {
            return at(self).map(|index| (&self[index], None));
        };
        let mut served = releases.iter().filter(|release| release.weight > 0);
        served.find_map(|release| {
            let index = at(&release.endpoints)?;
            Some((&release.endpoints[index], Some(release)))
        })
    }

    /// Whether the requests of `endpoint` can go to another endpoint, within its release if it is in one.
    pub fn has_alternative(&self, endpoint: &Endpoint) -> bool {
        let Some(releases) = self.releases() else {
            return self.len() > 1;
        };
        let has = |all: &[Arc<Endpoint>]| all.iter().any(|one| one.id == endpoint.id);
        releases
            .iter()
            .any(|release| release.endpoints.len() > 1 && has(&release.endpoints))
    }
}

impl Deref for Endpoints {
    type Target = [Arc<Endpoint>];

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

/// One address of one backend.
#[derive(Debug)]
pub struct Endpoint {
    /// Unique in the process and never used again; the key of connection pools.
    pub id: u64,
    /// Where it is.
    pub address: SocketAddr,
    /// When it was added to other endpoints, in milliseconds of [`uptime`]; `None` if there were none.
    pub added_at: Option<NonZeroU64>,
    /// Requests that it is working on, over all workers.
    pub in_flight: AtomicU32,
    /// How it has done lately.
    pub health: Health,
}

/// How an endpoint has done lately, for all workers. Kept by those who send requests.
#[derive(Debug, Default)]
pub struct Health {
    /// Until when the endpoint is avoided, in milliseconds of a clock of the process; 0 while it is not.
    pub avoided_until: AtomicU64,
    /// How often in a row it was avoided.
    pub ejections: AtomicU32,
    /// Requests that failed in a row.
    pub strikes: AtomicU32,
    /// Whether one request finds out if it works again.
    pub is_probed: AtomicBool,
}

impl Health {
    /// Whether the endpoint is avoided, or has yet to show that it works again.
    #[inline]
    pub fn is_avoided(&self) -> bool {
        self.avoided_until.load(Relaxed) != 0
    }
}

impl Endpoint {
    fn new(address: SocketAddr, added_at: Option<NonZeroU64>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            address,
            added_at,
            in_flight: AtomicU32::new(0),
            health: Health::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ObjectRef;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn backend_ir(ports: &[u16]) -> ir::Backend {
        ir::Backend {
            id: BackendId {
                object: ObjectRef::core("Service", "ns", "one"),
                port: 80,
                tls: None,
                for_grpc: false,
            },
            protocol: UpstreamProtocol::Http1,
            tls: None,
            endpoints: ports.iter().copied().map(address).collect(),
            slow_start: None,
            traffic: None,
        }
    }

    #[test]
    fn keeps_endpoint_while_its_address_stays() {
        let ir = backend_ir(&[1, 2]);
        let backend = Backend::new(&ir, Transport::Plain, Arc::default());
        let before: Vec<_> = backend.endpoints().iter().cloned().collect();
        before[1].in_flight.fetch_add(3, Relaxed);

        backend.set_endpoints(&[address(2), address(3)]);
        let after: Vec<_> = backend.endpoints().iter().cloned().collect();
        assert!(Arc::ptr_eq(&before[1], &after[0]));
        assert_eq!(after[0].in_flight.load(Relaxed), 3);
        assert_ne!(after[1].id, before[0].id);

        backend.set_endpoints(&[address(1)]);
        assert_ne!(backend.endpoints()[0].id, before[0].id);
    }

    #[test]
    fn endpoint_added_to_others_has_a_time() {
        let ir = backend_ir(&[1]);
        let backend = Backend::new(&ir, Transport::Plain, Arc::default());
        let began = uptime::now();
        backend.set_endpoints(&[address(1), address(2)]);
        let endpoints = backend.endpoints();
        assert_eq!(endpoints[0].added_at, None);
        let added_at = endpoints[1].added_at.unwrap();
        assert!((began..=uptime::now()).contains(&added_at));

        backend.set_endpoints(&[address(2)]);
        assert_eq!(backend.endpoints()[0].added_at, Some(added_at));
        backend.set_endpoints(&[]);
        backend.set_endpoints(&[address(1), address(2)]);
        assert!(backend.endpoints().iter().all(|it| it.added_at.is_none()));
    }

    #[test]
    fn slow_start_can_change() {
        let mut ir = backend_ir(&[1]);
        ir.slow_start = Some(Duration::from_secs(30));
        let backend = Backend::new(&ir, Transport::Plain, Arc::default());
        assert_eq!(backend.slow_start(), ir.slow_start);
        backend.set_slow_start(None);
        assert_eq!(backend.slow_start(), None);
    }
}
