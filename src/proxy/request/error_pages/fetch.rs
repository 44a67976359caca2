//! Asks a backend for the page in place of a response with an error status. Without a page in time, the response stays as it
//! is. The server gets nothing of the request that may be a credential.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH,
    CONTENT_TYPE, HOST, LOCATION, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, request};
use http_body::Body as _;
use tokio::time::{Instant, sleep};

use super::super::exchange::Exchange;
use super::super::subrequest::{self, Subrequest};
use crate::filter::error_page::Accept;
use crate::ir::error_page::{ErrorPage, PageServer, Responder};
use crate::ir::route_defaults::RouteDefaults;
use crate::proxy::body::buffered::Buffered;
use crate::proxy::body::page_body::{MAX_PAGE, PageBody};
use crate::proxy::client::forwarding::X_REQUEST_ID;
use crate::proxy::request::error_response::ErrorResponse;
use crate::proxy::request::wanted_page::{FetchedPage, OriginalRequest, WantedPage};
use crate::proxy::response::record::Record;
use crate::proxy::worker_state::budget::Held;
use crate::table::{Backend, PageResult};
use crate::telemetry::trace::Purpose;
use crate::upstream::{Response, Semantics, SendError};

/// Maximum time for the head of a page.
const TIMEOUT: Duration = Duration::from_secs(2);

const X_CODE: HeaderName = HeaderName::from_static("x-code");
const X_FORMAT: HeaderName = HeaderName::from_static("x-format");
const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");
const X_NAMESPACE: HeaderName = HeaderName::from_static("x-namespace");
const X_INGRESS_NAME: HeaderName = HeaderName::from_static("x-ingress-name");
const X_SERVICE_NAME: HeaderName = HeaderName::from_static("x-service-name");
const X_SERVICE_PORT: HeaderName = HeaderName::from_static("x-service-port");

/// Headers of a response that the client gets with its page.
const OF_PAGE: [HeaderName; 3] = [CONTENT_TYPE, CONTENT_LENGTH, CONTENT_LANGUAGE];

/// The response that a page replaces.
struct Replaced<'a> {
    status: StatusCode,
    page: &'a ErrorPage,
    server: &'a PageServer,
    id: &'a HeaderValue,
    accept: &'a Accept,
    original: &'a OriginalRequest,
}

/// Reports whether the page for the response of an exchange has a server.
#[inline]
pub(in crate::proxy::request) fn is_needed(
    exchange: &Exchange,
    response: (StatusCode, Responder),
) -> bool {
    let wanted = exchange.page.as_ref();
    wanted.is_some_and(|wanted| {
        let defaults = exchange.defaults.as_deref();
        let server = defaults.and_then(|it| wanted.server(&it.error_pages, response));
        server.is_some() && !exchange.is_grpc()
    })
}

/// Fetches the page for the response of an exchange, which is sent afterwards. The page of a backend's response takes no more
/// time than the exchange has.
pub(in crate::proxy::request) async fn for_exchange(
    exchange: &mut Exchange,
    response: (StatusCode, Responder),
) {
    let (Some(defaults), Some(wanted)) = (&exchange.defaults, &mut exchange.page) else {
        return;
    };
    let limit = match response.1 {
        Responder::Gateway => None,
        Responder::Backend => exchange.expires,
    };
    let (record, id) = (&mut exchange.record, exchange.added.id());
    let is_fetched = fetch_for(record, (defaults, wanted), (response, id), limit).await;
    if !is_fetched && response.1 == Responder::Backend {
        exchange.record.activity().expire_at(exchange.expires);
    }
}

/// Reports whether the page for an error response has a server.
pub(in crate::proxy::request) fn is_needed_for(refused: &mut ErrorResponse) -> bool {
    let parts = refused.page_parts();
    parts.is_some_and(|(_, defaults, wanted, error, _)| {
        let response = (error.status(), Responder::Gateway);
        wanted.server(&defaults.error_pages, response).is_some()
    })
}

/// Fetches the page for an error response.
pub(in crate::proxy::request) async fn for_error(refused: &mut ErrorResponse) {
    let Some((record, defaults, wanted, error, id)) = refused.page_parts() else {
        return;
    };
    let response = (error.status(), Responder::Gateway);
    fetch_for(record, (defaults, wanted), (response, id), None).await;
}

/// Fetches the page for a response to the request with this id, until `limit` at most. Returns whether it has one.
async fn fetch_for(
    record: &mut Record,
    (defaults, wanted): (&RouteDefaults, &mut WantedPage),
    (response, id): ((StatusCode, Responder), &HeaderValue),
    limit: Option<Instant>,
) -> bool {
    let server = wanted.server(&defaults.error_pages, response);
    let (Some((page, server)), Some(original)) = (server, &wanted.original) else {
        return false;
    };
    let replaced = Replaced {
        status: response.0,
        page,
        server,
        id,
        accept: &wanted.accept,
        original,
    };
    let page = fetch(record, &replaced, limit).await;
    let is_fetched = page.is_some();
    wanted.fetched(page);
    is_fetched
}

