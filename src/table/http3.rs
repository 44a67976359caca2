//! HTTP/3 of ports and their listeners, and whether clients learn of it. Must not know sockets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::ArcSwapOption;
use http::HeaderValue;

use super::listener::{Listener, Port};

/// The ports whose HTTP/3 all pods of the Gateway serve, if a controller says so.
#[derive(Debug, Default)]
pub struct SharedHttp3(ArcSwapOption<BTreeSet<u16>>);

impl SharedHttp3 {
    /// Sets the ports, as listeners declare them. Before the first call, the process stands alone, and its own ports decide.
    pub fn set(&self, ports: BTreeSet<u16>) {
        self.0.store(Some(Arc::new(ports)));
    }

    fn has(&self, port: u16) -> bool {
        match &*self.0.load() {
            Some(ports) => ports.contains(&port),
            None => true,
        }
    }
}

impl Port {
    /// Reports whether some of its listeners have HTTP/3, so that its QUIC port is to be bound.
    pub fn has_http3(&self) -> bool {
        self.listeners().iter().any(|it| it.has_http3())
    }

    /// Records whether its QUIC port is bound. Until then, clients do not learn of it.
    pub fn set_quic_bound(&self, is_bound: bool) {
        self.is_quic_bound.store(is_bound, Relaxed);
    }

    /// Returns the value of `Alt-Svc` for clients with this server name, in lower case, that may use HTTP/3 instead. `shared` is
    /// that of the table.
    pub fn alt_svc(&self, sni: Option<&str>, shared: &SharedHttp3) -> Option<&HeaderValue> {
        let value = self.listener_for_sni(sni)?.alt_svc.as_ref()?;
        let is_served = self.is_quic_bound.load(Relaxed) && shared.has(self.bind().port);
        is_served.then_some(value)
    }
}

impl Listener {
    /// Reports whether it has HTTP/3.
    pub fn has_http3(&self) -> bool {
        self.alt_svc.is_some()
    }
}
