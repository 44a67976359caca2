//! Limits of requests at run time: counters that all workers share, and that survive configuration changes. Must not know requests apart from what makes a key.

mod admission;
mod arrivals;
mod counters;
mod exchange;
mod group;
pub(super) mod key;
mod leases;
mod memory;
mod pace;
mod parts;
mod slots;
mod usage;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use rustc_hash::FxHashMap;

pub use self::admission::{LimitPhase, OverLimit, Remaining, TakenTokens, WithinLimits};
use self::arrivals::{add_debt, check_debt, give_token, take_token};
use self::counters::{Counters, CountersId, Shared};
pub use self::exchange::{Ask, Grant, LimitIndex, PendingAsk};
use self::group::Owner;
pub use self::group::{Group, LeaseCounts, Pod, View};
pub use self::key::{ClientIdentity, LimitedRequest, TokenIdentity};
use self::leases::Leases;
use self::memory::{NamespaceBudget, ProcessBudget};
use self::pace::{Pace, capacity, divided_burst, nanos, reserve};
use self::parts::ANY;
use self::slots::{give_slot, take_slot};
pub use self::usage::{KeyUsage, Usage};
use crate::ir;
use crate::ir::limit::{Cost, Limit, Limits as IrLimits, Rate};
use crate::ir::sharing::Text;
use crate::runtime::monotonic;

/// For how long a cost that exceeds a limit may keep a key from it, unless the time of the rate is longer.
const MAX_DEBT: Duration = Duration::from_secs(3_600);
/// The limits in service, each once however many rules it applies to.
#[derive(Clone, Debug, Default)]
pub(super) struct Limiters {
    known: Arc<Mutex<Known>>,
    memory: Arc<ProcessBudget>,
    pub(super) group: Arc<Group>,
}

/// The limits, and the memory of the namespaces of their policies, as long as any is in use.
#[derive(Debug, Default)]
struct Known {
    limiters: FxHashMap<LimitId, Weak<Limiter>>,
    counters: FxHashMap<CountersId, Weak<Counters>>,
    budgets: FxHashMap<Text, Weak<NamespaceBudget>>,
}

/// The policy and the name of a limit.
type LimitId = (ir::ObjectRef, Arc<str>);

/// The limits of a policy, with counters.
#[derive(Debug)]
pub(super) struct CountedLimits {
    pub(super) ir: Arc<IrLimits>,
    limits: Box<[Arc<Limiter>]>,
    /// Whether one of them counts by the identity of clients.
    pub(super) need_identity: bool,
}

/// A limit with its counters.
#[derive(Debug)]
pub struct Limiter {
    /// The policy.
    pub policy: ir::ObjectRef,
    /// The limit.
    pub ir: Arc<Limit>,
    counters: Arc<Counters>,
    /// Requests over the limit, refused or only counted.
    pub exceeded: AtomicU64,
}

/// Where a key is counted.
enum Counting<'a> {
    /// By this pod: `burst` at the pace `full`, and later requests at `pace`.
    Here { pace: Pace, full: Pace, burst: u64 },
    /// By another pod, which replaces what is used of `reserve`.
    Borrowed {
        leases: &'a Leases,
        reserve: u64,
        capacity: u64,
        full: Pace,
    },
}

/// What a request counts as until its end: a request in progress, and a cost that is known only then.
#[derive(Debug, Default)]
pub struct CountedRequest {
    in_progress: Vec<(Arc<Limiter>, u64)>,
    costs: Vec<PendingCost>,
}

/// A cost that is known at the end of a response.
#[derive(Debug)]
struct PendingCost {
    limiter: Arc<Limiter>,
    key: u64,
    /// What the header of the response says.
    of_header: Option<u64>,
}

impl CountedRequest {
    /// Adds what it counts as for other limits.
    pub fn join(&mut self, mut other: Self) {
        self.in_progress.append(&mut other.in_progress);
        self.costs.append(&mut other.costs);
    }

