//! Flows of datagrams to endpoints of backends: one socket for each client, connected to the endpoint that is selected
//! for it. Must not know what the datagrams are.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::Upstream;
use super::balance;
use super::connector::connect_error;
use super::health;
use super::in_flight::InFlight;
use super::send_error::SendError;
use super::tcp::admit;
use crate::datagrams::{DatagramIo, Datagrams, join_received};
use crate::ir::cidr::client_network;
use crate::runtime::descriptors::BackendDescriptor;
use crate::table::{Backend, EndpointFault, RequestSlot};

/// A socket that is connected to an endpoint. Counts as a request in flight until it is dropped.
pub struct UdpFlow {
    /// Its datagrams.
    pub socket: UdpSocket,
    backend: RefCell<Arc<Backend>>,
    in_flight: InFlight,
    /// Version of the endpoints in which its own was looked up last.
    version: Cell<u64>,
    _descriptor: BackendDescriptor,
    _slot: Option<RequestSlot>,
}

impl Upstream {
    /// Opens a flow of a client to an endpoint of a backend.
    ///
    /// # Errors
    /// When the backend has no endpoint, or the process no descriptor or local port.
    pub fn open_flow(&self, backend: &Arc<Backend>, client: IpAddr) -> Result<UdpFlow, SendError> {
        let descriptor = self.pool.descriptor(Some(client_network(client)));
        let descriptor = descriptor.ok_or(SendError::NO_DESCRIPTOR)?;
        let slot = admit(backend)?;
        let version = Cell::new(backend.endpoints().version());
        let selected = self.select(backend, client, &[]);
        let in_flight = selected.ok_or_else(|| {
            match balance::are_full(backend, &backend.endpoints(), &[]) {
                true => SendError::ENDPOINT_FULL,
                false => SendError::NO_ENDPOINT,
            }
        })?;
        let opened = open(in_flight.endpoint().address);
        let socket = opened.map_err(|error| connect_error(&error))?;
        in_flight.on_sent();
        Ok(UdpFlow {
            socket,
            backend: RefCell::new(backend.clone()),
            in_flight,
            version,
            _descriptor: descriptor,
            _slot: slot,
        })
    }
}

impl UdpFlow {
    /// Sends datagrams. Returns how many the kernel did not take.
    ///
    /// # Errors
    /// `ConnectionRefused` when the endpoint's host has refused an earlier datagram. Then none was sent.
    pub fn send(&self, io: &DatagramIo, datagrams: &Datagrams<'_>) -> io::Result<usize> {
        io.send(&self.socket, self.in_flight.endpoint().address, datagrams)
    }

    /// Reports whether it is a flow to this backend. Follows the present version of the backend.
    pub fn is_to(&self, backend: &Arc<Backend>) -> bool {
        let mut known = self.backend.borrow_mut();
        let is_same = known.id == backend.id;
        if is_same && !Arc::ptr_eq(&known, backend) {
            *known = backend.clone();
        }
        is_same
    }

    /// Reports whether the endpoint is still one of the backend.
    pub fn has_endpoint(&self) -> bool {
        let backend = self.backend.borrow();
        let endpoints = backend.endpoints();
        if self.version.replace(endpoints.version()) == endpoints.version() {
            return true;
        }
        let id = self.in_flight.endpoint().id;
        endpoints.iter().any(|one| one.id == id)
    }

    /// Returns the address of the endpoint.
    pub fn endpoint(&self) -> SocketAddr {
        self.in_flight.endpoint().address
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
        let endpoint = self.in_flight.endpoint();
        endpoint.faults.add(EndpointFault::Refused);
        health::on_connect_failure(&self.backend.borrow(), endpoint);
    }
}

/// Opens a socket with a local port of its own.
fn open(endpoint: SocketAddr) -> io::Result<UdpSocket> {
    let domain = Domain::for_address(endpoint);
    let socket = Socket::new(domain, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.connect(&endpoint.into())?;
    let socket = UdpSocket::from_std(socket.into())?;
    join_received(&socket);
    Ok(socket)
}
