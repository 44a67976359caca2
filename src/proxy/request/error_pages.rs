//! Replaces responses with an error status by the pages of policies, after filters have changed them.

pub(super) mod fetch;

use http::{HeaderMap, StatusCode};

use super::exchange::Exchange;
use crate::ir::error_page::Responder;
use crate::proxy::body::response_body::BodySource;

/// Replaces a response, if a policy has a page for it. Returns its body.
pub(super) fn replace(
    exchange: &mut Exchange,
    (status, responder): (&mut StatusCode, Responder),
    headers: &mut HeaderMap,
    source: BodySource,
) -> BodySource {
    match exchange.page {
        None => source,
        Some(_) => replaced(exchange, (status, responder), headers, source),
    }
}

#[cold]
fn replaced(
    exchange: &mut Exchange,
    (status, responder): (&mut StatusCode, Responder),
    headers: &mut HeaderMap,
    source: BodySource,
) -> BodySource {
    if exchange.is_grpc() {
        return source;
    }
    let (Some(defaults), Some(page)) = (&exchange.defaults, &mut exchange.page) else {
        return source;
    };
    let response = (*status, responder);
    let Some(page) = page.replace(&defaults.error_pages, response, headers) else {
        return source;
    };
    if let BodySource::Backend(mut body) = source {
        body.drain();
    }
    let (page_status, body) = page;
    *status = page_status;
    body
}
