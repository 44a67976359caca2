//! A server that sends as many bytes as a request asks for, and its clients.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, ConnectionError, Endpoint, EndpointConfig, TokioRuntime};
use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ClientHello;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_local;

use crate::quic::{
    Acceptor, BoundSocket, Choose, EndpointKeys, Handshake, HandshakeCount, HandshakeError, Inbox,
    Limits, QuicTls, Receiver, Router, Selection, WorkerPort,
};

/// Number of workers.
pub(super) const WORKERS: usize = 2;

/// Only a failure takes so long.
const DEADLINE: Duration = Duration::from_secs(60);

/// The secret of stateless resets that all servers have.
pub(super) const RESETS: [u8; 32] = [1; 32];

pub(super) const LIMITS: Limits = Limits {
    streams: 10,
    stream_window: 100_000,
    connection_window: 200_000,
    send_window: 200_000,
    idle_timeout: DEADLINE,
    handshake_timeout: DEADLINE,
    retry_from: 100,
    handshakes: 200,
};

/// Waits, but not forever.
pub(super) async fn within<F: Future>(future: F) -> F::Output {
    let outcome = tokio::time::timeout(DEADLINE, future).await;
    outcome.expect("nothing happens any more")
}

/// An authority and what it issues.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(parameters, key).unwrap())
    }

    pub(super) fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots.into()
    }

    /// Issues a certificate for a name.
    pub(super) fn issue(&self, name: &str) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.0).unwrap();
        let key = key.serialize_der().try_into().unwrap();
        (certificate.der().clone(), key)
    }

    /// The configuration of a server for TCP with a certificate for a name.
    pub(super) fn server(&self, name: &str) -> ServerConfig {
        let (certificate, key) = self.issue(name);
        ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap()
    }

    /// The configuration of a client that trusts the authority.
    pub(super) fn client(&self) -> ClientConfig {
        self.client_with(aws_lc_rs::default_provider())
    }

    pub(super) fn client_with(&self, provider: CryptoProvider) -> ClientConfig {
        let mut config = ClientConfig::builder_with_provider(provider.into())
            .with_protocol_versions(&[&version::TLS13])
            .unwrap()
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h3".to_vec()];
        config
    }
}

/// Selects the configuration with the name that the client sends. Its context is that name.
pub(super) fn by_name(configs: Vec<(&'static str, ServerConfig)>) -> Choose {
    let configs: Vec<_> = configs
        .into_iter()
        .map(|(name, config)| (name, Arc::new(QuicTls::new(&config).unwrap())))
        .collect();
    Arc::new(move |hello: &ClientHello<'_>| {
        let sent = hello.server_name();
        let found = configs.iter().find(|(name, _)| Some(*name) == sent);
        let (name, tls) = found.ok_or(rustls::AlertDescription::UnrecognisedName)?;
        Ok(Selection {
            tls: tls.clone(),
            context: Arc::new(*name),
        })
    })
}

/// How a handshake has ended at a worker.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) worker: usize,
    pub(super) is_validated: bool,
    /// The context and the client's certificates.
    pub(super) outcome: Result<(&'static str, Vec<CertificateDer<'static>>), HandshakeError>,
}

