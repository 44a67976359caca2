//! One fetch of a key set, for OpenID providers of the discovery document before it, within bounded time and memory. Must not
//! know when it is fetched.

use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{HeaderValue, Request, Uri};
use http_body_util::Full;
use rand::seq::SliceRandom;
use tokio::time::timeout;

use crate::api::key_set::Discovery;
use crate::dns::Lookup;
use crate::https::{HttpsClient, HttpsError, Server};
use crate::telemetry::metrics::FetchFailure;
use crate::translate::{KeyServer, KeySetSource, check_key_set, read_discovery};

/// Timeout of a fetch, from the lookup of the name to the end of the last response.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response, in bytes. Key sets and discovery documents have a few KiB.
const MAX_BODY: usize = 64 * 1024;
const TYPES: HeaderValue = HeaderValue::from_static("application/json, application/jwk-set+json");

/// A usable key set.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fetched {
    pub(super) keys: String,
    /// What the discovery document says, of an OpenID provider.
    pub(super) discovery: Option<Discovery>,
}

/// Why a fetch failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) kind: FetchFailure,
    pub(super) problem: String,
}

/// Fetches a key set.
pub(super) async fn fetch<L: Lookup>(
    source: KeySetSource,
    client: HttpsClient<L>,
) -> Result<Fetched, Failure> {
    let fetched = timeout(TIMEOUT, fetch_untimed(&source, &client)).await;
    fetched.unwrap_or_else(|_| {
        let seconds = TIMEOUT.as_secs();
        Err(unreachable(format!("no response within {seconds} s")))
    })
}

async fn fetch_untimed<L: Lookup>(
    source: &KeySetSource,
    client: &HttpsClient<L>,
) -> Result<Fetched, Failure> {
    let KeySetSource {
        uri,
        authorities: _,
        provider,
        server: _,
    } = source;
    let text = get(uri, source, client).await?;
    let (keys, discovery) = match provider {
        None => (text, None),
        Some(issuer) => {
            let read = read_discovery(&text, issuer);
            let (discovery, uri) = read.map_err(|problem| invalid(&problem))?;
            let keys = get(&uri, source, client).await;
            let at = |it: Failure| Failure {
                problem: format!("{uri}: {}", it.problem),
                ..it
            };
            (keys.map_err(at)?, Some(discovery))
        }
    };
    check_key_set(&keys).map_err(|problem| invalid(&problem))?;
    Ok(Fetched { keys, discovery })
}

async fn get<L: Lookup>(
    uri: &Uri,
    source: &KeySetSource,
    client: &HttpsClient<L>,
) -> Result<String, Failure> {
    let mut request = Request::new(Full::<Bytes>::default());
    request.headers_mut().insert(ACCEPT, TYPES);
    let authorities = &source.authorities;
    let response = match &source.server {
        None => client.send(uri, authorities, request, MAX_BODY).await,
        Some(KeyServer { endpoints, tls }) => {
            let mut endpoints = endpoints.clone();
            endpoints.shuffle(&mut rand::rng());
            let server = Server {
                endpoints: &endpoints,
                tls: tls.as_deref(),
            };
            let target = (uri, authorities);
            let response = client.send_to_server(server, target, request, MAX_BODY);
            response.await
        }
    };
    let response = response.map_err(|error| match error {
        HttpsError::Refused(problem) => Failure {
            kind: FetchFailure::Refused,
            problem,
        },
        HttpsError::Unreachable(problem) => unreachable(problem),
        HttpsError::TooLong => invalid(&format!("has more than {} KiB", MAX_BODY / 1024)),
    })?;
    let status = response.status;
    if status != http::StatusCode::OK {
        let why = match status.is_redirection() {
            true => ", and redirects are not followed",
            false => "",
        };
        return Err(Failure {
            kind: FetchFailure::Status,
            problem: format!("the issuer answers with status {}{why}", status.as_u16()),
        });
    }
    let text = String::from_utf8(response.body.into());
    text.map_err(|_| invalid("is not UTF-8"))
}

fn unreachable(problem: String) -> Failure {
    Failure {
        kind: FetchFailure::Unreachable,
        problem,
    }
}

fn invalid(problem: &str) -> Failure {
    Failure {
        kind: FetchFailure::Invalid,
        problem: format!("the response {problem}"),
    }
}
