//! Backends at run time. The endpoints are in their own `ArcSwap`, so that they change without a
//! new table and without losing in-flight counts. Must not know how the proxy chooses an endpoint or connects to it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use rustls::pki_types::ServerName;

use super::backend_settings::BackendSettings;
use super::default_retry_budget::DefaultRetryBudget;
use super::endpoint::Endpoint;
use super::endpoints::Endpoints;
use super::optional_cell::OptionalCell;
use super::staleness;
use super::stats::BackendStats;
use super::traffic::{Traffic, TrafficCell};
use crate::ir;
use crate::ir::backend_policy::{ActiveCheck, Passive};
use crate::ir::{BackendId, UpstreamProtocol};
use crate::runtime::monotonic;
use crate::tls::client_config;

/// One port of one referenced object.
#[derive(Debug)]
pub struct Backend {
    /// Its identity.
    pub id: BackendId,
    /// The protocol of its endpoints.
    pub protocol: UpstreamProtocol,
    /// The transport of that protocol.
    pub transport: Transport,
    /// Its counters. A new node for the same identity takes them over.
    pub stats: Arc<BackendStats>,
    /// What its policy says. Another policy makes another node, with the same endpoints.
    pub settings: Option<Arc<BackendSettings>>,
    /// Slow-start window in milliseconds; 0 is none.
    slow_start: AtomicU64,
    traffic: TrafficCell,
    picker: OptionalCell<Picker>,
    /// What answers while the endpoints are out of date.
    fallback: ArcSwap<Vec<Arc<Endpoint>>>,
    /// Number of the loss in which its use was logged.
    fallback_logged: AtomicU64,
    /// Only of backends of which an attempt has failed.
    default_budget: OnceLock<Box<DefaultRetryBudget>>,
    endpoints: ArcSwap<Endpoints>,
}

/// The endpoint picker of a backend.
#[derive(Debug)]
pub struct Picker {
    /// What the configuration says of it.
    pub ir: Arc<ir::PickerRef>,
    /// The server; `None` if it cannot be reached.
    pub server: Option<Arc<Backend>>,
}

/// The name of HTTP/1.1 in ALPN (RFC 7301, 6).
const HTTP1: &[u8] = b"http/1.1";

/// The transport below the protocol of a backend.
#[derive(Clone, Debug)]
pub enum Transport {
    /// TCP.
    Plain,
    /// TLS over TCP. Where ALPN offers both, the endpoint chooses the protocol.
    Tls(Arc<ClientTls>),
    /// TLS settings that rustls refuses. Connecting fails: the proxy must not fall back to plain text.
    Unusable,
}

impl Transport {
    /// Returns the transport for these settings.
    pub(super) fn new(tls: Option<&Arc<ir::ClientTls>>) -> Self {
        match tls.map(|tls| client_config(tls)) {
            None => Self::Plain,
            Some(Ok(config)) => {
                Self::Tls(Arc::new(ClientTls::new(config.config, config.server_name)))
            }
            Some(Err(_)) => Self::Unusable,
        }
    }

    /// Returns the transport for requests that upgrade their connection, which HTTP/2 does not (RFC 9113, 8.6).
    pub fn for_upgrades(&self) -> &Self {
        match self {
            Self::Tls(tls) => tls.for_upgrades.as_deref().unwrap_or(self),
            Self::Plain | Self::Unusable => self,
        }
    }

    /// Returns the identity of the TLS settings, for the keys of connection pools.
    pub fn identity(&self) -> TlsIdentity {
        match self {
            Self::Plain => TlsIdentity::default(),
            Self::Unusable => TlsIdentity(u64::MAX),
            Self::Tls(tls) => tls.identity,
        }
    }
}

/// TLS settings for the endpoints of a backend.
#[derive(Debug)]
pub struct ClientTls {
    /// Roots, client certificate, ALPN and session store.
    pub config: Arc<rustls::ClientConfig>,
    /// The name that is sent as SNI and that the certificate must have.
    pub server_name: ServerName<'static>,
    /// Differs between any two values of `config` or `server_name`.
    pub identity: TlsIdentity,
    /// Where ALPN offers HTTP/2 and HTTP/1.1: the settings that offer HTTP/1.1 alone.
    pub for_upgrades: Option<Box<Transport>>,
}

