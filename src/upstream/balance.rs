//! Load balancing: power of two choices by requests in flight, or consistent hashing by the
//! request's affinity. Avoids unhealthy endpoints while there are healthy ones.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rand::RngExt;

use super::health;
use super::slow_start::SlowStart;
use crate::table::Endpoint;

/// A request in flight to an endpoint; counted until dropped.
pub(super) struct InFlight {
    endpoint: Arc<Endpoint>,
    is_probe: bool,
}

impl InFlight {
    pub(super) fn new(endpoint: &Arc<Endpoint>, is_probe: bool) -> Self {
        endpoint.in_flight.fetch_add(1, Relaxed);
        Self {
            endpoint: endpoint.clone(),
            is_probe,
        }
    }

    /// Returns the endpoint of the request.
    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        &self.endpoint
    }

    /// Records a response of the endpoint.
    pub(super) fn on_response(&mut self) {
        health::on_response(&self.endpoint.health);
        self.end_probe();
    }

    fn end_probe(&mut self) {
        if self.is_probe {
            self.is_probe = false;
            health::end_probe(&self.endpoint.health);
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.end_probe();
        self.endpoint.in_flight.fetch_sub(1, Relaxed);
    }
}

/// Selects an endpoint that is not in `excluded` and counts the request. `None` if no endpoint is
/// left. Affinity has priority over slow start.
pub(super) fn select(
    endpoints: &[Arc<Endpoint>],
    excluded: &[u64],
    affinity: Option<u64>,
    slow_start: Option<SlowStart>,
) -> Option<InFlight> {
    if excluded.is_empty() && affinity.is_none() {
        match endpoints {
            [] => return None,
            [only] => return Some(InFlight::new(only, false)),
            all => {
                let (first, second) = two_of(all.len());
                let (first, second) = (&all[first], &all[second]);
                if !first.health.is_avoided() && !second.health.is_avoided() {
                    let selected = choose(first, second, slow_start);
                    return Some(InFlight::new(selected, false));
                }
            }
        }
    }
    let rule = match (affinity, slow_start) {
        (Some(affinity), _) => Rule::Affinity(affinity),
        (None, slow_start) => Rule::Load(slow_start),
    };
    select_among(endpoints, excluded, rule, health::now())
}

/// How to choose among several endpoints.
#[derive(Clone, Copy)]
enum Rule {
    /// By the affinity of the request.
    Affinity(u64),
    /// By the requests in flight of two random ones.
    Load(Option<SlowStart>),
}

/// Selects among the healthy endpoints, or among all if none is healthy.
fn select_among(
    endpoints: &[Arc<Endpoint>],
    excluded: &[u64],
    rule: Rule,
    now: u64,
) -> Option<InFlight> {
    let left = || {
        endpoints
            .iter()
            .filter(|endpoint| !excluded.contains(&endpoint.id))
    };
    loop {
        let eligible = || left().filter(|endpoint| health::is_eligible(&endpoint.health, now));
        let Some(endpoint) = select_from(eligible, rule) else {
            return select_from(left, rule).map(|endpoint| InFlight::new(endpoint, false));
        };
        if !endpoint.health.is_avoided() {
            return Some(InFlight::new(endpoint, false));
        }
        if health::begin_probe(&endpoint.health) {
            return Some(InFlight::new(endpoint, true));
        }
        // Another worker has just started the probe, so that the endpoint is no longer eligible.
    }
}

fn select_from<'a, I: Iterator<Item = &'a Arc<Endpoint>>>(
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
            Some(choose(first, second, slow_start))
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
    first: &'a Arc<Endpoint>,
    second: &'a Arc<Endpoint>,
    slow_start: Option<SlowStart>,
) -> &'a Arc<Endpoint> {
    if let Some(slow_start) = slow_start {
        slow_start.choose(first, second)
    } else if second.in_flight.load(Relaxed) < first.in_flight.load(Relaxed) {
        second
    } else {
        first
    }
}
