//! The phases of a request, in order. `attempts.rs` has the phases of an attempt; no other module knows an order.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version, request};
use tokio::time::{Instant, timeout_at};

use super::admission::{Matched, Refused, admit, new_id};
use super::attempts::{self, ResponseSource};
use super::authentication::{Credentials, Unverified};
use super::compression::compress;
use super::filters;
use super::negotiation::Negotiated;
use super::policy_refusal::PolicyRefusal;
use super::websocket::Handshake;
use crate::filter::{Level, ResponsePhase, change_response};
use crate::ir::RouteKind;
use crate::ir::route_defaults::RouteDefaults;
use crate::proxy::activity::{Activity, Phase};
use crate::proxy::body::grpc_web_body::WebBody;
use crate::proxy::body::incoming::Incoming;
use crate::proxy::body::request_body::RequestBody;
use crate::proxy::body::response_body::{BodySource, ResponseBody};
use crate::proxy::body::tunnel::Tunnel;
use crate::proxy::client::Client;
use crate::proxy::error::Error;
use crate::proxy::request::exchange::Exchange;
use crate::proxy::response::error_response;
use crate::proxy::response::error_response::{ErrorFormat, ErrorResponse};
use crate::proxy::response::interim::Interim;
use crate::proxy::response::record::Record;
use crate::proxy::{grpc, grpc_web};
use crate::table::Rule;
use crate::upstream;

/// A request that is ready to be served. Small, because it is moved.
pub(crate) struct Admitted {
    outcome: Outcome,
    activity: Rc<Activity>,
    /// Whether the connection closes after the response.
    closes: bool,
}

/// What follows the matching of a request.
enum Outcome {
    /// It is forwarded.
    Forward(Box<Exchange>),
    /// Its password has to be verified.
    Verify(Box<(Box<Exchange>, Box<Unverified>)>),
    /// It is refused.
    Refuse(Box<ErrorResponse>),
}

/// Normalizes and matches a request. Does not await.
pub(crate) fn open(
    client: Rc<Client>,
    activity: Rc<Activity>,
    interim: Interim,
    parts: request::Parts,
    incoming: Incoming,
) -> Admitted {
    client.on_request();
    let closes = client.is_terminating() && parts.version != Version::HTTP_2;
    let record = Record::open(client.clone(), activity.clone(), &parts);
    let body = RequestBody::new(incoming, &activity, &client.kept_bytes);
    Admitted {
        outcome: Exchange::open(client, interim, parts, body, record),
        activity,
        closes,
    }
}

