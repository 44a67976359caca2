//! A scripted controller: TLS, HTTP/2 and the lines of the stream protocol.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use portcullis::wire::{
    Deleted, KeySetName, POSITION, ReadyPods, Report, Serves, SessionSecrets, Update,
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;

use crate::{TEST_TIMEOUT, eventually};

/// A certificate authority.
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// TLS with a certificate for a name.
    fn server(&self, name: &str) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], key.into())
                .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}

/// A running controller. Dropping it closes its connections.
pub(crate) struct Controller {
    pub(crate) address: SocketAddr,
    streams: Receiver<Stream>,
    refusal: Arc<Refusal>,
    freeze: mpsc::UnboundedSender<Receiver<()>>,
    /// How often a connection received something.
    received: Arc<AtomicUsize>,
    _stop: oneshot::Sender<()>,
}

impl Controller {
    /// Starts a controller with a certificate for `localhost`.
    pub(crate) fn start(authority: &Authority) -> Self {
        Self::named(authority, "localhost")
    }

    /// Returns a controller with a certificate for this name.
    pub(crate) fn named(authority: &Authority, name: &str) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(authority.server(name));
        let (sender, streams) = channel();
        let refusal = Arc::<Refusal>::default();
        let (freeze, mut freezes) = mpsc::unbounded_channel::<Receiver<()>>();
        let (stop, stopped) = oneshot::channel::<()>();
        let received = Arc::<AtomicUsize>::default();
        let shared = Shared {
            acceptor,
            streams: sender,
            refusal: refusal.clone(),
            received: received.clone(),
        };
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                let freezes = async {
                    while let Some(thaw) = freezes.recv().await {
                        // Blocks the only thread, like a stopped process.
                        let _ = thaw.recv();
                    }
                };
                tokio::select! {
                    () = accept(listener, shared) => {}
                    () = freezes => {}
                    _ = stopped => {}
                }
            });
            // Connections are tasks that end with the runtime.
        });
        Self {
            address,
            streams,
            refusal,
            freeze,
            received,
            _stop: stop,
        }
    }

    /// Waits for the next stream of a pod.
    pub(crate) fn accept(&self) -> Stream {
        self.streams
            .recv_timeout(TEST_TIMEOUT)
            .expect("a pod connects")
    }

    /// Reports whether no stream is waiting to be accepted.
    pub(crate) fn is_idle(&self) -> bool {
        self.streams.try_recv().is_err()
    }

    /// Waits until a connection has received so many more pings; nothing else may arrive meanwhile.
    pub(crate) fn until_pinged(&self, count: usize) {
        let wanted = self.received.load(Relaxed) + count;
        eventually(|| self.received.load(Relaxed), |seen| *seen >= wanted);
    }

    /// Rejects streams, or stops doing so.
    pub(crate) fn refuse(&self, refusal: Option<(u16, &'static str)>) {
        *self.refusal.with.lock().unwrap() = refusal;
    }

    /// Returns number of rejected streams.
    pub(crate) fn refusals(&self) -> usize {
        self.refusal.count.load(Relaxed)
    }

    /// Freezes with open connections until the returned guard is dropped.
    #[must_use]
    pub(crate) fn freeze(&self) -> Sender<()> {
        let (thaw, thawed) = channel();
        self.freeze.send(thawed).unwrap();
        thaw
    }
}

#[derive(Clone)]
struct Shared {
    acceptor: TlsAcceptor,
    streams: Sender<Stream>,
    refusal: Arc<Refusal>,
    received: Arc<AtomicUsize>,
}

/// A socket that counts what it receives.
struct Counted {
    socket: TcpStream,
    received: Arc<AtomicUsize>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        if read.is_ready() {
            self.received.fetch_add(1, Relaxed);
        }
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

/// The response to rejected streams, and their number.
#[derive(Default)]
struct Refusal {
    with: Mutex<Option<(u16, &'static str)>>,
    count: AtomicUsize,
}

async fn accept(listener: TcpListener, shared: Shared) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(connection(socket, shared.clone()));
    }
}

async fn connection(socket: TcpStream, shared: Shared) {
    let counted = Counted {
        socket,
        received: shared.received.clone(),
    };
    let Ok(stream) = shared.acceptor.accept(counted).await else {
        return;
    };
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let refusal = *shared.refusal.with.lock().unwrap();
        match refusal {
            Some(refusal) => {
                shared.refusal.count.fetch_add(1, Relaxed);
                refuse(respond, refusal);
            }
            None => serve(request, respond, &shared.streams),
        }
    }
}

