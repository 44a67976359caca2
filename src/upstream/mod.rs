//! From a chosen backend to its answer: an endpoint, a connection, one or more tries. Owns connections to backends and
//! the rules of replaying; knows nothing of routes, filters or the client.

pub mod answer;
mod balance;
pub mod http1;
mod http2;
mod pool;

use std::error::Error as _;
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Uri, request};
use http_body::Body;
use tokio::net::TcpStream;
use tokio::time::timeout;

pub use self::answer::{Answer, AnswerBody};
use self::balance::InFlight;
use self::http1::{Buffers, Connection, Exchange, Fault};
use self::http2::Http2Pool;
use self::pool::Pool;
use crate::clock::Clock;
use crate::ir::UpstreamProtocol;
use crate::settings::Limits;
use crate::table::{Backend, Endpoint, UpstreamFault};

/// Endpoints that one request may try to connect to.
const MAX_ENDPOINTS: usize = 3;
/// Tries that one request may make at the same backend for connections that turned out to be closed.
const MAX_TRIES: usize = 4;

/// What becomes of a request that no endpoint was tried for.
const NO_ENDPOINT: SendError = SendError::Backend(
    UpstreamFault::NoEndpoint,
    "the backend has no ready endpoint",
);

/// What a request failed of on its way to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The backend's side failed.
    #[error("{1}")]
    Backend(UpstreamFault, &'static str),
    /// The client's side failed while its body was being forwarded.
    #[error("the request body failed")]
    RequestBody,
}

/// A request as it is to be sent.
pub struct Outgoing<'a> {
    /// Method, target and end-to-end fields, `Host` included.
    pub parts: &'a request::Parts,
    /// Fields that are sent besides those, none of which they have.
    pub added: &'a [(HeaderName, HeaderValue)],
    /// The protocol to upgrade to.
    pub upgrade: Option<&'a HeaderValue>,
    /// How long one try may take until the head of its answer.
    pub try_timeout: Option<Duration>,
}

/// The connections of one worker to all backends. `B` is the type of request bodies; its default is the empty body.
pub struct Upstream<B> {
    http1: Rc<Pool>,
    http2: Http2Pool<B>,
    buffers: Rc<Buffers>,
    connect_timeout: Duration,
}

/// A try that failed, with what another one needs.
struct Failed<B> {
    error: SendError,
    /// The body, when another try is safe.
    body: Option<B>,
    /// Whether another endpoint is to be asked.
    avoid_endpoint: bool,
}

impl<B> Failed<B> {
    fn last(error: SendError) -> Self {
        Self {
            error,
            body: None,
            avoid_endpoint: false,
        }
    }
}

