//! The phases of a request, in order. Those before the match are in `admission.rs`, those of policies in `policies.rs`, those
//! of an attempt in `attempts.rs`, and those of the response in `respond.rs`.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Response, StatusCode, request};
use http_body::Body as _;
use tokio::time::Instant;

use super::admission::{Matched, Refused, admit, new_id};
use super::answer::Answer;
use super::attempts::{self, ResponseSource};
use super::authentication::{Credentials, Unverified};
use super::error_pages::fetch;
use super::framing::is_multiplexed;
use super::negotiation::{Negotiated, wanted_page};
use super::policies::Passed;
use super::policy_refusal::PolicyRefusal;
use super::respond::with_record;
use super::{filters, permission, preflight};
use crate::filter::{Level, ResponsePhase};
use crate::ir::RouteKind;
use crate::ir::route_defaults::RouteDefaults;
use crate::proxy::activity::{Activity, Phase};
use crate::proxy::body::incoming::Incoming;
use crate::proxy::body::request_body::RequestBody;
use crate::proxy::body::response_body::ResponseBody;
use crate::proxy::client::Client;
use crate::proxy::error::Error;
use crate::proxy::grpc;
use crate::proxy::request::error_response::{ErrorFormat, ErrorResponse};
use crate::proxy::request::exchange::Exchange;
use crate::proxy::response::interim::Interim;
use crate::proxy::response::record::Record;
use crate::table::Rule;

/// A request that is ready to be served. Small, because it is moved.
pub(crate) struct Admitted {
    outcome: Outcome,
    activity: Rc<Activity>,
    /// Whether the connection closes after the response.
    closes: bool,
}

/// What follows the matching of a request.
enum Outcome {
    /// It is forwarded.
    Forward(Box<Exchange>),
    /// Its credentials have to be verified.
    Verify(Box<(Box<Exchange>, Box<Unverified>)>),
    /// It is a preflight request without credentials: a filter answers it, or it is refused.
    Preflight(Box<(Box<Exchange>, Box<PolicyRefusal>)>),
    /// It is refused.
    Refuse(Box<ErrorResponse>),
}

impl Outcome {
    /// Returns what follows for a request that its policies let pass.
    fn of(mut exchange: Box<Exchange>, passed: Option<Box<Passed>>) -> Self {
        let Some(passed) = passed else {
            return Self::Forward(exchange.with_translated_head());
        };
        if let Some(headers) = passed.headers {
            exchange
                .response_phase
                .change_headers(Level::Rule, *headers);
        }
        match passed.credentials {
            Some(Credentials::Unverified(unverified)) => {
                Self::Verify(Box::new((exchange, unverified)))
            }
            Some(Credentials::Waived(refusal)) => Self::Preflight(Box::new((exchange, refusal))),
            Some(Credentials::Valid(_)) | None => Self::Forward(exchange.with_translated_head()),
        }
    }
}

/// Normalizes and matches a request. Does not await.
pub(crate) fn open(
    client: Rc<Client>,
    activity: Rc<Activity>,
    interim: Interim,
    parts: request::Parts,
    incoming: Incoming,
) -> Admitted {
    client.on_request();
    let closes = client.is_terminating() && !is_multiplexed(parts.version);
    let record = Record::open(client.clone(), activity.clone(), &parts);
    let body = RequestBody::new(incoming, &activity, &client.kept_bytes);
    Admitted {
        outcome: Exchange::open(client, interim, parts, body, record),
        activity,
        closes,
    }
}

