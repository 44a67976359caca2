//! Load balancing: power of two choices by requests in flight, or consistent hashing by the
//! request's affinity. Avoids unhealthy endpoints while there are healthy ones.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use rand::RngExt;

use super::health;
use super::in_flight::{InFlight, WorkerEndpoints};
use super::slow_start::SlowStart;
use crate::table::Endpoint;

/// Selects an endpoint that is not in `excluded` and counts the request. `None` if no endpoint is
/// left. Affinity has priority over slow start.
pub(super) fn select(
    worker: &WorkerEndpoints,
    endpoints: &[Arc<Endpoint>],
    excluded: &[u64],
    affinity: Option<u64>,
    slow_start: Option<SlowStart>,
) -> Option<InFlight> {
    if excluded.is_empty() && affinity.is_none() {
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
    let rule = match (affinity, slow_start) {
        (Some(affinity), _) => Rule::Affinity(affinity),
        (None, slow_start) => Rule::Load(slow_start),
    };
    select_among(worker, endpoints, excluded, rule, health::now())
}

/// How to choose among several endpoints.
#[derive(Clone, Copy)]
enum Rule {
    /// By the affinity of the request.
    Affinity(u64),
    /// By the requests in flight of two random ones.
    Load(Option<SlowStart>),
}

/// Selects an endpoint that is due for a probe, or else among the healthy endpoints, or among all if
/// none is healthy. The load does not delay a probe: an earlier one may still be in flight.
fn select_among(
    worker: &WorkerEndpoints,
    endpoints: &[Arc<Endpoint>],
    excluded: &[u64],
    rule: Rule,
    now: u64,
) -> Option<InFlight> {
    health::limit_ejections(endpoints, now);
    let left = || {
        endpoints
            .iter()
            .filter(|endpoint| !excluded.contains(&endpoint.id))
    };
    let eligible = || left().filter(|endpoint| health::is_eligible(&endpoint.health, now));
    if matches!(rule, Rule::Load(_)) {
        let mut due = eligible().filter(|endpoint| endpoint.health.is_avoided());
        if let Some(probed) = due.find(|it| health::begin_probe(&it.health, now)) {
            return Some(worker.begin(probed));
        }
    }
    let selected =
        select_from(worker, eligible, rule).or_else(|| select_from(worker, left, rule))?;
    if selected.health.is_avoided() {
        health::begin_probe(&selected.health, now);
    }
    Some(worker.begin(selected))
}

fn select_from<'a, I: Iterator<Item = &'a Arc<Endpoint>>>(
    worker: &WorkerEndpoints,
    candidates: impl Fn() -> I,
    rule: Rule,
) -> Option<&'a Arc<Endpoint>> {
    let slow_start = match rule {
        Rule::Affinity(affinity) => {
            return candidates().max_by_key(|endpoint| rendezvous(affinity, endpoint));
        }
        Rule::Load(slow_start) => slow_start,
    };
    match candidates().count() {
        0 | 1 => candidates().next(),
        count => {
            let (first, second) = two_of(count);
            let (first, second) = (candidates().nth(first)?, candidates().nth(second)?);
            Some(choose(worker, first, second, slow_start))
        }
    }
}

/// Returns the weight of an endpoint for an affinity (rendezvous hashing). Equal in every process.
fn rendezvous(affinity: u64, endpoint: &Endpoint) -> u64 {
    let mut hasher = DefaultHasher::new();
    (affinity, endpoint.address).hash(&mut hasher);
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
