//! The ports of one worker's connections, by local address. A port outlives the socket that
//! accepted its connections while the configuration has its address with the same protocol.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use crate::ir::{Bind, PortProtocol, Transport};
use crate::table::{Port, Table};

/// A port on one address, as seen by one worker.
pub(crate) struct PortState {
    address: IpAddr,
    protocol: PortProtocol,
    bind: Cell<Bind>,
    /// Where the port was found last among those of a table.
    index: Cell<usize>,
    closed: Cell<bool>,
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

    /// Returns the port in `table`. The addresses of a Gateway can change under its connections.
    #[inline]
    pub(crate) fn configured<'a>(&self, table: &'a Table) -> Option<&'a Arc<Port>> {
        let last = table.ports().get(self.index.get());
        last.filter(|port| port.bind() == self.bind.get())
            .or_else(|| self.find(table))
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
            let configured = port.configured(table);
            let is_configured = configured.is_some_and(|it| it.protocol() == port.protocol);
            port.closed.set(!is_configured);
            is_configured
        });
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
