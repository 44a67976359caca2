//! Listening sockets: opened and closed to follow the table, never touching one that stays. Knows nothing of what is
//! accepted.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};

use crate::ir::{Bind, BindReport};
use crate::settings::{Ports, container_port};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// The sockets that are open, by what they were opened for.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    open: BTreeMap<Bind, SocketAddr>,
}

/// What is to be done to follow a table.
pub(super) struct Changes {
    /// Sockets to accept from.
    pub(super) opened: Vec<(Bind, TcpListener)>,
    /// Ports that are no longer configured.
    pub(super) closed: Vec<Bind>,
    /// What became of every configured port.
    pub(super) report: BindReport,
}

impl Listeners {
    /// Opens what `wanted` has and is not open, and forgets what it has not. Ports that failed before are tried again.
    pub(super) fn follow(&mut self, wanted: &[Bind], ports: Ports) -> Changes {
        let closed: Vec<_> = self
            .open
            .keys()
            .filter(|bind| !wanted.contains(bind))
            .copied()
            .collect();
        self.open.retain(|bind, _| !closed.contains(bind));
        let mut changes = Changes {
            opened: Vec::new(),
            closed,
            report: BindReport::new(),
        };
        for bind in wanted {
            let result = match self.open.get(bind) {
                Some(address) => Ok(*address),
                None => listen(bind, ports).map(|(socket, address)| {
                    changes.opened.push((*bind, socket));
                    self.open.insert(*bind, address);
                    address
                }),
            };
            changes
                .report
                .insert(*bind, result.map_err(|error| Arc::from(describe(&error))));
        }
        changes
    }
}

fn listen(bind: &Bind, ports: Ports) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = match ports {
        Ports::Ephemeral => open(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        Ports::AsDeclared => open_on(bind.address, bind.port),
        Ports::Unprivileged => open_on(bind.address, container_port(bind.port)),
    }?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

fn open_on(address: Option<IpAddr>, port: u16) -> io::Result<TcpListener> {
    if let Some(address) = address {
        return open(SocketAddr::new(address, port));
    }
    match open(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
        // A machine without IPv6 still has every IPv4 address.
        Err(error) if lacks_ipv6(&error) => open(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
        result => result,
    }
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// EAFNOSUPPORT when the kernel has no IPv6, EADDRNOTAVAIL when it is switched off.
fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(97 | 99))
}

fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process uses the port".to_owned(),
        io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE".to_owned(),
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has the address".to_owned()
        }
        _ => error.to_string(),
    }
}
