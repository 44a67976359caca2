//! What the counters of the process were some minutes ago, so that what has failed long ago is not wrong now. Rules, backends
//! and their counters are those of the table.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use super::responses::Responses;
use super::shares::Shares;
use crate::ir::ObjectRef;
use crate::table::{
    Backend, BackendStats, Endpoint, EndpointFault, Limiter, Oidc, Rule, RuleState, Table,
    TokenOutcome, UpstreamFault,
};
use crate::telemetry::ProcessStats;
use crate::telemetry::metrics::HandshakeFailure;

/// Time between two looks at the counters. What is recent is between one and two of them old.
pub(super) const PERIOD: Duration = Duration::from_secs(150);

/// The counters at the last two looks.
#[derive(Debug)]
pub(super) struct Recent {
    older: ArcSwap<Counters>,
    newer: ArcSwap<Counters>,
}

/// Counters at a moment. Rules, backends and endpoints without requests, and limits that none exceeds, are left out.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) process: Process,
    /// By address, which no other rule or backend can have while it is referred to.
    rules: HashMap<usize, (Weak<RuleState>, Responses)>,
    backends: HashMap<usize, (Weak<BackendStats>, (Faults, Times))>,
    /// Requests over each limit, by address as above.
    limits: HashMap<usize, (Weak<Limiter>, u64)>,
    /// By id, which no other endpoint ever has.
    endpoints: HashMap<u64, Shares>,
    /// By policy.
    tokens: BTreeMap<ObjectRef, Tokens>,
}

/// Counters of the process at a moment.
#[derive(Debug)]
pub(super) struct Process {
    at: Instant,
    /// Connections over the limit of the process.
    pub(super) refused: u64,
    /// Lines of the logs that were dropped.
    pub(super) dropped: DroppedLines,
    /// Busy time by worker.
    busy: Vec<Duration>,
    /// Completed TLS handshakes.
    handshakes: u64,
    /// Those that failed, by reason.
    handshake_failures: [u64; HandshakeFailure::ALL.len()],
    /// Spans and records that no collector has got.
    pub(super) unsent: u64,
}

/// Lines that were dropped because their output was too slow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct DroppedLines {
    pub(super) access_log: u64,
    pub(super) log: u64,
}

impl DroppedLines {
    /// Returns those after the earlier ones.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            access_log: self.access_log.saturating_sub(earlier.access_log),
            log: self.log.saturating_sub(earlier.log),
        }
    }

    /// Returns the counts that are not 0.
    pub(super) fn named(self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [("access log", self.access_log), ("log", self.log)];
        all.into_iter().filter(|(_, count)| *count > 0)
    }
}

/// Attempts at a backend that failed because there is too little of something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Faults {
    /// The backend had as much as its policy permits.
    pub(super) overloaded: u64,
    /// The process had no file descriptor left.
    pub(super) descriptors: u64,
    /// The process had no port or memory left.
    pub(super) local: u64,
}

/// How long a backend took to respond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) count: u64,
    total_micros: u64,
}

/// Tokens that a policy needed of its provider.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    /// The provider did not accept the client or its request.
    pub(super) rejected: u64,
    /// The provider was away, or too slow.
    pub(super) unavailable: u64,
    /// What it sent could not be used.
    pub(super) invalid: u64,
    all: u64,
}

impl Default for Recent {
    fn default() -> Self {
        let start = Arc::new(Counters::start());
        Self {
            older: ArcSwap::new(start.clone()),
            newer: ArcSwap::new(start),
        }
    }
}

impl Recent {
    /// Samples the counters.
    pub(super) fn sample(&self, table: &Table, stats: &ProcessStats, dropped: DroppedLines) {
        let now = Arc::new(Counters::now(table, stats, dropped));
        self.older.store(self.newer.swap(now));
    }

    /// Returns the counters of some minutes ago, or those of the start of the process.
    pub(super) fn before(&self) -> Arc<Counters> {
        self.older.load_full()
    }
}

impl Counters {
    fn start() -> Self {
        Self {
            process: Process::now(&ProcessStats::default(), DroppedLines::default()),
            rules: HashMap::new(),
            backends: HashMap::new(),
            limits: HashMap::new(),
            endpoints: HashMap::new(),
            tokens: BTreeMap::new(),
        }
    }