/// Asks for a page, until `limit` at most.
async fn fetch(
    record: &mut Record,
    replaced: &Replaced<'_>,
    limit: Option<Instant>,
) -> Option<Box<FetchedPage>> {
    let client = record.connection().clone();
    let worker = &client.worker;
    let backend = {
        // Few requests need the present table again.
        let table = worker.table.load();
        let port = client.port.configured(&table)?;
        let PageServer { policy, index, .. } = replaced.server;
        let server = table.policy_server((policy, *index), &port.ir.gateway);
        server?.clone()
    };
    let admitted = worker
        .page_slots
        .admit(&replaced.server.policy, record.client().ip());
    let Some(slot) = admitted else {
        backend.stats.paged(PageResult::Dropped);
        return None;
    };
    let host = replaced.original.host.clone();
    let host = host.unwrap_or_else(|| client.local_authority());
    let head = head(record, replaced, host);
    let time = limit.map_or(TIMEOUT, |limit| {
        TIMEOUT.min(limit.saturating_duration_since(Instant::now()))
    });
    let span = record.span.as_deref();
    let request = Subrequest::new(head, Semantics::Safe).caused_by(client.kept_bytes.client());
    let mut request = request.traced(worker, span, Purpose::ErrorPage, Some("/"));
    let body = Buffered::new(Bytes::new());
    let activity = record.activity();
    activity.await_backend();
    let response = {
        let sent = subrequest::send(worker, &backend, &mut request, body);
        let (mut sent, mut timer) = (pin!(sent), pin!(sleep(time)));
        poll_fn(|cx| {
            if let Poll::Ready(response) = sent.as_mut().poll(cx) {
                return Poll::Ready(Some(response));
            }
            let is_late = timer.as_mut().poll(cx).is_ready() || activity.poll_due(cx).is_ready();
            match is_late {
                true => Poll::Ready(None),
                false => Poll::Pending,
            }
        })
        .await
    };
    activity.await_backend();
    match page(response, replaced, &backend, slot) {
        Ok(page) => Some(Box::new(page)),
        Err(result) => {
            backend.stats.paged(result);
            None
        }
    }
}

/// Returns the page that a response has, or why it has none.
fn page(
    response: Option<Result<Response<Buffered>, SendError>>,
    replaced: &Replaced<'_>,
    backend: &Arc<Backend>,
    slot: Held,
) -> Result<FetchedPage, PageResult> {
    let response = response.ok_or(PageResult::Timeout)?;
    let mut response = response.map_err(|_| PageResult::Failed)?;
    let size = response.body.size_hint().exact();
    if size.is_some_and(|size| size > MAX_PAGE) {
        return Err(PageResult::TooLarge);
    }
    let (status, headers) = (response.status, &response.headers);
    let keeps = replaced.page.keeps_status;
    let coding = headers.get(CONTENT_ENCODING);
    let is_encoded =
        coding.is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if is_encoded || !is_page(status, headers, (replaced.status, keeps)) {
        response.body.drain();
        return Err(PageResult::Unusable);
    }
    let is_redirect = status.is_redirection();
    let names = OF_PAGE.into_iter().chain(is_redirect.then_some(LOCATION));
    let of_page = names.filter_map(|name| {
        let value = headers.get(&name)?.clone();
        Some((name, value))
    });
    Ok(FetchedPage {
        status: match keeps {
            true => replaced.status,
            false => status,
        },
        headers: of_page.collect(),
        body: Box::new(PageBody::new(response.body, backend.clone(), slot)),
    })
}

/// Reports whether a response of the server is a page: one of success, or with the status that it is asked for. Without
/// `keeps`, it may also redirect, or answer with another status of a request's fault.
fn is_page(status: StatusCode, headers: &HeaderMap, (asked, keeps): (StatusCode, bool)) -> bool {
    let may_replace =
        status.is_client_error() || status.is_redirection() && headers.contains_key(LOCATION);
    status.is_success() || status == asked || !keeps && may_replace
}

/// Builds the head of a request for a page.
fn head(record: &Record, replaced: &Replaced<'_>, host: HeaderValue) -> request::Parts {
    let Replaced {
        status,
        id,
        accept,
        original,
        ..
    } = replaced;
    let (mut head, ()) = Request::new(()).into_parts();
    head.method = match original.is_head {
        true => Method::HEAD,
        false => Method::GET,
    };
    head.uri = Uri::from_static("/");
    let headers = &mut head.headers;
    headers.insert(HOST, host);
    headers.insert(USER_AGENT, HeaderValue::from_static("portcullis"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(X_CODE, HeaderValue::from(status.as_u16()));
    headers.insert(X_REQUEST_ID, (*id).clone());
    for line in accept.lines() {
        headers.append(ACCEPT, line.clone());
    }
    let formats: Vec<_> = accept.lines().iter().map(HeaderValue::as_bytes).collect();
    let text = |bytes: &[u8]| HeaderValue::from_bytes(bytes).ok();
    let mut set = |name: HeaderName, value: Option<HeaderValue>| {
        if let Some(value) = value {
            headers.insert(name, value);
        }
    };
    set(
        X_FORMAT,
        text(&formats.join(&b", "[..])).filter(|it| !it.is_empty()),
    );
    set(ACCEPT_LANGUAGE, original.language.clone());
    // Queries may have credentials.
    set(X_ORIGINAL_URI, text(original.uri.path().as_bytes()));
    if let Some(rule) = record.rule() {
        let route = &rule.ir.id.route;
        set(X_NAMESPACE, text(route.namespace.as_bytes()));
        set(X_INGRESS_NAME, text(route.name.as_bytes()));
        if let Some(backend) = rule.backend_of(record.attempts.selected()) {
            set(X_SERVICE_NAME, text(backend.id.object.name.as_bytes()));
            set(X_SERVICE_PORT, Some(HeaderValue::from(backend.id.port)));
        }
    }
    head
}
