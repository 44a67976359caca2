//! The ports of one worker's connections, by local address. A port outlives the socket that
//! accepted its connections while the configuration has its address with the same protocol.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::ir::client::{ConnectionSettings, ProxyProtocol};
use crate::ir::{Bind, PortProtocol, Transport};
use crate::settings::Limits;
use crate::table::{Port, Table};

/// A port on one address, as seen by one worker.
pub(crate) struct PortState {
    address: IpAddr,
    protocol: PortProtocol,
    bind: Cell<Bind>,
    /// Where the port was found last among those of a table.
    index: Cell<usize>,
    closed: Cell<bool>,
    /// Timeouts and limits that policies have set last.
    limits: RefCell<Option<(Arc<ConnectionSettings>, Rc<Limits>)>>,
}

impl PortState {
    /// Returns the port number that listeners declare.
    pub(crate) fn number(&self) -> u16 {
        self.bind.get().port
    }

    /// Returns the local address with the port number that listeners declare.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.number())
    }

    /// Returns the protocol of the port.
    pub(crate) fn protocol(&self) -> PortProtocol {
        self.protocol
    }

    /// Reports whether the port was removed from the configuration, so that its connections must
    /// end.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Returns the port in `table`, if it has the same protocol. The addresses of a Gateway can change under its connections.
    /// What a connection has not shown at its beginning, such as a certificate, cannot be asked for later.
    #[inline]
    pub(crate) fn configured<'a>(&self, table: &'a Table) -> Option<&'a Arc<Port>> {
        let last = table.ports().get(self.index.get());
        last.filter(|port| port.bind() == self.bind.get())
            .or_else(|| self.find(table))
            .filter(|port| port.protocol() == self.protocol)
    }

    /// Reports whether policies say something about its connections.
    pub(crate) fn has_connection_policies(&self, table: &Table) -> bool {
        let port = self.configured(table);
        port.is_some_and(|port| port.has_connection_policies())
    }

    /// Returns the PROXY protocol in front of its connections, if there may be one.
    pub(crate) fn proxy_protocol(&self, table: &Table) -> Option<Arc<ProxyProtocol>> {
        self.configured(table)?.proxy_protocol().cloned()
    }

    /// Returns the time without bytes after which TCP asks whether the client of a new connection is still there.
    pub(crate) fn tcp_keepalive(&self, table: &Table) -> Option<Duration> {
        let settings = self.configured(table)?.connection_settings()?;
        settings.tcp_keepalive
    }

    /// Returns the timeouts and limits of a new connection, where `limits` are those of the process.
    pub(super) fn limits(&self, table: &Table, limits: &Rc<Limits>) -> Rc<Limits> {
        let port = self.configured(table);
        let Some(settings) = port.and_then(|port| port.connection_settings()) else {
            return limits.clone();
        };
        let mut known = self.limits.borrow_mut();
        match &*known {
            Some((of, limits)) if of == settings => limits.clone(),
            _ => {
                let limits = Rc::new(limits_with(limits, settings));
                *known = Some((settings.clone(), limits.clone()));
                limits
            }
        }
    }

    #[cold]
    fn find<'a>(&self, table: &'a Table) -> Option<&'a Arc<Port>> {
        let bind = self.bind.get();
        let port = table.port(&bind);
        let port = port.or_else(|| covering(table, self.address, bind.port))?;
        self.bind.set(port.bind());
        let index = table.ports().iter().position(|one| Arc::ptr_eq(one, port));
        self.index.set(index.unwrap_or_default());
        Some(port)
    }
}

/// The ports of one worker.
#[derive(Default)]
pub(in crate::proxy) struct Ports(RefCell<BTreeMap<(u16, IpAddr, PortProtocol), Rc<PortState>>>);

impl Ports {
    /// Returns the port of a new connection that the socket of `bind` accepted on the local address
    /// `address`, if the port is configured.
    pub(in crate::proxy) fn of(
        &self,
        bind: Bind,
        address: IpAddr,
        table: &Table,
    ) -> Option<Rc<PortState>> {
        let configured = table.port(&bind);
        let configured = configured.or_else(|| covering(table, address, bind.port))?;
        let state = || {
            Rc::new(PortState {
                address,
                protocol: configured.protocol(),
                bind: Cell::new(configured.bind()),
                index: Cell::new(0),
                closed: Cell::new(false),
                limits: RefCell::default(),
            })
        };
        let mut ports = self.0.borrow_mut();
        let port = ports
            .entry((bind.port, address, configured.protocol()))
            .or_insert_with(state);
        Some(port.clone())
    }

    /// Closes ports that were removed from the configuration.
    pub(in crate::proxy) fn close_unconfigured(&self, table: &Table) {
        self.0.borrow_mut().retain(|_, port| {
            let is_configured = port.configured(table).is_some();
            port.closed.set(!is_configured);
            is_configured
        });
    }
}

/// Returns the limits of new connections to a port, where `limits` are those of the process.
pub(in crate::proxy) fn limits_of(port: &Port, limits: &Limits) -> Limits {
    match port.connection_settings() {
        Some(settings) => limits_with(limits, settings),
        None => limits.clone(),
    }
}

/// Returns the limits of the process with what policies set.
fn limits_with(limits: &Limits, settings: &ConnectionSettings) -> Limits {
    // Destructured, so that a new field fails to compile until it is handled here.
    let ConnectionSettings {
        header_timeout,
        body_timeout,
        idle_timeout,
        stream_idle_timeout,
        handshake_timeout,
        max_headers,
        max_header_bytes,
        max_streams,
        windows,
        // Counted by the port and by the client.
        max_connections: _,
        max_per_client: _,
        max_requests: _,
        // Of the connection itself.
        max_age: _,
        tcp_keepalive: _,
        // Of requests.
        underscores: _,
        request_id: _,
        forwarded: _,
        policies: _,
    } = settings;
    let set = |one: &Option<Duration>, other| one.unwrap_or(other);
    Limits {
        header_timeout: set(header_timeout, limits.header_timeout),
        body_timeout: set(body_timeout, limits.body_timeout),
        keep_alive_timeout: set(idle_timeout, limits.keep_alive_timeout),
        stream_idle_timeout: set(stream_idle_timeout, limits.stream_idle_timeout),
        handshake_timeout: set(handshake_timeout, limits.handshake_timeout),
        max_headers: max_headers.unwrap_or(limits.max_headers),
        max_header_bytes: max_header_bytes.unwrap_or(limits.max_header_bytes),
        max_streams: max_streams.unwrap_or(limits.max_streams),
        stream_window: windows.stream,
        connection_window: windows.connection,
        ..limits.clone()
    }
}

/// Returns the configured port whose socket accepts connections to an address.
fn covering(table: &Table, address: IpAddr, port: u16) -> Option<&Arc<Port>> {
    let covers = |bind: Bind| match bind.address {
        _ if (bind.port, bind.transport) != (port, Transport::Tcp) => false,
        None => true,
        Some(any) if any.is_unspecified() => any.is_ipv4() == address.is_ipv4(),
        Some(one) => one == address,
    };
    table.ports().iter().find(|port| covers(port.bind()))
}