impl Admitted {
    /// Serves the request. Infallible: errors become responses.
    pub(crate) async fn serve(self) -> Response<ResponseBody> {
        let mut response = match self.outcome {
            Outcome::Forward(exchange) => serve(exchange, &self.activity).await,
            Outcome::Refuse(mut refused) => match fetch::is_needed_for(&mut refused) {
                false => with_record(refused.respond()),
                true => Box::pin(refuse_with_page(*refused)).await,
            },
            // Few requests: their future takes memory of its own.
            Outcome::Verify(exchange) => Box::pin(verify(*exchange, &self.activity)).await,
            Outcome::Preflight(waived) => {
                let (exchange, answer) = preflight::answer(*waived);
                Box::pin(complete(exchange, answer)).await
            }
        };
        if self.closes && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let headers = response.headers_mut();
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Serves a request once its credentials are verified.
async fn verify(
    (mut exchange, unverified): (Box<Exchange>, Box<Unverified>),
    activity: &Activity,
) -> Response<ResponseBody> {
    let client = exchange.client.clone();
    activity.expire_at(exchange.expires);
    let outcome = {
        let mut verified = pin!(permission::verify(&mut exchange, unverified));
        poll_fn(|cx| match verified.as_mut().poll(cx) {
            Poll::Pending => poll_stalled(activity, &client, cx).map(|error| Err(error.into())),
            outcome => outcome,
        })
        .await
    };
    let answer = match outcome {
        Ok(None) => return serve(exchange, activity).await,
        Ok(Some(mut response)) => {
            exchange.response_phase.take_cookies(response.headers_mut());
            Answer::Local(response)
        }
        Err(mut refusal) => {
            exchange.response_phase.take_cookies(&mut refusal.headers);
            refusal.error = refusal.error.or_too_large(activity.is_body_too_large());
            exchange.record.note_if(|| refusal.event());
            Answer::Refusal(*refusal)
        }
    };
    complete(exchange, answer).await
}

/// Gives a response, and its error page if it needs one.
async fn complete(exchange: Box<Exchange>, answer: Answer) -> Response<ResponseBody> {
    match fetch::is_needed(&exchange, answer.status()) {
        false => exchange.give(answer),
        true => give_with_page(exchange, answer).await,
    }
}

async fn serve(mut exchange: Box<Exchange>, activity: &Activity) -> Response<ResponseBody> {
    let client = exchange.client.clone();
    activity.expire_at(exchange.expires);
    let outcome = {
        let mut forwarded = pin!(forward(&mut exchange));
        poll_fn(|cx| match forwarded.as_mut().poll(cx) {
            Poll::Pending => poll_stalled(activity, &client, cx).map(Err),
            outcome => outcome,
        })
        .await
    };
    // The outcome is moved as a whole, so that the future has no room for it beside the fetched page.
    let with_page = match finish(exchange, outcome, activity) {
        Ok(response) => return response,
        Err(with_page) => with_page,
    };
    with_page.await
}

/// Gives the response, or returns the future that fetches its error page. Few responses need one.
fn finish(
    exchange: Box<Exchange>,
    outcome: Result<ResponseSource, Error>,
    activity: &Activity,
) -> Result<Response<ResponseBody>, Pin<Box<impl Future<Output = Response<ResponseBody>>>>> {
    let answer = match outcome {
        // Most policies have no pages. The response is large, and is not moved once more for them.
        Ok(ResponseSource::Backend(response)) if exchange.page.is_none() => {
            return Ok(exchange.respond(response));
        }
        Ok(ResponseSource::Backend(response)) => Answer::Backend(response),
        Ok(ResponseSource::Filter(response)) => Answer::Local(response),
        Err(error) => {
            let error = error.or_too_large(activity.is_body_too_large());
            Answer::Refusal(error.into())
        }
    };
    match fetch::is_needed(&exchange, answer.status()) {
        false => Ok(exchange.give(answer)),
        true => Err(Box::pin(give_with_page(exchange, answer))),
    }
}

/// Gives a response once its error page was fetched.
async fn give_with_page(mut exchange: Box<Exchange>, answer: Answer) -> Response<ResponseBody> {
    fetch::for_exchange(&mut exchange, answer.status()).await;
    exchange.give(answer)
}

/// Refuses a request once the error page was fetched.
async fn refuse_with_page(mut refused: ErrorResponse) -> Response<ResponseBody> {
    fetch::for_error(&mut refused).await;
    with_record(refused.respond())
}

/// Refuses a request that no rule gets.
fn refuse_unmatched(refused: Refused, parts: &request::Parts, mut record: Box<Record>) -> Outcome {
    let Refused {
        error,
        id,
        headers,
        defaults,
        phase,
        may_have_page,
    } = refused;
    let format = ErrorFormat::of(&parts.headers);
    let id = id.unwrap_or_else(|| {
        let id = new_id();
        record.identified(&id);
        id
    });
    let page = match may_have_page {
        true => wanted_page(defaults.as_deref(), parts),
        false => None,
    };
    let response = ErrorResponse::new(error, format, id, record);
    let response = response
        .with_headers(headers)
        .with_phase(phase.map(|it| *it).unwrap_or_default());
    Outcome::Refuse(Box::new(response.with_defaults(defaults, page)))
}

async fn forward(exchange: &mut Exchange) -> Result<ResponseSource, Error> {
    if exchange.defaults.is_some() {
        filters::change_request(exchange)?;
    }
    let rule = exchange.rule.clone();
    let filters = rule.filters();
    if !filters.all.is_empty()
        && let Some(response) = filters::run(filters, Level::Rule, exchange).await?
    {
        return Ok(ResponseSource::Filter(response));
    }
    if let Some(limit) = exchange.buffered_body() {
        // Few requests need this future.
        Box::pin(read_body(exchange, limit)).await?;
    }
    attempts::send(exchange, &rule).await
}

/// Reads the whole body of a request, so that no backend waits for its client.
async fn read_body(exchange: &mut Exchange, limit: usize) -> Result<(), Error> {
    if exchange.body.is_end_stream() {
        return Ok(());
    }
    exchange.body.keep_whole(limit).await?;
    // Reading the body sends the 100 (Continue). The backend's 100 is not needed.
    exchange.expects_continue = false;
    exchange.record.attempts.have_waited();
    Ok(())
}

impl Exchange {
    /// Normalizes, sanitizes and matches a request, in this order, so that a rule sees what a
    /// backend receives.
    fn open(
        client: Rc<Client>,
        interim: Interim,
        mut parts: request::Parts,
        mut body: RequestBody,
        mut record: Box<Record>,
    ) -> Outcome {
        match admit(&client, (&mut parts, &mut body), &mut record) {
            Ok(Matched {
                normalized,
                websocket,
                path,
                added,
                rule,
                is_preflight,
                passed,
            }) => {
                let defaults = passed.as_ref().and_then(|it| it.defaults.clone());
                // Written in place: `Box::new` would copy it.
                let place = Box::new_uninit();
                let exchange = Self {
                    negotiated: Negotiated::of(defaults.as_deref(), &parts),
                    page: match websocket {
                        // A page with 200 would open the tunnel.
                        Some(_) => None,
                        None => wanted_page(defaults.as_deref(), &parts),
                    },
                    grpc_web: match rule.kind() {
                        RouteKind::Grpc => body.decode_grpc_web(&parts.headers),
                        _ => None,
                    },
                    client,
                    expires: expiry(&rule, defaults.as_deref(), &parts.headers),
                    parts,
                    path,
                    added,
                    host: normalized.host,
                    // The bytes of a tunnel are no body.
                    body: match websocket {
                        Some(_) => body,
                        None => body.limited(defaults.as_ref().and_then(|it| it.max_body)),
                    },
                    defaults,
                    upgrade: normalized.upgrade,
                    websocket,
                    is_preflight,
                    response_phase: ResponsePhase::default(),
                    is_mirrored: false,
                    process: None,
                    interim,
                    expects_continue: normalized.expects_continue,
                    attempt_expires: None,
                    rule,
                    record,
                };
                let exchange = Box::write(place, exchange);
                let defaults = exchange.defaults.as_deref();
                if let Some(time) = defaults.and_then(RouteDefaults::stream_idle_timeout) {
                    exchange.record.activity().idle_for(time);
                }
                Outcome::of(exchange, passed)
            }
            Err(refused) => refuse_unmatched(refused, &parts, record),
        }
    }
}

/// Returns the deadline of the rule, or that of a gRPC client if it is earlier.
fn expiry(rule: &Rule, defaults: Option<&RouteDefaults>, headers: &HeaderMap) -> Option<Instant> {
    let own = rule.ir.request_timeout(defaults);
    let clients = match rule.kind() {
        RouteKind::Grpc => grpc::timeout(headers),
        _ => None,
    };
    let timeout = own.into_iter().chain(clients).min()?;
    Instant::now().checked_add(timeout)
}

/// Ready when the backend or the client's body has stalled, or the route's timeout has passed, and
/// an error response can still be sent.
fn poll_stalled(activity: &Activity, client: &Client, cx: &mut Context<'_>) -> Poll<Error> {
    let phase = ready!(activity.poll_due(cx));
    let error = match phase {
        Phase::Backend => Error::BackendIdle,
        Phase::RequestBody => Error::BodyTimeout,
        Phase::Exchange => Error::RequestTimeout,
        // Handled by the connection.
        Phase::Head | Phase::Idle | Phase::Write | Phase::Tunnel | Phase::Evicted => {
            return Poll::Pending;
        }
    };
    client.timed_out(phase);
    Poll::Ready(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<A, F>(_: impl Fn(A) -> F) -> usize {
        size_of::<F>()
    }

    /// Over HTTP/1 the future moves once, into its slot in the connection; over HTTP/2 it never
    /// moves.
    #[test]
    fn request_future_is_small() {
        let size = future_size(Admitted::serve);
        assert!(size <= 544, "the future of a request takes {size} bytes");
    }
}
