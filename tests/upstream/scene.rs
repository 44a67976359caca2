//! The upstream connections of one worker, requests on them, and scripted endpoints.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, request};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use portcullis::ir;
use portcullis::ir::backend_policy::{BackendPolicy, LoadBalancing};
use portcullis::ir::limit::KeyPart;
use portcullis::ir::{BackendId, ObjectRef, UpstreamProtocol};
use portcullis::runtime::clock::Clock;
use portcullis::runtime::per_worker::WorkerId;
use portcullis::settings::Limits;
use portcullis::table::{Backend, Transport, UpstreamFault};
use portcullis::upstream::{
    Attempts, Informational, Outgoing, Replay, Resend, Semantics, SendError, Upstream,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

pub(crate) use crate::harness::h2::block_on;
use crate::harness::{TEST_TIMEOUT, UNREACHED};

/// Runs a future while tokio's clock stands still: no timer of this thread helps it.
pub(crate) async fn without_timers<T>(work: impl Future<Output = T>) -> T {
    let (tell, told) = std::sync::mpsc::channel::<()>();
    tokio::time::pause();
    // A paused clock jumps to the next timer when all else waits, except while a blocking task runs.
    let holds = tokio::task::spawn_blocking(move || told.recv_timeout(TEST_TIMEOUT));
    let outcome = work.await;
    tokio::time::resume();
    // Fails if the task has ended, which is reported below.
    let _ = tell.send(());
    holds
        .await
        .expect("no panic")
        .expect("no timer is waited for");
    outcome
}

/// The connections of a worker.
pub(crate) struct Worker {
    pub(crate) upstream: Upstream,
}

/// Result of a request.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) endpoint: SocketAddr,
}

impl Worker {
    pub(crate) fn new() -> Rc<Self> {
        Self::with(|_| {})
    }

    pub(crate) fn with(tune: impl FnOnce(&mut Limits)) -> Rc<Self> {
        let mut limits = Limits {
            connect_timeout: UNREACHED,
            ..Limits::default()
        };
        tune(&mut limits);
        let clock = Clock::new();
        let upstream = Upstream::new(WorkerId::ONLY, &clock, &limits, &Arc::default());
        spawn_local(async move { clock.run().await });
        Rc::new(Self { upstream })
    }

    /// Sends a request with retries until it succeeds or must not be retried.
    pub(crate) async fn send(
        &self,
        backend: &Backend,
        request: &TestRequest,
    ) -> Result<Outcome, SendError> {
        self.send_with(backend, request, 0, None).await
    }

    /// Sends a request whose rule allows retries, without a delay before them.
    pub(crate) async fn send_with_retries(
        &self,
        backend: &Backend,
        request: &TestRequest,
        retries: usize,
    ) -> Result<Outcome, SendError> {
        self.send_with(backend, request, retries, None).await
    }

    pub(crate) async fn send_watched(
        &self,
        backend: &Backend,
        request: &TestRequest,
        informational: Option<Informational<'_>>,
    ) -> Result<Outcome, SendError> {
        self.send_with(backend, request, 0, informational).await
    }

    async fn send_with(
        &self,
        backend: &Backend,
        request: &TestRequest,
        mut retries: usize,
        informational: Option<Informational<'_>>,
    ) -> Result<Outcome, SendError> {
        let mut attempts = Attempts::default();
        let mut body = request.body.clone();
        loop {
            let outgoing = Outgoing {
                parts: &request.parts,
                semantics: Semantics::of(&request.parts.method),
                added: &[],
                upgrade: None,
                expect_continue: request.expect_continue,
                informational,
                try_timeout: request.try_timeout,
                keeps_body: retries > 0,
            };
            let attempt =
                self.upstream
                    .attempt(backend, request.affinity, &mut attempts, &outgoing, body);
            let failed = match attempt.await {
                Ok(response) => {
                    let endpoint = response.body.endpoint();
                    assert_eq!(attempts.endpoint(), Some(endpoint));
                    let body = response.body.collect().await.map_err(|_| BROKEN_BODY)?;
                    return Ok(Outcome {
                        status: response.status,
                        headers: response.headers,
                        body: body.to_bytes(),
                        endpoint,
                    });
                }
                Err(failed) => failed,
            };
            let Some(again) = failed.body else {
                attempts.give_up(backend);
                return Err(failed.error);
            };
            match failed.resend {
                Resend::AsRetry if !attempts.try_default_retry(backend) => return Err(failed.error),
                Resend::Never => {
                    retries -= 1;
                    attempts.begin_retry(None);
                }
                Resend::AsRetry | Resend::AtOnce | Resend::Stale => {}
            }
            body = again;
        }
    }
}

/// The error of a response whose body breaks off.
pub(crate) const BROKEN_BODY: SendError =
    SendError::Backend(UpstreamFault::Reset, "the response body broke off");

/// A request for `http://a.example`.
#[derive(Clone)]
pub(crate) struct TestRequest {
    pub(crate) parts: request::Parts,
    body: TestBody,
    pub(crate) expect_continue: bool,
    pub(crate) affinity: Option<u64>,
    pub(crate) try_timeout: Option<Duration>,
}

impl TestRequest {
    pub(crate) fn new(method: Method, body: &'static str) -> Self {
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = "/".parse().expect("a target");
        request
            .headers_mut()
            .insert("host", "a.example".parse().expect("a value"));
        Self {
            parts: request.into_parts().0,
            body: TestBody::new(body),
            expect_continue: false,
            affinity: None,
            try_timeout: None,
        }
    }

