//! The phases of an attempt, in order: selects a backendRef, runs its filters and sends the request to one of its
//! endpoints. Retries if that is safe or the rule allows it.

use std::mem;

use http::HeaderMap;
use http::header::SET_COOKIE;

use super::exchange::Exchange;
use super::filters;
use super::picker::{self, Attempted, Picking};
use super::retries::Retries;
use super::session::{self, NewSession, SessionEndpoint};
use crate::filter::{Level, LocalResponse, Scheme};
use crate::ir::picker::is_pool;
use crate::ir::route::Action;
use crate::proxy::body::request_body::RequestBody;
use crate::proxy::error::Error;
use crate::table::{Backend, BackendTarget, LimitedRequest, PickResult, Rule, Traffic};
use crate::telemetry::trace::TRACEPARENT;
use crate::upstream::{self, FailedAttempt, Outgoing, Resend, Semantics};

/// Source of a response.
pub(in crate::proxy) enum ResponseSource {
    /// A backend.
    Backend(upstream::Response<RequestBody>),
    /// A filter.
    Filter(LocalResponse),
}

/// Sends the request of `exchange`, which matches `rule`, until there is a response or no further
/// attempt is allowed.
pub(in crate::proxy) async fn send(
    exchange: &mut Exchange,
    rule: &Rule,
) -> Result<ResponseSource, Error> {
    if matches!(rule.ir.action, Action::Invalid(_)) {
        return Err(Error::InvalidRule);
    }
    let place = session_place(exchange, rule);
    let draw = rule.draw(None);
    let mut retries = Retries::default();
    let mut picking: Option<Box<Picking>> = None;
    let (response, backend) = loop {
        let selected = match place {
            None => rule.select(draw),
            Some(place) => rule.backends().get(place.backend),
        };
        let selected = selected.ok_or(Error::NoBackend)?;
        let own = selected.filters();
        // What a picker has made of the request stays, even if the pool has lost the picker since. Without one, too, clients do
        // not steer requests of a pool.
        let is_picked = picking.is_some() || is_of_pool(&selected.target);
        let is_changed = own.is_some() || is_picked;
        let unfiltered = is_changed.then(|| exchange.before_filters());
        if let Some(own) = own
            && let Some(response) = filters::run(own, Level::Backend, exchange).await?
        {
            return Ok(ResponseSource::Filter(response));
        }
        let BackendTarget::Backend(backend) = &selected.target else {
            return Err(Error::InvalidRule);
        };
        let traffic = backend.traffic();
        let traffic = traffic.as_deref();
        retries.begin(traffic);
        let are_left = retries.allowed(exchange.retry()).are_left();
        let attempted = match is_picked {
            false => attempt(exchange, backend, are_left).await,
            // Few requests need this future.
            true => match Box::pin(picked(exchange, backend, are_left, &mut picking)).await? {
                Attempted::Done(attempted) => attempted,
                Attempted::Respond(response) => return Ok(ResponseSource::Filter(response)),
                Attempted::Resend(body) => {
                    exchange.restore(unfiltered, body);
                    continue;
                }
            },
        };
        let body = match after_attempt(exchange, &retries, (backend, traffic), attempted)? {
            Next::Respond(mut response) => {
                finish(exchange, &mut response, place, traffic);
                break (response, backend);
            }
            Next::Resend(body) => {
                exchange.restore(unfiltered, body);
                continue;
            }
            Next::Retry(body) => body,
        };
        let admitted = Retries::admit(backend, traffic);
        exchange.record.note_retry(admitted.is_ok());
        admitted.inspect_err(|_| exchange.record.attempts.give_up(backend))?;
        exchange.restore(unfiltered, body);
        rule.state.stats.retried(exchange.client.worker.id);
        retries.wait(exchange.retry()).await;
    };
    match picking {
        None => Ok(ResponseSource::Backend(response)),
        Some(picking) => Box::pin(processed(*picking, exchange, backend, response)).await,
    }
}

fn is_of_pool(target: &BackendTarget) -> bool {
    matches!(target, BackendTarget::Backend(backend) if is_pool(&backend.id.object))
}

