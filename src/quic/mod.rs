//! QUIC for servers: connections of a bound UDP socket, divided among workers. Must not know HTTP, listeners or tables.
//!
//! One worker reads a bound socket with [`Receiver`] and puts each datagram into the [`Inbox`] of the worker that
//! [`Router`] names. Each worker has an endpoint of its own, an [`Acceptor`], that receives from its inbox and sends with
//! the shared [`BoundSocket`]. The worker of a datagram follows from its destination connection id alone, whether the
//! client has chosen the id or the worker has, so that a client with a new address reaches its connection. Everything of a
//! connection runs on the thread of its worker.
//!
//! What the users of this module do:
//!
//! - The table makes a [`QuicTls`] for each TLS configuration that is served over QUIC.
//! - For each bound address, one [`BoundSocket`], one [`Router`] and an [`Inbox`] for each worker, all of which may be sent
//!   to other threads. One worker runs [`Receiver::run`]; all call [`Acceptor::new`] with the same [`EndpointKeys`], which
//!   the pods of a Gateway share, the [`HandshakeCount`] of the worker, and [`Choose`]. That function finds the listener for
//!   the server name in the current table and returns its [`QuicTls`] with the listener as context, or
//!   `UnrecognisedName`. It is shared between threads by its type, and so loads the table from the process's `ArcSwap`.
//! - Each worker loops over [`Acceptor::accept`] and spawns a local task for each [`Handshake`], which awaits
//!   [`Handshake::complete`]. Dropping the future evicts the client.
//! - The task takes the context of [`Established::greeting`] (`Arc::downcast`) and the client's certificates
//!   (`peer_identity`). rustls does not verify the certificate of a resumed session, and quinn does not tell which sessions
//!   are resumed: the task verifies it in any case, and closes the connection if it is not valid.
//! - HTTP/3 opens its control stream, and takes requests from `accept_bi`. [`Limits`] bound what clients make the endpoint
//!   hold: a stream that is not read gets no more than its window.
//! - To drain, the worker sends GOAWAY on each connection, calls [`Acceptor::refuse_new`] once clients of the address have
//!   another one, and [`Acceptor::close`] and [`Acceptor::wait_idle`] at the end. The reader of the socket is aborted last:
//!   workers that still have connections need it.

mod acceptor;
mod client_hello;
mod connection_id;
mod inbox;
mod receive;
mod reset_keys;
mod settings;
mod socket;
#[cfg(test)]
mod tests;
mod tls;

pub use self::acceptor::{
    Acceptor, Established, Handshake, HandshakeCount, HandshakeError, WorkerPort,
};
pub use self::client_hello::{Choose, Greeting, Selection};
pub use self::connection_id::Router;
pub use self::inbox::{Inbox, Received};
pub use self::receive::Receiver;
pub use self::reset_keys::ResetSecrets;
pub use self::settings::{EndpointKeys, Limits};
pub use self::socket::BoundSocket;
pub use self::tls::QuicTls;
