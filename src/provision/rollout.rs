//! Rollout of the controller's own changes: replaces the pods of a few Gateways at a time, and
//! continues when they serve again. Only decides, and applies nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use imbl::OrdSet;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::desired::RolloutOptions;
use super::revision::Revision;
use crate::ir::ObjectRef;
use crate::ir::sharing::Text;

/// Annotation of workloads with a [`Record`].
const ANNOTATION: &str = "portcullis.dev/rollout";
/// Number of namespaces with overdue rollouts from which on others follow one at a time, each for the time of a deadline, if
/// none has succeeded: then the new version is the likely cause. It may be the owner of these namespaces too.
const MAX_OVERDUE_NAMESPACES: usize = 3;

/// Rollout state stored in a workload, for a controller that restarts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// Hash of the pod template.
    pub(super) template: String,
    /// Hash of the user's settings.
    pub(super) parameters: String,
    /// The rollout that the controller has begun and not completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rollout: Option<Started>,
}

/// Start of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Started {
    /// Start time.
    pub(super) at: Timestamp,
    /// Whether the Gateway served before.
    pub(super) was_serving: bool,
}

impl Record {
    /// Parses the annotation of a workload; `None` if it is missing or invalid.
    pub(super) fn of(metadata: &ObjectMeta) -> Option<Self> {
        let annotation = metadata.annotations.as_ref()?.get(ANNOTATION)?;
        serde_json::from_str(annotation).ok()
    }

    /// Creates a record of a version.
    pub(super) fn new(revision: &Revision, rollout: Option<Started>) -> Self {
        Self {
            template: revision.template.clone(),
            parameters: revision.parameters.clone(),
            rollout,
        }
    }

    /// Writes the annotation into an object.
    pub(super) fn annotate(&self, object: &mut Value) {
        object["metadata"]["annotations"][ANNOTATION] = json!(json!(self).to_string());
    }
}

/// Status of a Deployment or DaemonSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Progress {
    observed_generation: i64,
    replicas: i64,
    updated_replicas: i64,
    available_replicas: i64,
    /// DaemonSets only.
    desired_number_scheduled: Option<i64>,
    updated_number_scheduled: i64,
    number_available: i64,
}

impl Progress {
    /// Reports whether the status covers this generation and all desired replicas are updated and
    /// available.
    pub(super) fn is_complete(&self, generation: i64, replicas: Option<i64>) -> bool {
        let is_observed = self.observed_generation >= generation;
        let is_there = match self.desired_number_scheduled {
            Some(pods) => self.updated_number_scheduled == pods && self.number_available == pods,
            None => {
                let pods = replicas.unwrap_or(1);
                [
                    self.replicas,
                    self.updated_replicas,
                    self.available_replicas,
                ] == [pods; 3]
            }
        };
        is_observed && is_there
    }
}

/// Permission to apply a change of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    /// Immediately: the user made the change, or it does not replace pods.
    Immediate,
    /// As part of this rollout.
    Rollout(Started),
    /// Later: the Gateway waits for its turn.
    Wait,
}

struct ActiveRollout {
    started: Started,
    /// Whether the deadline has passed and was reported.
    is_overdue: bool,
}

/// Rollouts in progress, and Gateways that wait.
pub(super) struct Rollouts {
    options: RolloutOptions,
    rolling: BTreeMap<ObjectRef, ActiveRollout>,
    waiting: VecDeque<ObjectRef>,
    serving: OrdSet<ObjectRef>,
    /// Whether a Gateway serves with the version that is rolled out.
    has_succeeded: bool,
    /// Number of rollouts that were overdue or given up, by namespace. Namespaces with fewer have precedence.
    failed: BTreeMap<Text, usize>,
    /// The user's settings at the time when a Gateway without a record began to wait.
    baseline: BTreeMap<ObjectRef, String>,
}

/// State of the workload during a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkloadState {
    /// The template or some pods are not updated yet.
    InProgress,
    /// All pods are updated and available.
    Complete,
    /// No pods are desired.
    Empty,
    /// The workload is deleted, or needs no change.
    Void,
}

