//! Connects to an endpoint, with TLS if configured. If the first endpoint is slow, also connects to
//! a second one (hedging).

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::CertificateError;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::SendError;
use super::attempts::EXCLUDED;
use super::balance::{self, InFlight};
use super::health;
use super::io::Io;
use super::pool::{Avoid, ConnectionKey, Pool, Ready};
use super::release::candidates;
use super::slow_start::SlowStart;
use crate::descriptors::{BackendDescriptor, are_exhausted};
use crate::ir::UpstreamProtocol;
use crate::table::{
    Backend, BackendStats, Endpoint, Release, TlsFailure, Transport, UpstreamFault,
};

/// Delay before a hedged connect to a second endpoint: a multiple of the backend's usual connect
/// time, within these bounds.
const HEDGE_FACTOR: u32 = 8;
const HEDGE_DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// An endpoint with all that is needed to connect to it.
#[derive(Clone)]
pub(super) struct Target {
    endpoint: Arc<Endpoint>,
    transport: Transport,
    declared: UpstreamProtocol,
    stats: Arc<BackendStats>,
    /// Start of the connect that is currently awaited.
    awaited_since: Cell<Option<Instant>>,
}

impl Target {
    pub(super) fn new(backend: &Backend, endpoint: &Arc<Endpoint>) -> Self {
        Self {
            endpoint: endpoint.clone(),
            transport: backend.transport.clone(),
            declared: backend.protocol,
            stats: backend.stats.clone(),
            awaited_since: Cell::new(None),
        }
    }

    pub(super) fn key(&self) -> ConnectionKey {
        ConnectionKey {
            endpoint: self.endpoint.id,
            identity: self.transport.identity(),
        }
    }

    /// Returns the pool key of the backend's connections to an endpoint.
    pub(super) fn key_of(backend: &Backend, endpoint: &Endpoint) -> ConnectionKey {
        ConnectionKey {
            endpoint: endpoint.id,
            identity: backend.transport.identity(),
        }
    }

    /// Returns the protocol of new connections; `None` if ALPN decides.
    pub(super) fn protocol(&self) -> Option<Protocol> {
        match &self.transport {
            Transport::Plain if self.declared == UpstreamProtocol::H2c => Some(Protocol::Http2),
            // appProtocol declares HTTP/2, which takes precedence over the result of ALPN.
            Transport::Tls(_) if self.declared == UpstreamProtocol::H2c => Some(Protocol::Http2),
            Transport::Tls(tls) if tls.config.alpn_protocols.iter().any(|name| name == b"h2") => {
                None
            }
            Transport::Plain | Transport::Tls(_) | Transport::Unusable => Some(Protocol::Http1),
        }
    }

    /// Returns the protocol of a connection: what is configured, or else what its ALPN selected.
    pub(super) fn protocol_of(&self, io: &Io) -> Protocol {
        let negotiated = match io.has_negotiated_http2() {
            true => Protocol::Http2,
            false => Protocol::Http1,
        };
        self.protocol().unwrap_or(negotiated)
    }

    /// Records the start of the awaited connect.
    pub(super) fn await_since(&self, begin: Instant) {
        self.awaited_since.set(Some(begin));
    }

    /// Returns the duration of the awaited connect so far, without queueing time.
    fn elapsed(&self) -> Duration {
        let since = self.awaited_since.get();
        since.map_or(Duration::ZERO, |begin| begin.elapsed())
    }

    /// Connects within `limit`, including TLS.
    pub(super) async fn connect(
        &self,
        limit: Duration,
        descriptor: BackendDescriptor,
    ) -> Result<Io, SendError> {
        let begin = Instant::now();
        let io = timeout(limit, self.establish(descriptor))
            .await
            .map_err(|_| {
                SendError::Backend(
                    UpstreamFault::ConnectTimeout,
                    "connecting to the backend timed out",
                )
            })??;
        self.stats.connected(begin.elapsed());
        Ok(io)
    }

