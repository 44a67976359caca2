//! HTTP/2 clients and origins based on the `h2` crate, each on its own thread and runtime.

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

use super::TEST_TIMEOUT;

/// Runs a future with a timeout.
pub(crate) fn block_on<F: Future>(work: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let local = tokio::task::LocalSet::new();
    let bounded = async { tokio::time::timeout(4 * TEST_TIMEOUT, work).await };
    runtime
        .block_on(local.run_until(bounded))
        .expect("done in time")
}

/// Result of a client's connection.
pub(crate) type Ended = oneshot::Receiver<Result<(), h2::Error>>;

/// Returns a client in plain text, with prior knowledge.
pub(crate) async fn connect(address: SocketAddr) -> (SendRequest<Bytes>, Ended) {
    let socket = TcpStream::connect(address).await.expect("connected");
    socket.set_nodelay(true).expect("set");
    open(socket, trusting()).await
}

/// Returns a client with TLS; without SNI if `name` is empty.
pub(crate) async fn connect_tls(address: SocketAddr, name: &str) -> (SendRequest<Bytes>, Ended) {
    let socket = TcpStream::connect(address).await.expect("connected");
    let name = if name.is_empty() { "127.0.0.1" } else { name };
    let name = ServerName::try_from(name.to_owned()).expect("a server name");
    let connector = TlsConnector::from(super::tls::client(&["h2"]));
    let stream = connector.connect(name, socket).await.expect("a handshake");
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    open(stream, trusting()).await
}

/// Disables h2's flood protection in test peers, since tests send many small frames on purpose.
const FRAME_BUDGET: usize = usize::MAX;

fn trusting() -> h2::client::Builder {
    let mut builder = h2::client::Builder::new();
    builder.data_frame_budget(FRAME_BUDGET);
    builder
}

/// Returns a client on a byte stream with its own settings. Its connection runs on the current
/// `LocalSet`.
pub(crate) async fn open<S>(io: S, builder: h2::client::Builder) -> (SendRequest<Bytes>, Ended)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (sender, connection) = builder.handshake(io).await.expect("a handshake");
    let (tell, ended) = oneshot::channel();
    tokio::task::spawn_local(async move {
        // Ignored: the test may have ended.
        let _ = tell.send(connection.await);
    });
    (sender, ended)
}

/// Result of reading a body.
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
                // A reset stream has no window to release.
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

/// Sends all of `bytes` within the flow-control window.
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

/// Sends a request without a body; returns the response head and body.
pub(crate) async fn round_trip(
    sender: &SendRequest<Bytes>,
    request: Request<()>,
) -> Result<(http::response::Parts, Received), h2::Error> {
    let mut sender = sender.clone().ready().await?;
    let (answer, _) = sender.send_request(request, true)?;
    let (head, body) = answer.await?.into_parts();
    Ok((head, read(body).await))
}

/// Returns a `GET`.
pub(crate) fn get(uri: &str) -> Request<()> {
    Request::get(uri).body(()).expect("a request")
}

/// Handler of a request.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()>>>;

/// An origin that speaks HTTP/2 with prior knowledge, until dropped.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    _stop: oneshot::Sender<()>,
}

impl Origin {
    /// Starts an origin that runs `serve` for every request.
    pub(crate) fn start<F>(serve: F) -> Self
    where
        F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> Work + Clone + Send + 'static,
    {
        Self::limited(u32::MAX, serve)
    }

    /// Like [`Self::start`], with a limit of concurrent streams per connection.
    pub(crate) fn limited<F>(max_streams: u32, serve: F) -> Self
    where
        F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> Work + Clone + Send + 'static,
    {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(max_streams);
        // Streams that are not read do not delay others.
        builder.initial_connection_window_size(64 << 20);
        Self::with(builder, serve)
    }

    /// Like [`Self::start`], with these settings.
    pub(crate) fn with<F>(mut builder: h2::server::Builder, serve: F) -> Self
    where
        F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> Work + Clone + Send + 'static,
    {
        builder.data_frame_budget(FRAME_BUDGET);
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
                    () = accept(listener, builder, serve, counts) => {}
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

    /// Returns an origin that reads every request body and responds with 200 and `hello`.
    pub(crate) fn hello() -> Self {
        Self::start(|request, mut respond| {
            Box::pin(async move {
                read(request.into_body()).await;
                let answer = respond.send_response(Response::new(()), false);
                // Ignored: the proxy may have reset the stream.
                if let Ok(mut body) = answer {
                    let _ = body.send_data(Bytes::from_static(b"hello"), true);
                }
            })
        })
    }

    /// Returns number of accepted connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    /// Returns number of received requests.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Relaxed)
    }
}

async fn accept<F>(
    listener: TcpListener,
    builder: h2::server::Builder,
    serve: F,
    (connections, requests): (Arc<AtomicUsize>, Arc<AtomicUsize>),
) where
    F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> Work + Clone + 'static,
{
    while let Ok((socket, _)) = listener.accept().await {
        connections.fetch_add(1, Relaxed);
        let (serve, requests) = (serve.clone(), requests.clone());
        let builder = builder.clone();
        tokio::task::spawn_local(async move {
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
