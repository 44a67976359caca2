//! Listening sockets: opens and closes them to follow the table, without interrupting unchanged
//! ones.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::ir::{Bind, BindReport, Transport};
use crate::proxy::worker_state::bound::Bound;
use crate::quic::BoundSocket;
use crate::settings::{Ports, container_port};

/// Ports below this one need a permission.
const PRIVILEGED: u16 = 1024;
/// Size of the kernel's buffers of a UDP or QUIC port, in bytes: all clients share them.
const UDP_BUFFER: usize = 4 << 20;
/// Accept backlog.
const BACKLOG: i32 = 4096;

/// The open sockets.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Listeners {
    open: BTreeMap<Bind, Open>,
}

/// An open socket that a worker serves.
#[derive(Debug)]
struct Open {
    socket: Bound,
    address: SocketAddr,
}

/// Changes needed to follow a table.
pub(in crate::proxy) struct Changes {
    /// Sockets to serve.
    pub(in crate::proxy) opened: Vec<(Bind, Bound)>,
    /// Closed sockets.
    pub(in crate::proxy) closed: Vec<Bind>,
    /// Connections from the backlog of closed sockets.
    pub(in crate::proxy) waiting: Vec<(Bind, TcpStream, SocketAddr)>,
    /// Bind result of every configured port.
    pub(in crate::proxy) report: BindReport,
}

impl Listeners {
    /// Closes sockets that are not in `wanted` and opens missing ones. Retries failed binds.
    ///
    /// A port whose address changes, for example from all addresses to one, is closed before it is
    /// opened again: Linux rejects a second listening socket with an overlapping address.
    /// SO_REUSEPORT would allow it, but would also let every process of the same user bind the
    /// port, even if set only for that moment. The port is closed for some microseconds, since only
    /// these system calls run in between. Connections in the backlog are kept.
    pub(in crate::proxy) fn follow(&mut self, wanted: &[Bind], ports: Ports) -> Changes {
        let mut changes = Changes {
            opened: Vec::new(),
            closed: Vec::new(),
            waiting: Vec::new(),
            report: BindReport::new(),
        };
        let open = std::mem::take(&mut self.open).into_iter();
        let (stays, leaves) = open.partition(|(bind, _)| wanted.contains(bind));
        self.open = stays;
        for (bind, open) in leaves {
            let waiting = open.close().into_iter();
            changes
                .waiting
                .extend(waiting.map(|(socket, peer)| (bind, socket, peer)));
            changes.closed.push(bind);
        }
        for bind in wanted {
            let result = match self.open.get(bind) {
                Some(open) => Ok(open.address),
                None => self.open(*bind, ports, &mut changes.opened),
            };
            changes
                .report
                .insert(*bind, result.map_err(|error| explain(*bind, ports, &error)));
        }
        changes
    }

    fn open(
        &mut self,
        bind: Bind,
        ports: Ports,
        opened: &mut Vec<(Bind, Bound)>,
    ) -> io::Result<SocketAddr> {
        let (socket, address) = listen(&bind, ports)?;
        opened.push((bind, socket.try_clone()?));
        self.open.insert(bind, Open { socket, address });
        Ok(address)
    }
}

impl Open {
    /// Closes the socket and returns the connections in its backlog.
    fn close(self) -> Vec<(TcpStream, SocketAddr)> {
        let Bound::Tcp(listener) = self.socket else {
            return Vec::new();
        };
        let next = || {
            let (socket, peer) = listener.accept().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some((socket, peer))
        };
        let waiting = std::iter::from_fn(next).collect();
        stop_listening(&SockRef::from(&listener));
        waiting
    }
}

/// A socket that a worker accepts from. Closed on drop.
pub(in crate::proxy) struct Listener(tokio::net::TcpListener);

impl Listener {
    pub(in crate::proxy) fn from_std(socket: TcpListener) -> io::Result<Self> {
        tokio::net::TcpListener::from_std(socket).map(Self)
    }

    pub(in crate::proxy) async fn accept(&self) -> io::Result<(tokio::net::TcpStream, SocketAddr)> {
        self.0.accept().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        stop_listening(&SockRef::from(&self.0));
    }
}

