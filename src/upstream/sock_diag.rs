//! What the kernel knows of a connection and says in no socket option that can be read without `unsafe`: whether what it has sent
//! is acknowledged. It is asked as `ss` asks it (sock_diag(7)), which needs no permission.

use std::cell::{Cell, OnceCell};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

use super::unanswered::Unacknowledged;

/// `SOCK_DIAG_BY_FAMILY`.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;
/// `AF_INET` and `AF_INET6`.
const INET: u8 = 2;
const INET6: u8 = 10;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;
/// `INET_DIAG_NOCOOKIE`: any socket with these addresses.
const NO_COOKIE: [u8; 8] = [0xff; 8];
/// Length of a request, with its header.
const LENGTH: usize = 72;
/// Places in a message: `nlmsg_type`, `nlmsg_seq`, and `idiag_retrans` and `idiag_wqueue` of a response.
const KIND: usize = 4;
const NUMBER: usize = 8;
const RETRANSMITS: usize = 19;
const QUEUED: usize = 76;
/// Maximum number of responses to former questions that are skipped.
const MAX_STALE: usize = 8;

thread_local! {
    /// The socket for questions, if the kernel has such sockets.
    static SOCKET: OnceCell<Option<OwnedFd>> = const { OnceCell::new() };
    /// Number of the last question.
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// Returns what waits for acknowledgement on a connection between these addresses; `None` if the kernel does not say it.
pub(super) fn unacknowledged(local: SocketAddr, peer: SocketAddr) -> Option<Unacknowledged> {
    let number = LAST.get().wrapping_add(1);
    LAST.set(number);
    let request = request(number, local, peer)?;
    SOCKET.with(|socket| {
        let socket = socket.get_or_init(open).as_ref()?.as_raw_fd();
        send(socket, &request, MsgFlags::empty()).ok()?;
        let mut buffer = [0; 512];
        // The kernel has answered when `send` returns.
        for _ in 0..MAX_STALE {
            let length = recv(socket, &mut buffer, MsgFlags::empty()).ok()?;
            let bytes = buffer.get(..length)?;
            if number_at(bytes, NUMBER)? == number {
                return response(bytes);
            }
        }
        None
    })
}

fn open() -> Option<OwnedFd> {
    let (family, protocol) = (AddressFamily::Netlink, SockProtocol::NetlinkSockDiag);
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    socket(family, SockType::Datagram, flags, protocol).ok()
}

/// Encodes a question: an `nlmsghdr` and an `inet_diag_req_v2`.
fn request(number: u32, local: SocketAddr, peer: SocketAddr) -> Option<[u8; LENGTH]> {
    let family = match (local, peer) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => INET,
        (SocketAddr::V6(_), SocketAddr::V6(_)) => INET6,
        _ => return None,
    };
    let mut bytes = Vec::with_capacity(LENGTH);
    bytes.extend((LENGTH as u32).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, TCP, 0, 0]);
    // All states.
    bytes.extend([0xff; 4]);
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(peer.port().to_be_bytes());
    bytes.extend(octets(local.ip()));
    bytes.extend(octets(peer.ip()));
    // Any interface.
    bytes.extend([0; 4]);
    bytes.extend(NO_COOKIE);
    bytes.try_into().ok()
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// Decodes an `inet_diag_msg`; `None` for an error, such as that there is no such connection.
fn response(bytes: &[u8]) -> Option<Unacknowledged> {
    let kind = bytes.get(KIND..KIND + 2)?.try_into().ok()?;
    (u16::from_ne_bytes(kind) == BY_FAMILY).then_some(())?;
    Some(Unacknowledged {
        queued: number_at(bytes, QUEUED)?,
        retransmits: *bytes.get(RETRANSMITS)?,
    })
}

fn number_at(bytes: &[u8], at: usize) -> Option<u32> {
    let number = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(number))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn of(stream: &TcpStream) -> Option<Unacknowledged> {
        unacknowledged(stream.local_addr().unwrap(), stream.peer_addr().unwrap())
    }

    #[test]
    fn peer_that_does_not_read_acknowledges() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                continue;
            };
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let Some(idle) = of(&client) else {
                // The kernel has no such sockets.
                continue;
            };
            assert_eq!((idle.queued, idle.retransmits), (0, 0));
            client.set_nonblocking(true).unwrap();
            while matches!(client.write(&[0; 65536]), Ok(1..)) {}
            let full = of(&client).unwrap();
            assert!(full.queued > 0);
            // A question for room may be under way.
            assert!(full.retransmits <= 1);
        }
    }

    #[test]
    fn connection_that_does_not_exist_is_unknown() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(unacknowledged(address(1), address(1)), None);
        let other = "[::1]:1".parse().unwrap();
        assert_eq!(unacknowledged(address(1), other), None);
        // Later questions get their own responses.
        assert_eq!(unacknowledged(other, other), None);
    }
}