    async fn establish(&self, descriptor: BackendDescriptor) -> Result<Io, SendError> {
        if matches!(self.transport, Transport::Unusable) {
            return Err(SendError::Backend(
                UpstreamFault::Connect,
                "TLS to the backend cannot be configured",
            ));
        }
        let address = self.endpoint.address;
        let io = match &self.endpoint.hostname {
            None => TcpStream::connect(address).await,
            Some(hostname) => TcpStream::connect((&**hostname, address.port())).await,
        };
        let io = io.map_err(|error| match are_exhausted(&error) {
            true => SendError::NO_DESCRIPTOR,
            false => SendError::Backend(UpstreamFault::Connect, "cannot connect to the backend"),
        })?;
        // Without TCP_NODELAY, small writes wait for ACKs. A socket that does not support it still
        // works.
        let _ = io.set_nodelay(true);
        let Transport::Tls(tls) = &self.transport else {
            return Ok(Io::plain(io, descriptor));
        };
        let connector = TlsConnector::from(tls.config.clone());
        match connector.connect(tls.server_name.clone(), io).await {
            Ok(io) => Ok(Io::tls(io, descriptor)),
            Err(error) => {
                tracing::debug!(%error, endpoint = %self.endpoint.address, "TLS to a backend failed");
                let failure = tls_failure(&error);
                self.stats.tls_failed(failure);
                Err(SendError::Backend(
                    UpstreamFault::Connect,
                    tls_problem(failure),
                ))
            }
        }
    }
}

/// Classifies a failed TLS handshake.
fn tls_failure(error: &io::Error) -> TlsFailure {
    let error = error.get_ref().and_then(|inner| inner.downcast_ref());
    match error {
        Some(rustls::Error::InvalidCertificate(problem)) => match problem {
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                TlsFailure::Name
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                TlsFailure::Expired
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                TlsFailure::NotYetValid
            }
            // A wrong signature results from a different CA with the same name.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                TlsFailure::UnknownAuthority
            }
            CertificateError::ApplicationVerificationFailure => TlsFailure::Pin,
            _ => TlsFailure::Certificate,
        },
        Some(rustls::Error::AlertReceived(_)) => TlsFailure::Refused,
        Some(_) => TlsFailure::Protocol,
        None => TlsFailure::Ended,
    }
}

fn tls_problem(failure: TlsFailure) -> &'static str {
    match failure {
        TlsFailure::Name => {
            "the backend's certificate has none of the names that its BackendTLSPolicy requires"
        }
        TlsFailure::Expired => "the backend's certificate has expired",
        TlsFailure::NotYetValid => "the backend's certificate is not valid yet",
        TlsFailure::UnknownAuthority => {
            "the backend's certificate is from an authority that its BackendTLSPolicy does not trust"
        }
        TlsFailure::Pin => "the backend's key is not among those that its BackendTLSPolicy pins",
        TlsFailure::Certificate => "the backend's certificate cannot be verified",
        TlsFailure::Refused => "the backend refused the TLS handshake",
        TlsFailure::Protocol => "the backend does not speak TLS as its BackendTLSPolicy requires",
        TlsFailure::Ended => "the backend ended the TLS handshake",
    }
}

/// Why connecting failed, and to which endpoints; 0 stands for none.
pub(super) struct ConnectFailure {
    pub(super) error: SendError,
    pub(super) endpoints: [u64; 2],
}

/// What an attempt may use.
pub(super) struct Restrictions {
    /// The release of the request, if the backend has releases.
    pub(super) release: Option<Arc<Release>>,
    /// Ids of endpoints that must not be connected to; 0 stands for none.
    pub(super) excluded: [u64; EXCLUDED],
    /// Connections that must not be used.
    pub(super) avoid: Avoid,
}

