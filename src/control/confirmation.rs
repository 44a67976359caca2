//! Decides whether the data plane of a Gateway serves the latest revision: every ready replica must
//! report it. Pure: the caller passes the time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::services::Replica;
use crate::ir::{Bind, ObjectRef};
use crate::status::Awaited;
use crate::stream::hub::PodReport;

/// Time for which statuses are held back while replicas follow a change. Replicas need
/// milliseconds. Afterwards, the status reports the lagging ones.
pub(super) const HOLD: Duration = Duration::from_secs(5);
/// [`HOLD`] of a new leader, since replicas first have to reconnect to it.
pub(super) const START_HOLD: Duration = Duration::from_secs(10);

/// State of a Gateway's data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All ready replicas serve the latest revision, as far as they can.
    Confirmed(Shortfall),
    /// Replicas are expected to confirm the latest revision before this deadline. The shortfall is that of the revision
    /// that all of them have reached.
    Awaited(Instant, Awaited, Shortfall),
    /// Some replicas have not confirmed in time. Names them.
    Lagging(String, Awaited),
    /// There is no ready replica. Those that are not ready could not bind these ports.
    Absent(BTreeMap<Bind, String>),
}

/// What replicas that have a revision do not serve of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shortfall {
    /// TCP and UDP ports that could not be bound, with the error.
    pub(super) unbound: BTreeMap<Bind, String>,
    /// QUIC ports that could not be bound, with the error.
    pub(super) without_quic: BTreeMap<u16, String>,
    /// Objects that a replica of another version cannot read: which replica, and what is wrong with the first one.
    pub(super) unread: Option<String>,
}

impl Verdict {
    /// Returns what is awaited, and when to evaluate again without new reports.
    pub(super) fn awaited(&self) -> Option<(Instant, Awaited)> {
        match self {
            Self::Awaited(until, awaited, _) => Some((*until, *awaited)),
            _ => None,
        }
    }
}

/// Confirmation state of all Gateways.
#[derive(Debug)]
pub(super) struct Confirmations {
    gateways: BTreeMap<ObjectRef, State>,
    /// When this process became the leader.
    since: Instant,
}

#[derive(Debug, Default)]
struct State {
    /// The last revision that all replicas have reached at the same time.
    confirmed: Option<u64>,
    /// The first revision that some replica does not serve yet, and since when.
    awaited: Option<(u64, Instant)>,
}

impl Confirmations {
    /// Creates an empty state: replicas reported to the previous leader.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            gateways: BTreeMap::new(),
            since: now,
        }
    }

    /// Forgets a Gateway that no longer exists.
    pub(super) fn forget(&mut self, gateway: &ObjectRef) {
        self.gateways.remove(gateway);
    }

    /// Evaluates the reports of a Gateway's ready replicas. A confirmed revision stays confirmed
    /// when replicas join or disconnect later, because a new replica loads the current revision
    /// before it becomes ready.
    pub(super) fn evaluate(
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
            return Verdict::Absent(BTreeMap::new());
        }
        let revisions = replicas
            .iter()
            .map(|(_, report)| report.and_then(|it| it.revision));
        let reached = revisions.min().flatten();
        // A replica may report a later revision, of endpoints only or by mistake, which says nothing about the next one wanted.
        state.confirmed = state.confirmed.max(reached.min(Some(wanted)));
        let shortfall = Shortfall::of(replicas, state.confirmed.min(Some(wanted)));
        if state.confirmed >= Some(wanted) {
            state.awaited = None;
            return Verdict::Confirmed(shortfall);
        }
        // Replicas that are one change behind in a series of changes do not lag.
        let awaited = state.awaited.filter(|(first, _)| reached < Some(*first));
        let (first, since) = *state.awaited.insert(awaited.unwrap_or((wanted, now)));
        let reached = state.confirmed;
        let progress = Awaited { wanted, reached };
        if now < since + hold {
            return Verdict::Awaited(since + hold, progress, shortfall);
        }
        let lagging: Vec<String> = replicas
            .iter()
            .filter_map(|(replica, report)| lag_reason(replica, *report, first))
            .collect();
        let message = format!(
            "{} of {} ready replicas do not serve the current configuration: {}",
            lagging.len(),
            replicas.len(),
            lagging.join(", ")
        );
        Verdict::Lagging(message, progress)
    }

    fn hold(&self, now: Instant) -> Duration {
        let is_new = now < self.since + START_HOLD;
        if is_new { START_HOLD } else { HOLD }
    }
}

