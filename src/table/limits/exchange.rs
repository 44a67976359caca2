//! What pods of a Gateway ask each other: tokens of keys that the other owns. A pod collects what its keys lack, the owner
//! grants what there is, and both are counted as if one pod had served all requests. Must not know connections.

use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustc_hash::FxHashMap;

use super::Limiter;
use super::arrivals::take_tokens;
use super::counters::Shared;
use super::group::{Group, Owner, Pod, View};
use super::leases::{Lease, UNSERVED};
use super::pace::{self, Pace, capacity, lease, reserve};
use crate::ir::limit::Rate;

/// Times of a wait for the next tokens, in milliseconds.
const MIN_WAIT: u64 = 10;
const MAX_WAIT: u64 = 1_000;
/// Nanoseconds of a millisecond.
const MILLISECOND: u64 = 1_000_000;
/// Time until a pod that does not serve a key is asked again, in nanoseconds.
const UNSERVED_WAIT: u64 = 1_000_000_000;

/// A wish for tokens of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The hash of the limit.
    pub limit: u64,
    /// The hash of the key.
    pub key: u64,
    /// How many, at least 1.
    pub tokens: u64,
}

/// The response to an [`Ask`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Tokens, not more than were asked for.
    pub tokens: u64,
    /// Tokens that the owner has left.
    pub left: u64,
    /// Time until there are more, in milliseconds; [`Self::UNSERVED`] if the pod does not own the key.
    pub wait: u32,
}

impl Grant {
    /// The pod does not own the key, or does not know the limit.
    pub const UNSERVED: u32 = u32::MAX;

    pub(super) const OF_ANOTHER: Self = Self {
        tokens: 0,
        left: 0,
        wait: Self::UNSERVED,
    };
}

/// A wish with what the response applies to.
#[derive(Debug)]
pub struct PendingAsk {
    /// The wish.
    pub ask: Ask,
    limiter: Arc<Limiter>,
}

/// The limits with keys that pods share.
#[derive(Debug, Default)]
pub struct LimitIndex {
    /// By the hash that all pods have for each.
    by_hash: FxHashMap<u64, Arc<Limiter>>,
    /// Others of the same hash, which get no leases: each pod admits its part of the rate.
    others: Vec<Arc<Limiter>>,
}

impl LimitIndex {
    /// Finds the limits that pods share.
    pub fn new(limiters: &[Arc<Limiter>], view: &View) -> Self {
        // Present versions of policies come first in the order of limits, and count where an earlier one has another limit of the
        // same name and rate.
        let mut index = Self::default();
        for limiter in limiters.iter().filter(|limiter| limiter.is_shared()) {
            match index.by_hash.entry(limiter.hash(view)) {
                Entry::Vacant(place) => {
                    place.insert(limiter.clone());
                }
                // Versions that have the same limit share its counters.
                Entry::Occupied(known) if Arc::ptr_eq(&known.get().counters, &limiter.counters) => {
                }
                Entry::Occupied(_) => index.others.push(limiter.clone()),
            }
        }
        index
    }

    /// Reports whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    /// Collects what keys of other owners lack. `ask` gets the index of the owner and returns whether it takes the wish.
    /// `random` varies which keys come first, so that none is left out always. Returns whether any key lacks tokens.
    pub fn collect(
        &self,
        view: &View,
        now: u64,
        random: usize,
        mut ask: impl FnMut(usize, PendingAsk) -> bool,
    ) -> bool {
        let mut is_active = false;
        let by_hash = self.by_hash.iter().map(|(hash, it)| (Some(*hash), it));
        let others = self.others.iter().map(|it| (None, it));
        for (hash, limiter) in by_hash.chain(others) {
            let (Some(shared), Some(rate)) = (&limiter.counters.shared, &limiter.ir.rate) else {
                continue;
            };
            let Some(leases) = &shared.leases else {
                continue;
            };
            leases.each_lacking(random, |key, entry| {
                is_active = true;
                let Owner::Other(owner, pod) = view.owner(key) else {
                    entry.replace(u64::MAX);
                    return;
                };
                if hash.is_none() || !is_served(entry, pod, now) {
                    accrue(entry, rate, view.pods(), now, &shared.group);
                } else {
                    entry.accrues.store(0, Relaxed);
                }
                let Some(limit) = hash else {
                    return;
                };
                let wanted = entry.spent().min(lease(rate));
                if wanted == 0 || entry.due.load(Relaxed) > now {
                    return;
                }
                let wish = Ask {
                    limit,
                    key,
                    tokens: wanted,
                };
                let pending = PendingAsk {
                    ask: wish,
                    limiter: limiter.clone(),
                };
                if ask(owner, pending) {
                    shared.group.counts.asked.fetch_add(wanted, Relaxed);
                }
            });
        }
        is_active
    }

