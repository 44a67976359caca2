//! One attempt to get a response head from a backend: endpoint, connection, exchange. When the
//! attempt fails, determines whether a retry is safe and what the retry must avoid.

use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep};

use super::attempts::{Attempts, Resend};
use super::connect::{ConnectFailure, connect};
use super::connector::Connector;
use super::ejections::Ejections;
use super::exchange::Exchange;
use super::exchange_error::ExchangeError;
use super::health;
use super::in_flight::InFlight;
use super::outgoing::{Outgoing, Replay};
use super::pool::{Pool, Ready};
use super::response_head::Head;
use super::send_error::SendError;
use super::{Response, Upstream, http1, http2};
use crate::table::{Backend, EndpointFault, UpstreamFault};

/// A failed attempt.
pub struct FailedAttempt<B> {
    /// The error.
    pub error: SendError,
    /// The body at its first byte, if another attempt is safe, or if it is kept
    /// ([`Outgoing::keeps_body`]) and short enough.
    pub body: Option<B>,
    /// Whether the request may be sent again without a `retry` in its rule.
    pub resend: Resend,
}

impl Upstream {
    /// Sends a request to one endpoint of `backend` and returns at the response head. If the policy of the backend selects
    /// endpoints by hash, `affinity` is that of the request.
    ///
    /// After a failure, [`FailedAttempt::resend`] tells whether the request may be sent again. A caller that does not do
    /// so must call [`Attempts::give_up`], unless a retry budget is used up: then the failures are not those of one
    /// endpoint.
    pub fn attempt<'a, B: Replay>(
        &'a self,
        backend: &'a Backend,
        affinity: Option<u64>,
        attempts: &'a mut Attempts,
        request: &'a Outgoing<'a>,
        body: B,
    ) -> impl Future<Output = Result<Response<B>, FailedAttempt<B>>> + use<'a, B> {
        attempts.begin();
        let mut attempt = Attempt {
            pool: &self.pool,
            backend,
            request,
            deadline: request.try_timeout.map(|limit| Box::pin(sleep(limit))),
            state: State::start(&self.pool, backend, affinity, attempts, request, body),
            attempts,
        };
        poll_fn(move |cx| attempt.poll(cx))
    }
}

/// An attempt in progress. Part of the request's future, which is moved, so it must be small.
struct Attempt<'a, B> {
    pool: &'a Rc<Pool>,
    backend: &'a Backend,
    attempts: &'a mut Attempts,
    request: &'a Outgoing<'a>,
    deadline: Option<Pin<Box<Sleep>>>,
    state: State<'a, B>,
}

enum State<'a, B> {
    Connecting(Connecting<'a>, B),
    Exchanging(Exchange<B>, InFlight),
    Failed(FailedAttempt<B>),
    Done,
}

type Connecting<'a> = Pin<Box<dyn Future<Output = (Connected, Ejections)> + 'a>>;
type Connected = Result<(Ready, InFlight), ConnectFailure>;

impl<'a, B: Replay> State<'a, B> {
    fn start(
        pool: &Rc<Pool>,
        backend: &'a Backend,
        affinity: Option<u64>,
        attempts: &mut Attempts,
        request: &Outgoing<'_>,
        body: B,
    ) -> Self {
        if attempts.admit(backend).is_err() {
            return Self::overloaded((backend, attempts), request, SendError::OVERLOADED, body);
        }
        let Some(in_flight) = attempts.select(pool, backend, affinity, request) else {
            let last = attempts.failed.as_ref().and_then(|failed| failed.last);
            if attempts.are_endpoints_full(backend) {
                let error = SendError::ENDPOINT_FULL;
                return Self::overloaded((backend, attempts), request, error, body);
            }
            let error = last.unwrap_or_else(|| {
                attempts.count_failure(backend, UpstreamFault::NoEndpoint);
                match attempts.release {
                    Some(_) => SendError::NO_ENDPOINT_OF_RELEASE,
                    None => SendError::NO_ENDPOINT,
                }
            });
            let body = Some(body).filter(|_| request.keeps_body);
            return Self::Failed(FailedAttempt {
                error,
                body,
                resend: Resend::Never,
            });
        };
        let upgrades = request.upgrade.is_some();
        match pool.take(
            Connector::key_of(backend, in_flight.endpoint(), upgrades),
            attempts.avoid(),
        ) {
            Some(ready) => Self::begin(pool, backend, attempts, request, (ready, in_flight), body),
            None => {
                let waiting = backend.settings.as_ref().map(|settings| settings.wait());
                let Ok(slot) = waiting.transpose() else {
                    let error = SendError::OVERLOADED;
                    return Self::overloaded((backend, attempts), request, error, body);
                };
                let restrictions = attempts.restrictions(upgrades);
                let connecting = connect(pool.clone(), backend, in_flight, restrictions);
                match slot.flatten() {
                    None => Self::Connecting(Box::pin(connecting), body),
                    Some(slot) => {
                        let counted = async move {
                            let _slot = slot;
                            connecting.await
                        };
                        Self::Connecting(Box::pin(counted), body)
                    }
                }
            }
        }
    }

