//! What responses over HTTP/2 and HTTP/3 have in common: their headers, and which of them have content.

use http::header::{ALT_SVC, CONTENT_LENGTH, DATE};
use http::{HeaderMap, StatusCode, response};
use http_body::Body;

use crate::ir::hop_by_hop::{HOP_BY_HOP, is_hop_by_hop};
use crate::proxy::activity::BodyPace;
use crate::proxy::body::response_body::ResponseBody;
use crate::proxy::client::Client;
use crate::proxy::error::Error;

/// Removes what only connections of HTTP/1 have, and adds what all responses have.
pub(super) fn complete_headers(client: &Client, headers: &mut HeaderMap) {
    remove_connection_headers(headers);
    let worker = &client.worker;
    let date = || worker.date.header(&worker.clock);
    headers.entry(DATE).or_insert_with(date);
    if let Some(alternative) = client.alt_svc() {
        headers.entry(ALT_SVC).or_insert(alternative);
    }
}

/// Completes the headers of a response. Returns whether content follows; otherwise the body is complete.
pub(super) fn begin(
    client: &Client,
    head: &mut response::Parts,
    body: &mut ResponseBody,
    is_head: bool,
) -> bool {
    complete_headers(client, &mut head.headers);
    if body.is_end_stream() {
        return false;
    }
    if let Some(length) = body.size_hint().exact() {
        let length = || length.into();
        head.headers.entry(CONTENT_LENGTH).or_insert_with(length);
    }
    let is_empty = is_head || has_no_content(head.status);
    if is_empty {
        body.skip();
    }
    !is_empty
}

/// Reports whether responses with this status have no content (RFC 9110, 15.3.5 and 15.4.5).
fn has_no_content(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

/// Removes connection-specific headers (RFC 9113, 8.2.2, and RFC 9114, 4.2).
fn remove_connection_headers(headers: &mut HeaderMap) {
    if headers.keys().any(is_hop_by_hop) {
        for name in HOP_BY_HOP {
            headers.remove(name);
        }
    }
}

/// Whether the body of a request with these headers may pause.
pub(super) fn pace(headers: &HeaderMap, is_grpc: bool, has_body: bool) -> BodyPace {
    if is_grpc {
        BodyPace::Any
    } else if !has_body || headers.contains_key(CONTENT_LENGTH) {
        BodyPace::Steady
    } else {
        BodyPace::SteadyUntilResponse
    }
}

/// Returns the trailers of a gRPC response whose deadline has passed.
pub(super) fn deadline_trailers() -> HeaderMap {
    let error = Error::RequestTimeout;
    let mut trailers = HeaderMap::with_capacity(2);
    let status = error.grpc_status();
    status.insert_into(&mut trailers, error.message());
    trailers
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::{CONNECTION, CONTENT_TYPE, UPGRADE};

    use super::*;

    #[test]
    fn removes_connection_headers() {
        let mut headers = HeaderMap::new();
        for name in [CONNECTION, UPGRADE, CONTENT_TYPE] {
            headers.insert(name, HeaderValue::from_static("x"));
        }
        remove_connection_headers(&mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), [CONTENT_TYPE]);
    }
}
