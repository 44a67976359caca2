//! Connects to one endpoint, with TLS if configured.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustls::CertificateError;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::ir::UpstreamProtocol;
use crate::runtime::descriptors::{BackendDescriptor, are_exhausted};
use crate::table::{
    Backend, BackendSettings, BackendStats, Endpoint, EndpointFault, TlsFailure, TlsIdentity,
    Transport, UpstreamFault,
};
use crate::upstream::io::{Io, Terms};
use crate::upstream::peer_watch::{Reads, ask_when_quiet, expect_acknowledgements};
use crate::upstream::proxy_header;
use crate::upstream::send_error::SendError;

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// An endpoint with all that is needed to connect to it.
#[derive(Clone)]
pub(super) struct Connector {
    endpoint: Arc<Endpoint>,
    transport: Transport,
    declared: UpstreamProtocol,
    stats: Arc<BackendStats>,
    settings: Option<Arc<BackendSettings>>,
    /// Addresses of the only client of the connection, and of the proxy as this client sees it.
    client: Option<Arc<(SocketAddr, SocketAddr)>>,
    /// Start of the connect that is currently awaited.
    awaited_since: Cell<Option<Instant>>,
}

impl Connector {
    pub(super) fn new(backend: &Backend, endpoint: &Arc<Endpoint>) -> Self {
        Self::with(&backend.transport, backend, endpoint)
    }

    /// Connects for requests with these needs.
    pub(super) fn for_requests(
        backend: &Backend,
        endpoint: &Arc<Endpoint>,
        upgrades: bool,
    ) -> Self {
        Self::with(transport(backend, upgrades), backend, endpoint)
    }

    fn with(transport: &Transport, backend: &Backend, endpoint: &Arc<Endpoint>) -> Self {
        Self {
            endpoint: endpoint.clone(),
            transport: transport.clone(),
            declared: backend.protocol,
            stats: backend.stats.clone(),
            settings: backend.settings.clone(),
            client: None,
            awaited_since: Cell::new(None),
        }
    }

    /// Connects for one client. The second address is that of the proxy as the client sees it.
    pub(super) fn of_client(self, client: Option<Arc<(SocketAddr, SocketAddr)>>) -> Self {
        Self { client, ..self }
    }

    /// Connects without TLS, whatever the settings of the backend are.
    pub(super) fn in_plain_text(self) -> Self {
        Self {
            transport: Transport::Plain,
            ..self
        }
    }

    pub(super) fn key(&self) -> ConnectionKey {
        ConnectionKey {
            endpoint: self.endpoint.id,
            identity: self.transport.identity(),
        }
    }

    /// Returns the pool key of the backend's connections to an endpoint, for requests that upgrade theirs or not.
    pub(super) fn key_of(backend: &Backend, endpoint: &Endpoint, upgrades: bool) -> ConnectionKey {
        ConnectionKey {
            endpoint: endpoint.id,
            identity: transport(backend, upgrades).identity(),
        }
    }

    /// Returns the protocol of new connections; `None` if ALPN decides.
    pub(super) fn protocol(&self) -> Option<Protocol> {
        match &self.transport {
            Transport::Plain if self.declared == UpstreamProtocol::H2c => Some(Protocol::Http2),
            // appProtocol declares HTTP/2, which takes precedence over the result of ALPN.
            Transport::Tls(_) if self.declared == UpstreamProtocol::H2c => Some(Protocol::Http2),
            Transport::Tls(tls) if tls.config.alpn_protocols.iter().any(|name| name == b"h2") => {
                None
            }
            Transport::Plain | Transport::Tls(_) | Transport::Unusable => Some(Protocol::Http1),
        }
    }

    /// Returns the maximum number of streams of a connection of HTTP/2 by the policy of the backend.
    pub(super) fn max_streams(&self) -> Option<usize> {
        let settings = self.settings.as_ref()?;
        settings.ir.connection.max_streams.map(|max| max as usize)
    }

    /// Returns the protocol of a connection: what is configured, or else what its ALPN selected.
    pub(super) fn protocol_of(&self, io: &Io) -> Protocol {
        let negotiated = match io.has_negotiated_http2() {
            true => Protocol::Http2,
            false => Protocol::Http1,
        };
        self.protocol().unwrap_or(negotiated)
    }

