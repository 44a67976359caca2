//! How the host finds out that the machine of an endpoint has vanished, without traffic that the endpoint sees: TCP keepalive while
//! nothing is sent, and TCP_USER_TIMEOUT for what was sent. A socket that does not support it still works.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Time after which the host asks the peer of a quiet connection whether it is there, and between such questions.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Time for which what was sent may stay unacknowledged before the connection ends.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// Whether a peer reads what it is sent. The host ends a connection with TCP_USER_TIMEOUT also if the peer is there and leaves its
/// window closed for this time (RFC 5482, 3), which a peer that reads at will may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    Promptly,
    AtWill,
}

/// Has the host ask the peer of a quiet connection. `idle` is the time that a policy sets for it.
pub(super) fn ask_when_quiet(socket: &TcpStream, idle: Option<Duration>) {
    let after = idle.unwrap_or(KEEPALIVE_AFTER);
    let interval = idle.unwrap_or(KEEPALIVE_INTERVAL);
    let keepalive = TcpKeepalive::new().with_time(after).with_interval(interval);
    let _ = SockRef::from(socket).set_tcp_keepalive(&keepalive);
}

/// Has the host end a connection on which what was sent is not acknowledged, if the peer reads promptly.
pub(super) fn expect_acknowledgements(socket: &TcpStream, reads: Reads) {
    #[cfg(target_os = "linux")]
    {
        let timeout = (reads == Reads::Promptly).then_some(UNACKNOWLEDGED);
        let _ = SockRef::from(socket).set_tcp_user_timeout(timeout);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, reads);
}
