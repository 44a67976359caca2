//! Responses of the admin server, and the headers that all of them have.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{Either, Full};
use tokio::sync::mpsc;

use super::scrape::ScrapeBody;
use super::stream::{EventBody, TapBody};
use crate::telemetry::metrics::CONTENT_TYPE as CONTENT_TYPE_OF_METRICS;

/// The body of a response: a text or metrics, or a stream, which is what a tap shows or events.
pub(super) type ReplyBody = Either<Either<Full<Bytes>, ScrapeBody>, Either<TapBody, EventBody>>;

/// A response of the admin server.
pub(super) type Reply = Response<ReplyBody>;

/// Returns a response in plain text.
pub(super) fn text(status: StatusCode, body: &str) -> Reply {
    respond(status, "text/plain; charset=utf-8", body.to_owned())
}

/// Returns a response.
pub(super) fn respond(status: StatusCode, content_type: &'static str, body: String) -> Reply {
    let body = Either::Left(Either::Left(Full::from(body)));
    with_headers(status, content_type, body)
}

/// Returns a file that the program contains.
pub(super) fn file(content_type: &'static str, content: Bytes) -> Reply {
    let body = Either::Left(Either::Left(Full::from(content)));
    with_headers(StatusCode::OK, content_type, body)
}

/// Returns metrics, as they are written.
pub(super) fn metrics(body: ScrapeBody) -> Reply {
    let body = Either::Left(Either::Right(body));
    with_headers(StatusCode::OK, CONTENT_TYPE_OF_METRICS, body)
}

/// Returns a response of lines of JSON, as they come.
pub(super) fn lines(body: TapBody) -> Reply {
    let body = Either::Right(Either::Left(body));
    with_headers(StatusCode::OK, "application/x-ndjson", body)
}

/// Returns a response of server-sent events, as they come.
pub(super) fn events(events: mpsc::Receiver<Bytes>) -> Reply {
    let body = Either::Right(Either::Right(EventBody(events)));
    with_headers(StatusCode::OK, "text/event-stream", body)
}

fn with_headers(status: StatusCode, content_type: &'static str, body: ReplyBody) -> Reply {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        ),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}
