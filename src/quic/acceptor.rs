//! The endpoint of one worker and bound address: accepts connections, and completes their handshakes. Must not know HTTP.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use quinn::{Connecting, Connection, ConnectionError, Endpoint, TokioRuntime, TransportErrorCode};
use thiserror::Error;
use tokio::time::timeout;

use super::client_hello::{ByClientHello, Choose, Greeting};
use super::connection_id::Router;
use super::inbox::Inbox;
use super::settings::{self, EndpointKeys, Limits};
use super::socket::{BoundSocket, WorkerSocket};

/// Where the endpoint of a worker receives and sends.
pub struct WorkerPort {
    /// The socket that all workers share.
    pub socket: Arc<BoundSocket>,
    /// What the reader of the socket hands to the worker.
    pub inbox: Inbox,
    /// The router of the reader.
    pub router: Router,
    /// The index of the worker in it.
    pub worker: usize,
}

/// The number of handshakes in progress of a worker. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct HandshakeCount(Rc<Cell<usize>>);

impl HandshakeCount {
    /// Returns the number of handshakes in progress.
    pub fn get(&self) -> usize {
        self.0.get()
    }

    fn begin(&self) -> InProgress {
        self.0.set(self.0.get() + 1);
        InProgress(self.0.clone())
    }
}

/// Counts a handshake until it is dropped.
#[derive(Debug)]
struct InProgress(Rc<Cell<usize>>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Accepts the connections of a worker on a bound address. The endpoint lives until the last connection has ended.
pub struct Acceptor {
    endpoint: Endpoint,
    keys: EndpointKeys,
    crypto: Arc<ByClientHello>,
    handshakes: HandshakeCount,
    limits: Cell<Limits>,
    is_refusing: Cell<bool>,
}

impl Acceptor {
    /// Creates the endpoint of a worker, whose tasks run on the runtime of the current thread.
    ///
    /// # Errors
    /// When the process has no descriptor.
    pub fn new(
        port: WorkerPort,
        keys: &EndpointKeys,
        limits: Limits,
        handshakes: HandshakeCount,
        choose: Choose,
    ) -> io::Result<Self> {
        let crypto = Arc::new(ByClientHello::new(choose).map_err(io::Error::other)?);
        let socket = WorkerSocket::new(port.socket, port.inbox)?;
        let endpoint = Endpoint::new_with_abstract_socket(
            settings::endpoint(keys, &port.router, port.worker),
            Some(settings::server(keys, &limits, crypto.clone())),
            socket,
            Arc::new(TokioRuntime),
        )?;
        Ok(Self {
            endpoint,
            keys: keys.clone(),
            crypto,
            handshakes,
            limits: Cell::new(limits),
            is_refusing: Cell::new(false),
        })
    }

    /// Sets the limits of connections that begin from now on.
    pub fn set_limits(&self, limits: Limits) {
        if self.limits.replace(limits) != limits {
            let config = settings::server(&self.keys, &limits, self.crypto.clone());
            self.endpoint.set_server_config(Some(config));
        }
    }

    /// Waits for a connection. `None` after [`Acceptor::close`]. Refuses all after [`Acceptor::refuse_new`]. Clients whose address must be validated get a Retry packet
    /// meanwhile: those beyond [`Limits::retry_from`], and those that come while `is_full`.
    pub async fn accept(&self, is_full: impl Fn() -> bool) -> Option<Handshake> {
        loop {
            let incoming = self.endpoint.accept().await?;
            if self.is_refusing.get() {
                incoming.refuse();
                continue;
            }
            let (count, limits) = (self.handshakes.get(), self.limits.get());
            if count >= limits.handshakes {
                incoming.ignore();
                continue;
            }
            let is_validated = incoming.remote_address_validated();
            if !is_validated && (count >= limits.retry_from || is_full()) {
                // Fails only for clients that are validated.
                let _ = incoming.retry();
                continue;
            }
            let (peer, local) = (incoming.remote_address(), incoming.local_ip());
            let connecting = incoming.accept();
            if connecting.as_ref().is_err_and(|error| !is_alert(error)) {
                continue;
            }
            return Some(Handshake {
                connecting,
                peer,
                local,
                is_validated,
                timeout: limits.handshake_timeout,
                _in_progress: self.handshakes.begin(),
            });
        }
    }

    /// Makes [`Acceptor::accept`] tell new clients with CONNECTION_REFUSED (RFC 9000, 20.1) that they are not served, so that
    /// they need not wait. Connections that are open go on.
    pub fn refuse_new(&self) {
        self.is_refusing.set(true);
    }

    /// Closes all connections with an error code of the application, and ends [`Acceptor::accept`].
    pub fn close(&self, code: u32, reason: &[u8]) {
        self.endpoint.close(code.into(), reason);
    }

    /// Waits until all connections have ended, and what they had to tell their clients is sent.
    pub async fn wait_idle(&self) {
        self.endpoint.wait_idle().await;
    }
}

/// Reports whether a connection has ended with a TLS alert (RFC 9001, 4.8). First packets that fail otherwise are garbage.
fn is_alert(error: &ConnectionError) -> bool {
    let alerts =
        u64::from(TransportErrorCode::crypto(0))..=u64::from(TransportErrorCode::crypto(255));
    matches!(error, ConnectionError::TransportError(error) if alerts.contains(&error.code.into()))
}

/// A connection whose handshake is in progress. Closes when it is dropped.
#[derive(Debug)]
pub struct Handshake {
    /// An error if the first packet has a ClientHello that is refused.
    connecting: Result<Connecting, ConnectionError>,
    peer: SocketAddr,
    local: Option<IpAddr>,
    is_validated: bool,
    timeout: Duration,
    _in_progress: InProgress,
}

impl Handshake {
    /// The address of the client when it began.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The local address that the client has used, where the kernel tells it.
    pub fn local(&self) -> Option<IpAddr> {
        self.local
    }

    /// Reports whether the client has proved before that it receives what is sent to its address.
    pub fn is_validated(&self) -> bool {
        self.is_validated
    }

    /// Completes the handshake.
    ///
    /// # Errors
    /// When the ClientHello is refused, the handshake fails or takes too long.
    pub async fn complete(self) -> Result<Established, HandshakeError> {
        let connection = timeout(self.timeout, self.connecting?)
            .await
            .map_err(|_| HandshakeError::Timeout)??;
        let greeting = connection.handshake_data();
        let greeting = greeting.and_then(|greeting| greeting.downcast::<Greeting>().ok());
        let greeting = *greeting.ok_or(HandshakeError::NoGreeting)?;
        Ok(Established {
            connection,
            greeting,
        })
    }
}

/// A connection whose handshake is complete.
pub struct Established {
    /// The connection. Its `peer_identity` is the client's chain of certificates, a `Vec<CertificateDer<'static>>`.
    pub connection: Connection,
    /// How the ClientHello was answered.
    pub greeting: Greeting,
}

/// Why there is no connection.
#[derive(Debug, Error)]
pub enum HandshakeError {
    /// It took too long.
    #[error("the handshake took too long")]
    Timeout,
    /// It failed. TLS alerts are transport errors with their code (RFC 9001, 4.8).
    #[error(transparent)]
    Failed(#[from] ConnectionError),
    /// The handshake is complete without a ClientHello, which cannot be.
    #[error("the handshake has no ClientHello")]
    NoGreeting,
}
