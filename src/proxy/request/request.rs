//! The phases of a request, in order. `attempts.rs` has the phases of an attempt; no other module knows an order.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONNECTION, HOST, UPGRADE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version, request};
use rand::RngExt;
use tokio::time::Instant;

use super::attempts::{self, ResponseSource};
use super::filters;
use super::headers::{self, NormalizedRequest};
use super::policies::{self, Passed, PolicyRefusal, PolicyResult};
use super::websocket::{self, Handshake};
use crate::filter::{Level, ResponsePhase, change_response};
use crate::ir::RouteKind;
use crate::ir::client::ClientPolicies;
use crate::ir::filter::HeaderChanges;
use crate::ir::grpc::is_grpc;
use crate::ir::hex;
use crate::ir::route_defaults::RouteDefaults;
use crate::proxy::activity::{Activity, Phase};
use crate::proxy::body::grpc_web_body::WebBody;
use crate::proxy::body::incoming::Incoming;
use crate::proxy::body::request_body::RequestBody;
use crate::proxy::body::response_body::{BodySource, ResponseBody};
use crate::proxy::body::tunnel::Tunnel;
use crate::proxy::client::Client;
use crate::proxy::client::client_address::Origin;
use crate::proxy::client::forwarding::AddedHeaders;
use crate::proxy::client::host::Host;
use crate::proxy::error::Error;
use crate::proxy::request::exchange::Exchange;
use crate::proxy::response::error_response;
use crate::proxy::response::error_response::{ErrorFormat, ErrorResponse};
use crate::proxy::response::interim::Interim;
use crate::proxy::response::record::Record;
use crate::proxy::worker_state::current_table::LoadedRule;
use crate::proxy::{grpc, grpc_web};
use crate::table::{Listener, Port, RequestView, Rule, Table};
use crate::upstream;

/// A request that is ready to be served. Small, because it is moved.
pub(crate) struct Admitted {
    matched: Result<Box<Exchange>, Box<ErrorResponse>>,
    activity: Rc<Activity>,
    /// Whether the connection closes after the response.
    closes: bool,
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
        matched: Exchange::open(client, interim, parts, body, record),
        activity,
        closes,
    }
}

impl Admitted {
    /// Serves the request. Infallible: errors become responses.
    pub(crate) async fn serve(self) -> Response<ResponseBody> {
        let mut response = match self.matched {
            Ok(exchange) => serve(exchange, &self.activity).await,
            Err(refused) => in_memory(refused.respond()),
        };
        if self.closes && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
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
            let format = exchange.error_format();
            let id = exchange.added.id().clone();
            let refused = ErrorResponse::new(error, format, id, exchange.record);
            let mut response = in_memory(refused.respond());
            exchange.response_phase.apply_cors(response.headers_mut());
            response
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
    ) -> Result<Box<Self>, Box<ErrorResponse>> {
        match admit(&client, &mut parts, &mut record) {
            Ok(Matched {
                normalized,
                websocket,
                added,
                rule,
                headers,
                defaults,
            }) => Ok(Box::new(Self {
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
                upgrade: match websocket {
                    Some(_) => Some(Handshake::upgrade()),
                    None => normalized.upgrade,
                },
                websocket,
                response_phase: response_phase(headers),
                is_mirrored: false,
                defaults,
                interim,
                expects_continue: normalized.expects_continue,
                attempt_expires: None,
                rule,
                record,
            })),
            Err(Refused { error, id, headers }) => {
                let format = ErrorFormat::of(&parts.headers);
                let id = id.unwrap_or_else(|| {
                    let id = new_id();
                    record.identified(&id);
                    id
                });
                let response = ErrorResponse::new(error, format, id, record);
                Err(Box::new(response.with_headers(headers)))
            }
        }
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
        in_memory((Response::from_parts(head, body), self.record))
    }
}

/// Returns the steps for a response that begin with header changes by policies.
fn response_phase(headers: Option<Box<HeaderChanges>>) -> ResponsePhase {
    let mut phase = ResponsePhase::default();
    if let Some(headers) = headers {
        phase.change_headers(Level::Rule, *headers);
    }
    phase
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

/// A normalized request and the rule that it matches.
struct Matched {
    normalized: NormalizedRequest,
    websocket: Option<Handshake>,
    added: AddedHeaders,
    rule: LoadedRule,
    /// What policies add to the response.
    headers: Option<Box<HeaderChanges>>,
    /// What policies say where the rule does not.
    defaults: Option<Arc<RouteDefaults>>,
}

/// A request that no rule gets.
struct Refused {
    error: Error,
    /// Its id, if it has one yet.
    id: Option<HeaderValue>,
    /// Headers of the response.
    headers: Option<Box<HeaderMap>>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self {
            error,
            id: None,
            headers: None,
        }
    }
}

