//! Authorization over gRPC: the call `envoy.service.auth.v3.Authorization/Check`.

use std::rc::Rc;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderName, HeaderValue, StatusCode};

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
use crate::proxy::grpc_frame;
use crate::proxy::request::exchange::Exchange;
use crate::proxy::request::original;
use crate::proxy::request::subrequest::{self, Subrequest};
use crate::proxy::worker_state::Worker;
use crate::proxy::worker_state::budget::Held;
use crate::table::Backend;
use crate::telemetry::trace::Purpose;
use crate::upstream::Semantics;

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

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
    let message = grpc_frame::encode(&check_request(grpc, exchange, &body));
    drop(body);
    let head = subrequest::grpc_head(backend, CHECK);
    let head = head.ok_or(Error::AuthorizationUnavailable)?;
    let span = exchange.record.span.as_deref();
    let share = exchange.client.kept_bytes.clone();
    let request = Subrequest::new(head, Semantics::Safe).caused_by(share.client());
    let mut request = request.traced(worker, span, Purpose::ExternalAuth, Some(CHECK));
    let body = Buffered::new(message);
    let call = subrequest::send(worker, backend, &mut request, body);
    let response = call.await.map_err(|_| Error::AuthorizationUnavailable)?;
    let (status, head) = (response.status, response.headers);
    let read = subrequest::read_for(response.body, &share).await;
    let read = read.ok_or(Error::AuthorizationUnavailable)?;
    let data = read.body.ok_or(Error::AuthorizationUnavailable)?;
    let end = match grpc_frame::has_status(&read.trailers) {
        true => &read.trailers,
        false => &head,
    };
    if status != StatusCode::OK || !grpc_frame::is_ok(end) {
        return Err(Error::AuthorizationUnavailable);
    }
    let response = grpc_frame::decode_only(data).map_err(|_| Error::AuthorizationUnavailable)?;
    let mut changes = HeaderChanges::default();
    let verdict = check_response::verdict(response, &mut exchange.parts.headers, &mut changes);
    if changes != HeaderChanges::default() {
        exchange.response_phase.change_headers(level, changes);
    }
    verdict
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
