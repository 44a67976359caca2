//! A client connection as its requests see it: port, addresses, TLS server name, and the state that
//! its requests share.

pub(super) mod client_address;
pub(super) mod client_certificate;
pub(super) mod forwarding;
pub(super) mod forwarding_names;
pub(super) mod forwarding_rules;
pub(super) mod host;
pub(super) mod injection;
mod lifetime;
pub(super) mod spelling;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use super::activity::{Activity, Phase};
use super::client::client_address::Origin;
use super::client::forwarding::Forwarding;
use super::client::forwarding_rules::ForwardingRules;
use super::client::host::{Host, LastHost};
use super::client::injection::Injection;
use super::client::lifetime::Lifetime;
use super::error::Error;
use super::worker_state::OpenConnection;
use super::worker_state::budget::{Held, Share};
use super::worker_state::port::PortState;
use crate::filter::Scheme;
use crate::ir::client::{
    AddressSource, ClientAddress, ClientPolicies, ConnectionSettings, Underscores,
};
use crate::ir::policy::Enforced;
use crate::settings::Limits;
use crate::table::{Listener, Port};

/// Heads that are not complete count if they are longer. Thus no client with usual heads loses its connection for what others
/// leave unfinished behind the same address.
pub(crate) const USUAL_HEAD: usize = 8 * 1024;

/// A client connection.
pub(crate) struct Client {
    /// The worker that serves it; the guard counts it as open.
    pub(crate) worker: OpenConnection,
    /// The local port.
    pub(crate) port: Rc<PortState>,
    /// Timeouts and limits.
    pub(crate) limits: Rc<Limits>,
    /// Remote address: that of the client, if the PROXY protocol tells it.
    pub(crate) peer: SocketAddr,
    /// The same as text.
    pub(crate) peer_text: Box<str>,
    /// Values of the forwarding headers.
    pub(crate) forwarding: Forwarding,
    /// What counts of the TLS handshake; `None` for plain text.
    pub(crate) tls: Option<Handshake>,
    /// Whether its listener has changed so that it has to end.
    is_outdated: Cell<bool>,
    /// Whether its client may learn that its listener has HTTP/3.
    learns_alternatives: bool,
    /// What happens to headers with underscores.
    pub(crate) underscores: Underscores,
    /// How long it may be used, if that is limited. Boxed, since few connections have it.
    lifetime: Option<Box<Lifetime>>,
    /// Host of the last request.
    pub(crate) host: RefCell<LastHost>,
    /// Bytes to write between messages or frames.
    pub(crate) injection: Rc<Injection>,
    /// Share of the worker's memory for request bodies that are kept.
    pub(crate) kept_bytes: Rc<Share>,
    /// What it holds of a head that is not complete.
    unfinished: RefCell<Option<Held>>,
}

/// What a TLS handshake has shown of a client.
pub(crate) struct Handshake {
    /// Server name in lower case.
    sni: Option<Box<str>>,
    /// Whether its certificate was valid.
    is_verified: bool,
}

/// What the TLS handshake reveals about a client.
pub(crate) struct TlsClient {
    /// Server name in lower case.
    pub(crate) sni: Option<Box<str>>,
    /// Whether its certificate is valid.
    pub(crate) is_verified: bool,
    /// Description of its certificate, if that is valid.
    pub(crate) certificate: Option<Box<HeaderValue>>,
    /// Whether the connection is one of QUIC.
    pub(crate) is_quic: bool,
}

