//! The weights of releases: the configured ones, adjusted by the rules for releases that are not listed and for
//! releases with too few ready endpoints. Exact, because weights are integers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::api::release_backend::{BelowMinReady, ReleaseBackendSpec, Unlisted};

use super::endpoints::Group;

/// The share of one release.
#[derive(Debug)]
pub(super) struct Share<'a> {
    pub(super) name: &'a str,
    /// Its weight, relative to the sum of all weights.
    pub(super) weight: u64,
    /// Its endpoints; `None` without any pod.
    group: Option<&'a Group>,
    serving: Serving,
}

/// The endpoints of a release that serve.
#[derive(Clone, Copy, Debug)]
enum Serving {
    Ready,
    Draining,
    /// None, although the release may have some.
    None,
}

/// How well a release can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// It has no endpoints.
    Nothing,
    /// It has only terminating endpoints.
    Draining,
    /// It has fewer ready endpoints than it needs.
    Short,
    /// It has as many ready endpoints as it needs.
    Enough,
}

impl Share<'_> {
    /// Returns the endpoints that serve.
    pub(super) fn addresses(&self) -> &[SocketAddr] {
        match (self.serving, self.group) {
            (Serving::Ready, Some(group)) => &group.ready,
            (Serving::Draining, Some(group)) => &group.draining,
            (Serving::None, _) | (_, None) => &[],
        }
    }

    fn level(&self, min_ready: usize) -> Level {
        let Some(Group { ready, draining }) = self.group else {
            return Level::Nothing;
        };
        match ready.len() {
            0 if draining.is_empty() => Level::Nothing,
            0 => Level::Draining,
            count if count < min_ready => Level::Short,
            _ => Level::Enough,
        }
    }
}

/// Returns the shares of all releases, in order of name.
pub(super) fn weigh<'a>(
    spec: &'a ReleaseBackendSpec,
    groups: &'a BTreeMap<String, Group>,
) -> Vec<Share<'a>> {
    let mut shares = with_unlisted(spec, groups);
    shares.sort_by_key(|share| share.name);
    let min_ready = min_ready(spec);
    match spec.below_min_ready {
        BelowMinReady::Shift => shift(&mut shares, min_ready),
        BelowMinReady::Unavailable => {
            for share in &mut shares {
                if share.weight > 0 && share.level(min_ready) < Level::Enough {
                    share.serving = Serving::None;
                }
            }
        }
    }
    shares
}

fn min_ready(spec: &ReleaseBackendSpec) -> usize {
    spec.min_ready.map_or(1, |count| count.max(1) as usize)
}

/// Sets the weight of releases below the best level to 0, so that the others get their share.
fn shift(shares: &mut [Share<'_>], min_ready: usize) {
    let best = best(shares, min_ready);
    for share in shares.iter_mut().filter(|share| share.weight > 0) {
        if share.level(min_ready) < best {
            share.weight = 0;
        } else if best == Level::Draining {
            share.serving = Serving::Draining;
        }
    }
}

/// Returns the best level among releases with a weight.
fn best(shares: &[Share<'_>], min_ready: usize) -> Level {
    let wanted = shares.iter().filter(|share| share.weight > 0);
    let levels = wanted.map(|share| share.level(min_ready));
    levels.max().unwrap_or(Level::Nothing)
}

/// Applies the rules for releases that are not listed.
fn with_unlisted<'a>(
    spec: &'a ReleaseBackendSpec,
    groups: &'a BTreeMap<String, Group>,
) -> Vec<Share<'a>> {
    let share = |name: &'a str, weight| Share {
        name,
        weight,
        group: groups.get(name),
        serving: Serving::Ready,
    };
    let listed = spec.releases.iter();
    let listed: BTreeMap<&str, u64> = listed
        .map(|release| (release.value.as_str(), u64::from(release.weight)))
        .collect();
    let weighted = |scale| {
        listed
            .iter()
            .map(move |(name, weight)| share(name, weight * scale))
    };
    let others: BTreeSet<&str> = others(spec, groups);
    let equal = |weight| others.iter().map(move |name| share(name, weight));
    match spec.unlisted {
        Unlisted::Ignore => weighted(1).collect(),
        Unlisted::Equal => {
            let sum: u64 = listed.values().sum();
            let (scale, each) = match sum {
                0 => (0, 1),
                sum => (listed.len() as u64, sum),
            };
            weighted(scale).chain(equal(each)).collect()
        }
        Unlisted::Fallback => {
            let (known, fallback): (Vec<_>, Vec<_>) = (weighted(1).collect(), equal(1).collect());
            // Prefer a listed release with too few endpoints to a fallback at the same level.
            if best(&known, 1) >= best(&fallback, 1) {
                known
            } else {
                weighted(0).chain(fallback).collect()
            }
        }
    }
}

/// Returns releases that have endpoints and are not listed. With `Unavailable`, a release with only terminating
/// endpoints does not count, because its share would be lost.
fn others<'a>(spec: &ReleaseBackendSpec, groups: &'a BTreeMap<String, Group>) -> BTreeSet<&'a str> {
    let keeps_shares = spec.below_min_ready == BelowMinReady::Unavailable;
    let is_listed = |name: &str| spec.releases.iter().any(|release| release.value == name);
    let exists =
        |group: &Group| !group.ready.is_empty() || !keeps_shares && !group.draining.is_empty();
    let others = groups
        .iter()
        .filter(|(name, group)| exists(group) && !is_listed(name));
    others.map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests;