    /// Returns the counters as they are.
    pub(super) fn now(table: &Table, stats: &ProcessStats, dropped: DroppedLines) -> Self {
        let rule = |rule: &Arc<Rule>| {
            let responses = Responses::of(rule);
            let entry = (Arc::downgrade(&rule.state), responses);
            (entry.1.all > 0).then(|| (Arc::as_ptr(&rule.state).addr(), entry))
        };
        let backend = |backend: &Arc<Backend>| {
            let counts = (Faults::of(backend), Times::of(backend));
            let entry = (Arc::downgrade(&backend.stats), counts);
            (counts != Default::default()).then(|| (Arc::as_ptr(&backend.stats).addr(), entry))
        };
        let limit = |limiter: Arc<Limiter>| {
            let exceeded = limiter.exceeded.load(Relaxed);
            let entry = (Arc::downgrade(&limiter), exceeded);
            (exceeded > 0).then(|| (Arc::as_ptr(&limiter).addr(), entry))
        };
        let mut endpoints = HashMap::new();
        for backend in table.backends() {
            let of_backend = backend.endpoints();
            let attempts = of_backend.iter().map(|it| (it.id, attempts(it)));
            endpoints.extend(attempts.filter(|(_, shares)| shares.all > 0));
        }
        let sign_ins = table.sign_ins().into_iter();
        Self {
            process: Process::now(stats, dropped),
            rules: table.rules().filter_map(rule).collect(),
            backends: table.backends().filter_map(backend).collect(),
            limits: table.limiters().into_iter().filter_map(limit).collect(),
            endpoints,
            tokens: sign_ins
                .map(|(policy, oidc)| (policy, Tokens::of(&oidc)))
                .collect(),
        }
    }

    /// Returns the responses of a rule since then.
    pub(super) fn responses(&self, rule: &Rule) -> Responses {
        let now = Responses::of(rule);
        match self.rules.get(&Arc::as_ptr(&rule.state).addr()) {
            Some((_, before)) => now.since(before),
            None => now,
        }
    }

    /// Returns the requests over a limit since then.
    pub(super) fn exceeded(&self, limiter: &Arc<Limiter>) -> u64 {
        let now = limiter.exceeded.load(Relaxed);
        let known = self.limits.get(&Arc::as_ptr(limiter).addr());
        now.saturating_sub(known.map_or(0, |(_, before)| *before))
    }

    /// Returns the tokens that a policy needed since then.
    pub(super) fn tokens(&self, policy: &ObjectRef, oidc: &Oidc) -> Tokens {
        let before = self.tokens.get(policy).copied().unwrap_or_default();
        Tokens::of(oidc).since(before)
    }

    /// Returns how long a backend took to respond: before then, and since then.
    pub(super) fn times(&self, backend: &Backend) -> (Times, Times) {
        let known = self.backends.get(&Arc::as_ptr(&backend.stats).addr());
        let before = known.map_or(Times::default(), |(_, (_, times))| *times);
        (before, Times::of(backend).since(before))
    }

    /// Returns why the last failed attempt at an endpoint did, and how many have failed since then, if many have.
    pub(super) fn endpoint_fault(&self, endpoint: &Endpoint) -> Option<(EndpointFault, u64)> {
        let last = endpoint.faults.last()?;
        let before = self.endpoints.get(&endpoint.id).copied();
        let since = attempts(endpoint).since(before.unwrap_or_default());
        since.are_failing().then_some((last, since.failed))
    }

    /// Returns the faults of a backend since then.
    pub(super) fn faults(&self, backend: &Backend) -> Faults {
        let now = Faults::of(backend);
        let known = self.backends.get(&Arc::as_ptr(&backend.stats).addr());
        let before = known.map_or(Faults::default(), |(_, (faults, _))| *faults);
        Faults {
            overloaded: now.overloaded.saturating_sub(before.overloaded),
            descriptors: now.descriptors.saturating_sub(before.descriptors),
            local: now.local.saturating_sub(before.local),
        }
    }
}

impl Process {
    /// Returns the counters as they are.
    pub(super) fn now(stats: &ProcessStats, dropped: DroppedLines) -> Self {
        let busy = stats.connections.busy_micros.iter();
        let unsent = stats.traces.dropped();
        Self {
            at: Instant::now(),
            refused: stats.connections.refused.load(Relaxed),
            dropped,
            busy: busy
                .map(|it| Duration::from_micros(it.load(Relaxed)))
                .collect(),
            handshakes: stats.connections.handshakes.load(Relaxed),
            handshake_failures: HandshakeFailure::ALL
                .map(|failure| stats.connections.handshake_failures(failure)),
            unsent: unsent.spans.saturating_add(unsent.records),
        }
    }

