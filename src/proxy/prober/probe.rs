//! One health check of an endpoint: a request, a connection or a call. Must not know when it is made.

use std::net::Ipv4Addr;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, TE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, request};

use crate::ir::backend_policy::Probe;
use crate::proxy::body::buffered::Buffered;
use crate::proxy::request::subrequest::{self, Subrequest};
use crate::runtime::per_worker::WorkerId;
use crate::table::{Backend, Transport, UpstreamFault};
use crate::upstream::{Security, Semantics, SendError, TcpClient, Upstream};

/// The call of the health service of gRPC.
const GRPC_CHECK: &str = "/grpc.health.v1.Health/Check";
/// Field 1 of HealthCheckResponse with SERVING.
const SERVING: [u8; 2] = [0x08, 1];
/// Maximum size of a response to that call.
const MAX_RESPONSE: usize = 1024;
const AGENT: &str = concat!("portcullis-health/", env!("CARGO_PKG_VERSION"));

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Healthy,
    Failed,
    /// The process itself had no means to ask.
    NotAsked,
}

impl Outcome {
    fn of(is_healthy: bool) -> Self {
        match is_healthy {
            true => Self::Healthy,
            false => Self::Failed,
        }
    }

    fn of_error(error: SendError) -> Self {
        match error {
            SendError::Backend(UpstreamFault::Descriptors | UpstreamFault::Local, _) => {
                Self::NotAsked
            }
            _ => Self::Failed,
        }
    }
}

/// Asks the only endpoint of a backend.
pub(super) async fn ask(upstream: &Upstream, backend: &Backend, probe: &Probe) -> Outcome {
    match probe {
        Probe::Tcp => {
            let itself = TcpClient {
                address: Ipv4Addr::UNSPECIFIED.into(),
                ends: None,
            };
            let connected = upstream.connect(backend, &itself, Security::OfBackend);
            match connected.await {
                Ok(_) => Outcome::Healthy,
                Err(failure) => Outcome::of_error(failure.error),
            }
        }
        Probe::Http {
            path,
            host,
            statuses,
        } => {
            let Some(parts) = http_head(backend, path, host.as_deref()) else {
                return Outcome::NotAsked;
            };
            let semantics = Semantics::of(&parts.method);
            let body = Buffered::new(Bytes::new());
            let sender = (upstream, WorkerId::ONLY);
            let mut request = Subrequest::new(parts, semantics);
            let sent = subrequest::send_by(sender, backend, &mut request, body);
            match sent.await {
                Ok(response) => Outcome::of(is_healthy(response.status, statuses)),
                Err(error) => Outcome::of_error(error),
            }
        }
        Probe::Grpc { service } => ask_grpc(upstream, backend, service).await,
    }
}

fn is_healthy(status: StatusCode, statuses: &[u16]) -> bool {
    match statuses {
        [] => status.is_success() || status.is_redirection(),
        statuses => statuses.contains(&status.as_u16()),
    }
}

async fn ask_grpc(upstream: &Upstream, backend: &Backend, service: &str) -> Outcome {
    let Some(mut parts) = head(backend, Uri::from_static(GRPC_CHECK), None) else {
        return Outcome::NotAsked;
    };
    parts.method = Method::POST;
    let headers = &mut parts.headers;
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(TE, HeaderValue::from_static("trailers"));
    let body = Buffered::new(grpc_request(service));
    let sender = (upstream, WorkerId::ONLY);
    let mut request = Subrequest::new(parts, Semantics::Other);
    let sent = subrequest::send_by(sender, backend, &mut request, body);
    let response = match sent.await {
        Ok(response) => response,
        Err(error) => return Outcome::of_error(error),
    };
    let is_ok = response.status == StatusCode::OK && !has_failed(&response.headers);
    let read = subrequest::read(response.body, MAX_RESPONSE).await;
    let is_serving = read.is_some_and(|read| {
        let message = read.body.unwrap_or_default();
        let message = message.get(5..).unwrap_or_default();
        !has_failed(&read.trailers) && message.starts_with(&SERVING)
    });
    Outcome::of(is_ok && is_serving)
}

/// Reports whether headers or trailers have a status of gRPC other than OK.
fn has_failed(headers: &HeaderMap) -> bool {
    let status = headers.get("grpc-status");
    status.is_some_and(|status| status.as_bytes() != b"0")
}

/// Returns a HealthCheckRequest, with the prefix of a message.
fn grpc_request(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        // Field 1, a string. The CRD permits 256 bytes, so that the length takes up to two bytes.
        let length = service.len() as u16;
        message.push(0x0a);
        match length {
            0..128 => message.push(length as u8),
            _ => message.extend([(length & 0x7f) as u8 | 0x80, (length >> 7) as u8]),
        }
        message.extend_from_slice(service.as_bytes());
    }
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend(message);
    framed.into()
}

fn http_head(backend: &Backend, path: &str, host: Option<&str>) -> Option<request::Parts> {
    head(backend, path.parse().ok()?, host)
}

/// Returns the head of a request to the only endpoint of a backend.
fn head(backend: &Backend, uri: Uri, host: Option<&str>) -> Option<request::Parts> {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.uri = uri;
    let host = match (host, &backend.transport) {
        (Some(host), _) => host.to_owned(),
        (None, Transport::Tls(tls)) => tls.server_name.to_str().into_owned(),
        (None, Transport::Plain | Transport::Unusable) => {
            backend.endpoints().first()?.address.to_string()
        }
    };
    parts
        .headers
        .insert(HOST, HeaderValue::try_from(host).ok()?);
    parts
        .headers
        .insert(USER_AGENT, HeaderValue::from_static(AGENT));
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_a_healthy_endpoint_are_200_to_399_by_default() {
        let healthy = |status: u16, statuses: &[u16]| {
            is_healthy(StatusCode::from_u16(status).unwrap(), statuses)
        };
        assert!(healthy(200, &[]) && healthy(302, &[]));
        assert!(!healthy(404, &[]) && !healthy(503, &[]));
        assert!(healthy(404, &[404]) && !healthy(200, &[404]));
    }

    #[test]
    fn request_of_grpc_has_the_service() {
        assert_eq!(*grpc_request(""), [0; 5]);
        assert_eq!(*grpc_request("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = grpc_request(&"a".repeat(200));
        assert_eq!(long[4..8], [203, 0x0a, 0xc8, 1]);
    }
}
