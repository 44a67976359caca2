//! Flows of datagrams to endpoints of backends: one socket for each client, connected to the endpoint that is selected
//! for it. Must not know what the datagrams are.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::Upstream;
use super::connector::connect_error;
use super::health;
use super::in_flight::InFlight;
use super::send_error::SendError;
use crate::runtime::descriptors::BackendDescriptor;
use crate::table::Backend;

/// A socket that is connected to an endpoint. Counts as a request in flight until it is dropped.
pub struct UdpFlow {
    /// Its datagrams.
    pub socket: UdpSocket,
    backend: Arc<Backend>,
    in_flight: InFlight,
    _descriptor: BackendDescriptor,
}

impl Upstream {
    /// Opens a flow to an endpoint of a backend.
    ///
    /// # Errors
    /// When the backend has no endpoint, or the process no descriptor or local port.
    pub fn open_flow(&self, backend: &Arc<Backend>) -> Result<UdpFlow, SendError> {
        let descriptor = self.pool.descriptor().ok_or(SendError::NO_DESCRIPTOR)?;
        let selected = self.select(backend, &[]);
        let in_flight = selected.ok_or(SendError::NO_ENDPOINT)?;
        let opened = open(in_flight.endpoint().address);
        let socket = opened.map_err(|error| connect_error(&error))?;
        in_flight.on_sent();
        Ok(UdpFlow {
            socket,
            backend: backend.clone(),
            in_flight,
            _descriptor: descriptor,
        })
    }
}

impl UdpFlow {
    /// Sends a datagram, unless the kernel's buffer is full. Does not wait for the socket's first event, as tokio does.
    ///
    /// # Errors
    /// `WouldBlock` when the buffer is full, `ConnectionRefused` when the endpoint's host has refused an earlier datagram.
    pub fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        SockRef::from(&self.socket).send(datagram)
    }

    /// Returns the backend.
    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// Reports whether the endpoint is still one of the backend.
    pub fn has_endpoint(&self) -> bool {
        let id = self.in_flight.endpoint().id;
        self.backend.endpoints().iter().any(|one| one.id == id)
    }

    /// Records that the endpoint has answered.
    pub fn on_answered(&self) {
        health::on_response(&self.in_flight.endpoint().health);
    }

    /// Takes the error of an earlier datagram: the endpoint's host, or one on the way, has refused it.
    pub fn take_refusal(&self) -> bool {
        // Until the next error.
        let nothing = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.socket.try_io(Interest::ERROR, nothing);
        self.socket.take_error().is_ok_and(|error| error.is_some())
    }

    /// Records that the endpoint's host has refused a datagram: nothing listens there.
    pub fn on_refused(&self) {
        health::on_connect_failure(&self.backend, self.in_flight.endpoint());
    }
}

fn open(endpoint: SocketAddr) -> io::Result<UdpSocket> {
    let local = match endpoint {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = std::net::UdpSocket::bind(local)?;
    socket.connect(endpoint)?;
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}