/// A server on a port of its own.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) served: mpsc::UnboundedReceiver<Served>,
    /// Number of datagrams that the reader has dropped.
    pub(super) dropped: Arc<AtomicU64>,
    end: Option<watch::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(limits: Limits, choose: &Choose) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let socket = BoundSocket::new(socket).unwrap();
        let router = Router::new(WORKERS);
        let inboxes: [Inbox; WORKERS] = Default::default();
        let (report, served) = mpsc::unbounded_channel();
        let (end, ended) = watch::channel(());
        let dropped = Arc::<AtomicU64>::default();
        let thread = |worker| {
            let port = WorkerPort {
                socket: socket.clone(),
                inbox: Inbox::clone(&inboxes[worker]),
                router: router.clone(),
                worker,
            };
            let reads = (worker == 0).then(|| (inboxes.clone(), dropped.clone()));
            let (choose, report, mut ended) = (choose.clone(), report.clone(), ended.clone());
            thread::spawn(move || {
                let runtime = Builder::new_current_thread()
                    .enable_all()
                    .build_local(LocalOptions::default())
                    .unwrap();
                runtime.block_on(async move {
                    if let Some((inboxes, dropped)) = reads {
                        let (socket, router) = (port.socket.clone(), port.router.clone());
                        let receiver = Receiver::new(socket, router, inboxes).unwrap();
                        spawn_local(receiver.run(move |count| {
                            dropped.fetch_add(count, Relaxed);
                        }));
                    }
                    tokio::select! {
                        () = accept(port, limits, choose, report) => {}
                        _ = ended.changed() => {}
                    }
                });
            })
        };
        Self {
            address,
            served,
            threads: (0..WORKERS).map(thread).collect(),
            dropped,
            end: Some(end),
        }
    }

    /// Returns how the next handshake has ended.
    pub(super) async fn next(&mut self) -> Served {
        within(self.served.recv()).await.expect("the server runs")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.take();
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking());
        }
    }
}

async fn accept(
    port: WorkerPort,
    limits: Limits,
    choose: Choose,
    report: mpsc::UnboundedSender<Served>,
) {
    let worker = port.worker;
    let keys = EndpointKeys::new(Arc::new(RESETS), &[2; 32]);
    let handshakes = HandshakeCount::default();
    let acceptor = Acceptor::new(port, &keys, limits, handshakes, choose).unwrap();
    while let Some(handshake) = acceptor.accept(|| false).await {
        spawn_local(serve(worker, handshake, report.clone()));
    }
}

async fn serve(worker: usize, handshake: Handshake, report: mpsc::UnboundedSender<Served>) {
    let is_validated = handshake.is_validated();
    let (outcome, connection) = match handshake.complete().await {
        Err(error) => (Err(error), None),
        Ok(established) => {
            let connection = established.connection;
            let context = established.greeting.context.downcast::<&str>();
            let context = *context.unwrap();
            assert_eq!(established.greeting.server_name.as_deref(), Some(context));
            let identity = connection.peer_identity();
            let identity = identity.map(|it| *it.downcast::<Vec<_>>().unwrap());
            (
                Ok((context, identity.unwrap_or_default())),
                Some(connection),
            )
        }
    };
    let served = Served {
        worker,
        is_validated,
        outcome,
    };
    // The test may have ended.
    let _ = report.send(served);
    let Some(connection) = connection else { return };
    while let Ok((mut response, mut request)) = connection.accept_bi().await {
        spawn_local(async move {
            let length = request.read_to_end(8).await.unwrap();
            let length = u64::from_be_bytes(length.try_into().unwrap());
            // The client may have left.
            let _ = response.write_all(&vec![7; length as usize]).await;
        });
    }
}

/// An endpoint for clients, on a port of its own.
pub(super) fn client_endpoint() -> Endpoint {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    Endpoint::new(
        EndpointConfig::default(),
        None,
        socket,
        Arc::new(TokioRuntime),
    )
    .unwrap()
}

/// The configuration of a client, as quinn takes it.
pub(super) fn client_config(config: ClientConfig) -> quinn::ClientConfig {
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
}

pub(super) async fn connect(
    endpoint: &Endpoint,
    config: ClientConfig,
    to: SocketAddr,
    name: &str,
) -> Result<Connection, ConnectionError> {
    let connecting = endpoint.connect_with(client_config(config), to, name);
    within(connecting.unwrap()).await
}

/// Receives this number of bytes.
pub(super) async fn download(connection: &Connection, length: u64) {
    let (mut request, mut response) = within(connection.open_bi()).await.unwrap();
    request.write_all(&length.to_be_bytes()).await.unwrap();
    request.finish().unwrap();
    let received = within(response.read_to_end(length as usize)).await.unwrap();
    assert_eq!(received.len() as u64, length);
}
