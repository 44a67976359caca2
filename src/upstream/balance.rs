//! Load balancing: power of two choices by requests in flight, or what the policy of the backend says. Avoids unhealthy
//! endpoints while there are healthy ones.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rand::RngExt;

use super::health;
use super::in_flight::{InFlight, WorkerEndpoints};
use super::room::{HasOpen, Room};
use super::slow_start::SlowStart;
use crate::ir::backend_policy::{LoadBalancing, Passive};
use crate::runtime::per_worker::WorkerId;
use crate::table::{Backend, BackendSettings, Endpoint, Ring};

/// Endpoints that are tried for a key before any other one.
const CHOICES: u64 = 8;
/// Requests in flight that an endpoint may always have for its keys: few requests of one client stay together.
const ALWAYS_PERMITTED: u64 = 16;

/// Percentage of the endpoints in the own zone that must be healthy so that those of others get nothing: each has at most
/// twice its load.
const HALF: u32 = 50;
/// How often a request looks for an endpoint with room that other workers do not take meanwhile.
const ROUNDS: usize = 4;

/// How an endpoint is chosen among several.
#[derive(Clone, Copy)]
enum Method<'a> {
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

/// How an endpoint of a backend is chosen.
#[derive(Clone, Copy)]
pub(super) struct Choice<'a> {
    method: Method<'a>,
    settings: Option<&'a BackendSettings>,
    has_open: Option<HasOpen<'a>>,
    /// Endpoints that take precedence.
    near: Option<&'a [Arc<Endpoint>]>,
    /// Those of the backend or release, of which a part may be ejected, if one of fewer is chosen.
    peers: Option<&'a [Arc<Endpoint>]>,
}

impl<'a> Choice<'a> {
    /// By requests in flight, of endpoints without settings.
    pub(super) fn by_load(slow_start: Option<SlowStart>) -> Self {
        Self {
            method: Method::Load(slow_start),
            settings: None,
            has_open: None,
            near: None,
            peers: None,
        }
    }

    /// Returns how an endpoint of a backend is chosen for a request with this affinity. `ring` is that of the endpoints
    /// among which one is chosen.
    #[inline]
    pub(super) fn of(
        backend: &'a Backend,
        worker: WorkerId,
        ring: Option<&'a Ring>,
        affinity: Option<u64>,
    ) -> Self {
        match backend.settings.as_deref() {
            None => Self::by_load(SlowStart::of(backend)),
            Some(settings) => Self {
                method: Method::by(settings, (backend, worker), ring, affinity),
                settings: Some(settings),
                has_open: None,
                near: None,
                peers: None,
            },
        }
    }

    /// Makes connections count that are open: `has_open` reports whether one to an endpoint can carry another request.
    pub(super) fn with_open(self, has_open: HasOpen<'a>) -> Self {
        Self {
            has_open: Some(has_open),
            ..self
        }
    }

    /// Makes endpoints in the own zone take precedence, if there are some.
    pub(super) fn with_near(self, near: Option<&'a [Arc<Endpoint>]>) -> Self {
        Self { near, ..self }
    }

    /// Reports whether these endpoints can serve what all would: at least half of them are healthy, and no fewer than
    /// without panic, and one of those may get the request.
    fn suffices(&self, near: &[Arc<Endpoint>], excluded: &[u64]) -> bool {
        let panic = self.settings.map_or(0, |it| it.ir.passive.panic_percent);
        let room = self.room();
        let healthy = || near.iter().filter(|it| !it.health.is_avoided());
        healthy().count() * 100 >= near.len() * panic.max(HALF) as usize
            && healthy()
                .any(|it| !excluded.contains(&it.id) && room.is_none_or(|room| room.is_left(it)))
    }

    fn room(&self) -> Option<Room<'a>> {
        Room::of(self.settings?, self.has_open)
    }
}

/// Reports whether endpoints are left that are not in `excluded`. To be called when none of them is selected: all have as
/// much as the policy of their backend permits. Makes connections close that other workers do not use.
pub(super) fn are_full(backend: &Backend, endpoints: &[Arc<Endpoint>], excluded: &[u64]) -> bool {
    let settings = backend.settings.as_ref();
    if !settings.is_some_and(|settings| settings.limits_endpoints()) {
        return false;
    }
    let left = endpoints.iter().filter(|it| !excluded.contains(&it.id));
    left.inspect(|it| it.want_connections()).count() > 0
}

