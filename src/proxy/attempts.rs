//! Sends a matched request: each attempt selects a backendRef, runs its filters and sends to one of
//! its endpoints. Retries where that is safe.

use std::mem;

use http::HeaderMap;
use http::header::SET_COOKIE;
use tokio::time::Instant;

use super::error::Error;
use super::filters;
use super::request::Exchange;
use super::request_body::RequestBody;
use crate::filter::{Level, LocalResponse, Scheme};
use crate::ir::route::Action;
use crate::table::{Backend, Target};
use crate::upstream::{self, FailedAttempt, Outgoing};

/// Source of a response.
pub(super) enum Outcome {
    /// A backend.
    Backend(upstream::Response<RequestBody>),
    /// A filter.
    Filter(LocalResponse),
}

/// Sends the request of `exchange` until there is a response or no further attempt is safe.
pub(super) async fn send(exchange: &mut Exchange) -> Result<Outcome, Error> {
    let rule = exchange.rule.clone();
    if matches!(rule.ir.action, Action::Broken(_)) {
        return Err(Error::Broken);
    }
    let draw = rule.draw(None);
    loop {
        let selected = rule.select(draw).ok_or(Error::NoBackend)?;
        let unfiltered = exchange.before(&selected.filters);
        if let Some(response) = filters::run(selected.filters(), Level::Backend, exchange).await? {
            return Ok(Outcome::Filter(response));
        }
        let Target::Backend(backend) = &selected.target else {
            return Err(Error::Broken);
        };
        match attempt(exchange, backend).await {
            Ok(response) => return Ok(Outcome::Backend(response)),
            Err(FailedAttempt { error, body: None }) => return Err(error.into()),
            Err(FailedAttempt {
                body: Some(body), ..
            }) => exchange.restore(unfiltered, body),
        }
    }
}

async fn attempt(
    exchange: &mut Exchange,
    backend: &Backend,
) -> Result<upstream::Response<RequestBody>, FailedAttempt<RequestBody>> {
    let timeout = exchange.rule.ir.timeouts.backend_request;
    let expires = timeout.map(|timeout| Instant::now() + timeout);
    let body = mem::take(&mut exchange.body);
    let interim = &exchange.interim;
    let inform = |status, headers: &HeaderMap| interim.send(status, headers);
    let outgoing = Outgoing {
        parts: &exchange.parts,
        added: exchange.added.as_slice(),
        upgrade: exchange.upgrade.as_ref(),
        expect_continue: exchange.expects_continue,
        informational: (!interim.is_none()).then_some(&inform),
        try_timeout: timeout,
    };
    let upstream = &exchange.client.worker.upstream;
    let attempts = &mut exchange.record.attempts;
    let attempt = upstream.attempt(backend, None, attempts, &outgoing, body);
    let mut response = attempt.await?;
    exchange.expire_by(expires);
    let is_secure = exchange.client.scheme() == Scheme::Https;
    if let Some(cookie) = exchange.record.attempts.set_cookie(is_secure) {
        // Before the response filters, which may change it. It fails only beyond 24,000 headers,
        // which no parser lets through.
        let _ = response.headers.try_append(SET_COOKIE, cookie.clone());
    }
    Ok(response)
}
