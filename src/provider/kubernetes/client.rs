//! The client of the API server. It does not retry: the callers own the retry policy.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, Response};
use kube::client::{ClientBuilder, DynBody};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapResultLayer;

use crate::api_server::RetryAfter;

/// Timeout of a connect: the next attempt may use another address.
const CONNECT: Duration = Duration::from_secs(5);

/// Creates a client whose errors carry `Retry-After`.
pub(super) fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT);
    // The default retry would wait for `Retry-After` without a limit, with its own back-off.
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&MapResultLayer::new(check)).build())
}

/// Turns a response with `Retry-After` into an error that contains the delay: the client drops the
/// header otherwise.
fn check(
    answer: Result<Response<Box<DynBody>>, BoxError>,
) -> Result<Response<Box<DynBody>>, BoxError> {
    let answer = answer?;
    let status = answer.status();
    match seconds(answer.headers()) {
        Some(after) if status.is_client_error() || status.is_server_error() => {
            Err(Box::new(RetryAfter {
                status: status.as_u16(),
                after,
            }))
        }
        _ => Ok(answer),
    }
}

fn seconds(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.parse().ok().map(Duration::from_secs)
}