    /// Reads costs from the response of a backend.
    pub fn respond(&mut self, headers: &HeaderMap) {
        for cost in &mut self.costs {
            if let Cost::ResponseHeader(name) = &cost.limiter.ir.cost {
                cost.of_header = headers.get(name).and_then(number);
            }
        }
    }

    /// Charges the costs, once.
    pub fn charge(&mut self, sizes: BodySizes) {
        if !self.costs.is_empty() {
            self.charge_at(sizes, monotonic::nanos());
        }
    }

    fn charge_at(&mut self, sizes: BodySizes, now: u64) {
        for cost in self.costs.drain(..) {
            let amount = match &cost.limiter.ir.cost {
                Cost::Request => continue,
                Cost::RequestBytes => sizes.request,
                Cost::ResponseBytes => sizes.response,
                Cost::ResponseHeader(_) => cost.of_header.unwrap_or(1),
            };
            cost.limiter.charge(cost.key, amount, now);
        }
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        for (limiter, key) in self.in_progress.drain(..) {
            give_slot(&limiter.counters.in_progress, key);
        }
    }
}

/// Bytes of the bodies of a request and its response.
#[derive(Clone, Copy, Debug, Default)]
pub struct BodySizes {
    /// Of the request.
    pub request: u64,
    /// Of the response.
    pub response: u64,
}

/// Returns the number that a header says; `None` if it is none. One that is too large is the largest.
fn number(value: &HeaderValue) -> Option<u64> {
    let digits = value.to_str().ok()?.trim_ascii();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

impl Limiters {
    /// Returns the limit of a policy. Its counters are those of before if the limit is.
    fn get(&self, policy: &ir::ObjectRef, limit: &Arc<Limit>) -> Arc<Limiter> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let id = (policy.clone(), limit.name.clone());
        let previous = known.limiters.get(&id).and_then(Weak::upgrade);
        if let Some(previous) = previous.filter(|previous| previous.ir == *limit) {
            return previous;
        }
        known.retain();
        let limiter = Arc::new(Limiter {
            policy: policy.clone(),
            ir: limit.clone(),
            counters: self.counters(&mut known, policy, limit),
            exceeded: AtomicU64::new(0),
        });
        known.limiters.insert(id, Arc::downgrade(&limiter));
        limiter
    }

    /// Returns the counters of a limit of a policy, which other versions of the policy may have in use.
    fn counters(
        &self,
        known: &mut Known,
        policy: &ir::ObjectRef,
        limit: &Arc<Limit>,
    ) -> Arc<Counters> {
        let id = (policy.present(), limit.clone());
        let previous = known.counters.get(&id).and_then(Weak::upgrade);
        previous.unwrap_or_else(|| {
            let budget = known.budget(&policy.namespace, &self.memory);
            let counters = Arc::new(Counters::new(limit, budget, &self.group));
            known.counters.insert(id, Arc::downgrade(&counters));
            counters
        })
    }

    /// Gives back memory of keys that are not in use, and that of others if limits lack their shares.
    pub(super) fn sweep(&self) {
        self.sweep_at(monotonic::nanos());
    }

    fn sweep_at(&self, now: u64) {
        let all = self.all();
        all.iter().for_each(|limiter| limiter.sweep_at(now));
        if self.memory.take_shortage() {
            all.iter().for_each(|limiter| limiter.shed_at(now));
        }
    }

    /// Returns the limits in service, in order of policies and names.
    pub(super) fn all(&self) -> Vec<Arc<Limiter>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let limiters = known.limiters.values();
        let mut all: Vec<_> = limiters.filter_map(Weak::upgrade).collect();
        all.sort_by(|one, other| (&one.policy, &one.ir.name).cmp(&(&other.policy, &other.ir.name)));
        all
    }
}

impl Known {
    /// Removes what is no longer in use.
    fn retain(&mut self) {
        self.limiters.retain(|_, it| it.strong_count() > 0);
        self.counters.retain(|_, it| it.strong_count() > 0);
        self.budgets.retain(|_, it| it.strong_count() > 0);
    }