/// How a rollout ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RolloutEnd {
    /// The Gateway serves again.
    Serves,
    /// No workload had to be waited for.
    Void,
    /// The deadline has passed, and the Gateway did not serve before.
    GivenUp,
    /// The deadline has passed, but the rollout keeps waiting because the Gateway served before.
    Overdue,
}

impl Rollouts {
    pub(super) fn new(options: RolloutOptions) -> Self {
        Self {
            options: RolloutOptions {
                concurrent: options.concurrent.max(1),
                ..options
            },
            rolling: BTreeMap::new(),
            waiting: VecDeque::new(),
            serving: OrdSet::new(),
            has_succeeded: false,
            failed: BTreeMap::new(),
            baseline: BTreeMap::new(),
        }
    }

    pub(super) fn set_serving(&mut self, serving: OrdSet<ObjectRef>) {
        self.serving = serving;
    }

    /// Takes over a rollout that another process has begun.
    pub(super) fn resume(&mut self, gateway: &ObjectRef, started: Started) {
        self.begin(gateway, started);
    }

    /// Decides whether a workload with this record may be changed to `revision`.
    pub(super) fn permit(
        &self,
        gateway: &ObjectRef,
        record: Option<&Record>,
        revision: &Revision,
    ) -> Permission {
        if let Some(rolling) = self.rolling.get(gateway) {
            return Permission::Rollout(rolling.started);
        }
        // A workload without a record counts as having a previous template.
        let old = record.map(|record| &record.parameters);
        let old = old.or_else(|| self.baseline.get(gateway));
        let is_users = old.is_some_and(|old| *old != revision.parameters);
        if is_users || record.is_some_and(|record| record.template == revision.template) {
            Permission::Immediate
        } else {
            Permission::Wait
        }
    }

    /// Adds a Gateway to the end of the waiting list.
    pub(super) fn enqueue(&mut self, gateway: &ObjectRef, revision: &Revision) {
        // The results of a version say nothing about the next one.
        if !self.is_pending() {
            self.has_succeeded = false;
            self.failed.clear();
        }
        let baseline = self.baseline.entry(gateway.clone());
        baseline.or_insert_with(|| revision.parameters.clone());
        if !self.rolling.contains_key(gateway) && !self.waiting.contains(gateway) {
            self.waiting.push_back(gateway.clone());
        }
    }

    /// Removes a Gateway from the waiting list.
    pub(super) fn dequeue(&mut self, gateway: &ObjectRef) {
        self.waiting.retain(|waiting| waiting != gateway);
        self.baseline.remove(gateway);
    }