impl Client {
    /// Creates the state of an accepted connection after its TLS handshake, if any.
    pub(crate) fn new(
        worker: OpenConnection,
        port: Rc<PortState>,
        peer: SocketAddr,
        tls: Option<TlsClient>,
    ) -> Rc<Self> {
        // A dual-stack socket reports IPv4 clients as IPv4-mapped IPv6 addresses.
        let address = peer.ip().to_canonical();
        let proto = HeaderValue::from_static(if tls.is_some() { "https" } else { "http" });
        let (tls, certificate, is_quic) = match tls {
            Some(TlsClient {
                sni,
                is_verified,
                certificate,
                is_quic,
            }) => (Some(Handshake { sni, is_verified }), certificate, is_quic),
            None => (None, None, false),
        };
        let table = worker.table.load();
        let configured = port.configured(&table);
        let settings = configured.and_then(|port| port.connection_settings());
        let settings = settings.map(|settings| &**settings);
        let forwarding = Forwarding {
            address: HeaderValue::try_from(address.to_string())
                .unwrap_or(HeaderValue::from_static("unknown")),
            proto,
            certificate,
            rules: settings
                .and_then(|settings| ForwardingRules::new(settings, port.number()))
                .map(Box::new),
        };
        let peer = SocketAddr::new(address, peer.port());
        let has_http3 = tls.as_ref().is_some_and(|tls| {
            let listener = configured.and_then(|port| port.listener_for_sni(tls.sni.as_deref()));
            listener.is_some_and(|listener| listener.has_http3())
        });
        Rc::new(Self {
            kept_bytes: worker.kept_bytes.share(address),
            unfinished: RefCell::default(),
            limits: worker.limits_of(&port),
            lifetime: settings
                .and_then(|settings| Lifetime::new(settings, &worker.clock))
                .map(Box::new),
            underscores: underscores_of(settings),
            worker,
            port,
            peer,
            peer_text: peer.to_string().into(),
            forwarding,
            tls,
            is_outdated: Cell::default(),
            learns_alternatives: !is_quic && has_http3,
            host: RefCell::default(),
            injection: Rc::default(),
        })
    }

    /// Creates the state of this connection. While it is idle, a new client may get its place.
    pub(crate) fn activity(&self, multiplexed: bool) -> Rc<Activity> {
        let worker = &self.worker;
        let activity = Activity::connection(&worker.clock, &self.limits, multiplexed);
        worker.connections.register(self.peer.ip(), &activity);
        activity
    }