impl ClientTls {
    fn new(config: Arc<rustls::ClientConfig>, server_name: ServerName<'static>) -> Self {
        let offered = &config.alpn_protocols;
        let for_upgrades = match offered.iter().any(|name| name == HTTP1) && offered.len() > 1 {
            true => {
                let mut config = rustls::ClientConfig::clone(&config);
                config.alpn_protocols = vec![HTTP1.to_vec()];
                let own = Self::new(Arc::new(config), server_name.clone());
                Some(Box::new(Transport::Tls(Arc::new(own))))
            }
            false => None,
        };
        Self {
            config,
            server_name,
            identity: TlsIdentity::unique(),
            for_upgrades,
        }
    }
}

/// Identifies TLS settings, so that a connection is used only under the settings that it was opened with. The default
/// means no TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TlsIdentity(pub u64);

impl TlsIdentity {
    /// Returns an identity that no other settings have in this process.
    fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

impl Backend {
    /// Creates a backend with the endpoints of `ir`. A backend with a hostname has none until the name is resolved.
    pub fn new(ir: &ir::Backend, transport: Transport, stats: Arc<BackendStats>) -> Self {
        let settings = ir.policy.as_ref();
        let settings = settings.map(|policy| Arc::new(BackendSettings::new(policy)));
        let hashes = settings.as_ref().is_some_and(|it| it.hashes());
        let none = Endpoints::default();
        Self {
            endpoints: ArcSwap::from_pointee(none.configured(&ir.endpoints, &stats, hashes)),
            settings,
            id: ir.id.clone(),
            protocol: ir.protocol,
            transport,
            fallback: ArcSwap::from_pointee(fallback(ir.fallback.as_ref())),
            fallback_logged: AtomicU64::new(0),
            slow_start: AtomicU64::new(milliseconds(ir.slow_start)),
            traffic: TrafficCell::new(ir.traffic.as_ref(), None),
            picker: OptionalCell::default(),
            default_budget: OnceLock::new(),
            stats,
        }
    }

    /// Takes over the retry counts of a backend that this one replaces, which was made from `old`. Takes over its
    /// endpoints too, unless connections to them are other ones.
    pub(super) fn replacing(
        mut self,
        previous: &Self,
        ir: &ir::Backend,
        old: &ir::Backend,
    ) -> Self {
        self.traffic = TrafficCell::new(ir.traffic.as_ref(), Some(&previous.traffic));
        let settings = self.settings.as_mut().and_then(Arc::get_mut);
        if let (Some(settings), Some(previous)) = (settings, &previous.settings) {
            settings.take_over(previous);
        }
        if old.protocol == ir.protocol && old.tls == ir.tls {
            let known = previous.endpoints.load();
            let hashes = self.hashes();
            // The addresses that a hostname has resolved to are not in the IR.
            let endpoints = match old.endpoints == ir.endpoints
                && known.releases.is_none()
                && known.near().is_none()
                && known.unready.is_empty()
            {
                true => Endpoints::of(known.all.clone(), hashes),
                false => known.configured(&ir.endpoints, &self.stats, hashes),
            };
            self.endpoints.store(Arc::new(endpoints));
            self.transport = previous.transport.clone();
        }
        self
    }

    /// Returns a backend with one endpoint of this one, for health checks: what is sent to it does not count for this one.
    pub fn for_checks(&self, address: SocketAddr, protocol: UpstreamProtocol) -> Self {
        let endpoint = Arc::new(Endpoint::new(address, None));
        Self {
            id: self.id.clone(),
            protocol,
            transport: self.transport.clone(),
            stats: Arc::default(),
            settings: self.settings.as_ref().map(|it| Arc::new(it.for_checks())),
            slow_start: AtomicU64::new(0),
            traffic: TrafficCell::default(),
            picker: OptionalCell::default(),
            fallback: ArcSwap::default(),
            fallback_logged: AtomicU64::new(0),
            default_budget: OnceLock::new(),
            endpoints: ArcSwap::from_pointee(Endpoints::of([endpoint].into(), false)),
        }
    }

    /// Returns how endpoints are asked for their health, if they are.
    pub fn active_check(&self) -> Option<&Arc<ActiveCheck>> {
        self.settings.as_ref()?.ir.active.as_ref()
    }

    /// Returns how failed requests eject endpoints.
    pub fn passive(&self) -> Passive {
        let settings = self.settings.as_ref();
        settings.map_or(Passive::DEFAULT, |settings| settings.ir.passive)
    }

    /// Reports whether endpoints are selected by the hash of a key.
    fn hashes(&self) -> bool {
        self.settings.as_ref().is_some_and(|it| it.hashes())
    }

    /// Reports whether there is a traffic policy.
    #[inline]
    pub fn has_traffic(&self) -> bool {
        self.traffic.is_set()
    }