/// Connects to the selected endpoint, or to another one within `restrictions` if that is faster.
pub(super) async fn connect(
    pool: Rc<Pool>,
    backend: &Backend,
    selected: InFlight,
    restrictions: Restrictions,
) -> Result<(Ready, InFlight), ConnectFailure> {
    let Restrictions {
        release,
        excluded,
        avoid,
    } = restrictions;
    let release = release.as_deref();
    let delay = hedge_delay(&backend.stats);
    let target = Target::new(backend, selected.endpoint());
    let mut first = pin!(pool.ready(&target, avoid));
    // Endpoints that are out of date may all be gone, so that a slow one is hedged with what answers for them.
    let fallback = release.is_none().then(|| backend.fallback()).flatten();
    if fallback.is_some() || candidates(&backend.endpoints(), release).len() > 1 {
        tokio::select! {
            biased;
            // In order: a connect that is ready together with the timer needs no hedge.
            outcome = &mut first => return finish(backend, selected, outcome, 0),
            () = sleep(delay) => {}
        }
    }
    let id = selected.endpoint().id;
    let excluded = excluded.map(|it| if it == 0 { id } else { it });
    let slow_start = SlowStart::of(backend);
    let hedge = match &fallback {
        Some(fallback) => balance::select(fallback, &excluded, None, None),
        None => balance::select(
            candidates(&backend.endpoints(), release),
            &excluded,
            None,
            slow_start,
        ),
    };
    let Some(hedge) = hedge else {
        let outcome = first.await;
        return finish(backend, selected, outcome, 0);
    };
    backend.stats.hedged();
    if fallback.is_some() {
        backend.fell_back();
    }
    let hedge_begin = Instant::now();
    let hedge_target = Target::new(backend, hedge.endpoint());
    let mut second = pin!(pool.ready(&hedge_target, avoid));
    tokio::select! {
        biased;
        outcome = &mut first => match outcome {
            Ok(ready) => Ok((ready, selected)),
            Err(error) => {
                on_failure(backend, &selected, error);
                let outcome = second.await;
                finish(backend, hedge, outcome, id)
            }
        },
        outcome = &mut second => match outcome {
            Ok(ready) => {
                // A slow worker delays both connects, so the first one must be much slower to count
                // as failed.
                let least = delay.max(hedge_begin.elapsed() * HEDGE_FACTOR);
                if target.elapsed() >= least {
                    health::on_connect_failure(backend, selected.endpoint());
                }
                Ok((ready, hedge))
            }
            Err(error) => {
                on_failure(backend, &hedge, error);
                let id = hedge.endpoint().id;
                drop(hedge);
                let outcome = first.await;
                finish(backend, selected, outcome, id)
            }
        },
    }
}

/// Counts a failed connect against its endpoint, unless the process is the cause.
fn on_failure(backend: &Backend, in_flight: &InFlight, error: SendError) {
    if error != SendError::NO_DESCRIPTOR {
        health::on_connect_failure(backend, in_flight.endpoint());
    }
}

/// Returns the result of one connect after the connect to `other`, if not 0, has failed.
fn finish(
    backend: &Backend,
    in_flight: InFlight,
    outcome: Result<Ready, SendError>,
    other: u64,
) -> Result<(Ready, InFlight), ConnectFailure> {
    match outcome {
        Ok(ready) => Ok((ready, in_flight)),
        Err(error) => {
            on_failure(backend, &in_flight, error);
            Err(ConnectFailure {
                error,
                endpoints: [other, in_flight.endpoint().id],
            })
        }
    }
}

fn hedge_delay(stats: &BackendStats) -> Duration {
    let (least, most) = HEDGE_DELAY;
    let usual = stats.connect_time().unwrap_or(most);
    usual.saturating_mul(HEDGE_FACTOR).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hedges_after_a_multiple_of_the_usual_connect_time() {
        let delay = |connect: Duration| {
            let stats = BackendStats::default();
            stats.connected(connect);
            hedge_delay(&stats)
        };
        assert_eq!(hedge_delay(&BackendStats::default()), HEDGE_DELAY.1);
        assert_eq!(delay(Duration::from_micros(300)), HEDGE_DELAY.0);
        assert_eq!(delay(Duration::from_millis(10)), Duration::from_millis(80));
        assert_eq!(delay(Duration::from_secs(1)), HEDGE_DELAY.1);
    }
}
