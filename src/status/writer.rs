//! Writes statuses to the API server: only differences, never over a newer status, with bounded
//! concurrency and rate.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::{GroupVersionKind, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::condition::{Condition, ConditionType};
use super::held::Held;
use super::merge::{DesiredStatus, merge};
use super::release_backend::ReleaseBackendStatus;
use super::report::StatusReport;
use super::stored::{Stored, StoredStatus};
use super::transitions::transitions;
use crate::api::Kind;
use crate::api::kind::StatusShape;
use crate::cluster::api_server::{describe, field_manager, is_status_ours, request, retry_after};
use crate::cluster::events::{Events, Notice};
use crate::cluster::work_queue::{Limits, WorkQueue};
use crate::ir::ObjectRef;
use crate::runtime::backoff::Backoff;
use crate::telemetry::metrics::{ControllerStats, WriteResult};

/// Limits of concurrent writes. The API server may wait for a webhook of a namespace, which must not take all of them.
const LIMITS: Limits = Limits {
    total: 16,
    in_namespace: 8,
};
const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(10),
};
/// Interval between writes: at most 100 per second, to leave capacity for other clients of the API
/// server.
const SPACING: Duration = Duration::from_millis(10);
/// Maximum pause of all writes that an overloaded API server can request (`Retry-After`).
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The statuses to store.
#[derive(Clone, Debug, Default)]
pub struct Statuses {
    /// Desired statuses of all objects. Routes, policies and XBackends that are not in it must not
    /// have entries of this controller.
    pub report: Arc<StatusReport>,
    /// Which of them must not be written for now.
    pub held: Held,
}

/// Keeps the stored statuses equal to the desired ones.
pub struct Writer {
    /// The API server.
    pub client: Client,
    /// `controllerName` of this controller's entries.
    pub controller: Arc<str>,
    /// Features of GatewayClasses, sorted.
    pub features: &'static [&'static str],
    /// Cache of stored statuses.
    pub stored: Arc<Stored>,
    /// Counters of writes.
    pub stats: Arc<ControllerStats>,
    /// Receives the written transitions.
    pub events: Events,
}

/// A pending write.
struct Write {
    object: ObjectRef,
    stored: StoredStatus,
    status: Value,
    /// Hash of the status without its timestamps.
    hash: u64,
}

/// Result of a write.
enum Outcome {
    /// With the UID of the object.
    Written(StoredStatus, String),
    /// Conflict with another writer; contains the status that is stored now.
    Overtaken(StoredStatus),
    Gone,
    /// Rejected by the API server; a retry cannot succeed.
    Refused(String),
    Failed {
        error: String,
        /// `Retry-After` of the API server.
        retry_after: Option<Duration>,
    },
}

impl Outcome {
    fn failed(error: &kube::Error) -> Self {
        Self::Failed {
            error: describe(error),
            retry_after: retry_after(error),
        }
    }

    fn result(&self) -> WriteResult {
        match self {
            Self::Written(..) => WriteResult::Written,
            Self::Overtaken(_) => WriteResult::Overtaken,
            Self::Gone => WriteResult::Gone,
            Self::Refused(_) => WriteResult::Refused,
            Self::Failed { .. } => WriteResult::Failed,
        }
    }
}

/// Takes changes that nobody needs, so that they do not accumulate, until there are no more.
pub async fn discard(changes: &mut mpsc::UnboundedReceiver<ObjectRef>) {
    while changes.recv().await.is_some() {}
}

