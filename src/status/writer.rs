//! Writes statuses to the API server: only differences, never over a newer status, with bounded
//! concurrency and rate.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::{GroupVersionKind, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::merge::{DesiredStatus, merge};
use super::queue::Queue;
use super::report::StatusReport;
use super::stored::{Stored, StoredStatus};
use crate::api_server::{FIELD_MANAGER, describe, is_status_ours, request, retry_after};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::telemetry::metrics::{ControllerStats, WriteResult};

/// Maximum number of concurrent writes.
const CONCURRENT: usize = 8;
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
    /// Objects whose status must not change for now.
    pub held: Arc<HashSet<ObjectRef>>,
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
    Written(StoredStatus),
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
            Self::Written(_) => WriteResult::Written,
            Self::Overtaken(_) => WriteResult::Overtaken,
            Self::Gone => WriteResult::Gone,
            Self::Refused(_) => WriteResult::Refused,
            Self::Failed { .. } => WriteResult::Failed,
        }
    }
}

impl Writer {
    /// Waits for the first desired statuses, then writes while polled, until they are withdrawn.
    /// `changes` yields objects whose stored status has changed.
    pub async fn run(
        &self,
        mut desired: watch::Receiver<Option<Statuses>>,
        changes: &mut mpsc::UnboundedReceiver<ObjectRef>,
    ) {
        let mut queue = Queue::default();
        // Before the first report, a missing entry does not mean that it has to be removed.
        let mut statuses = match desired.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(first)) => first.clone(),
            _ => return,
        };
        for object in self.stored.objects() {
            queue.push(object);
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
                    differing(&statuses, &new, |object| queue.push(object.clone()));
                    statuses = new;
                }
                Some(object) = changes.recv() => queue.push(object),
                Some((write, outcome)) = writes.next() => {
                    self.finish(&mut queue, &mut spacing, &write, outcome);
                }
                // A write is computed only when its turn has come, from the latest state. Other events drop the future:
                // `Interval::tick` is cancel safe, so no tick is lost.
                () = turn(&queue, &mut spacing), if writes.len() < CONCURRENT => {
                    if let Some(write) = self.next(&mut queue, &statuses) {
                        writes.push(self.make(write));
                    }
                }
            }
        }
    }

    /// Returns the next write that is needed.
    fn next(&self, queue: &mut Queue, statuses: &Statuses) -> Option<Write> {
        loop {
            let object = queue.pop()?;
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
        if statuses.held.contains(object) {
            return None;
        }
        let stored = self.stored.get(object)?;
        let desired = self.desired(object, &statuses.report);
        let desired = desired.or_else(|| released(object, &stored, &statuses.report))?;
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
        match &*object.kind {
            "GatewayClass" => {
                let conditions = report.gateway_classes.get(object)?;
                Some(DesiredStatus::GatewayClass(conditions, self.features))
            }
            "Gateway" => report.gateways.get(object).map(DesiredStatus::Gateway),
            "ListenerSet" => report
                .listener_sets
                .get(object)
                .map(DesiredStatus::ListenerSet),
            kind if kind.ends_with("Route") => {
                let parents = report.routes.get(object).map_or(&[][..], |parents| parents);
                Some(DesiredStatus::Parents(&self.controller, parents))
            }
            "XBackend" => {
                let parents = report.backends.get(object).map_or(&[][..], Vec::as_slice);
                Some(DesiredStatus::Parents(&self.controller, parents))
            }
            "ReleaseBackend" => {
                let status = report.release_backends.get(object)?;
                Some(DesiredStatus::ReleaseBackend(status))
            }
            "BackendTLSPolicy" | "BackendTLSOverride" | "XBackendTrafficPolicy" => {
                let ancestors = report.policies.get(object).map_or(&[][..], Vec::as_slice);
                Some(DesiredStatus::Policy(&self.controller, ancestors))
            }
            _ => None,
        }
    }

    fn make(&self, write: Write) -> impl Future<Output = (Write, Outcome)> + use<> {
        tracing::debug!("writing status of {}", write.object);
        let api = api(&self.client, &write.object);
        async move {
            let outcome = patch(&api, &write).await;
            (write, outcome)
        }
    }

    fn finish(&self, queue: &mut Queue, spacing: &mut Interval, write: &Write, outcome: Outcome) {
        let object = &write.object;
        self.stats.wrote(outcome.result());
        match outcome {
            Outcome::Written(stored) => {
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
    let gateway = gateway.map(DesiredStatus::Gateway);
    gateway.or_else(|| set.map(DesiredStatus::ListenerSet))
}

/// Completes when an object is queued and the rate limit allows a write.
async fn turn(queue: &Queue, spacing: &mut Interval) {
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
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let name = &*write.object.name;
    let patch = Patch::Merge(&body);
    let error = match request(api.patch_status(name, &params, &patch)).await {
        Ok(Ok(object)) => return Outcome::Written(stored(&object)),
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
    let is_ours = is_status_ours(&object.metadata);
    StoredStatus::new(&version, &object.data["status"]).with_owner(is_ours)
}

/// Returns the API of an object. Gateway API kinds with a status are all served as `v1`; experimental ones and
/// kinds of Portcullis as `v1alpha1`.
fn api(client: &Client, object: &ObjectRef) -> Api<DynamicObject> {
    let version = if &*object.group == GATEWAY_GROUP {
        "v1"
    } else {
        "v1alpha1"
    };
    let kind = GroupVersionKind::gvk(&object.group, version, &object.kind);
    let resource = ApiResource::from_gvk(&kind);
    if object.namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), &object.namespace, &resource)
    }
}

/// Calls `visit` with each object whose desired status differs.
fn differing(old: &Statuses, new: &Statuses, mut visit: impl FnMut(&ObjectRef)) {
    differing_entries(
        &old.report.gateway_classes,
        &new.report.gateway_classes,
        &mut visit,
    );
    differing_entries(&old.report.gateways, &new.report.gateways, &mut visit);
    differing_entries(
        &old.report.listener_sets,
        &new.report.listener_sets,
        &mut visit,
    );
    let (before, now) = (&old.report.released, &new.report.released);
    differing_entries(&before.gateways, &now.gateways, &mut visit);
    differing_entries(&before.listener_sets, &now.listener_sets, &mut visit);
    differing_nodes(&old.report.routes, &new.report.routes, &mut visit);
    differing_entries(&old.report.policies, &new.report.policies, &mut visit);
    differing_entries(&old.report.backends, &new.report.backends, &mut visit);
    let (before, now) = (&old.report.release_backends, &new.report.release_backends);
    differing_nodes(before, now, &mut visit);
    old.held.difference(&new.held).for_each(visit);
}

fn differing_nodes<T: PartialEq>(
    old: &OrdMap<ObjectRef, T>,
    new: &OrdMap<ObjectRef, T>,
    visit: &mut impl FnMut(&ObjectRef),
) {
    for item in old.diff(new) {
        match item {
            DiffItem::Add(object, _) | DiffItem::Remove(object, _) => visit(object),
            DiffItem::Update {
                new: (object, _), ..
            } => visit(object),
        }
    }
}

fn differing_entries<T: PartialEq>(
    old: &BTreeMap<ObjectRef, T>,
    new: &BTreeMap<ObjectRef, T>,
    visit: &mut impl FnMut(&ObjectRef),
) {
    let changed = new
        .iter()
        .filter(|(object, status)| old.get(*object) != Some(*status));
    let gone = old.iter().filter(|(object, _)| !new.contains_key(*object));
    changed.chain(gone).for_each(|(object, _)| visit(object));
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
    use crate::status::{ParentRef, ParentStatus};

    fn route(name: &str) -> ObjectRef {
        ObjectRef::gateway_api("HTTPRoute", "shop", name)
    }

    /// Statuses with these routes, each with the given number of parents.
    fn statuses(routes: &[(&str, usize)], held: &[&str]) -> Statuses {
        let parent = ParentStatus {
            parent_ref: ParentRef {
                group: GATEWAY_GROUP.to_owned(),
                kind: "Gateway".to_owned(),
                namespace: None,
                name: "edge".to_owned(),
                section_name: None,
                port: None,
            },
            controller_name: "example.com/ours".into(),
            conditions: Vec::new(),
        };
        let of_route = |(name, parents): &(&str, usize)| {
            (route(name), Arc::from(vec![parent.clone(); *parents]))
        };
        Statuses {
            report: Arc::new(StatusReport {
                routes: routes.iter().map(of_route).collect(),
                ..StatusReport::default()
            }),
            held: Arc::new(held.iter().map(|name| route(name)).collect()),
        }
    }

    fn names(old: &Statuses, new: &Statuses) -> Vec<String> {
        let mut names = Vec::new();
        differing(old, new, |object| names.push(object.name.to_string()));
        names
    }

    #[test]
    fn visits_added_changed_and_removed_routes() {
        let old = statuses(&[("b", 1), ("c", 1), ("d", 1)], &[]);
        let new = statuses(&[("a", 1), ("b", 1), ("c", 2), ("e", 1)], &[]);
        assert_eq!(names(&old, &new), ["a", "c", "d", "e"]);
        assert_eq!(names(&new, &old), ["a", "c", "d", "e"]);
        assert!(names(&new, &new).is_empty());
    }

    #[test]
    fn visits_objects_that_are_no_longer_held() {
        let old = statuses(&[("a", 1), ("b", 1)], &["a", "b"]);
        let new = statuses(&[("a", 1), ("b", 1)], &["b"]);
        assert_eq!(names(&old, &new), ["a"]);
    }
}
