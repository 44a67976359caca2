//! Backends in this process: HTTP servers of both versions that count requests, and scripted raw
//! sockets.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::harness::TEST_TIMEOUT;
use crate::harness::ports::closed_address;

/// A response body.
pub(crate) type Payload = UnsyncBoxBody<Bytes, BoxError>;
/// Any error.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A backend, which ends when dropped.
pub(crate) struct Origin {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: watch::Sender<usize>,
    task: AbortHandle,
}

impl Origin {
    /// Returns a backend that responds over HTTP/1.1, and over HTTP/2 with prior knowledge.
    pub(crate) async fn new<F, R>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
        R: Future<Output = Response<Payload>> + Send + 'static,
    {
        let requests = watch::Sender::new(0);
        let counted = requests.clone();
        let mut origin = Self::raw(move |stream| {
            let (answer, counted) = (answer.clone(), counted.clone());
            let service = service_fn(move |request| {
                counted.send_modify(|count| *count += 1);
                let answered = answer(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            async move {
                let mut first = [0; 3];
                // Three bytes distinguish `PRI` from every method in the tests.
                let _ = stream.peek(&mut first).await;
                let io = TokioIo::new(stream);
                // Connection errors are ignored here: tests check responses.
                if &first == b"PRI" {
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(io, service).await;
                } else {
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server.serve_connection(io, service).await;
                }
            }
        })
        .await;
        origin.requests = requests;
        origin
    }

    /// Returns a backend that responds with the received request under this name.
    pub(crate) async fn echo(name: &'static str) -> Self {
        Self::new(move |request| echo(name, request)).await
    }

    /// Returns a backend that passes every connection to `serve`.
    pub(crate) async fn raw<F, R>(serve: F) -> Self
    where
        F: Fn(TcpStream) -> R + Send + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("an address");
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = connections.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, SeqCst);
                let _ = stream.set_nodelay(true);
                tokio::spawn(serve(stream));
            }
        });
        Self {
            address,
            connections,
            requests: watch::Sender::default(),
            task: task.abort_handle(),
        }
    }

    /// Returns an address where nothing listens.
    pub(crate) fn dead() -> SocketAddr {
        closed_address()
    }

    /// Returns number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// Returns number of requests.
    pub(crate) fn requests(&self) -> usize {
        *self.requests.borrow()
    }

    /// Waits for this total number of requests.
    pub(crate) async fn until_requests(&self, count: usize) {
        let mut requests = self.requests.subscribe();
        let enough = timeout(TEST_TIMEOUT, requests.wait_for(|seen| *seen >= count)).await;
        enough.expect("requests in time").expect("an origin");
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn echo(name: &str, request: Request<Incoming>) -> Response<Payload> {
    let (head, body) = request.into_parts();
    let received = body.collect().await.map_or(0, |body| body.to_bytes().len());
    let answer = json!({
        "name": name,
        "method": head.method.as_str(),
        "path": head.uri.path_and_query().map(|path| path.as_str()),
        "authority": head.uri.authority().map(|authority| authority.as_str()),
        "version": format!("{:?}", head.version),
        "headers": fields(&head.headers),
        "received": received,
    });
    Response::new(full(answer.to_string()))
}

fn fields(headers: &HeaderMap) -> Value {
    let field = |name: &http::HeaderName| {
        let values = headers.get_all(name).iter();
        let values: Vec<_> = values
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect();
        (name.to_string(), Value::from(values.join(",")))
    };
    headers
        .keys()
        .map(field)
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// Returns a body of known bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Payload {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed_unsync()
}

/// No body.
pub(crate) fn empty() -> Payload {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Returns a body that streams frames until the sender is dropped. Buffers one frame.
pub(crate) fn stream() -> (mpsc::Sender<Frame<Bytes>>, Payload) {
    let (sender, receiver) = mpsc::channel(1);
    (sender, Streamed(receiver).boxed_unsync())
}

struct Streamed(mpsc::Receiver<Frame<Bytes>>);

impl Body for Streamed {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}
