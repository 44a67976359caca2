//! Whether the data planes of a Gateway serve what the controller has fed to them: when every ready replica reports so.
//! Pure but for the time, which is given.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::addresses::Replica;
use crate::ir::ObjectRef;
use crate::stream::hub::PodReport;

/// How long statuses are held back while replicas follow. They need milliseconds; one that needs longer is in trouble,
/// and people should be told.
pub(super) const HOLD: Duration = Duration::from_secs(5);
/// The same for a new leader, to which replicas come from the one before.
const START_HOLD: Duration = Duration::from_secs(10);

/// What the data planes of a Gateway have come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They serve it, except for these ports.
    Confirmed(BTreeMap<u16, String>),
    /// They are expected to within moments, at the latest at this time.
    Awaited(Instant),
    /// Some do not, for longer than can be expected.
    Lagging(String),
    /// There is none that is ready.
    Absent,
}

impl Verdict {
    /// When it has to be judged anew, even without news.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Awaited(until) => Some(*until),
            _ => None,
        }
    }
}

/// What is known of each Gateway's data planes from before.
#[derive(Debug)]
pub(super) struct Confirmations {
    gateways: BTreeMap<ObjectRef, State>,
    /// Since when this process has been looking.
    since: Instant,
}

#[derive(Debug, Default)]
struct State {
    /// The revision that all of them have served at one time.
    confirmed: Option<u64>,
    /// Since when they have not served this revision, which they should.
    awaited: Option<(u64, Instant)>,
}

impl Confirmations {
    /// Knows nothing, and looks from now on: replicas had another leader to report to.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            gateways: BTreeMap::new(),
            since: now,
        }
    }

    /// Forgets Gateways that are gone.
    pub(super) fn retain(&mut self, is_there: impl Fn(&ObjectRef) -> bool) {
        self.gateways.retain(|gateway, _| is_there(gateway));
    }

    /// Judges by the reports of a Gateway's ready replicas. Once all of them have served a revision, replicas that come or
    /// fall silent later put it in doubt no more: they take over what is current before they are ready.
    pub(super) fn judge(
        &mut self,
        gateway: &ObjectRef,
        wanted: u64,
        replicas: &[(&Replica, Option<&PodReport>)],
        now: Instant,
    ) -> Verdict {
        let hold = self.hold(now);
        let state = self.gateways.entry(gateway.clone()).or_default();
        if replicas.is_empty() {
            *state = State::default();
            return Verdict::Absent;
        }
        let current: Vec<&PodReport> = replicas
            .iter()
            .filter_map(|(_, report)| *report)
            .filter(|report| report.revision >= Some(wanted))
            .collect();
        if current.len() == replicas.len() {
            state.confirmed = Some(wanted);
        }
        if state.confirmed >= Some(wanted) {
            state.awaited = None;
            return Verdict::Confirmed(unbound(&current));
        }
        // Replicas that follow change after change are not behind.
        let has = |revision| {
            let mut reports = replicas.iter().map(|(_, report)| *report);
            reports.all(|report| report.is_some_and(|report| report.revision >= Some(revision)))
        };
        let awaited = state.awaited.filter(|(revision, _)| !has(*revision));
        let (_, since) = *state.awaited.insert(awaited.unwrap_or((wanted, now)));
        if now < since + hold {
            return Verdict::Awaited(since + hold);
        }
        let complaints: Vec<String> = replicas
            .iter()
            .filter_map(|(replica, report)| complaint(replica, *report, wanted))
            .collect();
        Verdict::Lagging(format!(
            "{} of {} ready replicas do not serve the current configuration: {}",
            complaints.len(),
            replicas.len(),
            complaints.join(", ")
        ))
    }

    fn hold(&self, now: Instant) -> Duration {
        let is_new = now < self.since + START_HOLD;
        if is_new { START_HOLD } else { HOLD }
    }
}

/// What is wrong with a replica.
fn complaint(replica: &Replica, report: Option<&PodReport>, wanted: u64) -> Option<String> {
    match report.map(|report| report.revision) {
        None => Some(format!(
            "{replica} is not connected to the leading controller"
        )),
        Some(None) => Some(format!("{replica} has not reported yet")),
        Some(revision) => (revision < Some(wanted)).then(|| format!("{replica} is behind")),
    }
}

