//! Asks the endpoint picker of a backend which endpoint gets a request, and lets it process the request and its response
//! (Endpoint Picker Protocol of the Gateway API Inference Extension). Without an answer, the failure mode decides.

mod call;
mod destination;
mod headers;
mod immediate;
mod message;
mod original;
mod outbox;
mod protocol;
mod response;
mod session;

use std::cell::RefCell;
use std::future::poll_fn;
use std::mem;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http_body::Body as _;

use self::call::Call;
use self::message::HeaderMutation;
use self::protocol::{Head, HeadAnswer};
use self::response::PickedResponse;
use self::session::{Outcome, PickedRequest, Session, Shared};
use super::exchange::Exchange;
use crate::filter::LocalResponse;
use crate::ir::PickerTimeouts;
use crate::ir::picker::remove_claims;
use crate::proxy::body::request_body::RequestBody;
use crate::proxy::error::Error;
use crate::table::{Backend, PickResult, Picker, UpstreamFault};
use crate::upstream::{Chosen, FailedAttempt, Response, SendError};

/// The backend has failed while the picker had its response.
const BACKEND_FAILED: SendError = SendError::Backend(
    UpstreamFault::Reset,
    "the backend failed before the picker had its response",
);

/// What the picker of a backend has to do with a request.
pub(super) struct Picking {
    /// `None` if the request goes on without it.
    session: Option<Shared>,
    /// How it changes the head of the request.
    changes: HeaderMutation,
    has_body: bool,
    /// Whether it may be processed twice (RFC 9110, 9.2.2). No gRPC call may.
    is_idempotent: bool,
}

/// What follows when an attempt has ended.
pub(super) enum Attempted {
    /// What has become of it.
    Done(Result<Response<RequestBody>, FailedAttempt<RequestBody>>),
    /// The response of the picker takes precedence.
    Respond(LocalResponse),
    /// The picker has failed. The request is sent again without it.
    Resend(RequestBody),
}

/// Asks the picker before the first attempt, and applies its changes before each. Returns its response, if it gives one
/// itself.
///
/// # Errors
/// If there is no endpoint, and the failure mode is to refuse requests then, or if the request body fails.
pub(super) async fn pick(
    exchange: &mut Exchange,
    backend: &Backend,
    picking: &mut Option<Box<Picking>>,
) -> Result<Option<LocalResponse>, Error> {
    remove_claims(&mut exchange.parts.headers);
    if picking.is_none() {
        let Some(picker) = backend.picker() else {
            return Ok(None);
        };
        let begin = Instant::now();
        exchange.record.asks_picker();
        let mut question = Question(Some(backend));
        let asked = ask(exchange, backend, &picker).await;
        if let Some((result, endpoint)) = result_of(&asked) {
            question.0 = None;
            note(exchange, backend, result, endpoint);
            if matches!(result, PickResult::Picked | PickResult::Responded) {
                let worker = exchange.client.worker.id;
                backend.stats.pick_took(worker, begin.elapsed());
            }
        }
        match asked? {
            Asked::Respond(response) => return Ok(Some(response)),
            Asked::Go(asked, _) | Asked::Balance(asked) => *picking = Some(asked),
        }
    }
    if let Some(picking) = picking {
        picking.change(exchange)?;
    }
    Ok(None)
}

/// Counts a question without a result when it is dropped: the client has left, or a timeout has passed.
struct Question<'a>(Option<&'a Backend>);

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if let Some(backend) = self.0 {
            backend.stats.picked(PickResult::Abandoned);
        }
    }
}

/// What the picker says of a request.
enum Asked {
    /// One endpoint or several, of which this is the first one.
    Go(Box<Picking>, SocketAddr),
    /// No endpoint: the request is balanced.
    Balance(Box<Picking>),
    /// Its own response.
    Respond(LocalResponse),
}

/// Returns what counts, and the first endpoint of the choice; `None` if the client has failed.
fn result_of(asked: &Result<Asked, Error>) -> Option<(PickResult, Option<SocketAddr>)> {
    match asked {
        Ok(Asked::Go(_, first)) => Some((PickResult::Picked, Some(*first))),
        Ok(Asked::Balance(_)) => Some((PickResult::FailedOpen, None)),
        Ok(Asked::Respond(_)) => Some((PickResult::Responded, None)),
        Err(Error::PickerUnavailable) => Some((PickResult::Refused, None)),
        Err(_) => None,
    }
}

