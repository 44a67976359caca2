//! Why connections and sessions that are forwarded as they are end, in the words of the access log.

use crate::ir::Transport;
use crate::table::{Unrouted, UpstreamFault};
use crate::telemetry::handshake_failure::HandshakeFailure;

/// Why a connection or a session that is forwarded as it is has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The client has ended its bytes first, and then the backend.
    ClosedByClient,
    /// The backend has ended its bytes first, and then the client.
    ClosedByBackend,
    /// The client has reset the connection.
    ResetByClient,
    /// The backend has reset the connection.
    ResetByBackend,
    /// Nothing has moved for the idle timeout.
    IdleTimeout,
    /// A new client got the place.
    Evicted,
    /// The configuration no longer has the port.
    ListenerRemoved,
    /// The process ends.
    Drain,
    /// No listener in service and no route wants the connection.
    NoRoute,
    /// Policies do not permit the address of the client.
    Policy,
    /// The port or the client has as many connections as a policy permits.
    ConnectionLimit,
    /// The connection does not begin with the header of the PROXY protocol that a policy requires.
    ProxyHeader,
    /// The TLS handshake with the client failed.
    Handshake(HandshakeFailure),
    /// The rule has no backend for the connection.
    NoBackend,
    /// No endpoint was connected to, with the cause in words.
    Unconnected(UpstreamFault, &'static str),
    /// The session of a client goes on at another endpoint, since its own is no longer one of the rule.
    BackendRemoved,
    /// The host of the endpoint says that nothing listens there.
    RefusedByBackend,
}

impl ConnectionEnd {
    /// Its words in the access log.
    pub fn text(self) -> &'static str {
        match self {
            Self::ClosedByClient => "closed by the client",
            Self::ClosedByBackend => "closed by the backend",
            Self::ResetByClient => "reset by the client",
            Self::ResetByBackend => "reset by the backend",
            Self::IdleTimeout => "idle timeout",
            Self::Evicted => "evicted for a new client",
            Self::ListenerRemoved => "listener removed",
            Self::Drain => "drain",
            Self::NoRoute => "no route",
            Self::Policy => "refused by a policy",
            Self::ConnectionLimit => "over a connection limit",
            Self::ProxyHeader => "no valid PROXY protocol header",
            Self::Handshake(_) => "TLS handshake failure",
            Self::NoBackend => "no backend",
            Self::Unconnected(UpstreamFault::NoEndpoint, _) => "no endpoint",
            Self::Unconnected(UpstreamFault::Overloaded, _) => "over a backend limit",
            Self::Unconnected(..) => "connect failure",
            Self::BackendRemoved => "backend removed",
            Self::RefusedByBackend => "refused by the backend",
        }
    }

    /// The cause of a failure: the most exact words that there are; `None` if nothing has failed. What the proxy ends by
    /// itself is cut over TCP, and not over UDP, which has no connections.
    pub fn error(self, transport: Transport) -> Option<&'static str> {
        match self {
            Self::ClosedByClient | Self::ClosedByBackend | Self::BackendRemoved => None,
            Self::IdleTimeout | Self::ListenerRemoved | Self::Drain
                if transport == Transport::Udp =>
            {
                None
            }
            Self::Handshake(failure) => Some(failure.name()),
            Self::Unconnected(_, cause) => Some(cause),
            _ => Some(self.text()),
        }
    }
}

impl From<HandshakeFailure> for ConnectionEnd {
    fn from(failure: HandshakeFailure) -> Self {
        match failure {
            HandshakeFailure::ServerName => Self::NoRoute,
            HandshakeFailure::Policy => Self::Policy,
            HandshakeFailure::Evicted => Self::Evicted,
            _ => Self::Handshake(failure),
        }
    }
}

impl From<Unrouted> for ConnectionEnd {
    fn from(unrouted: Unrouted) -> Self {
        match unrouted {
            Unrouted::NoRoute => Self::NoRoute,
            Unrouted::Refused => Self::Policy,
        }
    }
}