/// Sends the request to an endpoint that the picker of the pool has chosen, before this attempt or an earlier one. Without a
/// picker, it is balanced.
async fn picked(
    exchange: &mut Exchange,
    backend: &Backend,
    keeps_body: bool,
    picking: &mut Option<Box<Picking>>,
) -> Result<Attempted, Error> {
    if let Some(response) = picker::pick(exchange, backend, picking).await? {
        return Ok(Attempted::Respond(response));
    }
    let sent = attempt(exchange, backend, keeps_body);
    let attempted = match picking {
        None => Ok(Attempted::Done(sent.await)),
        Some(picking) => picking.attempt(sent).await,
    };
    let result = match &attempted {
        Ok(Attempted::Resend(_)) => Some(PickResult::FailedOpen),
        Ok(Attempted::Respond(_)) => Some(PickResult::Responded),
        Err(Error::PickerUnavailable) => Some(PickResult::Refused),
        Ok(Attempted::Done(_)) | Err(_) => None,
    };
    if let Some(result) = result {
        picker::note(exchange, backend, result, None);
    }
    if let Ok(Attempted::Resend(_)) = &attempted {
        exchange.record.attempts.choose(None);
        if exchange.record.span.is_some() {
            let why = Error::PickerUnavailable.message();
            end_span(exchange, backend, Err(why));
        }
    }
    attempted
}

/// Lets the picker process the response of the last attempt.
async fn processed(
    mut picking: Picking,
    exchange: &mut Exchange,
    backend: &Backend,
    mut response: upstream::Response<RequestBody>,
) -> Result<ResponseSource, Error> {
    let responded = picking.respond(exchange, &mut response).await;
    let result = match &responded {
        Ok(Some(_)) => Some(PickResult::Responded),
        Err(Error::PickerUnavailable) => Some(PickResult::Refused),
        Ok(None) | Err(_) => None,
    };
    if let Some(result) = result {
        picker::note(exchange, backend, result, None);
    }
    Ok(match responded? {
        None => ResponseSource::Backend(response),
        Some(response) => ResponseSource::Filter(response),
    })
}

/// What follows an attempt.
enum Next {
    /// The response.
    Respond(upstream::Response<RequestBody>),
    /// Another attempt at once.
    Resend(RequestBody),
    /// A retry that the rule allows, after its backoff.
    Retry(RequestBody),
}

fn after_attempt(
    exchange: &mut Exchange,
    retries: &Retries,
    (backend, traffic): (&Backend, Option<&Traffic>),
    attempted: Result<upstream::Response<RequestBody>, FailedAttempt<RequestBody>>,
) -> Result<Next, Error> {
    let mut response = match attempted {
        Ok(response) => response,
        Err(failed) => return after_failure(exchange, retries, (backend, traffic), failed),
    };
    if exchange.record.span.is_some() {
        end_span(exchange, backend, Ok(response.status.as_u16()));
    }
    let allowed = retries.allowed(exchange.retry());
    let is_failure = allowed.allow_status(response.status);
    let attempts = is_failure.then_some(&mut exchange.record.attempts);
    if let Some(body) = attempts.and_then(|attempts| response.discard(attempts)) {
        return Ok(Next::Retry(body));
    }
    if let Some(websocket) = &exchange.websocket {
        websocket.check(response.status, &response.headers)?;
    }
    Ok(Next::Respond(response))
}

fn after_failure(
    exchange: &mut Exchange,
    retries: &Retries,
    (backend, traffic): (&Backend, Option<&Traffic>),
    failed: FailedAttempt<RequestBody>,
) -> Result<Next, Error> {
    let FailedAttempt {
        error,
        body,
        resend,
    } = failed;
    if exchange.record.span.is_some() {
        end_span(exchange, backend, Err(Error::from(error).message()));
    }
    if let Some(body) = body {
        let allowed = retries.allowed(exchange.retry());
        let is_of_rule = allowed.are_of_rule();
        let is_retried = allowed.allow_error(error, &exchange.parts.method);
        match resend {
            Resend::Stale if is_of_rule => {}
            Resend::AtOnce | Resend::Stale => {
                exchange.record.note_retry(true);
                return Ok(Next::Resend(body));
            }
            Resend::AsRetry if !is_of_rule => {
                let attempts = &mut exchange.record.attempts;
                let admitted = Retries::admit_by_default(backend, traffic, attempts, error);
                exchange.record.note_retry(admitted.is_ok());
                admitted?;
                exchange.rule.state.stats.retried(exchange.client.worker.id);
                return Ok(Next::Resend(body));
            }
            Resend::AsRetry | Resend::Never => {}
        }
        if is_retried {
            exchange.record.attempts.begin_retry(None);
            return Ok(Next::Retry(body));
        }
    }
    exchange.record.attempts.give_up(backend);
    Err(error.into())
}