/// Matches a request against the current table.
fn admit(
    client: &Client,
    parts: &mut request::Parts,
    record: &mut Record,
) -> Result<Matched, Refused> {
    let websocket = websocket::begin(parts)?;
    let max_headers = client.limits.max_headers;
    let normalized = headers::normalize(parts, &mut client.host.borrow_mut(), max_headers)?;
    record.directed(&normalized.host);
    let table = client.worker.table.load();
    let place = Place::find(client, &table, &normalized.host);
    let origin = client.origin(place.clients(), &mut parts.headers);
    record.comes_from(&origin);
    let claims = (&origin, normalized.has_forwarding);
    let host_header = normalized.host_header.as_ref();
    let added = client
        .forwarding
        .sanitize(&mut parts.headers, host_header, claims, new_id);
    record.identified(added.id());
    let refused = |error| Refused {
        error,
        id: Some(added.id().clone()),
        headers: None,
    };
    if let (Some(port), true) = (place.port, !table.ir.tracing.is_empty())
        && let Some(tracing) = table.ir.tracing.get(&port.ir.gateway)
    {
        record.sample(tracing, parts, &normalized.host, port.bind().port);
    }
    let (rule, passed) = place
        .listener
        .and_then(|listener| find_rule(listener, parts, &normalized.host, &added, &origin))
        .map_err(refused)?;
    let rule = table.rule(rule);
    record.matched(&rule);
    if record.span.is_some() {
        record.trace(parts);
    }
    let (headers, defaults) = match passed {
        Ok(None) => (None, None),
        Ok(Some(Passed {
            in_progress,
            headers,
            defaults,
        })) => {
            if let Some(in_progress) = in_progress {
                record.counts_as(in_progress);
            }
            (headers, defaults)
        }
        Err(refusal) => {
            let PolicyRefusal { error, headers } = *refusal;
            return Err(Refused {
                headers: Some(Box::new(headers)),
                ..refused(error)
            });
        }
    };
    if rule.kind() == RouteKind::Grpc && parts.version < Version::HTTP_2 && is_grpc(&parts.headers)
    {
        return Err(refused(Error::GrpcOverHttp1));
    }
    if host_header.is_none() {
        // RFC 9110, 7.1: without an authority, the local address is used.
        parts.headers.insert(HOST, client.local_authority());
    }
    Ok(Matched {
        normalized,
        websocket,
        added,
        rule,
        headers,
        defaults,
    })
}

/// Where a request arrives.
struct Place<'a> {
    port: Option<&'a Arc<Port>>,
    listener: Result<&'a Arc<Listener>, Error>,
}

impl<'a> Place<'a> {
    fn find(client: &Client, table: &'a Table, host: &Host) -> Self {
        let port = client.port.configured(table);
        let served = port.ok_or(Error::NotFound("this port is no longer served"));
        Self {
            port,
            listener: served.and_then(|port| client.listener(port, host)),
        }
    }

    /// Returns how clients connect to the listener, if policies say it.
    fn clients(&self) -> Option<&'a Arc<ClientPolicies>> {
        self.listener.ok()?.ir.clients.as_ref()
    }
}

/// Returns the rule for a request, and whether its policies let the request pass.
fn find_rule<'a>(
    listener: &'a Listener,
    parts: &request::Parts,
    host: &Host,
    added: &AddedHeaders,
    origin: &Origin,
) -> Result<(&'a Arc<Rule>, PolicyResult), Error> {
    let view = RequestView {
        host: host.as_str(),
        method: &parts.method,
        path: parts.uri.path(),
        query: parts.uri.query(),
        headers: &parts.headers,
        added: added.as_slice(),
    };
    let rule = rule_of(listener, &view)?;
    let passed = match listener.policies(rule) {
        None => Ok(None),
        Some(policies) => policies::check(policies, origin, &view),
    };
    Ok((rule, passed))
}

/// Returns the rule of a listener for a normalized request.
#[inline]
pub(super) fn rule_of<'a>(
    listener: &'a Listener,
    view: &RequestView<'_>,
) -> Result<&'a Arc<Rule>, Error> {
    let rule = listener.find(view);
    rule.ok_or(Error::NotFound("no route matches this request"))
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

/// Generates a request id: 128 random bits in hexadecimal.
fn new_id() -> HeaderValue {
    let bytes: [u8; 16] = rand::rng().random();
    let mut text = [0; 32];
    for (digits, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *digits = hex::DIGITS[usize::from(byte)];
    }
    HeaderValue::from_maybe_shared(Bytes::copy_from_slice(&text))
        .unwrap_or_else(|_| HeaderValue::from_static("0"))
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