    /// Returns where a request comes from. `clients` are the policies of its listener, and `named` the headers that its
    /// `Connection` names: some proxies forward that, and a client must not remove the header with its address by it. Removes
    /// this header if the request does not come by a proxy.
    pub(crate) fn origin(
        &self,
        clients: Option<&Arc<ClientPolicies>>,
        headers: &mut HeaderMap,
        named: Option<&HeaderMap>,
    ) -> Origin {
        let peer = self.peer.ip();
        let unknown = || Origin {
            is_known: false,
            ..Origin::direct(peer)
        };
        let source = match clients.and_then(|clients| clients.address.as_ref()) {
            None => &self.worker.address_source,
            Some(Enforced::Valid(address)) => {
                let ClientAddress { source, policy: _ } = &**address;
                source
            }
            Some(Enforced::Broken(_)) => return unknown(),
        };
        if let AddressSource::Header { name, .. } = source
            && let Some(named) = named
        {
            for value in named.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        let origin = match source {
            _ if clients.is_some_and(|clients| clients.unknown_protocol.is_some()) => unknown(),
            AddressSource::Connection => return Origin::direct(peer),
            source => client_address::origin(source, peer, headers),
        };
        if let AddressSource::Header { name, .. } = source
            && !origin.is_trusted
        {
            headers.remove(name);
        }
        origin
    }

    /// Returns the `Host` for a request without one: the local address.
    pub(crate) fn local_authority(&self) -> HeaderValue {
        HeaderValue::try_from(self.port.address().to_string())
            .unwrap_or(HeaderValue::from_static("localhost"))
    }

    /// Returns the scheme of the connection.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.tls.is_some() {
            Scheme::Https
        } else {
            Scheme::Http
        }
    }

    /// Returns the listener that serves `host` on this connection, or an error. One that has come to ask for certificates serves
    /// none that has begun without a valid one, and one that has come to forward TLS serves no requests: the client has to
    /// connect again.
    pub(crate) fn listener<'a>(
        &self,
        port: &'a Port,
        host: &Host,
    ) -> Result<&'a Arc<Listener>, Error> {
        let name = self.tls.as_ref().map(|tls| tls.sni.as_deref());
        let listener = listener_for(port, host.as_str(), name)?;
        let is_verified = self.tls.as_ref().is_some_and(|tls| tls.is_verified);
        let server = listener.server.as_ref();
        let lacks_certificate =
            !is_verified && server.is_some_and(|server| server.needs_certificates());
        if lacks_certificate || !listener.is_http() {
            self.is_outdated.set(true);
            return Err(Error::Misdirected);
        }
        Ok(listener)
    }

    /// Returns the value of `Alt-Svc` in responses, if the client should learn of HTTP/3.
    #[inline]
    pub(crate) fn alt_svc(&self) -> Option<HeaderValue> {
        match self.learns_alternatives {
            true => self.current_alt_svc(),
            false => None,
        }
    }

    fn current_alt_svc(&self) -> Option<HeaderValue> {
        let sni = self.tls.as_ref()?.sni.as_deref();
        if self.worker.terminating.get() || self.is_draining() {
            return None;
        }
        let table = self.worker.table.load();
        let port = self.port.configured(&table)?;
        port.alt_svc(sni, table.shared_http3()).cloned()
    }

    /// Reports whether the connection must end after its current requests.
    pub(crate) fn is_draining(&self) -> bool {
        self.worker.draining.get()
            || self.port.is_closed()
            || self.is_outdated.get()
            || self.is_spent()
    }

    /// Counts what is allocated for a head that is not complete, 0 if there is none. Returns false if the heads and handshakes
    /// of the client hold too much, so that the connection has to end.
    #[inline]
    pub(crate) fn hold_unfinished(&self, bytes: usize) -> bool {
        if bytes == 0 && self.unfinished.borrow().is_none() {
            return true;
        }
        self.resize_unfinished(bytes)
    }

    #[cold]
    fn resize_unfinished(&self, bytes: usize) -> bool {
        let mut unfinished = self.unfinished.borrow_mut();
        if bytes == 0 {
            *unfinished = None;
            return true;
        }
        let budget = &self.worker.unfinished;
        let new = || Held::none(&budget.share(self.peer.ip()));
        let is_held = unfinished.get_or_insert_with(new).resize_first(bytes);
        if !is_held {
            self.worker.stats.bad_requests.fetch_add(1, Relaxed);
            tracing::debug!(client = %self.peer, "closed a connection: heads and handshakes of its client that are not complete hold too much memory");
        }
        is_held
    }

    /// Counts a request.
    pub(crate) fn on_request(&self) {
        if let Some(lifetime) = &self.lifetime {
            lifetime.on_request();
        }
    }

    /// Reports whether the connection has had all requests that it may have.
    fn is_spent(&self) -> bool {
        let lifetime = self.lifetime.as_ref();
        lifetime.is_some_and(|lifetime| lifetime.is_spent())
    }

    /// Returns the time until the connection has its maximum age, if it has one.
    pub(crate) fn age_left(&self) -> Option<Duration> {
        self.lifetime.as_ref()?.left(&self.worker.clock)
    }

    /// Reports whether an HTTP/1 connection must end after its current request, if any. A client
    /// that reads `Connection: close` in a response reconnects elsewhere. Closing an idle
    /// connection instead could lose a request that the client has just sent.
    pub(crate) fn is_terminating(&self) -> bool {
        self.worker.terminating.get()
            || self.lifetime.as_ref().is_some_and(|lifetime| {
                lifetime.is_spent() || lifetime.left(&self.worker.clock) == Some(Duration::ZERO)
            })
    }

    /// Counts the timeout that ended this connection or one of its streams.
    pub(crate) fn timed_out(&self, phase: Phase) {
        if let Some(kind) = phase.timeout() {
            self.worker.stats.timed_out(kind);
        }
    }
}

/// Returns what happens to headers with underscores. They are forwarded if policies do not say it.
pub(super) fn underscores_of(settings: Option<&ConnectionSettings>) -> Underscores {
    let underscores = settings.and_then(|settings| settings.underscores);
    underscores.unwrap_or(Underscores::Allow)
}

/// Returns the listener that serves `host` on a connection, or an error (GEP-3567: one connection serves one HTTPS
/// listener). `tls` is the server name of the handshake; `None` without TLS.
#[inline]
pub(super) fn listener_for<'a>(
    port: &'a Port,
    host: &str,
    tls: Option<Option<&str>>,
) -> Result<&'a Arc<Listener>, Error> {
    let listener = port
        .listener(host)
        .ok_or(Error::NotFound("no listener serves this host"))?;
    if let Some(name) = tls {
        let agreed = port.listener_for_sni(name);
        if !agreed.is_some_and(|agreed| Arc::ptr_eq(agreed, listener)) {
            return Err(Error::Misdirected);
        }
    }
    Ok(listener)
}