impl Admitted {
    /// Serves the request. Infallible: errors become responses.
    pub(crate) async fn serve(self) -> Response<ResponseBody> {
        let mut response = match self.outcome {
            Outcome::Forward(exchange) => serve(exchange, &self.activity).await,
            Outcome::Refuse(refused) => in_memory(refused.respond()),
            // Few requests: their future takes memory of its own.
            Outcome::Verify(exchange) => Box::pin(verify(*exchange, &self.activity)).await,
        };
        if self.closes && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Serves a request once its password is verified.
async fn verify(
    (mut exchange, unverified): (Box<Exchange>, Box<Unverified>),
    activity: &Activity,
) -> Response<ResponseBody> {
    let client = exchange.record.client().ip();
    let outcome = {
        let threads = &exchange.client.worker.passwords;
        let verified = unverified.verify(threads, client, exchange.view());
        match exchange.expires {
            None => verified.await,
            Some(time) => {
                let late = |_| Err(Box::new(Error::RequestTimeout.into()));
                timeout_at(time, verified).await.unwrap_or_else(late)
            }
        }
    };
    exchange.record.note_if(|| match &outcome {
        Ok(identity) => Some(identity.event()),
        Err(refusal) => refusal.event(),
    });
    let applied = outcome.and_then(|identity| {
        let applied = identity.apply(&mut exchange.parts);
        applied.map_err(|error| Box::new(error.into()))
    });
    match applied {
        Ok(()) => serve(exchange, activity).await,
        Err(refusal) => exchange.refuse(*refusal),
    }
}

async fn serve(mut exchange: Box<Exchange>, activity: &Activity) -> Response<ResponseBody> {
    let client = exchange.client.clone();
    activity.expire_at(exchange.expires);
    let outcome = {
        let mut forwarded = pin!(forward(&mut exchange));
        poll_fn(|cx| match forwarded.as_mut().poll(cx) {
            Poll::Pending => poll_stalled(activity, &client, cx).map(Err),
            outcome => outcome,
        })
        .await
    };
    match outcome {
        Ok(ResponseSource::Backend(response)) => exchange.respond(response),
        Ok(ResponseSource::Filter(response)) => exchange.respond_locally(*response),
        Err(error) => {
            let error = error.or_too_large(activity.is_body_too_large());
            exchange.refuse(error.into())
        }
    }
}

/// Gives a response in memory the body that completes its record.
fn in_memory((response, record): (Response<Bytes>, Box<Record>)) -> Response<ResponseBody> {
    response.map(|body| ResponseBody::new(BodySource::Memory(body), record))
}

async fn forward(exchange: &mut Exchange) -> Result<ResponseSource, Error> {
    if exchange.defaults.is_some() {
        filters::change_request(exchange)?;
    }
    let rule = exchange.rule.clone();
    let filters = rule.filters();
    if !filters.all.is_empty()
        && let Some(response) = filters::run(filters, Level::Rule, exchange).await?
    {
        return Ok(ResponseSource::Filter(response));
    }
    attempts::send(exchange, &rule).await
}

impl Exchange {
    /// Normalizes, sanitizes and matches a request, in this order, so that a rule sees what a
    /// backend receives.
    fn open(
        client: Rc<Client>,
        interim: Interim,
        mut parts: request::Parts,
        mut body: RequestBody,
        mut record: Box<Record>,
    ) -> Outcome {
        match admit(&client, &mut parts, &mut record) {
            Ok(Matched {
                normalized,
                websocket,
                added,
                rule,
                passed,
            }) => {
                let defaults = passed.as_ref().and_then(|it| it.defaults.clone());
                let mut exchange = Box::new(Self {
                    negotiated: Negotiated::of(defaults.as_deref(), &parts),
                    grpc_web: match rule.kind() {
                        RouteKind::Grpc => body.translate_grpc_web(&mut parts.headers),
                        _ => None,
                    },
                    client,
                    expires: expiry(&rule, defaults.as_deref(), &parts.headers),
                    parts,
                    added,
                    host: normalized.host,
                    // The bytes of a tunnel are no body.
                    body: match websocket {
                        Some(_) => body,
                        None => body.limited(defaults.as_ref().and_then(|it| it.max_body)),
                    },
                    defaults,
                    upgrade: match websocket {
                        Some(_) => Some(Handshake::upgrade()),
                        None => normalized.upgrade,
                    },
                    websocket,
                    response_phase: ResponsePhase::default(),
                    is_mirrored: false,
                    interim,
                    expects_continue: normalized.expects_continue,
                    attempt_expires: None,
                    rule,
                    record,
                });
                let defaults = exchange.defaults.as_deref();
                if let Some(time) = defaults.and_then(RouteDefaults::stream_idle_timeout) {
                    exchange.record.activity().idle_for(time);
                }
                match passed {
                    None => Outcome::Forward(exchange),
                    Some(passed) => {
                        if let Some(headers) = passed.headers {
                            exchange
                                .response_phase
                                .change_headers(Level::Rule, *headers);
                        }
                        match passed.credentials {
                            Some(Credentials::Unverified(unverified)) => {
                                Outcome::Verify(Box::new((exchange, unverified)))
                            }
                            _ => Outcome::Forward(exchange),
                        }
                    }
                }
            }
            Err(Refused { error, id, headers }) => {
                let format = ErrorFormat::of(&parts.headers);
                let id = id.unwrap_or_else(|| {
                    let id = new_id();
                    record.identified(&id);
                    id
                });
                let response = ErrorResponse::new(error, format, id, record);
                Outcome::Refuse(Box::new(response.with_headers(headers)))
            }
        }
    }

    /// Returns the response to a request that is not forwarded, or that failed.
    fn refuse(self, refusal: PolicyRefusal) -> Response<ResponseBody> {
        let PolicyRefusal { error, headers } = refusal;
        let format = self.error_format();
        let id = self.added.id().clone();
        let refused = ErrorResponse::new(error, format, id, self.record);
        let headers = (!headers.is_empty()).then(|| Box::new(headers));
        let mut response = in_memory(refused.with_headers(headers).respond());
        self.response_phase.apply_cors(response.headers_mut());
        response
    }

    /// Reports whether the request is a gRPC call.
    pub(super) fn is_grpc(&self) -> bool {
        self.error_format() != ErrorFormat::Text
    }

    fn error_format(&self) -> ErrorFormat {
        match self.grpc_web {
            Some(format) => ErrorFormat::GrpcWeb(format),
            None => ErrorFormat::of(&self.parts.headers),
        }
    }

    /// Applies response filters to the response of a backend.
    fn respond(
        mut self: Box<Self>,
        response: upstream::Response<RequestBody>,
    ) -> Response<ResponseBody> {
        let (mut status, mut headers, body) = (response.status, response.headers, response.body);
        let switches = status == StatusCode::SWITCHING_PROTOCOLS;
        if switches && self.websocket.is_some() {
            status = StatusCode::OK;
            Handshake::remove_headers(&mut headers);
        }
        self.record.responded(status.as_u16());
        self.record.grpc_status(&headers);
        let grpc_web = self
            .grpc_web
            .filter(|_| grpc_web::is_translatable(&headers))
            .map(|format| (format, grpc_web::translate_response(format, &mut headers)));
        self.apply_response_phase(&mut headers);
        let may_upgrade = switches || status == StatusCode::UPGRADE_REQUIRED;
        if may_upgrade && headers.contains_key(UPGRADE) {
            // RFC 9110, 7.8: hop-by-hop, like all connection headers.
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
        let body = if switches {
            let tunnel = Tunnel::new(body, self.record).map(Box::new);
            tunnel.map_or_else(ResponseBody::empty, ResponseBody::tunnel)
        } else {
            let source = match grpc_web {
                Some((format, status)) => {
                    BodySource::GrpcWeb(Box::new(WebBody::new(body, format, status)))
                }
                None => BodySource::Backend(body),
            };
            let source = compress(&self, status, &mut headers, source);
            ResponseBody::new(source, self.record)
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }

    /// Applies the header changes of policies, then response filters.
    fn apply_response_phase(&self, headers: &mut HeaderMap) {
        let defaults = self.defaults.as_deref();
        if let Some(changes) = defaults.and_then(|it| it.response_headers.as_ref()) {
            change_response(changes, headers);
        }
        self.response_phase.apply(headers);
    }

    /// Applies response filters to the response of a filter. For gRPC calls, errors become
    /// headers-only responses with `grpc-status`.
    fn respond_locally(mut self: Box<Self>, response: Response<Bytes>) -> Response<ResponseBody> {
        let (mut head, mut body) = response.into_parts();
        if self.websocket.is_some() && head.status.is_success() {
            // A 2xx would tell the client that the tunnel is open.
            head.status = StatusCode::FORBIDDEN;
        }
        self.record.responded(head.status.as_u16());
        if self.error_format() == ErrorFormat::Grpc {
            body = error_response::as_grpc(&mut head, body);
        }
        self.apply_response_phase(&mut head.headers);
        let source = BodySource::Memory(body);
        let source = compress(&self, head.status, &mut head.headers, source);
        Response::from_parts(head, ResponseBody::new(source, self.record))
    }
}

/// Returns the deadline of the rule, or that of a gRPC client if it is earlier.
fn expiry(rule: &Rule, defaults: Option<&RouteDefaults>, headers: &HeaderMap) -> Option<Instant> {
    let own = rule.ir.request_timeout(defaults);
    let clients = match rule.kind() {
        RouteKind::Grpc => grpc::timeout(headers),
        _ => None,
    };
    let timeout = own.into_iter().chain(clients).min()?;
    Instant::now().checked_add(timeout)
}

/// Ready when the backend or the client's body has stalled, or the route's timeout has passed, and
/// an error response can still be sent.
fn poll_stalled(activity: &Activity, client: &Client, cx: &mut Context<'_>) -> Poll<Error> {
    let phase = ready!(activity.poll_due(cx));
    let error = match phase {
        Phase::Backend => Error::BackendIdle,
        Phase::RequestBody => Error::BodyTimeout,
        Phase::Exchange => Error::RequestTimeout,
        // Handled by the connection.
        Phase::Head | Phase::Idle | Phase::Write | Phase::Tunnel | Phase::Evicted => {
            return Poll::Pending;
        }
    };
    client.timed_out(phase);
    Poll::Ready(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<A, F>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// Over HTTP/1 the future moves once, into its slot in the connection; over HTTP/2 it never
    /// moves.
    #[test]
    fn request_future_is_small() {
        let size = future_size(Admitted::serve);
        assert!(size <= 512, "the future of a request takes {size} bytes");
    }
}