    /// Records the start of the awaited connect.
    pub(super) fn await_since(&self, begin: Instant) {
        self.awaited_since.set(Some(begin));
    }

    /// Returns the duration of the awaited connect so far, without queueing time.
    pub(super) fn elapsed(&self) -> Duration {
        let since = self.awaited_since.get();
        since.map_or(Duration::ZERO, |begin| begin.elapsed())
    }

    /// Connects within `limit`, or within what the policy of the backend says, including TLS.
    pub(super) async fn connect(
        &self,
        limit: Duration,
        descriptor: BackendDescriptor,
    ) -> Result<Io, SendError> {
        let settings = self.settings.as_deref();
        let slot = settings.map(BackendSettings::connect).transpose()?;
        let max = settings.and_then(|it| it.ir.limits.connections_per_endpoint);
        let of_endpoint = max.map(|max| self.endpoint.connect(max)).transpose();
        let of_endpoint = of_endpoint.map_err(|_| SendError::ENDPOINT_FULL)?;
        let connection = settings.map(|settings| settings.ir.connection);
        let limit = connection
            .and_then(|it| it.connect_timeout)
            .unwrap_or(limit);
        let begin = Instant::now();
        let is_connected = Cell::new(false);
        let io = timeout(limit, self.establish(descriptor, &is_connected))
            .await
            .map_err(|_| {
                self.endpoint.faults.add(match is_connected.get() {
                    true => EndpointFault::HandshakeTimeout,
                    false => EndpointFault::ConnectTimeout,
                });
                SendError::Backend(
                    UpstreamFault::ConnectTimeout,
                    "connecting to the backend timed out",
                )
            })??;
        self.stats.connected(begin.elapsed());
        let slots = [slot.flatten(), of_endpoint];
        let terms = connection.map(|it| Box::new(Terms::new(&it, slots)));
        Ok(io.with_terms(terms))
    }

    /// Opens a connection. Says in `is_connected` when TCP is established.
    async fn establish(
        &self,
        descriptor: BackendDescriptor,
        is_connected: &Cell<bool>,
    ) -> Result<Io, SendError> {
        if matches!(self.transport, Transport::Unusable) {
            return Err(SendError::Backend(
                UpstreamFault::Connect,
                "TLS to the backend cannot be configured",
            ));
        }
        let address = self.endpoint.address;
        let io = match &self.endpoint.hostname {
            None => TcpStream::connect(address).await,
            Some(hostname) => TcpStream::connect((&**hostname, address.port())).await,
        };
        let io = io.map_err(|error| self.connect_failed(&error))?;
        is_connected.set(true);
        // Without TCP_NODELAY, small writes wait for ACKs. A socket that does not support it still
        // works.
        let _ = io.set_nodelay(true);
        let mut io = io;
        let settings = self.settings.as_ref();
        if let Some(version) = settings.and_then(|it| it.ir.connection.proxy_protocol) {
            let header = proxy_header::header(version, self.client.as_deref().copied());
            let written = io.write_all(&header).await;
            written.map_err(|error| self.connect_failed(&error))?;
        }
        let keepalive = settings.and_then(|it| it.ir.connection.keepalive);
        ask_when_quiet(&io, keepalive);
        let reads = match self.declared {
            // It is unknown what the protocol of a forwarded connection asks for.
            UpstreamProtocol::Tcp => Reads::AtWill,
            _ => Reads::Promptly,
        };
        expect_acknowledgements(&io, reads);
        let Transport::Tls(tls) = &self.transport else {
            return Ok(Io::plain(io, descriptor, reads));
        };
        let connector = TlsConnector::from(tls.config.clone());
        match connector.connect(tls.server_name.clone(), io).await {
            Ok(io) => Ok(Io::tls(io, descriptor, reads)),
            Err(error) => {
                tracing::debug!(%error, endpoint = %self.endpoint.address, "TLS to a backend failed");
                let failure = tls_failure(&error);
                self.stats.tls_failed(failure);
                self.endpoint.faults.add(EndpointFault::Tls(failure));
                Err(SendError::Backend(UpstreamFault::Connect, failure.cause()))
            }
        }
    }