impl<B> Upstream<B>
where
    B: Body<Data = Bytes> + Default + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    /// No connections yet.
    pub fn new(clock: &Rc<Clock>, limits: &Limits) -> Self {
        let idle = limits.upstream_idle_timeout;
        Self {
            http1: Rc::new(Pool::new(clock.clone(), limits.upstream_max_idle, idle)),
            http2: Http2Pool::new(clock.clone(), idle),
            buffers: Rc::default(),
            connect_timeout: limits.connect_timeout,
        }
    }

    /// Closes what has been idle for too long. To be called now and then.
    pub fn sweep(&self) {
        self.http1.sweep();
        self.http2.sweep();
        self.buffers.sweep();
    }

    /// Sends a request to one endpoint of `backend`, and returns with the head of its answer.
    ///
    /// A try is repeated unseen only where the request cannot have had an effect: no connection came about, or an idle
    /// connection turned out to be closed and the method is idempotent or no byte was written.
    pub async fn send(
        &self,
        backend: &Backend,
        request: &Outgoing<'_>,
        body: B,
    ) -> Result<Answer<B>, SendError> {
        let mut body = body;
        let mut avoid = Vec::new();
        let mut error = NO_ENDPOINT;
        for attempt in 0..MAX_TRIES {
            let Some(place) = balance::pick(&backend.endpoints(), &avoid) else {
                break;
            };
            let endpoint = place.endpoint().id;
            let attempt = self.attempt(backend, place, request, body, attempt > 0);
            let failed = match attempt.await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            error = failed.error;
            if let SendError::Backend(fault, _) = error {
                backend.stats.failed(fault);
            }
            let Some(whole) = failed.body else {
                return Err(error);
            };
            body = whole;
            if failed.avoid_endpoint {
                avoid.push(endpoint);
                if avoid.len() == MAX_ENDPOINTS {
                    break;
                }
            }
        }
        if error == NO_ENDPOINT {
            backend.stats.failed(UpstreamFault::NoEndpoint);
        }
        Err(error)
    }

    async fn attempt(
        &self,
        backend: &Backend,
        place: InFlight,
        request: &Outgoing<'_>,
        body: B,
        fresh: bool,
    ) -> Result<Answer<B>, Failed<B>> {
        let attempt = async {
            match backend.protocol {
                UpstreamProtocol::Http1 => {
                    self.attempt_http1(backend, place, request, body, fresh)
                        .await
                }
                UpstreamProtocol::H2c => self.attempt_http2(backend, place, request, body).await,
            }
        };
        let Some(limit) = request.try_timeout else {
            return attempt.await;
        };
        timeout(limit, attempt).await.unwrap_or_else(|_| {
            Err(Failed::last(SendError::Backend(
                UpstreamFault::Timeout,
                "no answer within the rule's backendRequest timeout",
            )))
        })
    }

    async fn attempt_http1(
        &self,
        backend: &Backend,
        place: InFlight,
        request: &Outgoing<'_>,
        body: B,
        fresh: bool,
    ) -> Result<Answer<B>, Failed<B>> {
        let pooled = if fresh {
            None
        } else {
            self.http1.take(place.endpoint().id)
        };
        let connection = match pooled {
            Some(connection) => connection,
            None => match self.connect(backend, place.endpoint()).await {
                Ok(io) => Connection::new(io, self.buffers.clone()),
                Err(error) => {
                    return Err(Failed {
                        error,
                        body: Some(body),
                        avoid_endpoint: true,
                    });
                }
            },
        };
        let mut exchange = Box::new(Exchange::new(connection, request, body));
        match poll_fn(|cx| exchange.poll_head(cx)).await {
            Ok(head) => Ok(Answer::http1(head, exchange, self.http1.clone(), place)),
            Err(fault) => {
                let error = match fault {
                    Fault::RequestBody => SendError::RequestBody,
                    Fault::Protocol(detail) => SendError::Backend(UpstreamFault::Protocol, detail),
                    Fault::Truncated => SendError::Backend(
                        UpstreamFault::Reset,
                        "the backend closed the connection before it answered",
                    ),
                    Fault::Io(_) => SendError::Backend(
                        UpstreamFault::Reset,
                        "the connection to the backend failed before it answered",
                    ),
                };
                let replayable = exchange.is_replayable() && error != SendError::RequestBody;
                let body = replayable.then(|| exchange.into_body().unwrap_or_default());
                Err(Failed {
                    error,
                    body,
                    avoid_endpoint: false,
                })
            }
        }
    }

    async fn attempt_http2(
        &self,
        backend: &Backend,
        place: InFlight,
        request: &Outgoing<'_>,
        body: B,
    ) -> Result<Answer<B>, Failed<B>> {
        let mut stream = match self.http2.take(place.endpoint().id) {
            Some(stream) => stream,
            None => match self.connect(backend, place.endpoint()).await {
                Ok(io) => self
                    .http2
                    .open(place.endpoint().id, io)
                    .await
                    .map_err(|_| {
                        Failed::last(SendError::Backend(
                            UpstreamFault::Protocol,
                            "the backend does not speak HTTP/2",
                        ))
                    })?,
                Err(error) => {
                    return Err(Failed {
                        error,
                        body: Some(body),
                        avoid_endpoint: true,
                    });
                }
            },
        };
        let was_empty = body.is_end_stream();
        let Some(request) = http2_request(request, body) else {
            return Err(Failed::last(SendError::Backend(
                UpstreamFault::Protocol,
                "the request cannot be expressed in HTTP/2",
            )));
        };
        match stream.send(request).await {
            Ok(response) => Ok(Answer::http2(response, stream, place)),
            Err((_, Some(unsent))) => {
                let error =
                    SendError::Backend(UpstreamFault::Reset, "the connection to the backend ended");
                Err(Failed {
                    error,
                    body: Some(unsent.into_body()),
                    avoid_endpoint: false,
                })
            }
            Err((error, None)) => {
                let refused = h2_reason(&error) == Some(h2::Reason::REFUSED_STREAM);
                let body = (refused && was_empty).then(B::default);
                let error = SendError::Backend(
                    UpstreamFault::Reset,
                    "the backend reset the stream before it answered",
                );
                Err(Failed {
                    error,
                    body,
                    avoid_endpoint: refused,
                })
            }
        }
    }

    async fn connect(
        &self,
        backend: &Backend,
        endpoint: &Endpoint,
    ) -> Result<TcpStream, SendError> {
        match timeout(self.connect_timeout, TcpStream::connect(endpoint.address)).await {
            Ok(Ok(io)) => {
                // Without it small writes wait for acknowledgements; a socket that refuses it still works.
                let _ = io.set_nodelay(true);
                backend.stats.connected();
                Ok(io)
            }
            Ok(Err(_)) => Err(SendError::Backend(
                UpstreamFault::Connect,
                "no connection to the backend",
            )),
            Err(_) => Err(SendError::Backend(
                UpstreamFault::ConnectTimeout,
                "no connection to the backend in time",
            )),
        }
    }
}

/// The request in HTTP/2's terms: the authority comes from `Host`, which is not sent.
fn http2_request<B>(outgoing: &Outgoing<'_>, body: B) -> Option<http::Request<B>> {
    let parts = outgoing.parts;
    let authority = parts.headers.get(http::header::HOST)?.as_bytes();
    let target = parts.uri.path_and_query().cloned()?;
    let uri = Uri::builder()
        .scheme("http")
        .authority(authority)
        .path_and_query(target)
        .build()
        .ok()?;
    let mut request = http::Request::new(body);
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = uri;
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = parts.headers.clone();
    request.headers_mut().remove(http::header::HOST);
    for (name, value) in outgoing.added {
        request.headers_mut().insert(name, value.clone());
    }
    Some(request)
}

fn h2_reason(error: &hyper::Error) -> Option<h2::Reason> {
    error.source()?.downcast_ref::<h2::Error>()?.reason()
}