    /// Returns the TLS handshakes that failed for a reason since `before`, among these and those that were completed.
    pub(super) fn handshakes(&self, failure: HandshakeFailure, before: &Self) -> Shares {
        let at = failure as usize;
        let failed = self.handshake_failures[at].saturating_sub(before.handshake_failures[at]);
        let completed = self.handshakes.saturating_sub(before.handshakes);
        Shares {
            failed,
            all: completed.saturating_add(failed),
        }
    }

    /// Returns the time since then.
    pub(super) fn age(&self) -> Duration {
        self.at.elapsed()
    }

    /// Returns the share of the time since `before` in which the busiest worker was not idle, from 0 to 1; `None` if too
    /// little time has passed.
    pub(super) fn utilization(&self, before: &Self) -> Option<f64> {
        let time = self.at.checked_duration_since(before.at)?;
        let zero = std::iter::repeat(&Duration::ZERO);
        let pairs = self.busy.iter().zip(before.busy.iter().chain(zero));
        let busiest = pairs
            .map(|(now, before)| now.saturating_sub(*before))
            .max()?;
        (time >= Duration::from_secs(10)).then(|| busiest.as_secs_f64() / time.as_secs_f64())
    }
}

/// Returns the attempts at an endpoint.
fn attempts(endpoint: &Endpoint) -> Shares {
    let failed = endpoint.faults.count();
    // Those that were given a connection, and those that may have got none.
    let all = endpoint.load.total_sent().saturating_add(failed);
    Shares { failed, all }
}

impl Times {
    fn of(backend: &Backend) -> Self {
        let times = backend.stats.response_times();
        Self {
            count: times.count(),
            total_micros: times.total_micros,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            count: self.count.saturating_sub(before.count),
            total_micros: self.total_micros.saturating_sub(before.total_micros),
        }
    }

    /// Returns the time of a response on average; 0 without any.
    pub(super) fn average(self) -> Duration {
        Duration::from_micros(self.total_micros.checked_div(self.count).unwrap_or(0))
    }
}

impl Tokens {
    fn of(oidc: &Oidc) -> Self {
        let mut tokens = Self::default();
        for (_, outcome, count) in oidc.token_endpoint.counts() {
            tokens.all += count;
            match outcome {
                TokenOutcome::Rejected => tokens.rejected += count,
                TokenOutcome::Invalid | TokenOutcome::UnknownKey => tokens.invalid += count,
                TokenOutcome::Unavailable | TokenOutcome::Deferred | TokenOutcome::Busy => {
                    tokens.unavailable += count;
                }
                TokenOutcome::Issued | TokenOutcome::Denied => {}
            }
        }
        tokens
    }

    fn since(self, before: Self) -> Self {
        Self {
            rejected: self.rejected.saturating_sub(before.rejected),
            unavailable: self.unavailable.saturating_sub(before.unavailable),
            invalid: self.invalid.saturating_sub(before.invalid),
            all: self.all.saturating_sub(before.all),
        }
    }

    /// Returns those that failed, among all.
    pub(super) fn shares(self) -> Shares {
        Shares {
            failed: self.rejected + self.unavailable + self.invalid,
            all: self.all,
        }
    }
}

impl Faults {
    fn of(backend: &Backend) -> Self {
        Self {
            overloaded: backend.stats.faults(UpstreamFault::Overloaded),
            descriptors: backend.stats.faults(UpstreamFault::Descriptors),
            local: backend.stats.faults(UpstreamFault::Local),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(at: Instant, busy: &[u64]) -> Process {
        Process {
            at,
            busy: busy.iter().map(|it| Duration::from_secs(*it)).collect(),
            ..Process::now(&ProcessStats::default(), DroppedLines::default())
        }
    }

    #[test]
    fn what_is_recent_is_since_the_look_before_the_last() {
        let recent = Recent::default();
        let start = recent.before();
        let (table, stats) = (Table::empty(), ProcessStats::default());
        let none = DroppedLines::default();
        stats.connections.refused.store(7, Relaxed);
        recent.sample(&table, &stats, none);
        assert!(Arc::ptr_eq(&recent.before(), &start));
        recent.sample(&table, &stats, none);
        assert_eq!(
            (start.process.refused, recent.before().process.refused),
            (0, 7)
        );
    }

    #[test]
    fn utilization_is_that_of_the_busiest_worker() {
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let before = process(start, &[10]);
        let now = process(later(20), &[20, 19]);
        assert_eq!(now.utilization(&before), Some(0.95));
        assert_eq!(process(later(9), &[20]).utilization(&before), None);
        assert_eq!(process(later(20), &[]).utilization(&before), None);
    }
}