/// Stops listening for all owners of the socket: the control thread and a worker.
fn stop_listening(socket: &SockRef<'_>) {
    // Fails only if the socket no longer listens.
    let _ = socket.shutdown(Shutdown::Read);
}

fn listen(bind: &Bind, ports: Ports) -> io::Result<(Bound, SocketAddr)> {
    let transport = bind.transport;
    let socket = match ports {
        Ports::Ephemeral => open(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), true, transport),
        Ports::AsDeclared => open_on(bind.address, bind.port, transport),
        Ports::Unprivileged => open_on(bind.address, container_port(bind.port), transport),
    }?;
    let address = socket.local_addr()?;
    Ok((socket, address))
}

fn open_on(address: Option<IpAddr>, port: u16, transport: Transport) -> io::Result<Bound> {
    if let Some(address) = address {
        return open(SocketAddr::new(address, port), true, transport);
    }
    let every = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    match open(every, false, transport) {
        // A host without IPv6 still has all IPv4 addresses.
        Err(error) if lacks_ipv6(&error) => open(
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
            true,
            transport,
        ),
        result => result,
    }
}

fn open(address: SocketAddr, one_family: bool, transport: Transport) -> io::Result<Bound> {
    let (kind, protocol) = match transport {
        Transport::Tcp => (Type::STREAM, Protocol::TCP),
        Transport::Udp | Transport::Quic => (Type::DGRAM, Protocol::UDP),
    };
    let socket = Socket::new(Domain::for_address(address), kind, Some(protocol))?;
    if address.is_ipv6() {
        socket.set_only_v6(one_family)?;
    }
    if transport != Transport::Tcp {
        // Best effort: the kernel has a limit of its own. With SO_REUSEADDR, others could bind the port too.
        let _ = socket.set_recv_buffer_size(UDP_BUFFER);
        let _ = socket.set_send_buffer_size(UDP_BUFFER);
        socket.bind(&address.into())?;
        socket.set_nonblocking(true)?;
        return match transport {
            Transport::Quic => BoundSocket::new(socket.into()).map(Bound::Quic),
            Transport::Tcp | Transport::Udp => Ok(Bound::Udp(socket.into())),
        };
    }
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit it. Without it, small responses wait for ACKs. A socket that does not support it still works.
    let _ = socket.set_tcp_nodelay(true);
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(Bound::Tcp(socket.into()))
}

/// EAFNOSUPPORT: the kernel has no IPv6. EADDRNOTAVAIL: IPv6 is disabled.
fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(97 | 99))
}

fn explain(bind: Bind, ports: Ports, error: &io::Error) -> Arc<str> {
    let port = match ports {
        Ports::Unprivileged => container_port(bind.port),
        Ports::AsDeclared | Ports::Ephemeral => bind.port,
    };
    describe(error, port).into()
}

