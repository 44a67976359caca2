//! Asks an authorization server whether to forward a request, for ExternalAuth filters and policies. Fails closed: any error
//! denies the request.

mod check_response;
mod grpc;
mod message;
mod sign_in;
mod verdict;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, request};
use tokio::time::timeout;

use self::verdict::{Verdict, copy_headers, denial};
use super::exchange::Exchange;
use super::original;
use super::subrequest::{self, Subrequest};
use crate::filter::credentials::are_several;
use crate::filter::{Level, LocalResponse, Scheme};
use crate::ir::auth_call::{AuthCall, AuthProtocol, ExternalPolicy, HttpAuth};
use crate::ir::request_path::RequestPath;
use crate::proxy::body::buffered::Buffered;
use crate::proxy::client::forwarding::{
    X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO, X_REQUEST_ID,
};
use crate::proxy::error::Error;
use crate::proxy::worker_state::Worker;
use crate::proxy::worker_state::budget::Share;
use crate::table::{AuthResult, Backend};
use crate::telemetry::trace::{Decision, Event, Purpose, RequestSpan};
use crate::upstream::Semantics;

/// Maximum time for a response of the authorization server.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks for the permission that a policy demands. Returns the response to the client if the request is denied: for browsers
/// without credentials, the redirect to the page to sign in.
pub(super) async fn ask(
    exchange: &mut Exchange,
    external: &ExternalPolicy,
    backend: &Arc<Backend>,
) -> Result<Option<LocalResponse>, Error> {
    exchange.added.insert_into(&mut exchange.parts.headers);
    let denied = authorize(exchange, &external.call, backend, Level::Rule).await?;
    exchange.record.attempts.have_waited();
    let Some(denial) = denied else {
        return Ok(None);
    };
    // Without a host, the URL to return to would have the local address, which clients do not get to know.
    let has_host = !exchange.host.as_str().is_empty();
    let sign_in = external.sign_in.as_ref().filter(|_| has_host);
    let scheme = exchange.client.scheme();
    let redirect = sign_in.and_then(|it| sign_in::redirect(it, &denial, (&exchange.parts, scheme)));
    Ok(Some(redirect.unwrap_or(denial)))
}

/// Removes the headers that only the authorization server of a policy may set, from a request about which it is not asked.
pub(super) fn remove_forged(
    external: &ExternalPolicy,
    headers: &mut HeaderMap,
) -> Result<(), Error> {
    match external.call.response_headers() {
        [] => Ok(()),
        listed => copy_headers(&HeaderMap::new(), listed, headers).map(drop),
    }
}

/// Asks for permission. Returns the response to the client if the request is denied.
pub(super) async fn authorize(
    exchange: &mut Exchange,
    call: &AuthCall,
    backend: &Arc<Backend>,
    level: Level,
) -> Result<Option<LocalResponse>, Error> {
    if are_several(&exchange.parts.headers) {
        return Err(Error::Unauthenticated);
    }
    let body = match call.max_body {
        0 => Bytes::new(),
        max => {
            // Reading the body sends the 100 (Continue). The backend's 100 is not needed.
            exchange.expects_continue = false;
            exchange.body.buffer(usize::from(max)).await?
        }
    };
    let worker = Rc::clone(&exchange.client.worker);
    let asked = async {
        match &call.protocol {
            AuthProtocol::Http(http) => {
                let span = exchange.record.span.as_deref();
                let target = (&**backend, span, &exchange.client.kept_bytes);
                let scheme = exchange.client.scheme();
                let request = (&mut exchange.parts, &exchange.path, scheme);
                http_verdict(&worker, target, http, request, body).await
            }
            AuthProtocol::Grpc(grpc) => {
                grpc::verdict(&worker, backend, grpc, exchange, level, body).await
            }
        }
    };
    let verdict = timeout(TIMEOUT, asked)
        .await
        .unwrap_or(Err(Error::AuthorizationTimeout));
    let (result, decision) = match &verdict {
        Ok(Verdict::Allow(_)) => (AuthResult::Allowed, Decision::Allowed),
        Ok(Verdict::Deny(_)) => (AuthResult::Denied, Decision::Refused),
        Err(_) => (AuthResult::Failed, Decision::Failed),
    };
    backend.stats.authorized(result);
    let record = &mut exchange.record;
    record.note(|| Event::external_auth(&backend.id, decision));
    match verdict? {
        Verdict::Allow(protected) => {
            if let Some(protected) = &protected {
                exchange.body.protect(protected);
            }
            Ok(None)
        }
        Verdict::Deny(response) => {
            exchange.record.denied();
            Ok(Some(response))
        }
    }
}

