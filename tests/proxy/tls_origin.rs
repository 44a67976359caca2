//! TLS backends with certificates of a test CA. They record all received bytes before decryption.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use portcullis::ir::tls::KeyPin;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair, PublicKeyData,
    SanType, date_time_ymd,
};
use rustls::crypto::aws_lc_rs::cipher_suite;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// An authority that issues certificates.
pub(crate) struct Authority {
    pub(crate) pem: String,
    pub(crate) der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, as an authority issued it.
pub(crate) struct Issued {
    pub(crate) pem: String,
    pub(crate) key_pem: String,
    pub(crate) der: CertificateDer<'static>,
    /// Pin of its key, as in `validation.pins`.
    pub(crate) pin: String,
    key: Vec<u8>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).expect("signed");
        Self {
            pem: certificate.pem(),
            der: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Returns a certificate for these names; those with `://` are URI SANs.
    pub(crate) fn issue(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |_| {})
    }

    pub(crate) fn issue_with(
        &self,
        names: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> Issued {
        let key = KeyPair::generate().expect("a key");
        let params = leaf(names, change);
        Issued::new(&params.signed_by(&key, &self.issuer).expect("signed"), &key)
    }

    /// Returns a new certificate for the key of an existing one.
    pub(crate) fn renew(&self, existing: &Issued, names: &[&str]) -> Issued {
        let key = KeyPair::from_pem(&existing.key_pem).expect("a key");
        let params = leaf(names, |_| {});
        Issued::new(&params.signed_by(&key, &self.issuer).expect("signed"), &key)
    }

    /// Returns an expired certificate.
    pub(crate) fn issue_expired(&self, names: &[&str]) -> Issued {
        self.issue_with(names, |params| {
            params.not_before = date_time_ymd(2020, 1, 1);
            params.not_after = date_time_ymd(2021, 1, 1);
        })
    }
}

/// Parameters of a leaf certificate for these names; those with `://` are URI SANs.
fn leaf(names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    let name = |name: &&str| {
        let text = (*name).try_into().expect("ASCII");
        if name.contains("://") {
            SanType::URI(text)
        } else {
            SanType::DnsName(text)
        }
    };
    params.subject_alt_names = names.iter().map(name).collect();
    change(&mut params);
    params
}

impl Issued {
    fn new(certificate: &Certificate, key: &KeyPair) -> Self {
        let SupportedCipherSuite::Tls13(suite) = cipher_suite::TLS13_AES_128_GCM_SHA256 else {
            panic!("no SHA-256");
        };
        let digest = suite
            .common
            .hash_provider
            .hash(&key.subject_public_key_info());
        let digest = digest.as_ref().try_into().expect("32 bytes");
        Self {
            pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            der: certificate.der().clone(),
            key: key.serialize_der(),
            pin: KeyPin(digest).to_string(),
        }
    }

    /// Returns a self-signed certificate.
    pub(crate) fn self_signed(names: &[&str]) -> Self {
        let key = KeyPair::generate().expect("a key");
        let certificate = leaf(names, |_| {}).self_signed(&key).expect("signed");
        Self::new(&certificate, &key)
    }
}

/// TLS options of a backend.
#[derive(Clone, Copy)]
pub(crate) struct Asks<'a> {
    pub(crate) versions: &'a [&'static SupportedProtocolVersion],
    pub(crate) protocols: &'a [&'a str],
    /// CA of required client certificates.
    pub(crate) clients_of: Option<&'a Authority>,
}

impl Default for Asks<'_> {
    fn default() -> Self {
        Self {
            versions: rustls::ALL_VERSIONS,
            protocols: &[],
            clients_of: None,
        }
    }
}

/// A successful handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handshake {
    pub(crate) server_name: Option<String>,
    pub(crate) protocol: Option<String>,
    pub(crate) client: Option<CertificateDer<'static>>,
}

#[derive(Default)]
struct Seen {
    /// Raw bytes of each connection.
    wire: Vec<Arc<Mutex<Vec<u8>>>>,
    handshakes: Vec<Handshake>,
    requests: usize,
}

/// A backend; stopped on drop.
pub(crate) struct TlsOrigin {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    task: AbortHandle,
}

impl Drop for TlsOrigin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TlsOrigin {
    /// Starts a backend with this certificate.
    pub(crate) async fn start(certificate: &Issued) -> Self {
        Self::asking(certificate, Asks::default()).await
    }

    /// Starts a backend with these TLS options.
    pub(crate) async fn asking(certificate: &Issued, asks: Asks<'_>) -> Self {
        Self::with(Some(acceptor(certificate, asks)), None).await
    }

