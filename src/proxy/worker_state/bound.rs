//! The bound socket of a port, as it is handed to a worker.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use crate::quic::BoundSocket;

/// A bound socket.
#[derive(Debug)]
pub(in crate::proxy) enum Bound {
    /// A listening socket.
    Tcp(TcpListener),
    /// A socket for datagrams.
    Udp(UdpSocket),
    /// A socket for QUIC.
    Quic(Arc<BoundSocket>),
}

impl Bound {
    /// Returns another handle of the socket.
    pub(in crate::proxy) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(socket) => socket.try_clone().map(Self::Tcp),
            Self::Udp(socket) => socket.try_clone().map(Self::Udp),
            Self::Quic(socket) => Ok(Self::Quic(socket.clone())),
        }
    }

    /// Returns the address to which it is bound.
    pub(in crate::proxy) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Tcp(socket) => socket.local_addr(),
            Self::Udp(socket) => socket.local_addr(),
            Self::Quic(socket) => Ok(socket.local_addr()),
        }
    }
}