/// Sends the request's head and `body` to the server. If the server allows the request, copies
/// headers of its response to `parts`. Whatever the method, the call asks a question and has no
/// effect, so that it may be sent again.
async fn http_verdict(
    worker: &Rc<Worker>,
    (backend, span, share): (&Backend, Option<&RequestSpan>, &Rc<Share>),
    http: &HttpAuth,
    (parts, path, scheme): (&mut request::Parts, &RequestPath, Scheme),
    body: Bytes,
) -> Result<Verdict, Error> {
    let head = http_head(http, (&*parts, path, scheme), body.len())?;
    // The path is that of the client.
    let request = Subrequest::new(head, Semantics::Safe).caused_by(share.client());
    let mut request = request.traced(worker, span, Purpose::ExternalAuth, None);
    let body = Buffered::new(body);
    let response = subrequest::send(worker, backend, &mut request, body).await;
    let response = response.map_err(|_| Error::AuthorizationUnavailable)?;
    let (status, headers) = (response.status, response.headers);
    // A response that is cut off may have become another one: it neither allows nor explains.
    let read = match status {
        // Nothing of its body is used.
        StatusCode::OK => subrequest::read(response.body, 0).await,
        _ => subrequest::read_for(response.body, share).await,
    };
    let read = read.ok_or(Error::AuthorizationUnavailable)?;
    if status != StatusCode::OK {
        let body = read.body.unwrap_or_default();
        return Ok(Verdict::Deny(denial(status, headers, body)));
    }
    let protected = copy_headers(&headers, &http.response_headers, &mut parts.headers)?;
    Ok(Verdict::Allow(protected))
}

/// Builds the head of the request to the server (HTTPAuthConfig): method, prefixed path, and the
/// headers that are always sent or allowed. With an exact path, method and path are those of the configuration, and headers
/// have those of the client's request.
fn http_head(
    http: &HttpAuth,
    (parts, path, scheme): (&request::Parts, &RequestPath, Scheme),
    length: usize,
) -> Result<request::Parts, Error> {
    const ALWAYS: [HeaderName; 6] = [
        HOST,
        AUTHORIZATION,
        X_FORWARDED_FOR,
        X_FORWARDED_PROTO,
        X_FORWARDED_HOST,
        X_REQUEST_ID,
    ];
    let mut head = subrequest::head(parts);
    let target = original::decided_target(parts, path);
    let target = format!("{}{target}", http.path_prefix);
    head.uri = Uri::try_from(target).map_err(|_| Error::Filter)?;
    let allowed = http.headers.iter().filter(|name| !ALWAYS.contains(name));
    for name in ALWAYS.iter().chain(allowed) {
        for value in parts.headers.get_all(name) {
            let appended = head.headers.try_append(name, value.clone());
            appended.map_err(|_| Error::Filter)?;
        }
    }
    if let Some(exact) = &http.exact_path {
        head.uri = Uri::try_from(&**exact).map_err(|_| Error::Filter)?;
        if length == 0 {
            head.method = Method::GET;
        }
        original::describe((parts, path, scheme), &mut head.headers)?;
    }
    head.headers
        .insert(CONTENT_LENGTH, HeaderValue::from(length));
    Ok(head)
}