/// Counts and records what the picker of a backend has made of a request, and the first endpoint that it has chosen.
pub(super) fn note(
    exchange: &mut Exchange,
    backend: &Backend,
    result: PickResult,
    endpoint: Option<SocketAddr>,
) {
    backend.stats.picked(result);
    exchange.record.picked(result, endpoint);
}

async fn ask(exchange: &mut Exchange, backend: &Backend, picker: &Picker) -> Result<Asked, Error> {
    let fails_open = !picker.ir.is_needed();
    let span = exchange.record.span.as_deref();
    let client = &exchange.client;
    let server = picker.server.as_ref();
    let Some(call) = server.and_then(|server| Call::new(client, server, span)) else {
        return match fails_open {
            true => Ok(Asked::Balance(Box::new(Picking::none()))),
            false => Err(Error::PickerUnavailable),
        };
    };
    let head = headers::of_request(&exchange.parts, exchange.client.scheme());
    // What follows the head of an upgrade is no body.
    let body = match exchange.upgrade {
        None => mem::take(&mut exchange.body),
        Some(_) => RequestBody::Empty,
    };
    let has_body = !body.is_end_stream();
    if has_body {
        // Reading the body sends the 100 (Continue). The backend's 100 is not needed.
        exchange.expects_continue = false;
    }
    let timeouts = timeouts(picker);
    let client = (&exchange.client.kept_bytes, exchange.record.activity());
    let session = Session::new(call, (head, body), client, fails_open, timeouts);
    let session = Rc::new(RefCell::new(session));
    let outcome = poll_fn(|cx| session.borrow_mut().poll_request_head(cx)).await;
    exchange.record.attempts.have_waited();
    let answer = match outcome {
        Outcome::Immediate(response) => return Ok(Asked::Respond(response)),
        Outcome::ClientFailed => return Err(Error::Send(SendError::RequestBody)),
        Outcome::Head(Head::Answered(answer)) => *answer,
        Outcome::Head(Head::Passed) => {
            if has_body {
                let original = session.borrow_mut().take_original();
                exchange.body = original.ok_or(Error::PickerUnavailable)?;
            }
            return Ok(Asked::Balance(Box::new(Picking::none())));
        }
        Outcome::Head(Head::Failed | Head::Waiting) => return Err(Error::PickerUnavailable),
    };
    let first = choose(exchange, backend, picker, &answer);
    if first.is_none() && !fails_open {
        return Err(Error::PickerUnavailable);
    }
    if has_body {
        let body = Box::new(PickedRequest::new(&session));
        exchange.body = RequestBody::derived(body, &exchange.client.kept_bytes);
    }
    let mut changes = answer.changes;
    // They last as long as the request.
    changes.detach();
    let picking = Box::new(Picking {
        session: Some(session),
        changes,
        has_body,
        is_idempotent: exchange.parts.method.is_idempotent(),
    });
    Ok(match first {
        Some(first) => Asked::Go(picking, first),
        None => Asked::Balance(picking),
    })
}

/// Returns how long the picker may take, as a policy of its server says, or else the pool.
fn timeouts(picker: &Picker) -> PickerTimeouts {
    let server = picker.server.as_ref();
    let settings = server.and_then(|server| server.settings.as_ref());
    let connection = settings.map(|settings| settings.ir.connection);
    let connection = connection.unwrap_or_default();
    let PickerTimeouts { connect, answer } = picker.ir.timeouts;
    PickerTimeouts {
        connect: connection.connect_timeout.unwrap_or(connect),
        answer: connection.picker_timeout.unwrap_or(answer),
    }
}

/// Makes attempts use the endpoints of an answer that the backend has. Returns the first of them.
fn choose(
    exchange: &mut Exchange,
    backend: &Backend,
    picker: &Picker,
    answer: &HeadAnswer,
) -> Option<SocketAddr> {
    let HeadAnswer { changes, metadata } = answer;
    let mut chosen = destination::chosen(changes, metadata);
    let endpoints = backend.endpoints();
    chosen.retain(|address| endpoints.find_picked(*address).is_some());
    let first = chosen.first().copied();
    let chosen = Chosen::of(chosen, picker.ir.failure_mode);
    exchange.record.attempts.choose(chosen);
    first
}

impl Picking {
    /// The request goes on without the picker.
    fn none() -> Self {
        Self {
            session: None,
            changes: HeaderMutation::default(),
            has_body: false,
            is_idempotent: false,
        }
    }

