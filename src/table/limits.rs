//! Limits of requests at run time: counters that all workers share, and that survive configuration changes. Must not know requests apart from what makes a key.

mod counters;
pub(super) mod key;

use std::collections::hash_map::RandomState;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustc_hash::FxHashMap;

use self::counters::{Counters, release, take_slot, take_token};
pub use self::key::LimitedRequest;
use crate::ir;
use crate::ir::limit::{Limit, Limits as IrLimits};
use crate::table::matcher::fits;

/// Keys of a limit.
const KEYS: usize = 65_536;
/// Keys of all limits of a namespace, approximately: 64 MiB.
const KEYS_OF_NAMESPACE: usize = 1 << 22;
/// Keys of a limit in a namespace with many limits.
const MIN_KEYS: usize = 64;

/// The limits in service, each once however many rules it applies to.
#[derive(Clone, Debug, Default)]
pub(super) struct Limiters(Arc<Mutex<FxHashMap<LimitId, Weak<Limiter>>>>);

/// The policy and the name of a limit.
type LimitId = (ir::ObjectRef, Arc<str>);

/// The limits of a policy, with counters.
#[derive(Debug)]
pub(super) struct CountedLimits {
    pub(super) ir: Arc<IrLimits>,
    limits: Box<[Arc<Limiter>]>,
}

/// A limit with its counters.
#[derive(Debug)]
pub struct Limiter {
    /// The policy.
    pub policy: ir::ObjectRef,
    /// The limit.
    pub ir: Arc<Limit>,
    hasher: RandomState,
    /// Theoretical arrival times of GCRA, in nanoseconds.
    arrivals: Counters,
    /// Requests in progress.
    in_progress: Counters,
    /// Requests over the limit, refused or only counted.
    pub exceeded: AtomicU64,
    /// Keys in use that others took the place of.
    pub evicted: AtomicU64,
}

/// The requests in progress that a request counts as, until it is dropped. Allocates only for limits of these.
#[derive(Debug, Default)]
pub struct InProgress(Vec<(Arc<Limiter>, u64)>);

impl InProgress {
    /// Reports whether the request counts as none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        for (limiter, key) in self.0.drain(..) {
            release(&limiter.in_progress, key);
        }
    }
}

/// A request that limits admit.
#[derive(Debug, Default)]
pub struct WithinLimits<'a> {
    /// The requests in progress that it counts as.
    pub in_progress: InProgress,
    /// The limit that it is closest to, if that is one of a rate.
    pub remaining: Option<Remaining<'a>>,
    /// A limit that it is over, but that only counts.
    pub audited: Option<&'a Limiter>,
}

/// A request over a limit.
#[derive(Clone, Copy, Debug)]
pub struct OverLimit<'a> {
    /// The limit.
    pub limiter: &'a Limiter,
    /// The time after which the request may be sent again.
    pub after: Duration,
}

/// The state of the limit that a request is closest to.
#[derive(Clone, Copy, Debug)]
pub struct Remaining<'a> {
    /// The limit.
    pub limit: &'a Limit,
    /// Requests that are still admitted now.
    pub requests: u64,
    /// The time until all of the burst is admitted again.
    pub reset: Duration,
}

impl Limiters {
    /// Returns the limit of a policy. Its counters are those of before if its rate is.
    fn get(&self, policy: &ir::ObjectRef, limit: &Arc<Limit>) -> Arc<Limiter> {
        let mut limiters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (policy.clone(), limit.name.clone());
        let known = limiters.get(&id).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| known.ir == *limit) {
            return known;
        }
        limiters.retain(|_, limiter| limiter.strong_count() > 0);
        let of_namespace = limiters.keys();
        let of_namespace = of_namespace.filter(|(it, _)| it.namespace == policy.namespace);
        let share = KEYS_OF_NAMESPACE / (of_namespace.count() + 1);
        let limiter = Arc::new(Limiter::new(
            policy.clone(),
            limit.clone(),
            share.clamp(MIN_KEYS, KEYS),
        ));
        limiters.insert(id, Arc::downgrade(&limiter));
        limiter
    }

    /// Returns the limits in service, in order of policies and names.
    pub(super) fn all(&self) -> Vec<Arc<Limiter>> {
        let limiters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = limiters.values().filter_map(Weak::upgrade).collect();
        all.sort_by(|one, other| (&one.policy, &one.ir.name).cmp(&(&other.policy, &other.ir.name)));
        all
    }
}

