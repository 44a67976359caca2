//! Load balancing: power of two choices by requests in flight, or what the policy of the backend says. Avoids unhealthy
//! endpoints while there are healthy ones.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rand::RngExt;

use super::health;
use super::in_flight::{InFlight, WorkerEndpoints};
use super::slow_start::SlowStart;
use crate::ir::backend_policy::LoadBalancing;
use crate::runtime::per_worker::WorkerId;
use crate::table::{Backend, BackendSettings, Endpoint, Ring};

/// Endpoints that are tried for a key before any other one.
const CHOICES: u64 = 8;
/// Requests in flight that an endpoint may always have for its keys: few requests of one client stay together.
const ALWAYS_PERMITTED: u64 = 16;

/// How an endpoint is chosen among several.
#[derive(Clone, Copy)]
pub(super) enum Method<'a> {
    /// By the requests in flight of two random ones.
    Load(Option<SlowStart>),
    /// The one whose turn it is.
    RoundRobin(u64),
    /// Any.
    Random,
    /// By the hash of a key.
    Hash {
        /// The ring of the endpoints.
        ring: &'a Ring,
        key: u64,
    },
}

impl<'a> Method<'a> {
    /// Returns the method of a backend for a request with this affinity. `ring` is that of the endpoints among which one is
    /// chosen.
    #[inline]
    pub(super) fn of(
        backend: &Backend,
        worker: WorkerId,
        ring: Option<&'a Ring>,
        affinity: Option<u64>,
    ) -> Self {
        match &backend.settings {
            None => Self::Load(SlowStart::of(backend)),
            Some(settings) => Self::by(settings, (backend, worker), ring, affinity),
        }
    }

    fn by(
        settings: &BackendSettings,
        (backend, worker): (&Backend, WorkerId),
        ring: Option<&'a Ring>,
        affinity: Option<u64>,
    ) -> Self {
        match (&settings.ir.load_balancing, ring, affinity) {
            (LoadBalancing::ConsistentHash(_), Some(ring), Some(key)) => Self::Hash { ring, key },
            (LoadBalancing::RoundRobin, ..) => {
                let turns = settings.turns.of(worker);
                let turn = turns.get();
                turns.add(1);
                // Workers begin at different endpoints.
                Self::RoundRobin(turn.wrapping_add(worker.index() as u64))
            }
            (LoadBalancing::Random, ..) => Self::Random,
            (LoadBalancing::LeastRequest | LoadBalancing::ConsistentHash(_), ..) => {
                Self::Load(SlowStart::of(backend))
            }
        }
    }
}

/// Selects an endpoint that is not in `excluded` and counts the request. `None` if no endpoint is
/// left.
pub(super) fn select(
    worker: &WorkerEndpoints,
    endpoints: &[Arc<Endpoint>],
    excluded: &[u64],
    method: Method<'_>,
) -> Option<InFlight> {
    if excluded.is_empty()
        && let Method::Load(slow_start) = method
    {
        match endpoints {
            [] => return None,
            [only] => return Some(worker.begin(only)),
            all => {
                let (first, second) = two_of(all.len());
                let (first, second) = (&all[first], &all[second]);
                if !first.health.is_avoided() && !second.health.is_avoided() {
                    let selected = choose(worker, first, second, slow_start);
                    return Some(worker.begin(selected));
                }
            }
        }
    }
    select_among(worker, endpoints, excluded, method, health::now())
}

/// Selects an endpoint that is due for a probe, or else among the healthy endpoints, or among all if
/// none is healthy. The load does not delay a probe: an earlier one may still be in flight.
fn select_among(
    worker: &WorkerEndpoints,
    endpoints: &[Arc<Endpoint>],
    excluded: &[u64],
    method: Method<'_>,
    now: u64,
) -> Option<InFlight> {
    health::limit_ejections(endpoints, now);
    let is_left = |endpoint: &Endpoint| !excluded.contains(&endpoint.id);
    let is_eligible =
        |endpoint: &Endpoint| is_left(endpoint) && health::is_eligible(&endpoint.health, now);
    if !matches!(method, Method::Hash { .. }) {
        let mut due = endpoints
            .iter()
            .filter(|it| it.health.is_avoided() && is_eligible(it));
        if let Some(probed) = due.find(|it| health::begin_probe(&it.health, now)) {
            return Some(worker.begin(probed));
        }
    }
    let selected = select_from(worker, endpoints, is_eligible, method)
        .or_else(|| select_from(worker, endpoints, is_left, method))?;
    if selected.health.is_avoided() {
        health::begin_probe(&selected.health, now);
    }
    Some(worker.begin(selected))
}

