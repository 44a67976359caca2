//! `/served`: what this process serves, for a controller that waits until it has changed. Knows nothing of who asks.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ETAG, IF_NONE_MATCH};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::{Instant, timeout_at};

use super::{AdminState, respond, text};

/// The longest that a request may wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Answers at once, or, with `If-None-Match` and `?wait=SECONDS`, when the answer is another than that, and with 304
/// when it has not become another until then.
pub(super) async fn answer<B>(request: &Request<B>, state: &AdminState) -> Response<Full<Bytes>> {
    let known = request.headers().get(IF_NONE_MATCH).cloned();
    let until = Instant::now() + wait(request.uri().query().unwrap_or_default());
    let mut served = state.served.subscribe();
    loop {
        let body = serde_json::to_string(&**served.borrow_and_update());
        let Ok(body) = body else {
            return text(StatusCode::INTERNAL_SERVER_ERROR, "cannot be shown\n");
        };
        let tag = tag(&body);
        if known.as_ref() != Some(&tag) {
            let mut response = respond(StatusCode::OK, "application/json", body);
            response.headers_mut().insert(ETAG, tag);
            return response;
        }
        if !matches!(timeout_at(until, served.changed()).await, Ok(Ok(()))) {
            let mut response = text(StatusCode::NOT_MODIFIED, "");
            response.headers_mut().insert(ETAG, tag);
            return response;
        }
    }
}

/// The `wait` of a query, in seconds; none when there is no sensible one.
fn wait(query: &str) -> Duration {
    let seconds = query.split('&').find_map(|part| part.strip_prefix("wait="));
    let seconds = seconds
        .and_then(|seconds| seconds.parse().ok())
        .unwrap_or(0);
    Duration::from_secs(seconds).min(LONGEST_WAIT)
}

fn tag(body: &str) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    let tag = format!("\"{:016x}\"", hasher.finish());
    HeaderValue::from_str(&tag).unwrap_or(HeaderValue::from_static("\"\""))
}