    /// Ends the rollout of a Gateway, even if it could not begin.
    pub(super) fn release(&mut self, gateway: &ObjectRef) {
        self.rolling.remove(gateway);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Reports whether any Gateway waits, which means that it has pods of a previous version.
    pub(super) fn is_pending(&self) -> bool {
        !self.rolling.is_empty() || !self.waiting.is_empty()
    }

    /// Starts rollouts up to the limit. Returns their Gateways. An overdue rollout frees its place for other namespaces. If many
    /// are overdue, there is one place.
    pub(super) fn start(&mut self, now: Timestamp) -> Vec<ObjectRef> {
        let overdue = self.rolling.iter().filter(|(_, one)| one.is_overdue);
        let stalled: BTreeSet<_> = overdue
            .map(|(gateway, _)| gateway.namespace.clone())
            .collect();
        let concurrent = match !self.has_succeeded && stalled.len() >= MAX_OVERDUE_NAMESPACES {
            true => 1,
            false => self.options.concurrent,
        };
        let mut started = Vec::new();
        while self.in_progress() < concurrent {
            let may_start = |gateway: &ObjectRef| !stalled.contains(&gateway.namespace);
            let waiting = self.waiting.iter().enumerate();
            let next = waiting
                .filter(|(_, gateway)| may_start(gateway))
                .min_by_key(|(place, gateway)| (self.failed.get(&gateway.namespace), *place));
            let next = next.map(|(place, _)| place);
            let Some(gateway) = next.and_then(|next| self.waiting.remove(next)) else {
                break;
            };
            let was_serving = self.serving.contains(&gateway);
            self.begin(
                &gateway,
                Started {
                    at: now,
                    was_serving,
                },
            );
            started.push(gateway);
        }
        started
    }

    /// Number of rollouts that hold a place.
    fn in_progress(&self) -> usize {
        let rolling = self.rolling.values();
        rolling.filter(|rolling| !rolling.is_overdue).count()
    }

    fn begin(&mut self, gateway: &ObjectRef, started: Started) {
        self.waiting.retain(|waiting| waiting != gateway);
        let rolling = ActiveRollout {
            started,
            is_overdue: false,
        };
        self.rolling.insert(gateway.clone(), rolling);
    }

    /// Evaluates rollouts in progress. Ends and returns those that are complete or given up. Also
    /// returns each overdue one once.
    pub(super) fn evaluate(
        &mut self,
        now: Timestamp,
        state: impl Fn(&ObjectRef) -> WorkloadState,
    ) -> Vec<(ObjectRef, RolloutEnd)> {
        let mut ends = Vec::new();
        let (serving, deadline) = (&self.serving, self.options.progress_deadline);
        let (has_succeeded, failed) = (&mut self.has_succeeded, &mut self.failed);
        self.rolling.retain(|gateway, rolling| {
            let is_late = rolling.left(now, deadline).is_zero();
            let end = match state(gateway) {
                WorkloadState::Void | WorkloadState::Empty => RolloutEnd::Void,
                WorkloadState::Complete if serving.contains(gateway) => RolloutEnd::Serves,
                _ if is_late && !rolling.started.was_serving => RolloutEnd::GivenUp,
                _ if is_late && !rolling.is_overdue => RolloutEnd::Overdue,
                _ => return true,
            };
            rolling.is_overdue |= end == RolloutEnd::Overdue;
            *has_succeeded |= end == RolloutEnd::Serves;
            if matches!(end, RolloutEnd::GivenUp | RolloutEnd::Overdue) {
                *failed.entry(gateway.namespace.clone()).or_default() += 1;
            }
            ends.push((gateway.clone(), end));
            end == RolloutEnd::Overdue
        });
        ends
    }

    /// Returns the time until the next rollout is overdue.
    pub(super) fn next_deadline(&self, now: Timestamp) -> Option<Duration> {
        let deadline = self.options.progress_deadline;
        let waited_for = self.rolling.values().filter(|rolling| !rolling.is_overdue);
        waited_for.map(|rolling| rolling.left(now, deadline)).min()
    }
}

impl ActiveRollout {
    /// Returns the time left until the deadline.
    fn left(&self, now: Timestamp, deadline: Duration) -> Duration {
        let passed = now.duration_since(self.started.at);
        // If the clock was set back, the elapsed time counts as zero.
        let passed = Duration::try_from(passed).unwrap_or_default();
        deadline.saturating_sub(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(name: &str) -> ObjectRef {
        ObjectRef::gateway_api("Gateway", "shop", name)
    }

    fn revision(template: &str, parameters: &str) -> Revision {
        Revision {
            template: template.to_owned(),
            parameters: parameters.to_owned(),
        }
    }

    #[test]
    fn record_survives_the_annotation() {
        let started = Started {
            at: "2026-01-01T00:00:00Z".parse().unwrap(),
            was_serving: true,
        };
        let record = Record::new(&revision("1", "2"), Some(started));
        let mut object = json!({"metadata": {"name": "web"}});
        record.annotate(&mut object);
        let metadata = serde_json::from_value(object["metadata"].clone()).unwrap();
        assert_eq!(Record::of(&metadata), Some(record));
        object["metadata"]["annotations"][ANNOTATION] = json!("{");
        let metadata = serde_json::from_value(object["metadata"].clone()).unwrap();
        assert_eq!(Record::of(&metadata), None);
    }

    #[test]
    fn only_template_changes_by_the_controller_wait() {
        let mut rollouts = Rollouts::new(RolloutOptions::default());
        let web = gateway("web");
        let record = Record::new(&revision("1", "a"), None);
        let permit =
            |rollouts: &Rollouts, record: Option<&Record>, template: &str, parameters: &str| {
                rollouts.permit(&web, record, &revision(template, parameters))
            };
        assert_eq!(
            permit(&rollouts, Some(&record), "1", "a"),
            Permission::Immediate
        );
        assert_eq!(
            permit(&rollouts, Some(&record), "1", "b"),
            Permission::Immediate
        );
        assert_eq!(
            permit(&rollouts, Some(&record), "2", "b"),
            Permission::Immediate
        );
        assert_eq!(permit(&rollouts, Some(&record), "2", "a"), Permission::Wait);
        // Without a record, the user's settings at the time when the wait began count.
        assert_eq!(permit(&rollouts, None, "2", "a"), Permission::Wait);
        rollouts.enqueue(&web, &revision("2", "a"));
        assert_eq!(permit(&rollouts, None, "2", "a"), Permission::Wait);
        assert_eq!(permit(&rollouts, None, "3", "b"), Permission::Immediate);
        let at = Timestamp::now();
        assert_eq!(rollouts.start(at), std::slice::from_ref(&web));
        let started = Started {
            at,
            was_serving: false,
        };
        assert_eq!(
            permit(&rollouts, None, "2", "a"),
            Permission::Rollout(started)
        );
    }

    #[test]
    fn workload_is_complete_when_all_pods_are_new_and_available() {
        let progress = |status: Value| serde_json::from_value::<Progress>(status).unwrap();
        let deployment = |updated: u32, available: u32, all: u32| {
            progress(json!({
                "observedGeneration": 2, "replicas": all, "updatedReplicas": updated,
                "availableReplicas": available,
            }))
        };
        assert!(deployment(2, 2, 2).is_complete(2, Some(2)));
        assert!(!deployment(2, 2, 2).is_complete(3, Some(2)), "not observed");
        assert!(
            !deployment(1, 2, 2).is_complete(2, Some(2)),
            "an old pod is left"
        );
        assert!(
            !deployment(2, 2, 3).is_complete(2, Some(2)),
            "an old pod is left in addition"
        );
        assert!(
            !deployment(2, 1, 2).is_complete(2, Some(2)),
            "not available"
        );
        assert!(progress(json!({"observedGeneration": 1})).is_complete(1, Some(0)));
        let set = |updated: u32, available: u32| {
            progress(json!({
                "observedGeneration": 1, "desiredNumberScheduled": 3,
                "updatedNumberScheduled": updated, "numberAvailable": available,
            }))
        };
        assert!(set(3, 3).is_complete(1, None));
        assert!(!set(2, 3).is_complete(1, None));
        assert!(!set(3, 2).is_complete(1, None));
    }

    #[test]
    fn rolls_out_concurrently_up_to_the_limit() {
        let options = RolloutOptions {
            concurrent: 2,
            ..RolloutOptions::default()
        };
        let mut rollouts = Rollouts::new(options);
        for name in ["a", "b", "c"] {
            rollouts.enqueue(&gateway(name), &revision("1", "1"));
        }
        rollouts.set_serving([gateway("a"), gateway("b")].into_iter().collect());
        let now = Timestamp::now();
        assert_eq!(rollouts.start(now), [gateway("a"), gateway("b")]);
        assert_eq!(rollouts.start(now), []);
        let state = |of: &ObjectRef| match &*of.name {
            "b" => WorkloadState::Complete,
            _ => WorkloadState::InProgress,
        };
        assert_eq!(
            rollouts.evaluate(now, state),
            [(gateway("b"), RolloutEnd::Serves)]
        );
        assert_eq!(rollouts.start(now), [gateway("c")]);
        assert!(rollouts.is_pending());
    }

    #[test]
    fn overdue_rollout_stops_only_its_namespace() {
        let options = RolloutOptions {
            concurrent: 1,
            progress_deadline: Duration::from_secs(600),
        };
        let of = |namespace: &str, name: &str| ObjectRef::gateway_api("Gateway", namespace, name);
        let gateways = [
            of("bad", "1"),
            of("bad", "2"),
            of("worse", "1"),
            of("good", "1"),
            of("worst", "1"),
            of("last", "1"),
        ];
        let busy = |_: &ObjectRef| WorkloadState::InProgress;
        let is_good = |gateway: &ObjectRef| match &*gateway.namespace {
            "good" => WorkloadState::Complete,
            _ => WorkloadState::InProgress,
        };
        for has_good in [true, false] {
            let mut rollouts = Rollouts::new(options);
            let gateways = gateways
                .iter()
                .filter(|gateway| has_good || &*gateway.namespace != "good");
            for gateway in gateways.clone() {
                rollouts.enqueue(gateway, &revision("1", "1"));
            }
            rollouts.set_serving(gateways.cloned().collect());
            let mut now = Timestamp::now();
            let mut order = Vec::new();
            for _ in 0..8 {
                order.extend(rollouts.start(now));
                now += Duration::from_secs(600);
                if has_good {
                    rollouts.evaluate(now, is_good);
                } else {
                    rollouts.evaluate(now, busy);
                }
            }
            let order: Vec<_> = order.iter().map(|one| &*one.namespace).collect();
            let expected: &[&str] = match has_good {
                true => &["bad", "worse", "good", "worst", "last"],
                false => &["bad", "worse", "worst", "last"],
            };
            assert_eq!(order, expected);
        }
    }

    #[test]
    fn stalled_namespaces_that_come_first_delay_others_and_do_not_stop_them() {
        let options = RolloutOptions {
            concurrent: 2,
            progress_deadline: Duration::from_secs(600),
        };
        let mut rollouts = Rollouts::new(options);
        let namespaces = ["a", "b", "c", "d", "e", "good", "f", "g"];
        let gateways = namespaces.map(|name| ObjectRef::gateway_api("Gateway", name, "web"));
        for gateway in &gateways {
            rollouts.enqueue(gateway, &revision("1", "1"));
        }
        rollouts.set_serving(gateways.into_iter().collect());
        let state = |gateway: &ObjectRef| match &*gateway.namespace {
            "good" => WorkloadState::Complete,
            _ => WorkloadState::InProgress,
        };
        let mut now = Timestamp::now();
        // The new version may be the cause, until it has succeeded once.
        for expected in [&["a", "b"][..], &["c", "d"], &["e"], &["good"], &["f", "g"]] {
            let started = rollouts.start(now);
            let started: Vec<_> = started.iter().map(|one| &*one.namespace).collect();
            assert_eq!(started, expected);
            assert_eq!(rollouts.start(now), [], "{expected:?} have their time");
            now += Duration::from_secs(600);
            rollouts.evaluate(now, state);
        }
    }

    #[test]
    fn deadline_ends_only_rollouts_of_gateways_that_did_not_serve_before() {
        let options = RolloutOptions {
            concurrent: 2,
            progress_deadline: Duration::from_secs(600),
        };
        let mut rollouts = Rollouts::new(options);
        for name in ["served", "broken"] {
            rollouts.enqueue(&gateway(name), &revision("1", "1"));
        }
        rollouts.set_serving(OrdSet::unit(gateway("served")));
        let now = Timestamp::now();
        rollouts.start(now);
        let busy = |_: &ObjectRef| WorkloadState::InProgress;
        let before = now + Duration::from_secs(599);
        assert_eq!(rollouts.evaluate(before, busy), []);
        assert_eq!(rollouts.next_deadline(before), Some(Duration::from_secs(1)));
        let after = now + Duration::from_secs(600);
        let ends = [
            (gateway("broken"), RolloutEnd::GivenUp),
            (gateway("served"), RolloutEnd::Overdue),
        ];
        assert_eq!(rollouts.evaluate(after, busy), ends);
        // Reported once. From then on, only the pods matter.
        assert_eq!(rollouts.evaluate(after, busy), []);
        assert_eq!(rollouts.next_deadline(after), None);
        assert!(rollouts.is_pending());
    }
}