    #[cold]
    fn overloaded(
        (backend, attempts): (&Backend, &mut Attempts),
        request: &Outgoing<'_>,
        error: SendError,
        body: B,
    ) -> Self {
        attempts.on_failure(error);
        let body = Some(body);
        Self::Failed(finish(
            (backend, attempts),
            request,
            error,
            body,
            Resend::Never,
        ))
    }

    fn begin(
        pool: &Pool,
        backend: &Backend,
        attempts: &mut Attempts,
        request: &Outgoing<'_>,
        (ready, in_flight): (Ready, InFlight),
        body: B,
    ) -> Self {
        in_flight.on_sent();
        attempts.endpoint = Some(in_flight.endpoint().address);
        let limits = pool.head_limits;
        match ready {
            Ready::Http1(connection) => {
                let limits = limits.of(backend);
                let exchange = http1::Exchange::new(connection, request, body, limits);
                Self::Exchanging(Exchange::Http1(exchange), in_flight)
            }
            Ready::Http2(slot) => {
                let slot = (slot, attempts.client);
                match http2::Exchange::new(slot, request, body, limits) {
                    Ok(exchange) => {
                        Self::Exchanging(Exchange::Http2(Box::new(exchange)), in_flight)
                    }
                    Err((cause, body)) => {
                        let error = cause.into();
                        let tried = attempts.on_failure(error);
                        let (body, resend) = match cause {
                            ExchangeError::NotProcessed => (Some(body), tried.resend_unprocessed()),
                            _ => (None, Resend::Never),
                        };
                        Self::Failed(finish((backend, attempts), request, error, body, resend))
                    }
                }
            }
        }
    }
}