impl Shortfall {
    /// Returns what those replicas that have reached a revision do not serve.
    fn of(replicas: &[(&Replica, Option<&PodReport>)], revision: Option<u64>) -> Self {
        let reports: Vec<(&Replica, &PodReport)> = replicas
            .iter()
            .filter_map(|(replica, report)| Some((*replica, (*report)?)))
            .filter(|(_, report)| report.revision >= revision)
            .collect();
        let quic = reports.iter().flat_map(|(_, report)| &report.quic);
        Self {
            unread: unread(&reports),
            unbound: unbound(reports.iter().map(|(_, report)| *report)),
            without_quic: quic
                .filter_map(|(port, error)| Some((*port, error.clone()?)))
                .collect(),
        }
    }
}

/// Returns why a replica does not confirm a revision; `None` if it does.
fn lag_reason(replica: &Replica, report: Option<&PodReport>, revision: u64) -> Option<String> {
    let Some(report) = report else {
        return Some(format!("{replica} is not connected to the leader"));
    };
    match (report.revision, &report.behind) {
        (None, _) => Some(format!("{replica} has not reported yet")),
        (Some(confirmed), _) if confirmed >= revision => None,
        (Some(_), None) => Some(format!("{replica} is behind")),
        (Some(_), Some(reason)) => Some(format!("{replica} is behind: {reason}")),
    }
}

/// Names a replica that cannot read all objects of its Gateway. Requests that need them are refused there.
fn unread(reports: &[(&Replica, &PodReport)]) -> Option<String> {
    let (replica, problem) = reports
        .iter()
        .find_map(|(replica, report)| Some((replica, report.problems.first()?)))?;
    Some(format!(
        "{replica} cannot read all objects of the Gateway, so give it an image of the controller's version: {problem}"
    ))
}