fn select_from<'a>(
    worker: &WorkerEndpoints,
    endpoints: &'a [Arc<Endpoint>],
    is_candidate: impl Fn(&Endpoint) -> bool,
    method: Method<'_>,
) -> Option<&'a Arc<Endpoint>> {
    let candidates = || endpoints.iter().filter(|endpoint| is_candidate(endpoint));
    match method {
        Method::Load(slow_start) => match candidates().count() {
            0 | 1 => candidates().next(),
            count => {
                let (first, second) = two_of(count);
                let (first, second) = (candidates().nth(first)?, candidates().nth(second)?);
                Some(choose(worker, first, second, slow_start))
            }
        },
        Method::Random => match candidates().count() {
            0 => None,
            count => candidates().nth(rand::rng().random_range(0..count)),
        },
        Method::RoundRobin(turn) => {
            let next = (turn % endpoints.len().max(1) as u64) as usize;
            let (before, from) = endpoints.split_at(next);
            let mut in_turn = from.iter().chain(before);
            in_turn.find(|endpoint| is_candidate(endpoint))
        }
        Method::Hash { ring, key } => hashed(worker, endpoints, is_candidate, (ring, key)),
    }
}

/// Selects the endpoint of a key. If it has more than its part of the requests in flight, the next one of the key.
fn hashed<'a>(
    worker: &WorkerEndpoints,
    endpoints: &'a [Arc<Endpoint>],
    is_candidate: impl Fn(&Endpoint) -> bool,
    (ring, key): (&Ring, u64),
) -> Option<&'a Arc<Endpoint>> {
    let mut full: Option<(u64, &Arc<Endpoint>)> = None;
    let mut bound = None;
    for choice in 0..CHOICES {
        let endpoint = endpoints.get(ring.find(key, choice)?)?;
        if !is_candidate(endpoint) {
            continue;
        }
        let load = worker.load(endpoint);
        if load < ALWAYS_PERMITTED
            || load <= *bound.get_or_insert_with(|| bound_of(worker, endpoints, ring))
        {
            return Some(endpoint);
        }
        if full.is_none_or(|(least, _)| load < least) {
            full = Some((load, endpoint));
        }
    }
    let others = || endpoints.iter().filter(|endpoint| is_candidate(endpoint));
    let full = full.map(|(_, endpoint)| endpoint);
    // Most endpoints are not candidates.
    full.or_else(|| others().max_by_key(|endpoint| rendezvous(key, endpoint)))
}

/// Returns the requests in flight that an endpoint may have before another one gets the requests of its keys.
fn bound_of(worker: &WorkerEndpoints, endpoints: &[Arc<Endpoint>], ring: &Ring) -> u64 {
    let mean = worker.mean_load(endpoints, &ring.loads);
    mean + mean.div_ceil(4)
}

/// Returns the weight of an endpoint for a key (rendezvous hashing).
fn rendezvous(key: u64, endpoint: &Endpoint) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, endpoint.address).hash(&mut hasher);
    hasher.finish()
}

/// Returns two distinct random indices below `count`, which must be at least two.
fn two_of(count: usize) -> (usize, usize) {
    let mut random = rand::rng();
    let first = random.random_range(0..count);
    (first, (first + random.random_range(1..count)) % count)
}

fn choose<'a>(
    worker: &WorkerEndpoints,
    first: &'a Arc<Endpoint>,
    second: &'a Arc<Endpoint>,
    slow_start: Option<SlowStart>,
) -> &'a Arc<Endpoint> {
    if let Some(slow_start) = slow_start {
        slow_start.choose(worker, first, second)
    } else if worker.load(second) < worker.load(first) {
        second
    } else {
        first
    }
}
