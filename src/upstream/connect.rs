//! Connects to the selected endpoint. If it is slow, also connects to a second one (hedging).

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::balance::{self, Choice};
use super::ejections::Ejections;
use super::health;
use super::in_flight::InFlight;
use super::pool::{Pool, Ready};
use super::release::candidates;
use super::send_error::SendError;
use crate::table::{Backend, BackendStats, Endpoint, Release, UpstreamFault};
use crate::upstream::connector::Connector;
use crate::upstream::restrictions::Restrictions;

/// Delay before a hedged connect to a second endpoint: a multiple of the backend's usual connect
/// time, within these bounds.
const HEDGE_FACTOR: u32 = 8;
const HEDGE_DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(200));

/// Why connecting failed, and to which endpoints; 0 stands for none.
pub(super) struct ConnectFailure {
    pub(super) error: SendError,
    pub(super) endpoints: [u64; 2],
}

/// Connects to the selected endpoint, or to another one within `restrictions` if that is faster. Also returns the endpoints
/// that failures have ejected.
pub(super) async fn connect(
    pool: Rc<Pool>,
    backend: &Backend,
    selected: InFlight,
    restrictions: Restrictions,
) -> (Result<(Ready, InFlight), ConnectFailure>, Ejections) {
    let mut ejections = Ejections::default();
    let backend = (backend, &mut ejections);
    let outcome = first_connection(pool, backend, selected, restrictions).await;
    (outcome, ejections)
}

async fn first_connection(
    pool: Rc<Pool>,
    (backend, ejections): (&Backend, &mut Ejections),
    selected: InFlight,
    restrictions: Restrictions,
) -> Result<(Ready, InFlight), ConnectFailure> {
    let Restrictions {
        release,
        excluded,
        avoid,
        upgrades,
        is_chosen,
        client,
    } = restrictions;
    let release = release.as_deref();
    let delay = hedge_delay(&backend.stats);
    let connector = Connector::for_requests(backend, selected.endpoint(), upgrades);
    let mut first = pin!(pool.ready(&connector, avoid, client));
    if is_chosen {
        let outcome = first.await;
        return finish((backend, ejections), selected, outcome, 0);
    }
    // Endpoints that are out of date may all have ended, so that a slow one is hedged with what answers for them.
    let fallback = release.is_none().then(|| backend.fallback()).flatten();
    if fallback.is_some() || candidates(&backend.endpoints(), release).len() > 1 {
        tokio::select! {
            biased;
            // In order: a connect that is ready together with the timer needs no hedge.
            outcome = &mut first => return finish((backend, ejections), selected, outcome, 0),
            () = sleep(delay) => {}
        }
    }
    let id = selected.endpoint().id;
    let excluded = excluded.map(|it| if it == 0 { id } else { it });
    let others = fallback.as_ref().map(|it| &it[..]);
    let hedge = select_hedge(&pool, (backend, others), (release, &excluded[..], upgrades));
    let Some(hedge) = hedge else {
        let outcome = first.await;
        return finish((backend, ejections), selected, outcome, 0);
    };
    backend.stats.hedged();
    if fallback.is_some() {
        backend.fell_back();
    }
    let hedge_begin = Instant::now();
    let hedge_connector = Connector::for_requests(backend, hedge.endpoint(), upgrades);
    let mut second = pin!(pool.ready(&hedge_connector, avoid, client));
    tokio::select! {
        biased;
        outcome = &mut first => match outcome {
            Ok(ready) => Ok((ready, selected)),
            Err(error) => {
                ejections.add(selected.endpoint(), on_failure(backend, &selected, error));
                let outcome = second.await;
                finish((backend, ejections), hedge, outcome, id)
            }
        },
        outcome = &mut second => match outcome {
            Ok(ready) => {
                // A slow worker delays both connects, so the first one must be much slower to count
                // as failed.
                let least = delay.max(hedge_begin.elapsed() * HEDGE_FACTOR);
                if connector.elapsed() >= least {
                    let endpoint = selected.endpoint();
                    ejections.add(endpoint, health::on_connect_failure(backend, endpoint));
                }
                Ok((ready, hedge))
            }
            Err(error) => {
                ejections.add(hedge.endpoint(), on_failure(backend, &hedge, error));
                let id = hedge.endpoint().id;
                drop(hedge);
                let outcome = first.await;
                finish((backend, ejections), selected, outcome, id)
            }
        },
    }
}

/// Selects the endpoint of a hedge: one of the fallback, if there is one.
fn select_hedge(
    pool: &Pool,
    (backend, fallback): (&Backend, Option<&[Arc<Endpoint>]>),
    (release, excluded, upgrades): (Option<&Release>, &[u64], bool),
) -> Option<InFlight> {
    let has_open = |it: &Endpoint| pool.has_open(Connector::key_of(backend, it, upgrades));
    let endpoints = backend.endpoints();
    let choice = Choice::of(backend, pool.worker, None, None).with_open(&has_open);
    let choice = choice.with_near(endpoints.near());
    let (others, choice) = match fallback {
        Some(fallback) => (fallback, Choice::by_load(None)),
        None => (candidates(&endpoints, release), choice),
    };
    balance::select(&pool.endpoints, others, excluded, choice)
}

/// Counts a failed connect against its endpoint, unless the process or its host is the cause. Returns whether that ejects
/// the endpoint.
pub(super) fn on_failure(backend: &Backend, in_flight: &InFlight, error: SendError) -> bool {
    match error {
        SendError::Backend(
            UpstreamFault::Descriptors | UpstreamFault::Local | UpstreamFault::Overloaded,
            _,
        ) => false,
        _ => health::on_connect_failure(backend, in_flight.endpoint()),
    }
}

/// Returns the result of one connect after the connect to `other`, if not 0, has failed.
fn finish(
    (backend, ejections): (&Backend, &mut Ejections),
    in_flight: InFlight,
    outcome: Result<Ready, SendError>,
    other: u64,
) -> Result<(Ready, InFlight), ConnectFailure> {
    match outcome {
        Ok(ready) => Ok((ready, in_flight)),
        Err(error) => {
            ejections.add(in_flight.endpoint(), on_failure(backend, &in_flight, error));
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
    use super::super::health::tests::backend;
    use super::*;
    use crate::runtime::clock::Clock;
    use crate::runtime::per_worker::WorkerId;
    use crate::upstream::connector::connect_error;
    use crate::upstream::in_flight::WorkerEndpoints;
    use rustix::io::Errno;

    #[test]
    fn only_failures_of_the_endpoint_eject_it() {
        let is_ejected = |cause: Errno| {
            let backend = backend(2);
            let worker = WorkerEndpoints::new(WorkerId::ONLY, Clock::new());
            let in_flight = worker.begin(&backend.endpoints()[0]);
            on_failure(&backend, &in_flight, connect_error(&cause.into()));
            in_flight.endpoint().health.is_avoided()
        };
        for cause in [
            Errno::MFILE,
            Errno::NFILE,
            Errno::ADDRNOTAVAIL,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::ACCESS,
            Errno::PERM,
        ] {
            assert!(!is_ejected(cause), "{cause}");
        }
        for cause in [
            Errno::CONNREFUSED,
            Errno::CONNRESET,
            Errno::HOSTUNREACH,
            Errno::NETUNREACH,
            Errno::TIMEDOUT,
        ] {
            assert!(is_ejected(cause), "{cause}");
        }
    }

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