    /// Returns the current traffic policy.
    #[inline]
    pub fn traffic(&self) -> Option<Arc<Traffic>> {
        self.traffic.get()
    }

    /// Replaces the traffic policy. Only one thread at a time may call this.
    pub fn set_traffic(&self, policy: Option<&Arc<ir::traffic::TrafficPolicy>>) {
        self.traffic.set(policy);
    }

    /// Reports whether a picker chooses the endpoints.
    #[inline]
    pub fn has_picker(&self) -> bool {
        self.picker.is_set()
    }

    /// Returns the picker that chooses the endpoints; `None` if they are balanced.
    #[inline]
    pub fn picker(&self) -> Option<Arc<Picker>> {
        self.picker.get()
    }

    /// Replaces the picker. Only one thread at a time may call this.
    pub fn set_picker(&self, picker: Option<Picker>) {
        self.picker.set(picker.map(Arc::new));
    }

    /// Replaces what answers while the endpoints are out of date.
    pub fn set_fallback(&self, ir: Option<&ir::Fallback>) {
        self.fallback.store(Arc::new(fallback(ir)));
    }

    /// Returns what answers while endpoints are out of date; `None` while they are up to date. Read only when an
    /// endpoint does not answer.
    pub fn fallback(&self) -> Option<Guard<Arc<Vec<Arc<Endpoint>>>>> {
        staleness::loss()?;
        let fallback = self.fallback.load();
        (!fallback.is_empty()).then_some(fallback)
    }

    /// Counts a request that is sent to the fallback. Logs the first one of each loss.
    pub fn fell_back(&self) {
        self.stats.fell_back();
        let loss = staleness::loss().unwrap_or_default();
        if self.fallback_logged.swap(loss, Relaxed) != loss {
            tracing::warn!(
                "{}: its endpoints do not answer, and no controller can be reached for newer ones: requests go to the \
                 address of the Service",
                self.id
            );
        }
    }

    /// Counts a retry if the default retry budget permits it. Returns whether it does.
    pub fn try_default_retry(&self) -> bool {
        self.default_budget()
            .try_retry(self.sent(), monotonic::now().get())
    }

    /// Counts a retry that needs no permission for the default retry budget.
    pub fn count_default_retry(&self) {
        self.default_budget()
            .count(self.sent(), monotonic::now().get());
    }

    /// Undoes the count of a retry that got a response.
    pub fn refund_default_retry(&self) {
        self.default_budget().refund(monotonic::now().get());
    }

    fn default_budget(&self) -> &DefaultRetryBudget {
        self.default_budget.get_or_init(Box::default)
    }

    /// Returns the number of attempts at the present endpoints so far.
    fn sent(&self) -> u64 {
        let endpoints = self.endpoints();
        endpoints.iter().map(|it| it.load.total_sent()).sum()
    }

    /// Returns the current endpoints.
    #[inline]
    pub fn endpoints(&self) -> Guard<Arc<Endpoints>> {
        self.endpoints.load()
    }

    /// Returns how long the share of an added endpoint grows.
    #[inline]
    pub fn slow_start(&self) -> Option<Duration> {
        match self.slow_start.load(Relaxed) {
            0 => None,
            window => Some(Duration::from_millis(window)),
        }
    }

    /// Sets how long the share of an added endpoint grows.
    pub fn set_slow_start(&self, window: Option<Duration>) {
        self.slow_start.store(milliseconds(window), Relaxed);
    }

    /// Replaces the endpoints by these addresses. Endpoints that stay keep their identity, counts and health. Only one
    /// thread at a time may call this: it loads and stores.
    pub fn set_endpoints(&self, addresses: &[SocketAddr]) {
        let current = self.endpoints.load();
        if !current
            .iter()
            .map(|endpoint| &endpoint.address)
            .eq(addresses)
        {
            let endpoints = Endpoints::of(current.at(addresses), self.hashes());
            self.endpoints.store(Arc::new(endpoints));
        }
    }