/// Selects an endpoint that is not in `excluded` and counts the request. `None` if no endpoint is
/// left.
pub(super) fn select(
    worker: &WorkerEndpoints,
    endpoints: &[Arc<Endpoint>],
    excluded: &[u64],
    choice: Choice<'_>,
) -> Option<InFlight> {
    if excluded.is_empty() && choice.settings.is_none() {
        match endpoints {
            [] => return None,
            [only] => return Some(worker.begin(only)),
            all => {
                if let Some(selected) = select_fast(worker, all, choice.method) {
                    return Some(worker.begin(selected));
                }
            }
        }
    }
    if let Some(near) = choice.near
        && choice.suffices(near, excluded)
    {
        let peers = Some(endpoints);
        let choice = Choice { peers, ..choice };
        if let Some(selected) = select(worker, near, excluded, choice.with_near(None)) {
            return Some(selected);
        }
    }
    if let Some(room) = choice.room() {
        let select = || select_with_room(worker, endpoints, excluded, choice, &room);
        return (0..ROUNDS).find_map(|_| room.confirm(select()?));
    }
    if excluded.is_empty()
        && let Some(selected) = select_fast(worker, endpoints, choice.method)
    {
        return Some(worker.begin(selected));
    }
    select_among(worker, (endpoints, endpoints), excluded, choice)
}

/// Selects an endpoint without a look at all of them. `None` if it is avoided.
fn select_fast<'a>(
    worker: &WorkerEndpoints,
    endpoints: &'a [Arc<Endpoint>],
    method: Method<'_>,
) -> Option<&'a Arc<Endpoint>> {
    let count = endpoints.len();
    let is_healthy = |endpoint: &&Arc<Endpoint>| !endpoint.health.is_avoided();
    match method {
        Method::Load(_) | Method::Random if count < 2 => endpoints.first().filter(is_healthy),
        Method::Load(slow_start) => {
            let (first, second) = two_of(count);
            let (first, second) = (&endpoints[first], &endpoints[second]);
            let are_healthy = is_healthy(&first) && is_healthy(&second);
            are_healthy.then(|| choose(worker, first, second, slow_start))
        }
        Method::Random => endpoints
            .get(rand::rng().random_range(0..count))
            .filter(is_healthy),
        Method::RoundRobin(turn) => endpoints
            .get((turn % count.max(1) as u64) as usize)
            .filter(is_healthy),
        Method::Hash { ring, key } => {
            let first = endpoints.get(ring.find(key, 0)?).filter(is_healthy)?;
            (worker.load(first) < ALWAYS_PERMITTED).then_some(first)
        }
    }
}

/// Selects an endpoint that may get another request.
fn select_with_room(
    worker: &WorkerEndpoints,
    endpoints: &[Arc<Endpoint>],
    excluded: &[u64],
    choice: Choice<'_>,
    room: &Room<'_>,
) -> Option<InFlight> {
    if endpoints.iter().all(|it| room.is_left(it)) {
        return select_among(worker, (endpoints, endpoints), excluded, choice);
    }
    // A ring is that of all endpoints.
    let choice = match choice.method {
        Method::Hash { .. } => Choice {
            method: Method::Load(None),
            ..choice
        },
        _ => choice,
    };
    let left = endpoints.iter().filter(|it| room.is_left(it));
    let left: Vec<_> = left.cloned().collect();
    select_among(worker, (endpoints, &left), excluded, choice)
}

/// Selects one of the second list, which has those of the first one that have room: an endpoint that is due for a probe, or
/// else among the healthy endpoints, or among all if none is healthy. The load does not delay a probe: an earlier one may
/// still be in flight. A full endpoint is no less healthy.
fn select_among(
    worker: &WorkerEndpoints,
    (all, endpoints): (&[Arc<Endpoint>], &[Arc<Endpoint>]),
    excluded: &[u64],
    choice: Choice<'_>,
) -> Option<InFlight> {
    let method = choice.method;
    let passive = choice.settings.map_or(Passive::DEFAULT, |it| it.ir.passive);
    let now = health::now();
    health::limit_ejections(choice.peers.unwrap_or(all), &passive, now);
    let is_panic = health::is_panic(all, &passive);
    let is_left = |endpoint: &Endpoint| !excluded.contains(&endpoint.id);
    let is_eligible = |endpoint: &Endpoint| {
        is_left(endpoint) && (is_panic || health::is_eligible(&endpoint.health, now))
    };
    if !is_panic && !matches!(method, Method::Hash { .. }) {
        let mut due = endpoints
            .iter()
            .filter(|it| it.health.is_avoided() && is_eligible(it));
        if let Some(probed) = due.find(|it| health::begin_probe(&it.health, now)) {
            return Some(worker.begin(probed));
        }
    }
    let selected = select_from(worker, endpoints, is_eligible, method).or_else(|| {
        // Healthy ones that are left have no room. One whose checks fail does not stand in for them.
        let has_full = all.iter().any(|it| is_left(it) && !it.health.is_avoided());
        let may_fail = |it: &Endpoint| is_left(it) && !(has_full && it.health.has_failed_checks());
        select_from(worker, endpoints, may_fail, method)
    })?;
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

#[cfg(test)]
mod tests;