impl Writer {
    /// Waits for the first desired statuses, then writes while polled, until they are withdrawn.
    /// `changes` yields objects whose stored status has changed.
    pub async fn run(
        &self,
        mut desired: watch::Receiver<Option<Statuses>>,
        changes: &mut mpsc::UnboundedReceiver<ObjectRef>,
    ) {
        let mut queue = WorkQueue::new(LIMITS, BACKOFF);
        // Objects whose turn came while their status was held back.
        let mut deferred = HashSet::new();
        // Before the first report, a missing entry does not mean that it has to be removed.
        let first = async {
            let first = desired.wait_for(Option::is_some).await.ok()?;
            first.clone()
        };
        let first = tokio::select! {
            first = first => first,
            // All objects are compared then.
            () = discard(changes) => None,
        };
        let Some(mut statuses) = first else {
            return;
        };
        for object in self.stored.objects() {
            queue.push(&object);
        }
        let mut writes = FuturesUnordered::new();
        let mut spacing = interval(SPACING);
        // The default behavior would make up for missed ticks in a burst, beyond the rate limit.
        spacing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = desired.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let Some(new) = desired.borrow_and_update().clone() else {
                        return;
                    };
                    enqueue(&mut queue, &mut deferred, &statuses, &new);
                    statuses = new;
                }
                Some(object) = changes.recv() => queue.push(&object),
                Some((write, outcome)) = writes.next() => {
                    self.finish(&mut queue, &mut spacing, &write, outcome);
                }
                // A write is computed only when its turn has come, from the latest state. Other events drop the future:
                // `Interval::tick` is cancel safe, so no tick is lost.
                () = turn(&queue, &mut spacing) => {
                    if let Some(write) = self.next(&mut queue, &mut deferred, &statuses) {
                        writes.push(self.make(write));
                    }
                }
            }
        }
    }

    /// Returns the next write that is needed.
    fn next(
        &self,
        queue: &mut WorkQueue,
        deferred: &mut HashSet<ObjectRef>,
        statuses: &Statuses,
    ) -> Option<Write> {
        loop {
            let object = queue.pop()?;
            if statuses.held.contains_key(&object) {
                queue.done(&object);
                deferred.insert(object);
                continue;
            }
            match self.pending(&object, statuses) {
                Some((stored, status)) => {
                    return Some(Write {
                        object,
                        stored,
                        hash: hash_without_timestamps(&status),
                        status,
                    });
                }
                None => queue.done(&object),
            }
        }
    }

    /// Returns the status to write for an object and the stored status that it replaces; `None` if nothing
    /// differs.
    fn pending(&self, object: &ObjectRef, statuses: &Statuses) -> Option<(StoredStatus, Value)> {
        let stored = self.stored.get(object)?;
        let desired = self.desired(object, &statuses.report);
        let desired = desired.or_else(|| released(object, &stored, &statuses.report))?;
        if let DesiredStatus::ReleaseBackend(status) = desired
            && !is_to_write(&stored, status)
        {
            return None;
        }
        let now = jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string();
        // A stale result is skipped: it is computed again when the newer object is observed.
        let status = merge(&stored.value(), desired, &now).ok()??;
        (!self
            .stored
            .is_written(object, hash_without_timestamps(&status)))
        .then_some((stored, status))
    }

    fn desired<'a>(
        &'a self,
        object: &ObjectRef,
        report: &'a StatusReport,
    ) -> Option<DesiredStatus<'a>> {
        let desired = match Kind::of(object)?.status? {
            StatusShape::GatewayClass => {
                let conditions = report.gateway_classes.get(object)?;
                DesiredStatus::GatewayClass(conditions, self.features)
            }
            StatusShape::Gateway => DesiredStatus::Gateway(report.gateways.get(object)?),
            StatusShape::ListenerSet => {
                let status = report.listener_sets.get(object)?;
                match self.stored.served_as(object) {
                    Some(_) => DesiredStatus::ExperimentalListenerSet(status),
                    None => DesiredStatus::ListenerSet(status),
                }
            }
            StatusShape::Route => {
                let parents = report.routes.get(object).map_or(&[][..], |it| it);
                DesiredStatus::Parents(&self.controller, parents)
            }
            StatusShape::Backend => {
                let parents = report.backends.get(object).map_or(&[][..], |it| it);
                DesiredStatus::Parents(&self.controller, parents)
            }
            StatusShape::ReleaseBackend => {
                DesiredStatus::ReleaseBackend(report.release_backends.get(object)?)
            }
            StatusShape::Policy => {
                let ancestors = report.policies.get(object).map_or(&[][..], |it| it);
                DesiredStatus::Policy(&self.controller, ancestors)
            }
        };
        Some(desired)
    }

    fn make(&self, write: Write) -> impl Future<Output = (Write, Outcome)> + use<> {
        tracing::debug!("writing status of {}", write.object);
        let api = api(
            &self.client,
            &write.object,
            self.stored.served_as(&write.object),
        );
        async move {
            let outcome = patch(&api, &write).await;
            (write, outcome)
        }
    }

    fn finish(
        &self,
        queue: &mut WorkQueue,
        spacing: &mut Interval,
        write: &Write,
        outcome: Outcome,
    ) {
        let object = &write.object;
        self.stats.wrote(outcome.result());
        match outcome {
            Outcome::Written(stored, uid) => {
                self.announce(write, &uid);
                self.stored.written(object, write.hash, stored);
                queue.done(object);
            }
            Outcome::Overtaken(stored) => {
                self.stored.responded(object, stored);
                queue.failed(object);
            }
            // The watch reports the deletion.
            Outcome::Gone => queue.done(object),
            Outcome::Refused(error) => {
                tracing::error!("{object}: the API server rejected the status: {error}");
                queue.done(object);
            }
            Outcome::Failed { error, retry_after } => {
                tracing::warn!("{object}: cannot write the status: {error}; retrying");
                queue.failed(object);
                if let Some(after) = retry_after {
                    spacing.reset_after(after.clamp(SPACING, LONGEST_PAUSE));
                }
            }
        }
    }
}

