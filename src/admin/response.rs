//! Responses of the admin server, and the headers that all of them have.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{Either, Full};

use super::stream::TapBody;

/// The body of a response: a text, or what a tap shows.
pub(super) type ReplyBody = Either<Full<Bytes>, TapBody>;

/// A response of the admin server.
pub(super) type Reply = Response<ReplyBody>;

/// Returns a response in plain text.
pub(super) fn text(status: StatusCode, body: &str) -> Reply {
    respond(status, "text/plain; charset=utf-8", body.to_owned())
}

/// Returns a response.
pub(super) fn respond(status: StatusCode, content_type: &'static str, body: String) -> Reply {
    with_headers(status, content_type, Either::Left(Full::from(body)))
}

/// Returns a response of lines of JSON, as they come.
pub(super) fn lines(body: TapBody) -> Reply {
    with_headers(StatusCode::OK, "application/x-ndjson", Either::Right(body))
}

fn with_headers(status: StatusCode, content_type: &'static str, body: ReplyBody) -> Reply {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            HeaderName::from_static("content-security-policy"),
            "default-src 'none'; style-src 'unsafe-inline'",
        ),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}