    /// Classifies a failed connect, and counts it for the endpoint if that is the cause.
    fn connect_failed(&self, error: &io::Error) -> SendError {
        let failed = connect_error(error);
        if matches!(failed, SendError::Backend(UpstreamFault::Connect, _)) {
            self.endpoint.faults.add(endpoint_fault(error));
        }
        failed
    }
}

/// Classifies a failed connect, as far as the proxy and its host are not the cause.
fn endpoint_fault(error: &io::Error) -> EndpointFault {
    match Errno::from_io_error(error) {
        Some(Errno::CONNREFUSED) => EndpointFault::Refused,
        Some(Errno::HOSTUNREACH | Errno::NETUNREACH) => EndpointFault::Unreachable,
        Some(Errno::TIMEDOUT) => EndpointFault::ConnectTimeout,
        _ => EndpointFault::Connect,
    }
}

fn transport(backend: &Backend, upgrades: bool) -> &Transport {
    match upgrades {
        true => backend.transport.for_upgrades(),
        false => &backend.transport,
    }
}

/// Classifies a failed connect.
pub(super) fn connect_error(error: &io::Error) -> SendError {
    if are_exhausted(error) {
        return SendError::NO_DESCRIPTOR;
    }
    let (fault, detail) = match Errno::from_io_error(error) {
        Some(Errno::ADDRNOTAVAIL) => (
            UpstreamFault::Local,
            "the proxy has no local port left for a connection to the backend",
        ),
        Some(Errno::NOBUFS | Errno::NOMEM) => (
            UpstreamFault::Local,
            "the host has no memory for a connection to the backend",
        ),
        // A rule of the proxy's own host (connect(2)).
        Some(Errno::ACCESS | Errno::PERM) => (
            UpstreamFault::Local,
            "the proxy is not permitted to connect to the backend",
        ),
        _ => (UpstreamFault::Connect, "cannot connect to the backend"),
    };
    SendError::Backend(fault, detail)
}

/// Classifies a failed TLS handshake.
fn tls_failure(error: &io::Error) -> TlsFailure {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref());
    match error {
        Some(rustls::Error::InvalidCertificate(problem)) => match problem {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsFailure::Name
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                TlsFailure::Expired
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                TlsFailure::NotYetValid
            }
            // A wrong signature results from a different CA with the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                TlsFailure::UnknownAuthority
            }
            CertificateError::ApplicationVerificationFailure => TlsFailure::Pin,
            _ => TlsFailure::Certificate,
        },
        Some(rustls::Error::AlertReceived(_)) => TlsFailure::Refused,
        Some(_) => TlsFailure::Protocol,
        None => TlsFailure::Ended,
    }
}