    /// Replaces the endpoints by those of a configuration, with their releases. Endpoints that stay keep their
    /// identity, in the same release or another one. Only one thread at a time may call this.
    pub fn configure_endpoints(&self, ir: &ir::Endpoints) {
        let endpoints = self.endpoints.load();
        let endpoints = endpoints.configured(ir, &self.stats, self.hashes());
        self.endpoints.store(Arc::new(endpoints));
    }
}

fn fallback(ir: Option<&ir::Fallback>) -> Vec<Arc<Endpoint>> {
    let endpoints = |addresses: &[SocketAddr]| {
        let endpoints = addresses.iter();
        endpoints
            .map(|address| Arc::new(Endpoint::new(*address, None)))
            .collect()
    };
    match ir {
        None => Vec::new(),
        Some(ir::Fallback::Addresses(addresses)) => endpoints(addresses),
        Some(ir::Fallback::Name { hostname, port }) => {
            vec![Arc::new(Endpoint::named(hostname.clone(), *port))]
        }
    }
}

fn milliseconds(window: Option<Duration>) -> u64 {
    window.map_or(0, |window| window.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::per_worker::WorkerId;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn backend_ir(ports: &[u16]) -> ir::Backend {
        ir::Backend::plain(ports.iter().copied().map(address).collect())
    }

    #[test]
    fn fallback_exists_only_while_endpoints_may_be_out_of_date() {
        let mut ir = backend_ir(&[1]);
        ir.fallback = Some(ir::Fallback::Addresses(vec![address(7)]));
        let backend = Backend::new(&ir, Transport::Plain, Arc::default());
        staleness::set_stale(true);
        staleness::set_stale(true);
        assert_eq!(backend.fallback().unwrap()[0].address, address(7));
        backend.set_fallback(None);
        assert!(backend.fallback().is_none());
        backend.set_fallback(ir.fallback.as_ref());
        staleness::set_stale(false);
        assert!(backend.fallback().is_none());
    }

    #[test]
    fn keeps_endpoint_while_its_address_stays() {
        let ir = backend_ir(&[1, 2]);
        let backend = Backend::new(&ir, Transport::Plain, Arc::default());
        let before: Vec<_> = backend.endpoints().iter().cloned().collect();
        (0..3).for_each(|_| before[1].load.begin(WorkerId::ONLY));

        backend.set_endpoints(&[address(2), address(3)]);
        let after: Vec<_> = backend.endpoints().iter().cloned().collect();
        assert!(Arc::ptr_eq(&before[1], &after[0]));
        assert_eq!(after[0].load.in_flight(), 3);
        assert_ne!(after[1].id, before[0].id);

        backend.set_endpoints(&[address(1)]);
        assert_ne!(backend.endpoints()[0].id, before[0].id);
    }

    #[test]
    fn records_when_an_endpoint_joins_others() {
        let ir = backend_ir(&[1]);
        let backend = Backend::new(&ir, Transport::Plain, Arc::default());
        let began = monotonic::now();
        backend.set_endpoints(&[address(1), address(2)]);
        let endpoints = backend.endpoints();
        assert_eq!(endpoints[0].added_at, None);
        let added_at = endpoints[1].added_at.unwrap();
        assert!((began..=monotonic::now()).contains(&added_at));

        backend.set_endpoints(&[address(2)]);
        assert_eq!(backend.endpoints()[0].added_at, Some(added_at));
        backend.set_endpoints(&[]);
        backend.set_endpoints(&[address(1), address(2)]);
        assert!(backend.endpoints().iter().all(|it| it.added_at.is_none()));
    }

    #[test]
    fn only_pickers_find_endpoints_that_are_not_ready() {
        let endpoints = |ready: &[u16], unready: &[u16]| ir::Endpoints::Unready {
            addresses: ready.iter().copied().map(address).collect(),
            unready: unready.iter().copied().map(address).collect(),
        };
        let ir = ir::Backend::plain(endpoints(&[1], &[2]));
        let backend = Backend::new(&ir, Transport::Plain, Arc::default());
        let before = backend.endpoints();
        assert_eq!(before.len(), 1);
        assert!(before.find_picked(address(1)).is_some());
        assert!(before.find(address(2)).is_none());
        assert!(before.find_picked(address(3)).is_none());
        let waiting = before.find_picked(address(2)).unwrap().clone();

        backend.configure_endpoints(&endpoints(&[1, 2], &[]));
        assert!(Arc::ptr_eq(&backend.endpoints()[1], &waiting));
        backend.configure_endpoints(&endpoints(&[1], &[2]));
        let after = backend.endpoints().find_picked(address(2)).cloned();
        assert!(Arc::ptr_eq(&after.unwrap(), &waiting));
    }

    #[test]
    fn slow_start_window_can_change() {
        let mut ir = backend_ir(&[1]);
        ir.slow_start = Some(Duration::from_secs(30));
        let backend = Backend::new(&ir, Transport::Plain, Arc::default());
        assert_eq!(backend.slow_start(), ir.slow_start);
        backend.set_slow_start(None);
        assert_eq!(backend.slow_start(), None);
    }
}