async fn attempt(
    exchange: &mut Exchange,
    backend: &Backend,
    keeps_body: bool,
) -> Result<upstream::Response<RequestBody>, FailedAttempt<RequestBody>> {
    exchange.begin_attempt();
    if exchange.record.span.is_some() {
        begin_span(exchange);
    }
    let body = mem::take(&mut exchange.body);
    let interim = &exchange.interim;
    let inform = |status, headers: &HeaderMap| interim.send(status, headers);
    let outgoing = Outgoing {
        parts: &exchange.parts,
        semantics: Semantics::of(&exchange.parts.method),
        added: exchange.added.as_slice(),
        upgrade: exchange.upgrade.as_ref(),
        expect_continue: exchange.expects_continue,
        informational: (!interim.is_none()).then_some(&inform),
        try_timeout: exchange.attempt_timeout(),
        keeps_body,
    };
    let settings = backend.settings.as_deref();
    let affinity = settings.and_then(|settings| {
        let (client, view) = (exchange.record.client().ip(), exchange.view());
        settings.affinity(&LimitedRequest { client, view })
    });
    let upstream = &exchange.client.worker.upstream;
    let attempts = &mut exchange.record.attempts;
    let attempt = upstream.attempt(backend, affinity, attempts, &outgoing, body);
    attempt.await
}

/// Begins the span of an attempt, which is the parent of what the backend does.
#[cold]
fn begin_span(exchange: &mut Exchange) {
    if let Some(span) = &mut exchange.record.span {
        let context = span.begin_attempt(exchange.parts.uri.path());
        let headers = &mut exchange.parts.headers;
        headers.insert(TRACEPARENT, context.to_header());
    }
}

/// Records the status of the response to an attempt, or why there is none.
#[cold]
fn end_span(exchange: &mut Exchange, backend: &Backend, outcome: Result<u16, &'static str>) {
    let endpoint = exchange.record.attempts.selected();
    if let Some(span) = &mut exchange.record.span {
        span.attempted(endpoint, backend.id.tls.is_some(), outcome);
    }
}

/// Finds the session of the request and makes its attempts prefer the endpoint.
fn session_place(exchange: &mut Exchange, rule: &Rule) -> Option<SessionEndpoint> {
    let key = &exchange.client.worker.session_key;
    let headers = &exchange.parts.headers;
    let place = session::find(rule, headers, key)?;
    exchange.record.attempts.prefer(place.endpoint);
    Some(place)
}

/// Completes the response of the last attempt. `place` is the place of the request's session,
/// `traffic` the policy of the backend.
fn finish(
    exchange: &mut Exchange,
    response: &mut upstream::Response<RequestBody>,
    place: Option<SessionEndpoint>,
    traffic: Option<&Traffic>,
) {
    response.accept();
    exchange.expire_by(exchange.attempt_expires);
    let is_secure = exchange.client.scheme() == Scheme::Https;
    let endpoint = response.body.endpoint();
    let of_rule = exchange.rule.ir.session();
    if let Some(policy) = of_rule.or_else(|| traffic?.session())
        && place.is_none_or(|place| place.endpoint != endpoint)
    {
        let session = NewSession {
            policy,
            rule: &exchange.rule,
            endpoint,
            is_secure,
        };
        let key = &exchange.client.worker.session_key;
        session.begin(key, &exchange.parts.headers, &mut response.headers);
    }
    if let Some(cookie) = exchange.record.attempts.set_cookie(is_secure) {
        // Before the response filters, which may change it. It fails only beyond 24,000 headers,
        // which no parser lets through.
        let _ = response.headers.try_append(SET_COOKIE, cookie.clone());
    }
}