impl<B: Replay> Attempt<'_, B> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<B>, FailedAttempt<B>>> {
        loop {
            match &mut self.state {
                State::Connecting(connecting, _) => {
                    if let Poll::Ready(outcome) = connecting.as_mut().poll(cx) {
                        self.connected(outcome);
                        continue;
                    }
                }
                State::Exchanging(exchange, _) => {
                    let informational = self.request.informational;
                    if let Poll::Ready(outcome) = exchange.poll_head(cx, informational) {
                        return Poll::Ready(self.complete(outcome));
                    }
                }
                State::Failed(_) | State::Done => {
                    return match mem::replace(&mut self.state, State::Done) {
                        State::Failed(failed) => Poll::Ready(Err(failed)),
                        _ => Poll::Pending,
                    };
                }
            }
            // After the step, so that a response that arrives at the deadline counts.
            let Some(deadline) = &mut self.deadline else {
                return Poll::Pending;
            };
            return deadline.as_mut().poll(cx).map(|()| Err(self.time_out()));
        }
    }

    fn connected(&mut self, (outcome, ejections): (Connected, Ejections)) {
        let State::Connecting(_, body) = mem::replace(&mut self.state, State::Done) else {
            return;
        };
        let (backend, attempts) = (self.backend, &mut *self.attempts);
        attempts.ejections.append(ejections);
        self.state = match outcome {
            Ok(connected) => {
                State::begin(self.pool, backend, attempts, self.request, connected, body)
            }
            Err(failure) => {
                attempts.on_failure(failure.error);
                let may_connect = attempts.on_unreachable(failure.endpoints);
                let is_full = failure.error == SendError::OVERLOADED;
                let resend = match may_connect && !is_full {
                    true => Resend::AtOnce,
                    false => Resend::Never,
                };
                State::Failed(finish(
                    (backend, attempts),
                    self.request,
                    failure.error,
                    Some(body),
                    resend,
                ))
            }
        };
    }

    fn complete(
        &mut self,
        outcome: Result<Head, ExchangeError>,
    ) -> Result<Response<B>, FailedAttempt<B>> {
        let State::Exchanging(exchange, in_flight) = mem::replace(&mut self.state, State::Done)
        else {
            return Err(self.time_out());
        };
        match outcome {
            Ok(head) => {
                health::on_response(&in_flight.endpoint().health);
                let response_time = self.attempts.responded();
                let stats = &self.backend.stats;
                stats.responded(self.pool.worker, head.status.as_u16(), response_time);
                self.attempts
                    .on_response(self.backend, in_flight.endpoint());
                let key = Connector::key_of(
                    self.backend,
                    in_flight.endpoint(),
                    self.request.upgrade.is_some(),
                );
                Ok(Response::new(
                    head,
                    exchange,
                    self.pool.clone(),
                    key,
                    in_flight,
                ))
            }
            Err(cause) => Err(self.fail(exchange, cause, &in_flight)),
        }
    }

    fn time_out(&mut self) -> FailedAttempt<B> {
        // A timeout while the client is sending its body is not a failure of the endpoint.
        let body = match mem::replace(&mut self.state, State::Done) {
            State::Connecting(_, body) => Some(body),
            State::Exchanging(exchange, in_flight) => {
                let tried = self.attempts.failed.get_or_insert_default();
                if exchange.is_request_sent() {
                    in_flight.endpoint().faults.add(EndpointFault::Timeout);
                    tried.total.suspect(in_flight.endpoint());
                }
                tried.refused = Some(in_flight.endpoint().id);
                exchange.into_body()
            }
            State::Failed(_) | State::Done => None,
        };
        let body = body.and_then(rewound);
        let error = SendError::TIMEOUT;
        self.attempts.on_failure(error);
        finish(
            (self.backend, self.attempts),
            self.request,
            error,
            body,
            Resend::Never,
        )
    }

    /// Handles an exchange that failed before the response head.
    fn fail(
        &mut self,
        exchange: Exchange<B>,
        cause: ExchangeError,
        in_flight: &InFlight,
    ) -> FailedAttempt<B> {
        let (backend, attempts) = (self.backend, &mut *self.attempts);
        let endpoint = in_flight.endpoint();
        let is_replayable = exchange.is_replayable(cause);
        let is_retryable = exchange.is_retryable_elsewhere(cause)
            && attempts.has_other_endpoint(backend, in_flight);
        let is_reused = exchange.is_reused();
        let has_written = exchange.has_written();
        let connection = exchange.connection();
        let body = exchange.into_body();
        let error = SendError::from(cause);
        let tried = attempts.on_failure(error);
        let mut resend = Resend::Never;
        match cause {
            ExchangeError::NotProcessed | ExchangeError::Refused => {
                tried.avoid.refused = connection;
                tried.refused = Some(endpoint.id);
                if cause == ExchangeError::NotProcessed {
                    // Counted in any case.
                    let unprocessed = tried.resend_unprocessed();
                    resend = if is_replayable {
                        unprocessed
                    } else {
                        Resend::Never
                    };
                } else if is_replayable && tried.total.try_resend() {
                    resend = Resend::AtOnce;
                }
            }
            ExchangeError::Truncated | ExchangeError::Io(_) | ExchangeError::Protocol(_) => {
                let is_stale = is_reused && !matches!(cause, ExchangeError::Protocol(_));
                if is_stale && is_replayable && tried.total.try_stale_resend() {
                    tried.avoid.idle = true;
                    resend = match has_written {
                        true => Resend::Stale,
                        false => Resend::AtOnce,
                    };
                } else if is_retryable && tried.total.try_repeat() {
                    resend = Resend::AsRetry;
                }
                if !is_stale {
                    endpoint.faults.add(match cause {
                        ExchangeError::Protocol(_) => EndpointFault::Protocol,
                        ExchangeError::Io(ErrorKind::TimedOut) => EndpointFault::Unreachable,
                        _ => EndpointFault::Closed,
                    });
                    tried.total.suspect(endpoint);
                }
                if resend == Resend::AsRetry || self.request.keeps_body && !is_stale {
                    tried.refused = Some(endpoint.id);
                }
            }
            ExchangeError::Reset | ExchangeError::RequestBody => {}
        }
        if matches!(resend, Resend::AtOnce | Resend::Stale) {
            tried.total.charge(backend);
        }
        let body = body.and_then(rewound);
        finish((backend, attempts), self.request, error, body, resend)
    }
}

/// Rewinds a body to its first byte. `None` if the first byte is no longer buffered.
fn rewound<B: Replay>(mut body: B) -> Option<B> {
    body.rewind().then_some(body)
}

/// Counts a failure, and keeps the body as long as another attempt is possible.
fn finish<B>(
    (backend, attempts): (&Backend, &Attempts),
    request: &Outgoing<'_>,
    error: SendError,
    body: Option<B>,
    resend: Resend,
) -> FailedAttempt<B> {
    if let SendError::Backend(cause, _) = error {
        attempts.count_failure(backend, cause);
    }
    let is_kept = resend != Resend::Never || request.keeps_body && !attempts.are_exhausted();
    let body = body.filter(|_| is_kept);
    FailedAttempt {
        error,
        resend: match body {
            Some(_) => resend,
            None => Resend::Never,
        },
        body,
    }
}
