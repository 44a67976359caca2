//! When the controller's own changes replace the pods of Gateways: a few Gateways at a time, the next when the last
//! serves again. Decides only; what is applied is up to others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::desired::RolloutOptions;
use super::revision::Revision;
use crate::ir::ObjectRef;

/// Annotation of workloads with a [`Record`].
const ANNOTATION: &str = "portcullis.dev/rollout";

/// What a workload remembers of its version, for a controller that starts anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// Hash of the pod template.
    pub(super) template: String,
    /// Hash of what users decide.
    pub(super) parameters: String,
    /// The replacement of pods that the controller has begun and not seen the end of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) rollout: Option<Started>,
}

/// How a rollout began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Started {
    /// When.
    pub(super) at: Timestamp,
    /// Whether the Gateway served before.
    pub(super) was_serving: bool,
}

impl Record {
    /// What the annotation of a workload says, if it is ours and can be read.
    pub(super) fn of(metadata: &ObjectMeta) -> Option<Self> {
        let annotation = metadata.annotations.as_ref()?.get(ANNOTATION)?;
        serde_json::from_str(annotation).ok()
    }

    /// A record of this version.
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

/// How far a Deployment or DaemonSet is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Progress {
    observed_generation: i64,
    replicas: i64,
    updated_replicas: i64,
    available_replicas: i64,
    /// Only DaemonSets have it.
    desired_number_scheduled: Option<i64>,
    updated_number_scheduled: i64,
    number_available: i64,
}

impl Progress {
    /// Whether the cluster has made of this generation, with so many replicas, what it asks for.
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

/// Whether a change of a workload may be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    /// At once: a user's change, or none that replaces pods.
    Free,
    /// As a rollout that began so.
    Rollout(Started),
    /// Later, when it is this Gateway's turn.
    Wait,
}

struct Rolling {
    started: Started,
    /// Whether the log has it that this takes long.
    is_overdue: bool,
}

/// Rollouts that are in progress, and Gateways that wait for theirs.
pub(super) struct Rollouts {
    options: RolloutOptions,
    rolling: BTreeMap<ObjectRef, Rolling>,
    waiting: VecDeque<ObjectRef>,
    serving: BTreeSet<ObjectRef>,
    /// What users decided when Gateways without a record began to wait.
    baseline: BTreeMap<ObjectRef, String>,
}

/// How the workload of a rolling Gateway is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkloadState {
    /// Not of the new version yet, or its pods are not.
    InProgress,
    /// All its pods are of the new version and available.
    Complete,
    /// It has no pods, so that nothing is to wait for.
    Empty,
    /// Nothing is to do any more: it is gone, or asks for no change.
    Void,
}

