//! The client of the API server. Does not retry: the callers own the retry policy.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, Response};
use kube::client::{ClientBuilder, DynBody};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapResultLayer;

use crate::cluster::api_server::RetryAfter;

/// Timeout of a connect, after which the next attempt may use another address.
const CONNECT: Duration = Duration::from_secs(5);

/// Creates a client whose errors contain `Retry-After`.
pub(super) fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT);
    // kube's default retry would honor any `Retry-After` without a limit, and has its own back-off.
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&MapResultLayer::new(check)).build())
}

/// Turns a response with `Retry-After` into an error that contains the delay. kube drops the header
/// from its own errors.
fn check(
    response: Result<Response<Box<DynBody>>, BoxError>,
) -> Result<Response<Box<DynBody>>, BoxError> {
    let response = response?;
    let status = response.status();
    match seconds(response.headers()) {
        Some(after) if status.is_client_error() || status.is_server_error() => {
            Err(Box::new(RetryAfter {
                status: status.as_u16(),
                after,
            }))
        }
        _ => Ok(response),
    }
}

fn seconds(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?;
    text.parse().ok().map(Duration::from_secs)
}