    /// Starts TLS in front of a backend that speaks plain text.
    pub(crate) async fn relaying(certificate: &Issued, asks: Asks<'_>, to: SocketAddr) -> Self {
        Self::with(Some(acceptor(certificate, asks)), Some(to)).await
    }

    /// Returns a backend that speaks HTTP in plain text.
    pub(crate) async fn plain() -> Self {
        Self::with(None, None).await
    }

    async fn with(acceptor: Option<TlsAcceptor>, relay: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let seen = Arc::<Mutex<Seen>>::default();
        let of_all = seen.clone();
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let wire = Arc::<Mutex<Vec<u8>>>::default();
                lock(&of_all).wire.push(wire.clone());
                let socket = Recorded { socket, wire };
                let (acceptor, seen) = (acceptor.clone(), of_all.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => answer(socket, &seen).await,
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(socket).await {
                                lock(&seen).handshakes.push(handshake(&stream));
                                match relay {
                                    None => serve(stream, &seen).await,
                                    Some(to) => forward(stream, to).await,
                                }
                            }
                        }
                    }
                });
            }
        });
        Self {
            address,
            seen,
            task: task.abort_handle(),
        }
    }

    pub(crate) fn connections(&self) -> usize {
        lock(&self.seen).wire.len()
    }

    pub(crate) fn requests(&self) -> usize {
        lock(&self.seen).requests
    }

    pub(crate) fn handshakes(&self) -> Vec<Handshake> {
        lock(&self.seen).handshakes.clone()
    }

    /// Checks that all connections contain TLS records only, and that `secret` is not readable.
    pub(crate) fn assert_encrypted(&self, secret: &str) {
        for wire in &lock(&self.seen).wire {
            let wire = lock(wire);
            assert!(is_tls(&wire), "bytes that are not TLS");
            let mut windows = wire.windows(secret.len());
            assert!(!windows.any(|it| it == secret.as_bytes()), "plain text");
        }
    }
}

/// Reports whether the bytes are TLS records; the last one may be truncated.
fn is_tls(mut bytes: &[u8]) -> bool {
    while let [kind, 3, _, high, low, rest @ ..] = bytes {
        if !(20..=23).contains(kind) {
            return false;
        }
        let length = usize::from(*high) << 8 | usize::from(*low);
        bytes = rest.get(length..).unwrap_or_default();
    }
    bytes.len() < 5
}

/// TLS with this certificate and these options.
fn acceptor(certificate: &Issued, asks: Asks<'_>) -> TlsAcceptor {
    let verifier = match asks.clients_of {
        None => Arc::new(NoClientAuth),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(authority.der.clone()).expect("a root");
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
            verifier.expect("a verifier")
        }
    };
    let key = PrivateKeyDer::try_from(certificate.key.clone()).expect("a key");
    let mut config = ServerConfig::builder_with_protocol_versions(asks.versions)
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![certificate.der.clone()], key)
        .expect("a configuration");
    let protocols = asks.protocols.iter();
    config.alpn_protocols = protocols.map(|name| name.as_bytes().to_vec()).collect();
    TlsAcceptor::from(Arc::new(config))
}

/// Relays decrypted bytes until one side ends.
async fn forward(mut stream: TlsStream<Recorded>, to: SocketAddr) {
    let mut backend = TcpStream::connect(to).await.expect("a backend");
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut backend).await;
}

fn handshake(stream: &TlsStream<Recorded>) -> Handshake {
    let connection = stream.get_ref().1;
    let protocol = connection.alpn_protocol();
    let certificates = connection.peer_certificates().unwrap_or_default();
    Handshake {
        server_name: connection.server_name().map(str::to_owned),
        protocol: protocol.map(|name| String::from_utf8_lossy(name).into_owned()),
        client: certificates
            .first()
            .cloned()
            .map(CertificateDer::into_owned),
    }
}

async fn serve(stream: TlsStream<Recorded>, seen: &Mutex<Seen>) {
    if stream.get_ref().1.alpn_protocol() != Some(&b"h2"[..]) {
        return answer(stream, seen).await;
    }
    let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        lock(seen).requests += 1;
        let _ = respond.send_response(http::Response::new(()), true);
    }
}

/// Responds to every HTTP/1.1 request head; anything that ends like a head counts as one.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, seen: &Mutex<Seen>) {
    let mut head = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        head.push(byte);
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            lock(seen).requests += 1;
            let response = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
            if stream.write_all(response).await.is_err() || stream.flush().await.is_err() {
                return;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket that records received bytes.
struct Recorded {
    socket: TcpStream,
    wire: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Recorded {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.socket).poll_read(cx, buffer);
        lock(&this.wire).extend_from_slice(&buffer.filled()[before..]);
        polled
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().socket).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}