    /// Grants another pod what there is of a key.
    pub fn grant(&self, view: &View, ask: Ask, now: u64) -> Grant {
        let limiter = self.by_hash.get(&ask.limit);
        let limiter =
            limiter.and_then(|it| Some((it, it.counters.shared.as_ref()?, it.ir.rate.as_ref()?)));
        let Some((limiter, shared, rate)) = limiter else {
            return Grant::OF_ANOTHER;
        };
        // The lowest bit is that of every key.
        if ask.key & 1 == 0 || !matches!(view.owner(ask.key), Owner::Own) {
            return Grant::OF_ANOTHER;
        }
        limiter.grant_own(shared, rate, view, ask, now)
    }
}

impl PendingAsk {
    /// Applies a response.
    ///
    /// # Errors
    /// When it grants more than was asked for.
    pub fn apply(&self, grant: Grant, now: u64) -> Result<(), TooMuch> {
        if grant.tokens > self.ask.tokens {
            return Err(TooMuch);
        }
        if let Some(shared) = &self.limiter.counters.shared
            && let Some(leases) = &shared.leases
        {
            // Another key may have taken the place.
            leases.get(self.ask.key, |entry| {
                self.apply_to(entry, &shared.group, grant, now)
            });
        }
        Ok(())
    }

    fn apply_to(&self, entry: &Lease, group: &Group, grant: Grant, now: u64) {
        if grant.wait == Grant::UNSERVED {
            entry.gone.store(UNSERVED, Relaxed);
            entry.due.store(now + UNSERVED_WAIT, Relaxed);
            return;
        }
        let borrowed = &group.counts.borrowed;
        borrowed.fetch_add(entry.replace(grant.tokens), Relaxed);
        let pods = group.view().pods();
        let of_owner = self.limiter.ir.rate.as_ref();
        let of_owner = of_owner.map_or(0, |rate| capacity(rate, pods));
        let gone = of_owner.saturating_sub(grant.left).saturating_add(1);
        entry.gone.store(gone.min(UNSERVED - 1), Relaxed);
        let wait = u64::from(grant.wait).min(MAX_WAIT) * MILLISECOND;
        entry.due.store(now + wait, Relaxed);
    }
}

/// A response grants more than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMuch;

impl Limiter {
    /// Reports whether other pods may own keys of this limit, or borrow them.
    pub fn is_shared(&self) -> bool {
        let shared = self.counters.shared.as_ref();
        shared.is_some_and(|shared| shared.leases.is_some())
    }

    /// Returns the hash of the limit that all pods have: of its name and its rate, whatever the version of its policy.
    fn hash(&self, view: &View) -> u64 {
        let mut hasher = view.hasher().build_hasher();
        let policy = self.policy.present();
        let name = [&*policy.namespace, &*policy.name, &*self.ir.name];
        for text in name {
            hasher.write_u64(text.len() as u64);
            hasher.write(text.as_bytes());
        }
        if let Some(rate) = &self.ir.rate {
            hasher.write_u64(rate.requests);
            hasher.write_u64(rate.per.as_secs());
            hasher.write_u64(rate.burst);
        }
        hasher.finish()
    }

    fn grant_own(&self, shared: &Shared, rate: &Rate, view: &View, ask: Ask, now: u64) -> Grant {
        let (pods, full) = (view.pods(), Pace::of(rate));
        let pace = full.share(view.present(), pods);
        let tolerance = pace::tolerance(full, capacity(rate, pods));
        let wanted = ask.tokens.min(lease(rate));
        let times = (|time| pace.amount_in(time), |amount| pace.time_of(amount));
        let (tokens, ahead) = self.counters.arrivals.find(ask.key, now, |place| {
            take_tokens(&place.entry.time, now, tolerance, wanted, times)
        });
        shared.group.counts.granted.fetch_add(tokens, Relaxed);
        let left = match tolerance.checked_sub(ahead) {
            Some(room) => pace.amount_in(room).saturating_add(1),
            None => 0,
        };
        let wait = match wanted.saturating_sub(tokens) {
            0 => 0,
            lacking => {
                let worth = lacking.min(reserve(rate, pods) / 2).max(1);
                let until = ahead
                    .saturating_add(pace.time_of(worth - 1))
                    .saturating_sub(tolerance);
                (until / MILLISECOND).clamp(MIN_WAIT, MAX_WAIT)
            }
        };
        Grant {
            tokens,
            left,
            wait: wait as u32,
        }
    }
}

fn is_served(entry: &Lease, owner: &Pod, now: u64) -> bool {
    owner.is_present(now) && entry.gone.load(Relaxed) != UNSERVED
}

/// Replaces tokens by time, at the part of one pod of the rate, while the owner is away.
fn accrue(entry: &Lease, rate: &Rate, pods: usize, now: u64, group: &Group) {
    let since = entry.accrues.load(Relaxed);
    if since == 0 {
        entry.accrues.store(now, Relaxed);
        return;
    }
    let pace = Pace::of(rate).share(1, pods);
    let tokens = pace.amount_in(now.saturating_sub(since));
    if tokens > 0 {
        group
            .counts
            .unowned
            .fetch_add(entry.replace(tokens), Relaxed);
        entry.accrues.store(since + pace.time_of(tokens), Relaxed);
    }
}