    /// Changes the head of the request as the picker asks for.
    fn change(&self, exchange: &mut Exchange) -> Result<(), Error> {
        let headers = &mut exchange.parts.headers;
        headers::apply(&self.changes, headers).map_err(|_| Error::Filter)?;
        if self.has_body {
            // The picker may return another number of bytes.
            headers.remove(CONTENT_LENGTH);
        }
        Ok(())
    }

    /// Completes an attempt, while the picker may still respond itself.
    ///
    /// # Errors
    /// The picker has failed, and the failure mode is to refuse requests then.
    pub(super) async fn attempt(
        &mut self,
        attempt: impl Future<Output = Result<Response<RequestBody>, FailedAttempt<RequestBody>>>,
    ) -> Result<Attempted, Error> {
        let Some(session) = &self.session else {
            return Ok(Attempted::Done(attempt.await));
        };
        let mut attempt = pin!(attempt);
        let done = poll_fn(|cx| {
            loop {
                if let Poll::Ready(done) = attempt.as_mut().poll(cx) {
                    return Poll::Ready(Some(done));
                }
                // The attempt polls the session only for its body.
                let mut session = session.borrow_mut();
                let has_moved = session.advance(cx);
                if session.has_response_failed() {
                    return Poll::Ready(None);
                }
                if !has_moved {
                    return Poll::Pending;
                }
            }
        });
        let done = done.await;
        let mut session = session.borrow_mut();
        if let Some(response) = session.take_immediate() {
            return Ok(Attempted::Respond(response));
        }
        if session.has_client_failed() {
            return Err(SendError::RequestBody.into());
        }
        let Some(done) = done else {
            return Err(Error::PickerUnavailable);
        };
        let error = done.as_ref().err().map(|failed| failed.error);
        if error != Some(SendError::RequestBody) {
            return Ok(Attempted::Done(done));
        }
        // The picker has not returned the whole body. A server may have begun with a part, which the original cannot follow.
        let may_have_effect = !self.is_idempotent && session.is_request_changed();
        let original = match session.fails_open() && !may_have_effect {
            true => session.take_original(),
            false => None,
        };
        let original = original.ok_or(Error::PickerUnavailable)?;
        drop(session);
        *self = Self::none();
        Ok(Attempted::Resend(original))
    }

    /// Lets the picker process the response of a backend, which no other attempt replaces. Returns its own response, if it
    /// gives one.
    ///
    /// # Errors
    /// If the picker or the backend fails before the picker has answered the head.
    pub(super) async fn respond(
        &mut self,
        exchange: &mut Exchange,
        response: &mut Response<RequestBody>,
    ) -> Result<Option<LocalResponse>, Error> {
        let Some(session) = self.session.take() else {
            return Ok(None);
        };
        // What follows a 101 is no body.
        let has_body =
            response.status != StatusCode::SWITCHING_PROTOCOLS && !response.body.is_end_stream();
        let head = headers::of_response(response.status, &response.headers);
        let served = destination::served(response.body.endpoint());
        session.borrow_mut().response_head(head, has_body, served);
        let mut picked = PickedResponse::new(&session, has_body, &exchange.client.kept_bytes);
        let body = &mut response.body;
        let outcome = poll_fn(|cx| picked.poll_head(body, cx)).await;
        match outcome.map_err(|_| BACKEND_FAILED)? {
            Outcome::Immediate(response) => Ok(Some(response)),
            Outcome::ClientFailed => Err(Error::Send(SendError::RequestBody)),
            Outcome::Head(Head::Failed | Head::Waiting) => Err(Error::PickerUnavailable),
            // The client has nothing of it yet, and cannot get all of it.
            Outcome::Head(Head::Passed) if picked.is_incomplete() => Err(Error::PickerUnavailable),
            Outcome::Head(Head::Passed) => {
                if !picked.holds_nothing() {
                    exchange.process = Some(Box::new(picked));
                }
                Ok(None)
            }
            Outcome::Head(Head::Answered(answer)) => {
                let headers = &mut response.headers;
                headers::apply(&answer.changes, headers).map_err(|_| Error::Filter)?;
                if has_body {
                    // The picker may return another number of bytes.
                    headers.remove(CONTENT_LENGTH);
                    exchange.process = Some(Box::new(picked));
                }
                Ok(None)
            }
        }
    }
}
