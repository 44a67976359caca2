//! HTTP/2 clients and origins on the `h2` crate, each with a runtime of its own thread. Knows no single test.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

use super::PATIENCE;

/// Runs a test's own work to its end, in bounded time.
pub(crate) fn block_on<F: Future>(work: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let local = tokio::task::LocalSet::new();
    let bounded = async { tokio::time::timeout(4 * PATIENCE, work).await };
    runtime
        .block_on(local.run_until(bounded))
        .expect("done in time")
}

/// How a client's connection ended.
pub(crate) type Ended = oneshot::Receiver<Result<(), h2::Error>>;

/// A client in plain text, with prior knowledge.
pub(crate) async fn connect(address: SocketAddr) -> (SendRequest<Bytes>, Ended) {
    let socket = TcpStream::connect(address).await.expect("connected");
    socket.set_nodelay(true).expect("set");
    open(socket, trusting()).await
}

/// A client with TLS, asking for no name when `name` is empty.
pub(crate) async fn connect_tls(address: SocketAddr, name: &str) -> (SendRequest<Bytes>, Ended) {
    let socket = TcpStream::connect(address).await.expect("connected");
    let name = if name.is_empty() { "127.0.0.1" } else { name };
    let name = ServerName::try_from(name.to_owned()).expect("a server name");
    let connector = TlsConnector::from(super::tls::client(&["h2"]));
    let stream = connector.connect(name, socket).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    open(stream, trusting()).await
}

/// Small frames that come while nobody reads are no attack to a test's peers: what they bear is not what is tested.
const FRAME_BUDGET: usize = usize::MAX;

fn trusting() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder.data_frame_budget(FRAME_BUDGET);
    builder
}

/// A client on a byte stream, with settings of its own. Its connection runs on the current `LocalSet`.
pub(crate) async fn open<S>(io: S, builder: h2::client::Builder) -> (SendRequest<Bytes>, Ended)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (sender, connection) = builder.handshake(io).await.expect("a handshake");
    let (tell, ended) = oneshot::channel();
    tokio::task::spawn_local(async move {
        // The test may have stopped listening.
        let _ = tell.send(connection.await);
    });
    (sender, ended)
}

/// What came of a body.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    pub(crate) trailers: Option<HeaderMap>,
    pub(crate) error: Option<h2::Error>,
}

/// Reads a body to its end.
pub(crate) async fn read(mut body: RecvStream) -> Received {
    let mut received = Received::default();
    while let Some(piece) = body.data().await {
        match piece {
            Ok(bytes) => {
                // A stream that has just been reset has no window to give back to.
                let _ = body.flow_control().release_capacity(bytes.len());
                received.bytes.extend_from_slice(&bytes);
            }
            Err(error) => {
                received.error = Some(error);
                return received;
            }
        }
    }
    match body.trailers().await {
        Ok(trailers) => received.trailers = trailers,
        Err(error) => received.error = Some(error),
    }
    received
}

/// Sends all of `bytes` as the window allows.
pub(crate) async fn write(
    stream: &mut SendStream<Bytes>,
    mut bytes: Bytes,
    end: bool,
) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        stream.reserve_capacity(bytes.len());
        let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
        let Some(capacity) = capacity else {
            return Err(h2::Reason::CANCEL.into());
        };
        let piece = bytes.split_to(capacity?.min(bytes.len()));
        let last = end && bytes.is_empty();
        stream.send_data(piece, last)?;
    }
    Ok(())
}

/// A request without a body: the head of its answer, and the body.
pub(crate) async fn ask(
    sender: &SendRequest<Bytes>,
    request: Request<()>,
) -> Result<(http::response::Parts, Received), h2::Error> {
    let mut sender = sender.clone().ready().await?;
    let (answer, _) = sender.send_request(request, true)?;
    let (head, body) = answer.await?.into_parts();
    Ok((head, read(body).await))
}

/// A `GET`.
pub(crate) fn get(uri: &str) -> Request<()> {
    Request::get(uri).body(()).expect("a request")
}

/// What an origin does with a request.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()>>>;

/// An origin that speaks HTTP/2 with prior knowledge, until dropped.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    _stop: oneshot::Sender<()>,
}

impl Origin {
    /// An origin that does `serve` with every request.
    pub(crate) fn start<F>(serve: F) -> Self
    where
        F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> Work + Clone + Send + 'static,
    {
        Self::limited(u32::MAX, serve)
    }

    /// As [`Self::start`], with so many streams on a connection at one time.
    pub(crate) fn limited<F>(max_streams: u32, serve: F) -> Self
    where
        F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> Work + Clone + Send + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("set");
        let address = listener.local_addr().expect("bound");
        let (connections, requests) = (Arc::<AtomicUsize>::default(), Arc::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let counts = (connections.clone(), Arc::clone(&requests));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let local = tokio::task::LocalSet::new();
            runtime.block_on(local.run_until(async move {
                let listener = TcpListener::from_std(listener).expect("watched");
                tokio::select! {
                    () = accept(listener, max_streams, serve, counts) => {}
                    _ = stopped => {}
                }
            }));
        });
        Self {
            address,
            connections,
            requests,
            _stop: stop,
        }
    }

    /// An origin that answers every request with 200 and `hello`, after its body.
    pub(crate) fn hello() -> Self {
        Self::start(|request, mut respond| {
            Box::pin(async move {
                read(request.into_body()).await;
                let answer = respond.send_response(Response::new(()), false);
                // The proxy may have gone away, which is its right.
                if let Ok(mut body) = answer {
                    let _ = body.send_data(Bytes::from_static(b"hello"), true);
                }
            })
        })
    }

    /// How many connections were accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// How many requests have arrived so far.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }
}

async fn accept<F>(
    listener: TcpListener,
    max_streams: u32,
    serve: F,
    (connections, requests): (Arc<AtomicUsize>, Arc<AtomicUsize>),
) where
    F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> Work + Clone + 'static,
{
    while let Ok((socket, _)) = listener.accept().await {
        connections.fetch_add(1, Relaxed);
        let (serve, requests) = (serve.clone(), requests.clone());
        tokio::task::spawn_local(async move {
            let mut builder = h2::server::Builder::new();
            builder.data_frame_budget(FRAME_BUDGET);
            builder.max_concurrent_streams(max_streams);
            let Ok(mut connection) = builder.handshake(socket).await else {
                return;
            };
            while let Some(Ok((request, respond))) = connection.accept().await {
                requests.fetch_add(1, Relaxed);
                tokio::task::spawn_local(serve(request, respond));
            }
        });
    }
}