    /// Returns the budget of a namespace.
    fn budget(&mut self, namespace: &Text, memory: &Arc<ProcessBudget>) -> Arc<NamespaceBudget> {
        let known = self.budgets.entry(namespace.clone()).or_default();
        known.upgrade().unwrap_or_else(|| {
            let budget = Arc::new(NamespaceBudget::new(memory));
            *known = Arc::downgrade(&budget);
            budget
        })
    }
}

impl CountedLimits {
    pub(super) fn new(ir: &Arc<IrLimits>, limiters: &Limiters) -> Self {
        let limits = ir.limits.iter();
        let limits = limits.map(|limit| limiters.get(&ir.policy, limit));
        Self {
            limits: limits.collect(),
            need_identity: ir.limits.iter().any(|limit| limit.needs_identity()),
            ir: ir.clone(),
        }
    }
}

impl Limiter {
    /// Returns the number of keys in use that others took the place of.
    pub fn evicted(&self) -> u64 {
        self.counters.memory.evicted.load(Relaxed)
    }

    /// Gives back memory of keys that are not in use.
    fn sweep_at(&self, now: u64) {
        self.counters.arrivals.sweep(now);
        self.counters.in_progress.sweep(ANY);
        if let Some(leases) = self.leases() {
            leases.sweep();
        }
    }

    /// Gives back memory beyond its share, with keys in use.
    fn shed_at(&self, now: u64) {
        self.counters.arrivals.shed(now);
        self.counters.in_progress.shed(ANY);
        if let Some(leases) = self.leases() {
            leases.shed();
        }
    }

    fn leases(&self) -> Option<&Leases> {
        self.counters.shared.as_ref()?.leases.as_ref()
    }

    fn key(&self, request: &LimitedRequest<'_>, identity: &ClientIdentity<'_>) -> u64 {
        match &self.counters.shared {
            None => key::hash(&self.counters.hasher, &self.ir, request, identity),
            Some(shared) => key::hash(&shared.group.view().hasher(), &self.ir, request, identity),
        }
    }

