//! One client connection as its requests see it: the port and the addresses that it came in by, the TLS server name, and
//! what its requests share.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::HeaderValue;

use super::activity::Phase;
use super::forwarding::Forwarding;
use super::headers::{Host, LastHost};
use super::injection::Injection;
use super::port::PortState;
use super::upgrade::Tunnel;
use super::worker::OpenConnection;
use crate::filter::Scheme;
use crate::table::{Listener, Port};

/// A client connection.
pub(crate) struct Client {
    /// The worker that serves it, and counts it as open.
    pub(crate) worker: OpenConnection,
    /// The port that it came in by.
    pub(crate) port: Rc<PortState>,
    /// Its other end.
    pub(crate) peer: SocketAddr,
    /// What the forwarding headers say of it.
    pub(crate) forwarding: Forwarding,
    /// The name that it asked for in its TLS handshake; `None` in plain text.
    pub(crate) tls: Option<Sni>,
    /// The tunnel behind the 101 that is being written.
    pub(crate) tunnel: RefCell<Option<Box<Tunnel>>>,
    /// The host of its last request.
    pub(crate) host: RefCell<LastHost>,
    /// What goes out between the messages or frames of the connection.
    pub(crate) injection: Rc<Injection>,
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
        // A dual-stack socket shows IPv4 clients as mapped IPv6 addresses.
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
            injection: Rc::default(),
        })
    }

    /// `Host` for a request that names none: the address that it came in by.
    pub(crate) fn local_authority(&self) -> HeaderValue {
        HeaderValue::try_from(self.port.address().to_string())
            .unwrap_or(HeaderValue::from_static("localhost"))
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
        self.worker.draining.get() || self.port.is_closed()
    }

    /// Whether an HTTP/1 connection is to end with its current request, if it has one. A client that reads so in a response
    /// connects elsewhere; a client whose idle connection is closed may just have sent a request, which is lost.
    pub(crate) fn is_terminating(&self) -> bool {
        self.worker.terminating.get()
    }

    /// Counts what ended this connection or a stream of it.
    pub(crate) fn timed_out(&self, phase: Phase) {
        if let Some(kind) = phase.timeout() {
            self.worker.stats.timed_out(kind);
        }
    }
}