impl Writer {
    /// Tells what a written status changes.
    fn announce(&self, write: &Write, uid: &str) {
        let object = &write.object;
        let changes = transitions(object, &write.stored.value(), &write.status);
        if changes.is_empty() {
            return;
        }
        let served_as = self.stored.served_as(object);
        let served_as = served_as.map(|it| (it.api_version(), it.kind));
        let notice = |(reason, message)| Notice {
            object: object.clone(),
            version: version(object),
            served_as: served_as.clone(),
            uid: uid.to_owned(),
            reason,
            action: "UpdateStatus",
            message,
        };
        self.events
            .notify_all(changes.into_iter().map(notice).collect());
    }
}

/// Queues what differs, then what is no longer held back: a Gateway says that a replica lags before statuses that waited
/// for the replica are written.
fn enqueue(
    queue: &mut WorkQueue,
    deferred: &mut HashSet<ObjectRef>,
    previous: &Statuses,
    statuses: &Statuses,
) {
    let changed = statuses.report.objects_unlike(&previous.report);
    changed.into_iter().for_each(|object| queue.push(&object));
    let released = deferred.extract_if(|object| !statuses.held.contains_key(object));
    released.for_each(|object| queue.push(&object));
}

/// Returns the status of an object that this controller no longer manages, if it wrote the present one.
fn released<'a>(
    object: &ObjectRef,
    stored: &StoredStatus,
    report: &'a StatusReport,
) -> Option<DesiredStatus<'a>> {
    if !stored.is_ours {
        return None;
    }
    let gateway = report.released.gateways.get(object);
    let set = report.released.listener_sets.get(object);
    let gateway = gateway.map(|it| DesiredStatus::Gateway(it));
    gateway.or_else(|| set.map(|it| DesiredStatus::ListenerSet(it)))
}

/// Reports whether the one status of a ReleaseBackend is to be written by this controller. Of several, the one writes it whose
/// Gateways send requests to it; of several such, the first.
fn is_to_write(stored: &StoredStatus, desired: &ReleaseBackendStatus) -> bool {
    if stored.is_ours {
        return true;
    }
    let value = stored.value();
    let conditions = value["conditions"].as_array().into_iter().flatten();
    let mut programmed = conditions.filter(|it| it["type"] == "Programmed");
    // Without the condition, no controller has written it yet.
    let is_true = |it: &Condition| it.is_true(ConditionType::Programmed);
    // Two that both say why it is not programmed would replace each other's reasons forever.
    let is_used = !desired.gateways.is_empty() && desired.conditions.iter().any(is_true);
    programmed.all(|it| it["status"] != "True" && is_used)
}

/// Completes when an object may be processed and the rate limit allows a write.
async fn turn(queue: &WorkQueue, spacing: &mut Interval) {
    queue.ready().await;
    spacing.tick().await;
}

