//! What an upgrade of a request opens to a backend: a whole connection of HTTP/1.1, or a stream of one of HTTP/2.

use std::net::SocketAddr;

use bytes::Bytes;
use tokio::net::TcpStream;

use super::byte_stream::byte_stream_by_variant;
use super::http2::{Slot, Tunnel};
use super::in_flight::InFlight;
use super::io::Io;
use super::unanswered::Unacknowledged;

/// Bytes to and from a backend after an upgrade. Counts as a request in flight until dropped.
pub struct Upgraded {
    /// The bytes.
    pub io: UpgradedIo,
    /// That of a stream.
    pub(super) _slot: Option<Slot>,
    /// Data that the backend sent after its 101.
    pub first: Bytes,
    pub(super) in_flight: InFlight,
}

impl Upgraded {
    /// Returns the endpoint.
    pub fn endpoint(&self) -> SocketAddr {
        self.in_flight.endpoint().address
    }
}

/// A connection or a stream that has switched protocols.
pub struct UpgradedIo(pub(super) Carrier);

pub(super) enum Carrier {
    Connection(Box<Io>),
    Stream(Box<Tunnel>),
}

impl UpgradedIo {
    /// Makes the drop of a connection reset it, since the other side of its tunnel has failed. A stream that has not ended is
    /// reset in any case.
    pub fn abort(&self) {
        match &self.0 {
            Carrier::Connection(io) => io.abort(),
            Carrier::Stream(_) => {}
        }
    }

    /// Returns what was sent on a connection and is not acknowledged, if that can be known. That of HTTP/2 is watched as a whole.
    pub fn unacknowledged(&self) -> Option<Unacknowledged> {
        match &self.0 {
            Carrier::Connection(io) => io.unacknowledged(),
            Carrier::Stream(_) => None,
        }
    }

    /// Returns the socket, if there is nothing above it.
    pub fn plain_socket(&self) -> Option<&TcpStream> {
        match &self.0 {
            Carrier::Connection(io) => io.plain_socket(),
            Carrier::Stream(_) => None,
        }
    }
}

byte_stream_by_variant!(UpgradedIo, this => this.0, Carrier::Connection, Carrier::Stream);