/// Returns the TCP and UDP ports that some replica could not bind, with the error of one of them.
pub(super) fn unbound<'a>(
    reports: impl IntoIterator<Item = &'a PodReport>,
) -> BTreeMap<Bind, String> {
    let ports = reports.into_iter().flat_map(|report| &report.unbound);
    ports.map(|(port, error)| (*port, error.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: u64 = 7;

    struct Fixture {
        confirmations: Confirmations,
        began: Instant,
        wanted: u64,
    }

    impl Fixture {
        fn new() -> Self {
            // A process that has been the leader for longer than `START_HOLD`.
            let began = Instant::now() + START_HOLD;
            Self {
                confirmations: Confirmations::new(Instant::now()),
                began,
                wanted: WANTED,
            }
        }

        /// Returns the verdict at `seconds` after the start, for replicas that serve these
        /// revisions. 0 stands for a replica that is not connected.
        fn evaluate(&mut self, seconds: u64, revisions: &[u64]) -> Verdict {
            let reports: Vec<_> = revisions
                .iter()
                .map(|revision| (*revision > 0).then(|| PodReport::of_revision(*revision)))
                .collect();
            self.evaluate_reports(seconds, &reports)
        }

        fn evaluate_reports(&mut self, seconds: u64, reports: &[Option<PodReport>]) -> Verdict {
            let gateway = ObjectRef::gateway_api("Gateway", "infra", "edge");
            let replicas: Vec<_> = (0..reports.len())
                .map(|index| Replica {
                    pod: format!("edge-{index}"),
                    address: [10, 0, 0, index as u8].into(),
                })
                .collect();
            let replicas: Vec<_> = replicas
                .iter()
                .zip(reports.iter().map(Option::as_ref))
                .collect();
            let now = self.began + Duration::from_secs(seconds);
            let wanted = self.wanted;
            self.confirmations
                .evaluate(&gateway, wanted, &replicas, now)
        }

        /// Returns the revision that all replicas have reached while a later one is awaited.
        fn reached(&mut self, revisions: &[u64]) -> Option<u64> {
            let verdict = self.evaluate(0, revisions);
            let (_, awaited) = verdict.awaited().unwrap();
            assert_eq!(awaited.wanted, WANTED);
            awaited.reached
        }
    }

    #[test]
    fn confirmed_only_when_every_ready_replica_serves_the_revision() {
        let mut fixture = Fixture::new();
        let absent = Verdict::Absent(BTreeMap::new());
        assert_eq!(fixture.evaluate(0, &[]), absent);
        for revisions in [[WANTED, WANTED - 1], [WANTED, 0]] {
            let verdict = fixture.evaluate(0, &revisions);
            assert!(matches!(verdict, Verdict::Awaited(..)), "{verdict:?}");
        }
        let confirmed = Verdict::Confirmed(Shortfall::default());
        assert_eq!(fixture.evaluate(2, &[WANTED, WANTED + 1]), confirmed);
    }

    #[test]
    fn revision_is_reached_by_the_last_replica() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.reached(&[0, WANTED - 1]), None);
        assert_eq!(fixture.reached(&[WANTED - 2, WANTED - 1]), Some(WANTED - 2));
    }

    #[test]
    fn replica_that_joins_late_takes_back_no_reached_revision() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.reached(&[WANTED - 2]), Some(WANTED - 2));
        // The present replica reaches another one, which the new replica has not reported yet.
        assert_eq!(fixture.reached(&[WANTED - 1, 0]), Some(WANTED - 2));
        assert_eq!(fixture.reached(&[WANTED - 1, WANTED - 1]), Some(WANTED - 1));
    }

    #[test]
    fn replica_that_leaves_is_not_waited_for() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.reached(&[WANTED - 1, WANTED - 3]), Some(WANTED - 3));
        assert_eq!(fixture.reached(&[WANTED - 1]), Some(WANTED - 1));
    }

    #[test]
    fn ports_that_are_not_bound_stay_known_during_a_series_of_changes() {
        let mut fixture = Fixture::new();
        let unbound = BTreeMap::from([(Bind::tcp(None, 80), "taken".to_owned())]);
        let mut report = PodReport::of_revision(WANTED - 1);
        report.unbound.clone_from(&unbound);
        report.quic = [(443, Some("taken".to_owned())), (444, None)].into();
        let verdict = fixture.evaluate_reports(0, &[Some(report)]);
        let Verdict::Awaited(_, _, shortfall) = verdict else {
            panic!("{verdict:?}");
        };
        assert_eq!(shortfall.unbound, unbound);
        assert_eq!(shortfall.without_quic, [(443, "taken".to_owned())].into());
    }

    #[test]
    fn replica_that_cannot_read_an_object_is_named() {
        let replica = |pod: &str| Replica {
            pod: pod.to_owned(),
            address: [10, 0, 0, 1].into(),
        };
        let replicas = [replica("edge-0"), replica("edge-1")];
        let mut reports = [WANTED, WANTED + 1].map(PodReport::of_revision);
        let gateway = ObjectRef::gateway_api("Gateway", "infra", "edge");
        let unread = |reports: &[PodReport; 2]| {
            let replicas: Vec<_> = replicas.iter().zip(reports.iter().map(Some)).collect();
            let now = Instant::now();
            let verdict = Confirmations::new(now).evaluate(&gateway, WANTED, &replicas, now);
            let Verdict::Confirmed(shortfall) = verdict else {
                panic!("{verdict:?}");
            };
            shortfall.unread
        };
        assert_eq!(unread(&reports), None);
        reports[1].problems = vec!["spec.later: unknown field".to_owned()];
        let message = unread(&reports).unwrap();
        assert!(message.starts_with("pod edge-1 "), "{message}");
        assert!(
            message.ends_with(": spec.later: unknown field"),
            "{message}"
        );
    }

    #[test]
    fn stays_confirmed_when_replicas_join_or_disconnect() {
        let mut fixture = Fixture::new();
        fixture.evaluate(0, &[WANTED]);
        assert!(matches!(
            fixture.evaluate(60, &[WANTED, 0]),
            Verdict::Confirmed(_)
        ));
        let absent = Verdict::Absent(BTreeMap::new());
        assert_eq!(fixture.evaluate(61, &[]), absent);
        assert!(matches!(fixture.evaluate(62, &[0]), Verdict::Awaited(..)));
    }

    #[test]
    fn later_revision_needs_its_own_confirmation() {
        let mut fixture = Fixture::new();
        fixture.evaluate(0, &[WANTED, WANTED]);
        fixture.wanted = WANTED + 2;
        let verdict = fixture.evaluate(1, &[WANTED, WANTED + 1]);
        assert!(matches!(verdict, Verdict::Awaited(..)), "{verdict:?}");
        let verdict = fixture.evaluate(6, &[WANTED, WANTED + 2]);
        assert!(matches!(verdict, Verdict::Lagging(..)), "{verdict:?}");
    }

    #[test]
    fn replica_confirms_no_revision_before_it_is_wanted() {
        let mut fixture = Fixture::new();
        let confirmed = Verdict::Confirmed(Shortfall::default());
        assert_eq!(fixture.evaluate(0, &[u64::MAX]), confirmed);
        fixture.wanted = WANTED + 1;
        // Another replica in its place.
        let verdict = fixture.evaluate(1, &[WANTED]);
        assert!(matches!(verdict, Verdict::Awaited(..)), "{verdict:?}");
    }

    #[test]
    fn replicas_that_follow_a_series_of_changes_do_not_lag() {
        let mut fixture = Fixture::new();
        for seconds in 0..60 {
            fixture.wanted = WANTED + seconds;
            let verdict = fixture.evaluate(seconds, &[fixture.wanted - 1, fixture.wanted - 2]);
            assert!(matches!(verdict, Verdict::Awaited(..)), "{verdict:?}");
        }
    }

    #[test]
    fn only_replicas_that_lag_are_named_during_a_series_of_changes() {
        let mut fixture = Fixture::new();
        let mut verdict = None;
        for seconds in 0..=5 {
            fixture.wanted = WANTED + seconds;
            verdict = Some(fixture.evaluate(seconds, &[fixture.wanted - 1, 0]));
        }
        let message = "1 of 2 ready replicas do not serve the current configuration: pod edge-1 (10.0.0.1) is not \
             connected to the leader";
        let progress = Awaited {
            wanted: WANTED + 5,
            reached: None,
        };
        let lagging = Verdict::Lagging(message.to_owned(), progress);
        assert_eq!(verdict, Some(lagging));
    }

    #[test]
    fn names_lagging_replicas_after_the_hold() {
        let mut fixture = Fixture::new();
        let revisions = [WANTED, WANTED - 1, 0];
        fixture.evaluate(0, &revisions);
        let Verdict::Lagging(message, _) = fixture.evaluate(5, &revisions) else {
            panic!("not lagging");
        };
        assert_eq!(
            message,
            "2 of 3 ready replicas do not serve the current configuration: pod edge-1 (10.0.0.1) is behind, \
             pod edge-2 (10.0.0.2) is not connected to the leader"
        );
    }

    #[test]
    fn says_why_a_replica_is_behind() {
        let mut fixture = Fixture::new();
        let mut report = PodReport::of_revision(WANTED - 1);
        report.behind = Some("its copy is read-only".to_owned());
        fixture.evaluate_reports(0, &[Some(report.clone())]);
        let Verdict::Lagging(message, _) = fixture.evaluate_reports(5, &[Some(report)]) else {
            panic!("not lagging");
        };
        assert!(
            message.ends_with(": pod edge-0 (10.0.0.0) is behind: its copy is read-only"),
            "{message}"
        );
    }

    #[test]
    fn new_leader_holds_longer() {
        let mut fixture = Fixture::new();
        fixture.confirmations = Confirmations::new(fixture.began);
        for (seconds, is_awaited) in [(0, true), (6, true), (10, false)] {
            let verdict = fixture.evaluate(seconds, &[0]);
            assert_eq!(matches!(verdict, Verdict::Awaited(..)), is_awaited);
        }
    }
}
