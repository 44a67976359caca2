//! HTTP/3 of ports and their listeners. Must not know sockets.

use std::sync::atomic::Ordering::Relaxed;

use http::HeaderValue;

use super::listener::{Listener, Port};

impl Port {
    /// Reports whether some of its listeners have HTTP/3, so that its QUIC port is to be bound.
    pub fn has_http3(&self) -> bool {
        self.listeners().iter().any(|it| it.has_http3())
    }

    /// Records whether its QUIC port is bound. Until then, clients do not learn of it.
    pub fn set_quic_bound(&self, is_bound: bool) {
        self.is_quic_bound.store(is_bound, Relaxed);
    }

    /// Returns the value of `Alt-Svc` for clients with this server name, in lower case, that may use HTTP/3 instead.
    pub fn alt_svc(&self, sni: Option<&str>) -> Option<&HeaderValue> {
        let value = self.listener_for_sni(sni)?.alt_svc.as_ref();
        value.filter(|_| self.is_quic_bound.load(Relaxed))
    }
}

impl Listener {
    /// Reports whether it has HTTP/3.
    pub fn has_http3(&self) -> bool {
        self.alt_svc.is_some()
    }
}
