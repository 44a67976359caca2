//! One client connection as its requests see it: where it came in, who is at the other end, and what was agreed when it
//! was opened. Knows nothing of messages.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderValue;

use super::activity::Phase;
use super::forwarding::Forwarding;
use super::headers::{Host, LastHost};
use super::upgrade::Tunnel;
use super::worker::{OpenConnection, PortState};
use crate::filter::Scheme;
use crate::table::{Listener, Port};

/// Abandoned requests of one connection that are counted as an attack, if they are the majority too. A client that
/// gives up much of what it asks for stays below.
const ABANDONED: u32 = 500;

/// A client connection.
pub(crate) struct Client {
    /// The worker that serves it, and counts it as open.
    pub(crate) worker: OpenConnection,
    /// The port that it came in by.
    pub(crate) port: Rc<PortState>,
    /// Its other end.
    pub(crate) peer: SocketAddr,
    /// What backends are told of it.
    pub(crate) forwarding: Forwarding,
    /// The name that it asked for in its TLS handshake; `None` in plain text.
    pub(crate) tls: Option<Sni>,
    /// What follows a 101 that has just been answered.
    pub(crate) tunnel: RefCell<Option<Box<Tunnel>>>,
    /// The host of its last request.
    pub(crate) host: RefCell<LastHost>,
    requests: Cell<u32>,
    abandoned: Cell<u32>,
}

/// A TLS server name, in lower case.
pub(crate) struct Sni(pub(crate) Option<Box<str>>);

impl Client {
    /// A connection that has just been accepted, and in TLS agreed.
    pub(crate) fn new(
        worker: OpenConnection,
        port: Rc<PortState>,
        peer: SocketAddr,
        tls: Option<Sni>,
    ) -> Rc<Self> {
        // An IPv4 client of a dual-stack socket is told of as what it is.
        let address = peer.ip().to_canonical();
        let forwarding = Forwarding {
            address: HeaderValue::try_from(address.to_string())
                .unwrap_or(HeaderValue::from_static("unknown")),
            proto: HeaderValue::from_static(if tls.is_some() { "https" } else { "http" }),
            trusted: worker
                .trusted_proxies
                .iter()
                .any(|network| network.contains(&address)),
        };
        Rc::new(Self {
            worker,
            port,
            peer: SocketAddr::new(address, peer.port()),
            forwarding,
            tls,
            tunnel: RefCell::new(None),
            host: RefCell::default(),
            requests: Cell::new(0),
            abandoned: Cell::new(0),
        })
    }

    /// Its scheme.
    pub(crate) fn scheme(&self) -> Scheme {
        if self.tls.is_some() {
            Scheme::Https
        } else {
            Scheme::Http
        }
    }

    /// The listener that serves `host` on this connection, or why there is none (GEP-3567: one connection serves one
    /// HTTPS listener).
    pub(crate) fn listener<'a>(
        &self,
        port: &'a Port,
        host: &Host,
    ) -> Result<&'a Arc<Listener>, super::error::Error> {
        use super::error::Error;
        let listener = port
            .listener(host.as_str())
            .ok_or(Error::NotFound("no listener serves this host"))?;
        if let Some(Sni(name)) = &self.tls {
            let agreed = port.listener_for_sni(name.as_deref());
            if !agreed.is_some_and(|agreed| Arc::ptr_eq(agreed, listener)) {
                return Err(Error::Misdirected);
            }
        }
        Ok(listener)
    }

    /// Whether the connection is to end with its current requests.
    pub(crate) fn is_draining(&self) -> bool {
        self.worker.draining.get() || self.port.closed.get()
    }

    /// Whether an HTTP/1 connection is to end with its current request, if there is one. Who is told so with an answer
    /// goes elsewhere; one whose idle connection is closed later may have sent a request meanwhile, which is lost.
    pub(crate) fn is_leaving(&self) -> bool {
        self.worker.leaving.get()
    }

    /// Counts what ended this connection or a stream of it.
    pub(crate) fn timed_out(&self, phase: Phase) {
        if let Some(kind) = phase.timeout() {
            self.worker.stats.timed_out(kind);
        }
    }

    /// Counts a request.
    pub(crate) fn on_request(&self) {
        self.requests.set(self.requests.get().saturating_add(1));
    }

    /// Counts a request that the client gave up.
    pub(crate) fn on_abandoned(&self) {
        self.abandoned.set(self.abandoned.get().saturating_add(1));
    }

    /// Whether the client opens requests only to give them up.
    pub(crate) fn is_abusive(&self) -> bool {
        self.abandoned.get() > ABANDONED && self.abandoned.get() > self.requests.get() / 2
    }
}