/// Describes why a port cannot be bound, and what to do about it.
fn describe(error: &io::Error, port: u16) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("another process uses the port (address already in use): stop it, or use another port than {port}")
        }
        io::ErrorKind::PermissionDenied if port < PRIVILEGED => format!(
            "permission denied: ports below {PRIVILEGED} need the capability NET_BIND_SERVICE, or the sysctl \
             net.ipv4.ip_unprivileged_port_start={port}"
        ),
        io::ErrorKind::PermissionDenied => {
            format!("permission denied: a security policy of this system forbids port {port}")
        }
        io::ErrorKind::AddrNotAvailable => {
            "no interface of this machine has the address (address not available): use addresses of this machine"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

    use super::*;

    const LOCAL: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    const ANY_IPV4: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    const ANY_IPV6: Option<IpAddr> = Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED));

    /// Returns a port below those that the system gives to sockets, so that no other one gets it meanwhile.
    fn free_port() -> u16 {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let first = (std::process::id() % 10_000) as u16;
        let mut ports = std::iter::repeat_with(|| 10_000 + first + NEXT.fetch_add(1, Relaxed));
        let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        ports.find(is_free).unwrap()
    }

    fn bind(address: Option<IpAddr>, port: u16) -> Bind {
        Bind::tcp(address, port)
    }

    #[test]
    fn replaces_a_socket_with_an_overlapping_address() {
        let (mut listeners, port) = (Listeners::default(), free_port());
        // Held as workers hold them.
        let mut sockets = Vec::new();
        for address in [None, LOCAL, ANY_IPV4, None, ANY_IPV6, LOCAL] {
            let changes = listeners.follow(&[bind(address, port)], Ports::AsDeclared);
            let results: Vec<_> = changes.report.into_values().collect();
            assert!(matches!(results[..], [Ok(_)]), "{address:?}: {results:?}");
            sockets.extend(changes.opened);
        }
    }

    #[test]
    fn keeps_backlog_when_a_socket_is_replaced() {
        let (mut listeners, port) = (Listeners::default(), free_port());
        let old = listeners.follow(&[bind(None, port)], Ports::AsDeclared);
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let changes = listeners.follow(&[bind(LOCAL, port)], Ports::AsDeclared);
        let [(closed, socket, peer)] = &changes.waiting[..] else {
            panic!("{:?}", changes.waiting);
        };
        assert_eq!(*closed, bind(None, port));
        assert_eq!(peer.port(), client.local_addr().unwrap().port());
        assert!(socket.nodelay().unwrap());
        drop(old);
    }

    #[test]
    fn binds_wildcard_addresses_per_family() {
        let (mut listeners, port) = (Listeners::default(), free_port());
        let wanted = [bind(ANY_IPV4, port), bind(ANY_IPV6, port)];
        let report = listeners.follow(&wanted, Ports::AsDeclared).report;
        assert!(report.values().all(Result::is_ok), "{report:?}");
    }

    #[test]
    fn reports_a_port_in_use() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let wanted = [bind(LOCAL, taken.local_addr().unwrap().port())];
        let mut listeners = Listeners::default();
        let report = listeners.follow(&wanted, Ports::AsDeclared).report;
        let error = report.values().next().unwrap().clone().unwrap_err();
        assert!(error.contains("address already in use"), "{error}");
    }

    #[test]
    fn quic_is_bound_beside_tcp_once_no_one_else_has_the_port() {
        let (mut listeners, port) = (Listeners::default(), free_port());
        let tcp = bind(LOCAL, port);
        let wanted = [tcp, tcp.quic()];
        let taken = std::net::UdpSocket::bind(("127.0.0.1", port)).unwrap();
        let report = listeners.follow(&wanted, Ports::AsDeclared).report;
        assert!(report[&tcp].is_ok());
        let error = report[&tcp.quic()].clone().unwrap_err();
        assert!(error.contains("address already in use"), "{error}");
        drop(taken);
        let changes = listeners.follow(&wanted, Ports::AsDeclared);
        assert!(changes.report.values().all(Result::is_ok));
        let opened: Vec<_> = changes.opened.iter().map(|(bind, _)| *bind).collect();
        assert_eq!(opened, [tcp.quic()]);
        drop(changes);
        let changes = listeners.follow(&[tcp], Ports::AsDeclared);
        assert_eq!(changes.closed, [tcp.quic()]);
    }

    #[test]
    fn advice_fits_the_error_of_a_bind() {
        let advice = |kind: io::ErrorKind, port| describe(&kind.into(), port);
        let denied = advice(io::ErrorKind::PermissionDenied, 80);
        assert!(denied.contains("NET_BIND_SERVICE"), "{denied}");
        assert!(denied.contains("ip_unprivileged_port_start=80"), "{denied}");
        let denied = advice(io::ErrorKind::PermissionDenied, 8080);
        assert!(!denied.contains("NET_BIND_SERVICE"), "{denied}");
        let missing = advice(io::ErrorKind::AddrNotAvailable, 80);
        assert!(missing.contains("addresses of this machine"), "{missing}");
        let taken = advice(io::ErrorKind::AddrInUse, 80);
        assert!(!taken.contains("addresses of this machine"), "{taken}");
    }
}