/// What becomes of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The Gateway serves again.
    Serves,
    /// There is nothing to wait for.
    Void,
    /// It took too long, and did not serve before either.
    GivenUp,
    /// It takes too long, and is waited for since it served before.
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
            serving: BTreeSet::new(),
            baseline: BTreeMap::new(),
        }
    }

    pub(super) fn set_serving(&mut self, serving: BTreeSet<ObjectRef>) {
        self.serving = serving;
    }

    /// Goes on with a rollout that another process began.
    pub(super) fn resume(&mut self, gateway: &ObjectRef, started: Started) {
        self.begin(gateway, started);
    }

    /// Whether a workload whose record is `record` may become one of `revision`.
    pub(super) fn permit(
        &self,
        gateway: &ObjectRef,
        record: Option<&Record>,
        revision: &Revision,
    ) -> Permission {
        if let Some(rolling) = self.rolling.get(gateway) {
            return Permission::Rollout(rolling.started);
        }
        // A workload of a version that kept no record counts as of a former template.
        let former = record.map(|record| &record.parameters);
        let former = former.or_else(|| self.baseline.get(gateway));
        let is_users = former.is_some_and(|former| *former != revision.parameters);
        if is_users || record.is_some_and(|record| record.template == revision.template) {
            Permission::Free
        } else {
            Permission::Wait
        }
    }

    /// Puts a Gateway at the end of those that wait.
    pub(super) fn enqueue(&mut self, gateway: &ObjectRef, revision: &Revision) {
        let baseline = self.baseline.entry(gateway.clone());
        baseline.or_insert_with(|| revision.parameters.clone());
        if !self.rolling.contains_key(gateway) && !self.waiting.contains(gateway) {
            self.waiting.push_back(gateway.clone());
        }
    }

    /// A Gateway no longer waits.
    pub(super) fn dequeue(&mut self, gateway: &ObjectRef) {
        self.waiting.retain(|waiting| waiting != gateway);
        self.baseline.remove(gateway);
    }

    /// The rollout of a Gateway is over, also when it could not begin.
    pub(super) fn release(&mut self, gateway: &ObjectRef) {
        self.rolling.remove(gateway);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether any Gateway has pods of a former version because it is not its turn.
    pub(super) fn is_pending(&self) -> bool {
        !self.rolling.is_empty() || !self.waiting.is_empty()
    }

    /// Gateways whose turn it is now.
    pub(super) fn start(&mut self, now: Timestamp) -> Vec<ObjectRef> {
        let mut started = Vec::new();
        while self.rolling.len() < self.options.concurrent {
            let Some(gateway) = self.waiting.pop_front() else {
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

    fn begin(&mut self, gateway: &ObjectRef, started: Started) {
        self.waiting.retain(|waiting| waiting != gateway);
        let rolling = Rolling {
            started,
            is_overdue: false,
        };
        self.rolling.insert(gateway.clone(), rolling);
    }

    /// Rollouts about which there is something to say, given how workloads are. Those that are not overdue end.
    pub(super) fn judge(
        &mut self,
        now: Timestamp,
        state: impl Fn(&ObjectRef) -> WorkloadState,
    ) -> Vec<(ObjectRef, End)> {
        let mut ends = Vec::new();
        let (serving, deadline) = (&self.serving, self.options.progress_deadline);
        self.rolling.retain(|gateway, rolling| {
            let is_late = rolling.left(now, deadline).is_zero();
            let end = match state(gateway) {
                WorkloadState::Void | WorkloadState::Empty => End::Void,
                WorkloadState::Complete if serving.contains(gateway) => End::Serves,
                _ if is_late && !rolling.started.was_serving => End::GivenUp,
                _ if is_late && !rolling.is_overdue => End::Overdue,
                _ => return true,
            };
            rolling.is_overdue |= end == End::Overdue;
            ends.push((gateway.clone(), end));
            end == End::Overdue
        });
        ends
    }

    /// How long until the next rollout is overdue.
    pub(super) fn next_deadline(&self, now: Timestamp) -> Option<Duration> {
        let deadline = self.options.progress_deadline;
        let waited_for = self.rolling.values().filter(|rolling| !rolling.is_overdue);
        waited_for.map(|rolling| rolling.left(now, deadline)).min()
    }
}

impl Rolling {
    /// The time that it has left.
    fn left(&self, now: Timestamp, deadline: Duration) -> Duration {
        let passed = now.duration_since(self.started.at);
        // A clock that was set back gives no more time than there is.
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
    fn only_a_changed_template_under_unchanged_parameters_waits() {
        let mut rollouts = Rollouts::new(RolloutOptions::default());
        let web = gateway("web");
        let record = Record::new(&revision("1", "a"), None);
        let permit =
            |rollouts: &Rollouts, record: Option<&Record>, template: &str, parameters: &str| {
                rollouts.permit(&web, record, &revision(template, parameters))
            };
        assert_eq!(permit(&rollouts, Some(&record), "1", "a"), Permission::Free);
        assert_eq!(permit(&rollouts, Some(&record), "1", "b"), Permission::Free);
        assert_eq!(permit(&rollouts, Some(&record), "2", "b"), Permission::Free);
        assert_eq!(permit(&rollouts, Some(&record), "2", "a"), Permission::Wait);
        // Without a record, what users decided when the wait began is what counts.
        assert_eq!(permit(&rollouts, None, "2", "a"), Permission::Wait);
        rollouts.enqueue(&web, &revision("2", "a"));
        assert_eq!(permit(&rollouts, None, "2", "a"), Permission::Wait);
        assert_eq!(permit(&rollouts, None, "3", "b"), Permission::Free);
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
        assert!(!deployment(1, 2, 2).is_complete(2, Some(2)), "an old pod");
        assert!(
            !deployment(2, 2, 3).is_complete(2, Some(2)),
            "an old pod on top"
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
    fn several_gateways_roll_at_once_if_so_asked() {
        let options = RolloutOptions {
            concurrent: 2,
            ..RolloutOptions::default()
        };
        let mut rollouts = Rollouts::new(options);
        for name in ["a", "b", "c"] {
            rollouts.enqueue(&gateway(name), &revision("1", "1"));
        }
        rollouts.set_serving([gateway("a"), gateway("b")].into());
        let now = Timestamp::now();
        assert_eq!(rollouts.start(now), [gateway("a"), gateway("b")]);
        assert_eq!(rollouts.start(now), []);
        let state = |of: &ObjectRef| match &*of.name {
            "b" => WorkloadState::Complete,
            _ => WorkloadState::InProgress,
        };
        assert_eq!(rollouts.judge(now, state), [(gateway("b"), End::Serves)]);
        assert_eq!(rollouts.start(now), [gateway("c")]);
        assert!(rollouts.is_pending());
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
        rollouts.set_serving([gateway("served")].into());
        let now = Timestamp::now();
        rollouts.start(now);
        let busy = |_: &ObjectRef| WorkloadState::InProgress;
        let before = now + Duration::from_secs(599);
        assert_eq!(rollouts.judge(before, busy), []);
        assert_eq!(rollouts.next_deadline(before), Some(Duration::from_secs(1)));
        let after = now + Duration::from_secs(600);
        let ends = [
            (gateway("broken"), End::GivenUp),
            (gateway("served"), End::Overdue),
        ];
        assert_eq!(rollouts.judge(after, busy), ends);
        // It is said once, and nothing is left to wait for but its pods.
        assert_eq!(rollouts.judge(after, busy), []);
        assert_eq!(rollouts.next_deadline(after), None);
        assert!(rollouts.is_pending());
    }
}
