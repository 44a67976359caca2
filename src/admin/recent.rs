//! What the counters of the process were some minutes ago, so that what has failed long ago is not wrong now. Rules, backends
//! and their counters are those of the table.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::table::{
    Backend, BackendStats, Endpoint, EndpointFault, Rule, RuleState, Table, UpstreamFault,
};
use crate::telemetry::ProcessStats;

/// Time between two looks at the counters. What is recent is between one and two of them old.
pub(super) const PERIOD: Duration = Duration::from_secs(150);
/// Percent of failures from which on a rule or an endpoint is a trouble.
const MANY_FAILURES: u64 = 1;

/// The counters at the last two looks.
#[derive(Debug)]
pub(super) struct Recent {
    older: ArcSwap<Counters>,
    newer: ArcSwap<Counters>,
}

/// Counters at a moment. Rules and endpoints without requests, and backends without failures, are left out.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) process: Process,
    /// By address, which no other rule or backend can have while it is referred to.
    rules: HashMap<usize, (Weak<RuleState>, Shares)>,
    backends: HashMap<usize, (Weak<BackendStats>, Faults)>,
    /// By id, which no other endpoint ever has.
    endpoints: HashMap<u64, Shares>,
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

/// Responses of a rule, or attempts at an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    /// Responses with a 5xx, or failed attempts.
    pub(super) failed: u64,
    /// All of them.
    pub(super) all: u64,
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
    /// Looks at the counters.
    pub(super) fn look(&self, table: &Table, stats: &ProcessStats, dropped: DroppedLines) {
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
            process: Process {
                at: Instant::now(),
                refused: 0,
                dropped: DroppedLines::default(),
                busy: Vec::new(),
            },
            rules: HashMap::new(),
            backends: HashMap::new(),
            endpoints: HashMap::new(),
        }
    }

    /// Returns the counters as they are.
    pub(super) fn now(table: &Table, stats: &ProcessStats, dropped: DroppedLines) -> Self {
        let rule = |rule: &Arc<Rule>| {
            let responses = Shares::of(rule);
            let entry = (Arc::downgrade(&rule.state), responses);
            (responses.all > 0).then(|| (Arc::as_ptr(&rule.state).addr(), entry))
        };
        let backend = |backend: &Arc<Backend>| {
            let faults = Faults::of(backend);
            let entry = (Arc::downgrade(&backend.stats), faults);
            (faults != Faults::default()).then(|| (Arc::as_ptr(&backend.stats).addr(), entry))
        };
        let mut endpoints = HashMap::new();
        for backend in table.backends() {
            let of_backend = backend.endpoints();
            let attempts = of_backend.iter().map(|it| (it.id, Shares::of_attempts(it)));
            endpoints.extend(attempts.filter(|(_, attempts)| attempts.all > 0));
        }
        Self {
            process: Process::now(stats, dropped),
            rules: table.rules().filter_map(rule).collect(),
            backends: table.backends().filter_map(backend).collect(),
            endpoints,
        }
    }

    /// Returns the responses of a rule since then.
    pub(super) fn responses(&self, rule: &Rule) -> Shares {
        let now = Shares::of(rule);
        let known = self.rules.get(&Arc::as_ptr(&rule.state).addr());
        now.since(known.map_or(Shares::default(), |(_, before)| *before))
    }

    /// Returns why the last failed attempt at an endpoint did, and how many have failed since then, if many have.
    pub(super) fn endpoint_fault(&self, endpoint: &Endpoint) -> Option<(EndpointFault, u64)> {
        let last = endpoint.faults.last()?;
        let before = self.endpoints.get(&endpoint.id).copied();
        let attempts = Shares::of_attempts(endpoint).since(before.unwrap_or_default());
        attempts.are_failing().then_some((last, attempts.failed))
    }

    /// Returns the faults of a backend since then.
    pub(super) fn faults(&self, backend: &Backend) -> Faults {
        let now = Faults::of(backend);
        let known = self.backends.get(&Arc::as_ptr(&backend.stats).addr());
        let before = known.map_or(Faults::default(), |(_, before)| *before);
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
        Self {
            at: Instant::now(),
            refused: stats.connections.refused.load(Relaxed),
            dropped,
            busy: busy
                .map(|it| Duration::from_micros(it.load(Relaxed)))
                .collect(),
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

impl Shares {
    fn of(rule: &Rule) -> Self {
        let classes = rule.state.stats.classes();
        Self {
            failed: classes[4],
            all: classes.iter().sum(),
        }
    }

    fn of_attempts(endpoint: &Endpoint) -> Self {
        let failed = endpoint.faults.count();
        // Those that were given a connection, and those that may have got none.
        let all = endpoint.load.total_sent().saturating_add(failed);
        Self { failed, all }
    }

    fn since(self, before: Self) -> Self {
        Self {
            failed: self.failed.saturating_sub(before.failed),
            all: self.all.saturating_sub(before.all),
        }
    }

    /// Reports whether so many have failed that it is a trouble.
    pub(super) fn are_failing(self) -> bool {
        self.failed > 0 && self.failed.saturating_mul(100) >= self.all.saturating_mul(MANY_FAILURES)
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
            refused: 0,
            dropped: DroppedLines::default(),
            busy: busy.iter().map(|it| Duration::from_secs(*it)).collect(),
        }
    }

    #[test]
    fn what_is_recent_is_since_the_look_before_the_last() {
        let recent = Recent::default();
        let start = recent.before();
        let (table, stats) = (Table::empty(), ProcessStats::default());
        let none = DroppedLines::default();
        stats.connections.refused.store(7, Relaxed);
        recent.look(&table, &stats, none);
        assert!(Arc::ptr_eq(&recent.before(), &start));
        recent.look(&table, &stats, none);
        assert_eq!(
            (start.process.refused, recent.before().process.refused),
            (0, 7)
        );
    }

    #[test]
    fn one_of_a_hundred_failures_is_a_trouble_and_none_of_none_is_not() {
        let are_failing = |failed, all| Shares { failed, all }.are_failing();
        assert!(are_failing(1, 100) && are_failing(1, 1));
        assert!(!are_failing(1, 101) && !are_failing(0, 0));
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