/// Patches with the resourceVersion that was read, and reads again after a conflict: the API server responds with 409
/// to a patch whose resourceVersion is not the present one.
async fn patch(api: &Api<DynamicObject>, write: &Write) -> Outcome {
    let body = json!({
        "metadata": {"resourceVersion": write.stored.resource_version},
        "status": write.status,
    });
    let params = PatchParams {
        field_manager: Some(field_manager().to_owned()),
        ..PatchParams::default()
    };
    let name = &*write.object.name;
    let patch = Patch::Merge(&body);
    let error = match request(api.patch_status(name, &params, &patch)).await {
        Ok(Ok(object)) => {
            let uid = object.uid().unwrap_or_default();
            return Outcome::Written(stored(&object), uid);
        }
        Ok(Err(error)) => error,
        Err(timeout) => {
            return Outcome::Failed {
                error: timeout,
                retry_after: None,
            };
        }
    };
    match &error {
        kube::Error::Api(status) if status.code == 404 => Outcome::Gone,
        kube::Error::Api(status) if status.code == 422 => Outcome::Refused(describe(&error)),
        kube::Error::Api(status) if status.code == 409 => match request(api.get_opt(name)).await {
            Ok(Ok(Some(object))) => Outcome::Overtaken(stored(&object)),
            Ok(Ok(None)) => Outcome::Gone,
            _ => Outcome::failed(&error),
        },
        _ => Outcome::failed(&error),
    }
}

fn stored(object: &DynamicObject) -> StoredStatus {
    let version = object.resource_version().unwrap_or_default();
    let is_ours = is_status_ours(object.managed_fields());
    StoredStatus::new(&version, &object.data["status"]).with_owner(is_ours)
}

/// Returns the released version of an object's kind.
fn version(object: &ObjectRef) -> &'static str {
    Kind::of(object).map_or("v1", Kind::version)
}

/// Returns the API of an object. A cluster may serve a kind under another name.
fn api(
    client: &Client,
    object: &ObjectRef,
    served_as: Option<GroupVersionKind>,
) -> Api<DynamicObject> {
    let own = || GroupVersionKind::gvk(&object.group, version(object), &object.kind);
    let kind = served_as.unwrap_or_else(own);
    let resource = ApiResource::from_gvk(&kind);
    if object.namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &object.namespace, &resource)
    }
}

/// Returns the hash of a status without timestamps, which differ in each attempt. `serde_json::Map` is sorted, so equal
/// statuses have equal hashes.
fn hash_without_timestamps(status: &Value) -> u64 {
    fn feed(value: &Value, hasher: &mut DefaultHasher) {
        match value {
            Value::Object(members) => {
                for (name, member) in members
                    .iter()
                    .filter(|(name, _)| *name != "lastTransitionTime")
                {
                    name.hash(hasher);
                    feed(member, hasher);
                }
            }
            Value::Array(items) => {
                items.len().hash(hasher);
                items.iter().for_each(|item| feed(item, hasher));
            }
            plain => plain.hash(hasher),
        }
    }
    let mut hasher = DefaultHasher::new();
    feed(status, &mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_comes_before_what_was_held() {
        let route = |name: &str| ObjectRef::gateway_api("HTTPRoute", "shop", name);
        let mut report = StatusReport::default();
        report.routes.insert(route("changed"), Arc::default());
        let statuses = Statuses {
            report: Arc::new(report),
            held: Held::unit(route("held"), Arc::default()),
        };
        let (mut queue, mut deferred) = (
            WorkQueue::new(LIMITS, BACKOFF),
            HashSet::from([route("held"), route("released")]),
        );
        enqueue(&mut queue, &mut deferred, &Statuses::default(), &statuses);
        assert_eq!(queue.pop(), Some(route("changed")));
        assert_eq!(queue.pop(), Some(route("released")));
        assert_eq!(queue.pop(), None);
        assert_eq!(deferred, HashSet::from([route("held")]));
    }

    #[tokio::test]
    async fn changes_that_nobody_needs_do_not_accumulate() {
        let (changed, mut changes) = mpsc::unbounded_channel();
        for number in 0..1000 {
            let route = ObjectRef::gateway_api("HTTPRoute", "shop", &number.to_string());
            changed.send(route).unwrap();
        }
        drop(changed);
        discard(&mut changes).await;
        assert!(changes.is_empty());
    }
}