    pub(crate) fn get() -> Self {
        Self::new(Method::GET, "")
    }

    pub(crate) fn post() -> Self {
        Self::new(Method::POST, "hello")
    }

    /// Returns number of polls of the body.
    pub(crate) fn polls(&self) -> u32 {
        self.body.polls.get()
    }
}

/// A body in memory.
#[derive(Clone, Default)]
pub(crate) struct TestBody {
    all: Bytes,
    left: Bytes,
    polls: Rc<Cell<u32>>,
}

impl TestBody {
    fn new(text: &'static str) -> Self {
        let all = Bytes::from_static(text.as_bytes());
        Self {
            left: all.clone(),
            all,
            polls: Rc::default(),
        }
    }
}

impl Body for TestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.polls.set(self.polls.get() + 1);
        let left = std::mem::take(&mut self.left);
        Poll::Ready((!left.is_empty()).then(|| Ok(Frame::data(left))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.len() as u64)
    }
}

impl Replay for TestBody {
    fn rewind(&mut self) -> bool {
        self.left = self.all.clone();
        true
    }

    fn forget(&mut self) {
        self.all = Bytes::new();
    }
}

/// Returns a backend with these endpoints.
pub(crate) fn backend(
    protocol: UpstreamProtocol,
    transport: Transport,
    endpoints: &[SocketAddr],
) -> Backend {
    let ir = backend_ir(protocol, endpoints);
    Backend::new(&ir, transport, Arc::default())
}

/// Returns a backend of HTTP/1.1 in plain text whose policy selects endpoints by a header.
pub(crate) fn hashed(endpoints: &[SocketAddr]) -> Backend {
    let key = KeyPart::Header(http::HeaderName::from_static("x-user"));
    let policy = BackendPolicy {
        load_balancing: LoadBalancing::ConsistentHash(vec![key]),
        ..BackendPolicy::without_settings(ObjectRef::core("Policy", "ns", "one"))
    };
    let ir = ir::Backend {
        policy: Some(Arc::new(policy)),
        ..backend_ir(UpstreamProtocol::Http1, endpoints)
    };
    Backend::new(&ir, Transport::Plain, Arc::default())
}

fn backend_ir(protocol: UpstreamProtocol, endpoints: &[SocketAddr]) -> ir::Backend {
    let mut endpoints = endpoints.to_vec();
    endpoints.sort();
    let id = BackendId::new(ObjectRef::core("Service", "ns", "one"), 80);
    ir::Backend::new(id, protocol, endpoints.into())
}

/// Returns a backend of HTTP/1.1 in plain text.
pub(crate) fn http1(endpoints: &[SocketAddr]) -> Backend {
    backend(UpstreamProtocol::Http1, Transport::Plain, endpoints)
}

/// Returns a backend of HTTP/2 with prior knowledge.
pub(crate) fn h2c(endpoints: &[SocketAddr]) -> Backend {
    backend(UpstreamProtocol::H2c, Transport::Plain, endpoints)
}

/// An endpoint that runs a script on every connection.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    connections: Rc<Cell<usize>>,
}

impl Endpoint {
    /// Passes the connection and its number, from 1, to the script.
    pub(crate) async fn start<F, W>(script: F) -> Self
    where
        F: Fn(TcpStream, usize) -> W + 'static,
        W: Future<Output = ()> + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let connections = Rc::<Cell<usize>>::default();
        let count = connections.clone();
        spawn_local(async move {
            while let Ok((socket, _)) = listener.accept().await {
                count.set(count.get() + 1);
                spawn_local(script(socket, count.get()));
            }
        });
        Self {
            address,
            connections,
        }
    }

    /// Returns an endpoint that responds to every request with these bytes.
    pub(crate) async fn answering(response: &'static str) -> Self {
        Self::start(move |mut socket, _| async move {
            while head(&mut socket).await.is_some() {
                write_text(&mut socket, response).await;
            }
        })
        .await
    }

    /// How many connections were accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.get()
    }
}

/// Reads a complete head; `None` if the connection closes before.
pub(crate) async fn head(socket: &mut TcpStream) -> Option<String> {
    read_until(socket, "\r\n\r\n").await
}

/// Reads up to this text.
pub(crate) async fn read_until(socket: &mut TcpStream, end: &str) -> Option<String> {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        text.push(socket.read_u8().await.ok()?);
    }
    String::from_utf8(text).ok()
}

/// Sends a text. Errors are ignored: the peer may have disconnected.
pub(crate) async fn write_text(socket: &mut TcpStream, text: &str) {
    let _ = socket.write_all(text.as_bytes()).await;
}

/// A listener with a full backlog: connects to it hang.
pub(crate) struct Silent {
    pub(crate) address: SocketAddr,
    _held: (std::net::TcpListener, Vec<std::net::TcpStream>),
}

impl Silent {
    pub(crate) fn new() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shortened = socket2::SockRef::from(&listener).listen(0);
        shortened.expect("the queue is made short");
        let short = Duration::from_millis(50);
        let queued: Vec<_> = (0..8)
            .map_while(|_| std::net::TcpStream::connect_timeout(&address, short).ok())
            .collect();
        assert!(queued.len() < 8, "the queue does not fill");
        Self {
            address,
            _held: (listener, queued),
        }
    }
}