/// Everything that distinguishes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConnectionKey {
    pub(super) endpoint: u64,
    pub(super) identity: TlsIdentity,
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use rustls::ServerConfig;
    use rustls::pki_types::{PrivateKeyDer, ServerName};
    use socket2::SockRef;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::ir;
    use crate::ir::ObjectRef;
    use crate::ir::backend_policy::{BackendPolicy, Connection};
    use crate::table::ClientTls;

    const NAME: &str = "backend.example";
    /// First byte of a TLS handshake.
    const HANDSHAKE: u8 = 22;

    fn protocols(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    /// A server that accepts connections with and without TLS, and keeps them open.
    struct Server {
        address: SocketAddr,
        roots: rustls::RootCertStore,
    }

    impl Server {
        async fn start() -> Self {
            let key = rcgen::KeyPair::generate().unwrap();
            let parameters = rcgen::CertificateParams::new(vec![NAME.to_owned()]).unwrap();
            let certificate = parameters.self_signed(&key).unwrap();
            let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
            let mut config = ServerConfig::builder()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], private)
                .unwrap();
            config.alpn_protocols = protocols(&["h2", "http/1.1"]);
            let acceptor = TlsAcceptor::from(Arc::new(config));
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let acceptor = acceptor.clone();
                    tokio::spawn(async move {
                        let mut first = [0];
                        let _ = stream.peek(&mut first).await;
                        if first == [HANDSHAKE] {
                            let _stream = acceptor.accept(stream).await;
                            pending::<()>().await;
                        }
                        pending::<()>().await;
                    });
                }
            });
            let mut roots = rustls::RootCertStore::empty();
            roots.add(certificate.der().clone()).unwrap();
            Self { address, roots }
        }

        fn tls(&self, alpn: &[&str]) -> Transport {
            let mut config = rustls::ClientConfig::builder()
                .with_root_certificates(self.roots.clone())
                .with_no_client_auth();
            config.alpn_protocols = protocols(alpn);
            Transport::Tls(Arc::new(ClientTls {
                config: Arc::new(config),
                server_name: ServerName::try_from(NAME).unwrap(),
                identity: TlsIdentity(1),
                for_upgrades: None,
            }))
        }

        async fn connect(
            &self,
            protocol: UpstreamProtocol,
            transport: Transport,
            keepalive: Option<Duration>,
        ) -> Io {
            let policy = keepalive.map(|keepalive| {
                let name = ObjectRef::core("Policy", "ns", "one");
                Arc::new(BackendPolicy {
                    connection: Connection {
                        keepalive: Some(keepalive),
                        ..Connection::default()
                    },
                    ..BackendPolicy::without_settings(name)
                })
            });
            let ir = ir::Backend {
                protocol,
                policy,
                ..ir::Backend::plain(vec![self.address].into())
            };
            let backend = Backend::new(&ir, transport, Arc::default());
            let endpoints = backend.endpoints();
            let endpoint = endpoints.iter().next().unwrap();
            let connector = Connector::new(&backend, endpoint);
            let descriptor = BackendDescriptor::take(&Arc::default(), None).unwrap();
            let limit = Duration::from_secs(60);
            connector.connect(limit, descriptor).await.unwrap()
        }
    }

    /// Returns the seconds after which the host asks a quiet peer, between these questions, and for which bytes may be
    /// unacknowledged.
    fn watch_of(io: &Io) -> [Option<u64>; 3] {
        let socket = SockRef::from(io.tcp());
        let after = socket.tcp_keepalive_time().unwrap();
        let after = socket.keepalive().unwrap().then_some(after);
        let interval = socket.tcp_keepalive_interval().ok();
        #[cfg(target_os = "linux")]
        let unacknowledged = socket.tcp_user_timeout().unwrap();
        #[cfg(not(target_os = "linux"))]
        let unacknowledged = None;
        [after, interval, unacknowledged].map(|time: Option<Duration>| time.map(|it| it.as_secs()))
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn host_watches_every_kind_of_connection() {
        use UpstreamProtocol::{H2c, Http1, Tcp};
        let server = Server::start().await;
        let tls = |alpn: &[&str]| server.tls(alpn);
        let bounded = [Some(30), Some(10), Some(20)];
        let rows = [
            ("HTTP/1.1", Http1, Transport::Plain, bounded),
            ("h2c", H2c, Transport::Plain, bounded),
            ("HTTP/1.1 in TLS", Http1, tls(&["http/1.1"]), bounded),
            ("by ALPN", Http1, tls(&["h2", "http/1.1"]), bounded),
            ("HTTP/2 in TLS", H2c, tls(&["h2"]), bounded),
            // It may leave what it is sent unread.
            ("TCP", Tcp, Transport::Plain, [Some(30), Some(10), None]),
        ];
        for (kind, protocol, transport, expected) in rows {
            let mut io = server.connect(protocol, transport, None).await;
            assert_eq!(watch_of(&io), expected, "{kind}");
            io.expect_reads(Reads::AtWill);
            assert_eq!(watch_of(&io)[2], None, "{kind}");
            io.expect_reads(Reads::Promptly);
            assert_eq!(watch_of(&io)[2], Some(20), "{kind}");
        }
        let policy = Some(Duration::from_secs(7));
        for protocol in [Http1, H2c, Tcp] {
            let io = server.connect(protocol, Transport::Plain, policy).await;
            assert_eq!(watch_of(&io)[..2], [Some(7); 2]);
        }
    }

    #[test]
    fn failed_connects_have_causes() {
        let of = |cause: Errno| endpoint_fault(&cause.into());
        assert_eq!(of(Errno::CONNREFUSED), EndpointFault::Refused);
        assert_eq!(of(Errno::HOSTUNREACH), EndpointFault::Unreachable);
        assert_eq!(of(Errno::TIMEDOUT), EndpointFault::ConnectTimeout);
        assert_eq!(of(Errno::CONNRESET), EndpointFault::Connect);
    }
}