impl CountedLimits {
    pub(super) fn new(ir: &Arc<IrLimits>, limiters: &Limiters) -> Self {
        let limits = ir.limits.iter();
        let limits = limits.map(|limit| limiters.get(&ir.policy, limit));
        Self {
            limits: limits.collect(),
            ir: ir.clone(),
        }
    }

    /// Counts a request at `now`, in nanoseconds.
    ///
    /// # Errors
    /// When it is over a limit.
    pub(super) fn admit(
        &self,
        request: &LimitedRequest<'_>,
        now: u64,
    ) -> Result<WithinLimits<'_>, OverLimit<'_>> {
        let mut within = WithinLimits::default();
        for limiter in &self.limits {
            let limit = &*limiter.ir;
            let condition = limit.condition.as_ref();
            if condition.is_some_and(|condition| !fits(condition, &request.view))
                || limit.exempt.contains(request.client)
            {
                continue;
            }
            let key = key::hash(&limiter.hasher, &limit.key, request);
            match limiter.admit(key, now, &mut within.in_progress) {
                Ok(remaining) => {
                    let known = within.remaining;
                    let is_closer =
                        |it: &Remaining<'_>| known.is_none_or(|known| it.requests < known.requests);
                    within.remaining = remaining.filter(is_closer).or(known);
                }
                Err(after) => {
                    limiter.exceeded.fetch_add(1, Relaxed);
                    if !limit.is_audit {
                        return Err(OverLimit { limiter, after });
                    }
                    within.audited.get_or_insert(limiter);
                }
            }
        }
        Ok(within)
    }
}

impl Limiter {
    fn new(policy: ir::ObjectRef, ir: Arc<Limit>, keys: usize) -> Self {
        let keys = if ir.key.is_empty() { 1 } else { keys };
        let capacity = |is_needed: bool| if is_needed { keys } else { 0 };
        Self {
            arrivals: Counters::new(capacity(ir.rate.is_some())),
            in_progress: Counters::new(capacity(ir.concurrent.is_some())),
            policy,
            ir,
            hasher: RandomState::new(),
            exceeded: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Counts a request of a key. Returns the state of its rate, or the time after which it may be sent again.
    fn admit(
        self: &Arc<Self>,
        key: u64,
        now: u64,
        in_progress: &mut InProgress,
    ) -> Result<Option<Remaining<'_>>, Duration> {
        if let Some(concurrent) = self.ir.concurrent {
            let slot = self.in_progress.find(key, 1, &self.evicted);
            if !take_slot(slot, u64::from(concurrent)) {
                return Err(Duration::from_secs(1));
            }
            in_progress.0.push((self.clone(), key));
        }
        let Some(rate) = self.ir.rate else {
            return Ok(None);
        };
        let per = u64::try_from(rate.per.as_nanos()).unwrap_or(u64::MAX);
        let interval = (per / u64::from(rate.requests)).max(1);
        let tolerance = interval.saturating_mul(u64::from(rate.burst) - 1);
        let arrival = self.arrivals.find(key, now, &self.evicted);
        let ahead = take_token(arrival, now, interval, tolerance).map_err(Duration::from_nanos)?;
        Ok(Some(Remaining {
            limit: &self.ir,
            requests: tolerance.saturating_sub(ahead - interval) / interval,
            reset: Duration::from_nanos(ahead),
        }))
    }
}

#[cfg(test)]
mod tests;
