//! The client of the API server: fails soon instead of retrying by itself, since its callers know better when to retry.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, Response};
use kube::client::{ClientBuilder, DynBody};
use kube::{Client, Config};
use tower::BoxError;
use tower::util::MapResultLayer;

use crate::api_server::RetryAfter;

/// The longest that connecting may take: the next try may find another address.
const CONNECT: Duration = Duration::from_secs(5);

/// A client that says how long the API server wants to be left alone.
pub(super) fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT);
    // Would wait as long as the API server likes, and longer and longer by itself.
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)?;
    Ok(builder.with_layer(&MapResultLayer::new(check)).build())
}

/// Makes an answer that asks to wait an error that tells how long: nothing else is left of the header behind the client.
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