    /// Returns where a key is counted at present.
    fn counting(&self, rate: &Rate, key: u64) -> Counting<'_> {
        let full = Pace::of(rate);
        let here = |pace, full, burst| Counting::Here { pace, full, burst };
        let Some(Shared { group, leases }) = &self.counters.shared else {
            return here(full, full, rate.burst);
        };
        let view = group.view();
        let pods = view.pods();
        let part = full.share(1, pods);
        if !self.ir.has_key() {
            return here(part, part, divided_burst(rate, view.index(), pods));
        }
        match (view.owner(key), leases) {
            // Without those away, which use shares of their own.
            (Owner::Own, _) => here(full.share(view.present(), pods), full, capacity(rate, pods)),
            (Owner::Other(..), Some(leases)) => Counting::Borrowed {
                leases,
                reserve: reserve(rate, pods),
                capacity: capacity(rate, pods),
                full,
            },
            (Owner::Other(..), None) => here(part, full, reserve(rate, pods)),
        }
    }

    /// Counts a request of a key. Returns how many are still admitted now by its rate and the time until all of the burst is
    /// again, if that is known, or else the time after which it may be sent again.
    fn admit(
        self: &Arc<Self>,
        key: u64,
        now: u64,
        counted: &mut Option<Box<CountedRequest>>,
    ) -> Result<Option<(u64, Duration)>, Duration> {
        if let Some(concurrent) = self.ir.concurrent {
            if !take_slot(&self.counters.in_progress, key, u64::from(concurrent)) {
                return Err(Duration::from_secs(1));
            }
            let counted = counted.get_or_insert_default();
            counted.in_progress.push((self.clone(), key));
        }
        let Some(rate) = &self.ir.rate else {
            return Ok(None);
        };
        let counting = self.counting(rate, key);
        if !self.ir.cost.is_request() {
            let admitted = self.check_cost(&counting, key, now);
            if admitted.is_ok() {
                let counted = counted.get_or_insert_default();
                counted.costs.push(PendingCost {
                    limiter: self.clone(),
                    key,
                    of_header: None,
                });
            }
            return admitted.map(|()| None).map_err(Duration::from_nanos);
        }
        let admitted = self.take(&counting, rate, key, now);
        let admitted = admitted.map(|(left, reset)| Some((left, Duration::from_nanos(reset))));
        admitted.map_err(Duration::from_nanos)
    }

    /// Takes one token of a key. Returns how many there still are and the nanoseconds until there are all again, or those
    /// until there is one.
    fn take(
        &self,
        counting: &Counting<'_>,
        rate: &Rate,
        key: u64,
        now: u64,
    ) -> Result<(u64, u64), u64> {
        match *counting {
            Counting::Here { pace, full, burst } => {
                let interval = pace.interval();
                let tolerance = match pace == full {
                    true => interval.saturating_mul(burst.saturating_sub(1)),
                    false => pace::tolerance(full, burst),
                };
                let ahead = self.counters.arrivals.find(key, now, |place| {
                    take_token(&place.entry.time, now, interval, tolerance)
                })?;
                let left = tolerance.saturating_sub(ahead - interval) / interval;
                Ok((left, ahead))
            }
            Counting::Borrowed {
                leases,
                reserve,
                capacity,
                full,
            } => leases.take(key, now, reserve, |lease, left| {
                let left = left.ok_or_else(|| lease.wait(full, now))?;
                let left = left.saturating_add(lease.left_at_owner(capacity));
                let used = rate.burst.saturating_sub(left);
                Ok((left, full.time_of(used)))
            }),
        }
    }

    /// Gives back the token that [`Self::admit`] has taken.
    fn give_back(&self, key: u64, now: u64) {
        let Some(rate) = self.ir.rate.as_ref().filter(|_| self.ir.cost.is_request()) else {
            return;
        };
        match self.counting(rate, key) {
            Counting::Here { pace, .. } => {
                give_token(&self.counters.arrivals, key, now, pace.interval())
            }
            Counting::Borrowed { leases, .. } => leases.give_back(key),
        }
    }

    /// Reports whether a key may send a request whose cost is not known yet, or after how many nanoseconds.
    fn check_cost(&self, counting: &Counting<'_>, key: u64, now: u64) -> Result<(), u64> {
        match *counting {
            Counting::Here { full, burst, .. } => {
                let tolerance = full.time_of(burst.saturating_sub(1));
                let checked = self.counters.arrivals.get(key, now, |place| {
                    check_debt(place.entry.time.load(Relaxed), now, tolerance)
                });
                checked.unwrap_or(Ok(()))
            }
            Counting::Borrowed {
                leases,
                reserve,
                full,
                ..
            } => {
                let wait = leases.get(key, |lease| {
                    (lease.spent() >= reserve).then(|| lease.wait(full, now))
                });
                wait.flatten().map_or(Ok(()), Err)
            }
        }
    }

    /// Charges a cost to a key. The key is refused until it is made up for, but not for longer than [`MAX_DEBT`] or the
    /// time of the rate.
    fn charge(&self, key: u64, amount: u64, now: u64) {
        let Some(rate) = self.ir.rate.as_ref().filter(|_| amount > 0) else {
            return;
        };
        let max_debt = nanos(rate.per.max(MAX_DEBT));
        match self.counting(rate, key) {
            Counting::Here { pace, full, burst } => {
                let tolerance = full.time_of(burst.saturating_sub(1));
                let max = tolerance.saturating_add(max_debt);
                self.counters.arrivals.find(key, now, |place| {
                    add_debt(&place.entry.time, now, pace.time_of(amount), max);
                });
            }
            Counting::Borrowed {
                leases,
                reserve,
                full,
                ..
            } => {
                let max = reserve.saturating_add(full.amount_in(max_debt));
                leases.charge(key, now, amount, max);
            }
        }
    }
}

#[cfg(test)]
mod tests;
