//! Authorization over gRPC: the call `envoy.service.auth.v3.Authorization/Check`.

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, TE};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, Version, request,
};
use prost::Message;

use super::message::{
    Address, AttributeContext, CheckRequest, CheckResponse, HeaderValueOption, HttpRequest,
    HttpResponse, Peer, Request, SocketAddress,
};
use super::{Buffered, MAX_RESPONSE, Verdict, denial, is_independent};
use crate::filter::{Level, Scheme};
use crate::ir::external_auth::GrpcAuth;
use crate::ir::filter::HeaderChanges;
use crate::proxy::error::Error;
use crate::proxy::forwarding::X_REQUEST_ID;
use crate::proxy::request::Exchange;
use crate::proxy::subrequest;
use crate::proxy::worker::Worker;
use crate::table::Backend;

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
/// Length of the prefix of a gRPC message: a compression flag and the message length.
const PREFIX: usize = 5;

/// Calls the server. If it allows the request, changes the headers of the request and of its
/// response as the server asks.
pub(super) async fn verdict(
    worker: &Worker,
    backend: &Backend,
    grpc: &GrpcAuth,
    exchange: &mut Exchange,
    level: Level,
    body: Bytes,
) -> Result<Verdict, Error> {
    let message = check_request(grpc, exchange, &body);
    let head = head(backend)?;
    let call = subrequest::send(worker, backend, &head, Buffered::new(encode(&message)));
    let response = call.await.map_err(|_| Error::AuthorizationUnavailable)?;
    let (status, head) = (response.status, response.headers);
    let read = subrequest::read(response.body, MAX_RESPONSE).await;
    let (data, trailers) = read.ok_or(Error::AuthorizationUnavailable)?;
    let code = trailers.get(GRPC_STATUS).or_else(|| head.get(GRPC_STATUS));
    if status != StatusCode::OK || code.is_none_or(|code| code != "0") {
        return Err(Error::AuthorizationUnavailable);
    }
    let response = decode(&data).ok_or(Error::AuthorizationUnavailable)?;
    // An absent status has the default value of its type, whose code is OK.
    let is_allowed = response.status.is_none_or(|status| status.code == 0);
    match (is_allowed, response.http_response) {
        (true, None) => Ok(Verdict::Allow),
        (true, Some(HttpResponse::Ok(ok))) => {
            let headers = &mut exchange.parts.headers;
            let mut changes = HeaderChanges::default();
            for name in &ok.headers_to_remove {
                if let Some(name) = header_name(name) {
                    headers.remove(name);
                }
            }
            apply(&ok.headers, headers)?;
            for option in &ok.response_headers_to_add {
                if let Some((name, value, is_appended)) = header(option) {
                    let list = match is_appended {
                        true => &mut changes.add,
                        false => &mut changes.set,
                    };
                    list.push((name, value));
                }
            }
            exchange.response_phase.change_headers(level, changes);
            Ok(Verdict::Allow)
        }
        (false, Some(HttpResponse::Denied(denied))) => {
            let code = denied.status.map_or(0, |status| status.code);
            let code = u16::try_from(code).ok().filter(|code| *code != 0);
            let status = code.and_then(|code| StatusCode::from_u16(code).ok());
            let mut headers = HeaderMap::new();
            apply(&denied.headers, &mut headers)?;
            let status = status.unwrap_or(StatusCode::FORBIDDEN);
            Ok(Verdict::Deny(denial(status, headers, denied.body.into())))
        }
        // A contradictory response does not allow the request.
        (true, Some(HttpResponse::Denied(_))) | (false, _) => {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = StatusCode::FORBIDDEN;
            Ok(Verdict::Deny(Box::new(response)))
        }
    }
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
    let target = parts.uri.path_and_query();
    let http = HttpRequest {
        id: one(&X_REQUEST_ID),
        method: parts.method.to_string(),
        headers: parts.headers.keys().filter(is_sent).map(joined).collect(),
        path: target.map_or("/", |target| target.as_str()).to_owned(),
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
    let address = SocketAddress {
        address: exchange.client.peer.ip().to_string(),
        port_value: exchange.client.peer.port().into(),
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
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows as needed, so encoding cannot fail.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Decodes the only message of a response. A compressed message is an error, since the call accepts
/// no compression.
fn decode(data: &[u8]) -> Option<CheckResponse> {
    let (prefix, message) = data.split_first_chunk::<PREFIX>()?;
    let [0, length @ ..] = prefix else {
        return None;
    };
    if u32::from_be_bytes(*length) as usize != message.len() {
        return None;
    }
    CheckResponse::decode(message).ok()
}

/// Parses the name of a header that a server may change.
fn header_name(name: &str) -> Option<HeaderName> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let is_framing = name == HOST || name == http::header::CONTENT_LENGTH;
    (!is_framing && (is_independent(&name) || name == CONTENT_TYPE)).then_some(name)
}

/// Parses an option. Returns the header, and whether it is appended to existing values.
fn header(option: &HeaderValueOption) -> Option<(HeaderName, HeaderValue, bool)> {
    let header = option.header.as_ref()?;
    let value = match header.raw_value.is_empty() {
        true => HeaderValue::from_str(&header.value),
        false => HeaderValue::from_bytes(&header.raw_value),
    };
    // `append` defaults to false in these messages.
    let is_appended = option.append.as_ref().is_some_and(|append| append.value);
    Some((header_name(&header.key)?, value.ok()?, is_appended))
}

fn apply(options: &[HeaderValueOption], headers: &mut HeaderMap) -> Result<(), Error> {
    for (name, value, is_appended) in options.iter().filter_map(header) {
        let changed = match is_appended {
            true => headers.try_append(name, value).map(drop),
            false => headers.try_insert(name, value).map(drop),
        };
        changed.map_err(|_| Error::Filter)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_responses_do_not_allow_a_request() {
        assert_eq!(decode(&[0, 0, 0, 0, 0]), Some(CheckResponse::default()));
        for data in [
            &[][..],
            &[0, 0, 0, 0],
            &[1, 0, 0, 0, 0],
            &[0, 0, 0, 0, 1],
            &[0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 0, 1, 0xff],
        ] {
            assert_eq!(decode(data), None, "{data:?}");
        }
    }

    #[test]
    fn framing_and_pseudo_headers_cannot_be_changed() {
        for name in [
            ":path",
            "host",
            "Content-Length",
            "transfer-encoding",
            "",
            "a b",
        ] {
            assert_eq!(header_name(name), None, "{name}");
        }
        assert_eq!(header_name("X-User").unwrap(), "x-user");
        assert_eq!(header_name("content-type").unwrap(), "content-type");
    }
}