fn refuse(mut respond: SendResponse<Bytes>, (status, body): (u16, &'static str)) {
    let response = Response::builder().status(status).body(()).unwrap();
    // Ignored: the pod may have disconnected.
    if let Ok(mut stream) = respond.send_response(response, false) {
        let _ = stream.send_data(body.into(), true);
    }
}

fn serve(request: Request<RecvStream>, mut respond: SendResponse<Bytes>, streams: &Sender<Stream>) {
    let (head, body) = request.into_parts();
    let (updates, mut lines) = mpsc::unbounded_channel::<Bytes>();
    let (report, reports) = channel();
    let (ask, asked) = channel();
    let stream = Stream {
        head,
        updates,
        reports,
        asked,
    };
    let Ok(mut response) = respond.send_response(Response::new(()), false) else {
        return;
    };
    tokio::spawn(async move {
        while let Some(line) = lines.recv().await {
            // h2 buffers data beyond the window.
            if response.send_data(line, false).is_err() {
                return;
            }
        }
        let _ = response.send_data(Bytes::new(), true);
    });
    tokio::spawn(read_reports(body, report, ask));
    // Ignored: the test may have ended.
    let _ = streams.send(stream);
}

async fn read_reports(mut body: RecvStream, reports: Sender<Serves>, asked: Sender<KeySetName>) {
    let mut buffer = Vec::new();
    while let Some(Ok(bytes)) = body.data().await {
        let _ = body.flow_control().release_capacity(bytes.len());
        buffer.extend_from_slice(&bytes);
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let is_sent = match serde_json::from_slice(&line).unwrap() {
                Report::Serves(serves) => reports.send(serves).is_ok(),
                Report::RefreshKeySet(name) => asked.send(name).is_ok(),
            };
            if !is_sent {
                return;
            }
        }
    }
}

/// A stream to a pod. Dropping it closes the stream after all sent data.
pub(crate) struct Stream {
    pub(crate) head: http::request::Parts,
    updates: mpsc::UnboundedSender<Bytes>,
    reports: Receiver<Serves>,
    asked: Receiver<KeySetName>,
}

impl Stream {
    /// Returns a header of the request.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        Some(self.head.headers.get(name)?.to_str().unwrap())
    }

    /// Returns the position that the pod has.
    pub(crate) fn position(&self) -> Option<&str> {
        self.header(POSITION)
    }

    /// Sends bytes that may not be a valid line.
    pub(crate) fn raw(&self, bytes: impl Into<Bytes>) {
        // Ignored: the pod may have disconnected.
        let _ = self.updates.send(bytes.into());
    }

    fn write_text(&self, update: &Update) -> &Self {
        let mut line = serde_json::to_vec(update).unwrap();
        line.push(b'\n');
        self.raw(line);
        self
    }

    pub(crate) fn begin(&self, instance: &str, base: Option<u64>) -> &Self {
        self.write_text(&Update::Begin {
            instance: instance.to_owned(),
            base,
        })
    }

    pub(crate) fn put(&self, object: Value) -> &Self {
        self.write_text(&Update::Put(object))
    }

    pub(crate) fn put_all(&self, objects: &[Value]) -> &Self {
        for object in objects {
            self.put(object.clone());
        }
        self
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, group: &str, kind: &str, name: &str) -> &Self {
        self.write_text(&Update::Delete(Deleted {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: "default".to_owned(),
            name: name.to_owned(),
        }))
    }

    /// Deletes a route.
    pub(crate) fn delete_route(&self, name: &str) -> &Self {
        self.delete("gateway.networking.k8s.io", "HTTPRoute", name)
    }

    pub(crate) fn commit(&self, revision: u64) -> &Self {
        self.write_text(&Update::Commit { revision })
    }

    /// Sends the secret of the Gateway.
    pub(crate) fn secret(&self, secret: &str) -> &Self {
        self.write_text(&Update::SessionSecret(SessionSecrets {
            secret: secret.to_owned(),
            accepted: None,
        }))
    }

    /// Sends the ready pods of the Gateway.
    pub(crate) fn pods(&self, own: &str, ready: &[(String, IpAddr)]) -> &Self {
        self.write_text(&Update::Pods(ReadyPods {
            own: own.to_owned(),
            ready: ready.iter().cloned().collect(),
            http3: BTreeSet::new(),
        }))
    }

    pub(crate) fn leader(&self, address: Option<SocketAddr>) -> &Self {
        self.write_text(&Update::Leader {
            address: address.map(|address| address.to_string()),
        })
    }

    /// Returns the next report.
    pub(crate) fn report(&self) -> Serves {
        self.reports.recv_timeout(TEST_TIMEOUT).expect("a report")
    }

    /// Returns the first report that matches.
    pub(crate) fn report_with(&self, wanted: impl Fn(&Serves) -> bool) -> Serves {
        loop {
            let report = self.report();
            if wanted(&report) {
                return report;
            }
        }
    }

    /// Returns the first report of a position.
    pub(crate) fn report_of(&self, position: &str) -> Serves {
        self.report_with(|report| report.position.to_string() == position)
    }

    /// Returns the next key set that the pod has asked for, if there is one.
    pub(crate) fn asked(&self) -> Option<KeySetName> {
        self.asked.try_recv().ok()
    }

    /// Waits until the pod asks for a key set.
    pub(crate) fn wait_until_asked(&self) -> KeySetName {
        self.asked.recv_timeout(TEST_TIMEOUT).expect("a request")
    }

    /// Waits until the pod has ended the stream.
    pub(crate) fn wait_for_end(&self) {
        loop {
            match self.reports.recv_timeout(TEST_TIMEOUT) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => panic!("the pod does not end the stream"),
            }
        }
    }
}