fn unbound(reports: &[&PodReport]) -> BTreeMap<u16, String> {
    let ports = reports.iter().flat_map(|report| &report.unbound);
    ports.map(|(port, error)| (*port, error.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: u64 = 7;

    struct Bench {
        confirmations: Confirmations,
        began: Instant,
        wanted: u64,
    }

    impl Bench {
        fn new() -> Self {
            // A leader that has led for a while.
            let began = Instant::now() + START_HOLD;
            Self {
                confirmations: Confirmations::new(Instant::now()),
                began,
                wanted: WANTED,
            }
        }

        /// The verdict so many seconds after the beginning, when replicas serve these revisions; 0 is one that is not
        /// connected.
        fn judge(&mut self, seconds: u64, revisions: &[u64]) -> Verdict {
            let gateway = ObjectRef::gateway_api("Gateway", "infra", "edge");
            let replicas: Vec<_> = (0..revisions.len())
                .map(|index| Replica {
                    pod: format!("edge-{index}"),
                    address: [10, 0, 0, index as u8].into(),
                })
                .collect();
            let reports: Vec<_> = revisions
                .iter()
                .map(|revision| (*revision > 0).then(|| PodReport::of_revision(*revision)))
                .collect();
            let replicas: Vec<_> = replicas
                .iter()
                .zip(reports.iter().map(Option::as_ref))
                .collect();
            let now = self.began + Duration::from_secs(seconds);
            let wanted = self.wanted;
            self.confirmations.judge(&gateway, wanted, &replicas, now)
        }
    }

    #[test]
    fn every_ready_replica_has_to_serve_it() {
        let mut bench = Bench::new();
        assert_eq!(bench.judge(0, &[]), Verdict::Absent);
        for revisions in [[WANTED, WANTED - 1], [WANTED, 0]] {
            let verdict = bench.judge(0, &revisions);
            assert!(matches!(verdict, Verdict::Awaited(_)), "{verdict:?}");
        }
        let confirmed = Verdict::Confirmed(BTreeMap::new());
        assert_eq!(bench.judge(2, &[WANTED, WANTED + 1]), confirmed);
    }

    #[test]
    fn what_is_confirmed_stays_so_when_replicas_come_or_fall_silent() {
        let mut bench = Bench::new();
        bench.judge(0, &[WANTED]);
        assert!(matches!(
            bench.judge(60, &[WANTED, 0]),
            Verdict::Confirmed(_)
        ));
        assert_eq!(bench.judge(61, &[]), Verdict::Absent);
        assert!(matches!(bench.judge(62, &[0]), Verdict::Awaited(_)));
    }

    #[test]
    fn a_later_revision_is_confirmed_anew_even_if_its_content_was_served_before() {
        let mut bench = Bench::new();
        bench.judge(0, &[WANTED, WANTED]);
        bench.wanted = WANTED + 2;
        let verdict = bench.judge(1, &[WANTED, WANTED + 1]);
        assert!(matches!(verdict, Verdict::Awaited(_)), "{verdict:?}");
        let verdict = bench.judge(6, &[WANTED, WANTED + 2]);
        assert!(matches!(verdict, Verdict::Lagging(_)), "{verdict:?}");
    }

    #[test]
    fn replicas_that_follow_one_change_after_another_are_not_behind() {
        let mut bench = Bench::new();
        for seconds in 0..60 {
            bench.wanted = WANTED + seconds;
            let verdict = bench.judge(seconds, &[bench.wanted - 1, bench.wanted - 2]);
            assert!(matches!(verdict, Verdict::Awaited(_)), "{verdict:?}");
        }
    }

    #[test]
    fn replicas_that_stay_behind_are_named_after_a_while() {
        let mut bench = Bench::new();
        let revisions = [WANTED, WANTED - 1, 0];
        bench.judge(0, &revisions);
        let Verdict::Lagging(message) = bench.judge(5, &revisions) else {
            panic!("not lagging");
        };
        assert_eq!(
            message,
            "2 of 3 ready replicas do not serve the current configuration: pod edge-1 (10.0.0.1) is behind, \
             pod edge-2 (10.0.0.2) is not connected to the leading controller"
        );
    }

    #[test]
    fn a_new_leader_waits_longer() {
        let mut bench = Bench::new();
        bench.confirmations = Confirmations::new(bench.began);
        for (seconds, is_awaited) in [(0, true), (6, true), (10, false)] {
            let verdict = bench.judge(seconds, &[0]);
            assert_eq!(matches!(verdict, Verdict::Awaited(_)), is_awaited);
        }
    }
}
