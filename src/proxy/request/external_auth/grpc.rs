//! Authorization over gRPC: the call `envoy.service.auth.v3.Authorization/Check`.

use std::rc::Rc;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, TE};
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri, Version, request};
use prost::Message;

use super::check_response;
use super::message::{
    Address, AttributeContext, CheckRequest, HttpRequest, Peer, Request, SocketAddress,
};
use super::verdict::Verdict;
use crate::filter::{Level, Scheme};
use crate::ir::auth_call::GrpcAuth;
use crate::ir::filter::HeaderChanges;
use crate::proxy::body::buffered::Buffered;
use crate::proxy::client::forwarding::X_REQUEST_ID;
use crate::proxy::error::Error;
use crate::proxy::request::exchange::Exchange;
use crate::proxy::request::original;
use crate::proxy::request::subrequest::{self, Subrequest};
use crate::proxy::worker_state::Worker;
use crate::proxy::worker_state::budget::Held;
use crate::table::Backend;
use crate::telemetry::trace::Purpose;
use crate::upstream::Semantics;

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Calls the server. If it allows the request, changes the headers of the request and of its
/// response as the server asks.
pub(super) async fn verdict(
    worker: &Rc<Worker>,
    backend: &Backend,
    grpc: &GrpcAuth,
    exchange: &mut Exchange,
    level: Level,
    body: Bytes,
) -> Result<Verdict, Error> {
    // The message has another copy of the body.
    let mut held = Held::none(&exchange.client.kept_bytes);
    if !held.resize(body.len()) {
        return Err(Error::KeptBytes);
    }
    let message = encode(&check_request(grpc, exchange, &body));
    drop(body);
    let head = head(backend)?;
    let span = exchange.record.span.as_deref();
    let request = Subrequest::new(head, Semantics::Safe);
    let mut request = request.traced(worker, span, Purpose::ExternalAuth, Some(CHECK));
    let body = Buffered::new(message);
    let call = subrequest::send(worker, backend, &mut request, body);
    let response = call.await.map_err(|_| Error::AuthorizationUnavailable)?;
    let (status, head) = (response.status, response.headers);
    let read = subrequest::read(response.body, subrequest::MAX_RESPONSE).await;
    let read = read.ok_or(Error::AuthorizationUnavailable)?;
    let data = read.body.ok_or(Error::AuthorizationUnavailable)?;
    let code = read
        .trailers
        .get(GRPC_STATUS)
        .or_else(|| head.get(GRPC_STATUS));
    if status != StatusCode::OK || code.is_none_or(|code| code != "0") {
        return Err(Error::AuthorizationUnavailable);
    }
    let response = check_response::decode(&data).ok_or(Error::AuthorizationUnavailable)?;
    let mut changes = HeaderChanges::default();
    let verdict = check_response::verdict(response, &mut exchange.parts.headers, &mut changes);
    if changes != HeaderChanges::default() {
        exchange.response_phase.change_headers(level, changes);
    }
    verdict
}

fn head(backend: &Backend) -> Result<request::Parts, Error> {
    let (mut head, ()) = http::Request::new(()).into_parts();
    head.method = Method::POST;
    head.uri = Uri::from_static(CHECK);
    head.version = Version::HTTP_2;
    let id = &backend.id;
    let host = format!("{}.{}:{}", id.object.name, id.object.namespace, id.port);
    let host = HeaderValue::try_from(host).map_err(|_| Error::AuthorizationUnavailable)?;
    head.headers.insert(HOST, host);
    head.headers
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    head.headers
        .insert(TE, HeaderValue::from_static("trailers"));
    Ok(head)
}

fn check_request(grpc: &GrpcAuth, exchange: &Exchange, body: &Bytes) -> CheckRequest {
    let parts = &exchange.parts;
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let one = |name: &HeaderName| parts.headers.get(name).map(text).unwrap_or_default();
    let is_sent = |name: &&HeaderName| grpc.headers.is_empty() || grpc.headers.contains(name);
    let joined = |name: &HeaderName| {
        let values: Vec<_> = parts.headers.get_all(name).iter().map(text).collect();
        (name.to_string(), values.join(","))
    };
    let (body, raw_body) = match std::str::from_utf8(body) {
        Ok(text) => (text.to_owned(), Vec::new()),
        Err(_) => (String::new(), body.to_vec()),
    };
    let length = parts.headers.get(http::header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let target = match parts.uri.path() {
        "*" => "*".into(),
        _ => original::decided_target(parts, &exchange.path),
    };
    let http = HttpRequest {
        id: one(&X_REQUEST_ID),
        method: parts.method.to_string(),
        headers: parts.headers.keys().filter(is_sent).map(joined).collect(),
        path: target.into_owned(),
        host: one(&HOST),
        scheme: match exchange.client.scheme() {
            Scheme::Http => "http".to_owned(),
            Scheme::Https => "https".to_owned(),
        },
        size: length.unwrap_or(-1),
        protocol: format!("{:?}", parts.version),
        body,
        raw_body,
    };
    let client = exchange.record.client();
    let address = SocketAddress {
        address: client.ip().to_string(),
        port_value: client.port().into(),
    };
    let source = Peer {
        address: Some(Address {
            socket_address: Some(address),
        }),
    };
    CheckRequest {
        attributes: Some(AttributeContext {
            source: Some(source),
            request: Some(Request { http: Some(http) }),
        }),
    }
}

fn encode(message: &CheckRequest) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(check_response::PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as needed, so encoding cannot fail.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}
