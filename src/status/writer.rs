//! Writes statuses to the API server: only what differs, never over something newer, a bounded number at a time and per
//! second.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use imbl::ordmap::DiffItem;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::{GroupVersionKind, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::merge::{Wanted, merge};
use super::queue::Queue;
use super::report::StatusReport;
use super::stored::{Stored, StoredStatus};
use crate::api_server::{FIELD_MANAGER, describe, request, retry_after};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::telemetry::metrics::{ControllerStats, WriteResult};

/// Writes that are under way at one time.
const CONCURRENT: usize = 8;
/// Time between two writes: at most 100 a second, which leaves room for others at the API server.
const SPACING: Duration = Duration::from_millis(10);
/// The longest that an overloaded API server can stop all writes.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The statuses to store.
#[derive(Clone, Debug, Default)]
pub struct Statuses {
    /// Of all objects. Routes, policies and backends that are not in it must have no entry of ours.
    pub report: Arc<StatusReport>,
    /// Objects whose status has to stay as it is for now.
    pub held: Arc<HashSet<ObjectRef>>,
}

/// Keeps the stored statuses what they are wanted to be.
pub struct Writer {
    /// The API server.
    pub client: Client,
    /// Name of the controller that we are, in the entries of routes.
    pub controller: Arc<str>,
    /// Features that GatewayClasses show, in order.
    pub features: &'static [&'static str],
    /// What is stored.
    pub stored: Arc<Stored>,
    /// Where writes are counted.
    pub stats: Arc<ControllerStats>,
}

/// A write that has to be made.
struct Write {
    object: ObjectRef,
    stored: StoredStatus,
    status: Value,
    /// Of the status without its times.
    hash: u64,
}

/// What became of a write.
enum Outcome {
    Written(StoredStatus),
    /// Another writer was faster; this is what is stored now.
    Overtaken(StoredStatus),
    Gone,
    /// The API server will never take it.
    Refused(String),
    Failed {
        error: String,
        /// How long the API server asks to wait.
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
    /// Writes for as long as it is polled and statuses are wanted; waits until they are. `changes` yields objects whose
    /// stored status has changed.
    pub async fn run(
        &self,
        mut wanted: watch::Receiver<Option<Statuses>>,
        changes: &mut mpsc::UnboundedReceiver<ObjectRef>,
    ) {
        let mut queue = Queue::default();
        // Before the first report a missing entry does not mean that there is to be none.
        let mut statuses = match wanted.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(first)) => first.clone(),
            _ => return,
        };
        for object in self.stored.objects() {
            queue.push(object);
        }
        let mut writes = FuturesUnordered::new();
        let mut spacing = interval(SPACING);
        spacing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                changed = wanted.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let Some(new) = wanted.borrow_and_update().clone() else {
                        return;
                    };
                    differing(&statuses, &new, |object| queue.push(object.clone()));
                    statuses = new;
                }
                Some(object) = changes.recv() => queue.push(object),
                Some((write, outcome)) = writes.next() => {
                    self.finish(&mut queue, &mut spacing, &write, outcome);
                }
                // What is written is computed when its turn has come.
                () = turn(&queue, &mut spacing), if writes.len() < CONCURRENT => {
                    if let Some(write) = self.next(&mut queue, &statuses) {
                        writes.push(self.make(write));
                    }
                }
            }
        }
    }

    /// The next write that has to be made.
    fn next(&self, queue: &mut Queue, statuses: &Statuses) -> Option<Write> {
        loop {
            let object = queue.pop()?;
            match self.pending(&object, statuses) {
                Some((stored, status)) => {
                    return Some(Write {
                        object,
                        stored,
                        hash: timeless(&status),
                        status,
                    });
                }
                None => queue.done(&object),
            }
        }
    }

    /// What has to be written for an object, if anything, and over what.
    fn pending(&self, object: &ObjectRef, statuses: &Statuses) -> Option<(StoredStatus, Value)> {
        if statuses.held.contains(object) {
            return None;
        }
        let stored = self.stored.get(object)?;
        let wanted = self.wanted(object, &statuses.report)?;
        let now = jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string();
        // What is outdated is computed anew as soon as the newer object is seen.
        let status = merge(&stored.value(), wanted, &now).ok()??;
        (!self.stored.is_written(object, timeless(&status))).then_some((stored, status))
    }

    fn wanted<'a>(&'a self, object: &ObjectRef, report: &'a StatusReport) -> Option<Wanted<'a>> {
        match &*object.kind {
            "GatewayClass" => {
                let conditions = report.gateway_classes.get(object)?;
                Some(Wanted::GatewayClass(conditions, self.features))
            }
            "Gateway" => report.gateways.get(object).map(Wanted::Gateway),
            "ListenerSet" => report.listener_sets.get(object).map(Wanted::ListenerSet),
            kind if kind.ends_with("Route") => {
                let parents = report.routes.get(object).map_or(&[][..], |parents| parents);
                Some(Wanted::Parents(&self.controller, parents))
            }
            "XBackend" => {
                let parents = report.backends.get(object).map_or(&[][..], Vec::as_slice);
                Some(Wanted::Parents(&self.controller, parents))
            }
            "BackendTLSPolicy" | "BackendTLSOverride" => {
                let ancestors = report.policies.get(object).map_or(&[][..], Vec::as_slice);
                Some(Wanted::Policy(&self.controller, ancestors))
            }
            _ => None,
        }
    }

    fn make(&self, write: Write) -> impl Future<Output = (Write, Outcome)> + use<> {
        tracing::debug!("{}: writing its status", write.object);
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
            // A watch tells so.
            Outcome::Gone => queue.done(object),
            Outcome::Refused(error) => {
                tracing::error!("{object}: the API server refuses its status: {error}");
                queue.done(object);
            }
            Outcome::Failed { error, retry_after } => {
                tracing::warn!("{object}: its status cannot be written: {error}; it is retried");
                queue.failed(object);
                if let Some(after) = retry_after {
                    spacing.reset_after(after.clamp(SPACING, LONGEST_PAUSE));
                }
            }
        }
    }
}

/// Returns when there is an object to look at and the next write may begin.
async fn turn(queue: &Queue, spacing: &mut Interval) {
    queue.ready().await;
    spacing.tick().await;
}

/// Writes over exactly what was read, and reads again when another writer was faster.
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
    StoredStatus::new(&version, &object.data["status"])
}

/// Where an object is. Kinds of the Gateway API with a status are all served as `v1`, its experimental ones and ours as
/// `v1alpha1`.
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

/// Calls `visit` with the objects whose wanted statuses differ.
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
    for item in old.report.routes.diff(&new.report.routes) {
        match item {
            DiffItem::Add(object, _) | DiffItem::Remove(object, _) => visit(object),
            DiffItem::Update {
                new: (object, _), ..
            } => visit(object),
        }
    }
    differing_entries(&old.report.policies, &new.report.policies, &mut visit);
    differing_entries(&old.report.backends, &new.report.backends, &mut visit);
    old.held.difference(&new.held).for_each(visit);
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

/// A hash of a status without its times, which are new in every try.
fn timeless(status: &Value) -> u64 {
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

    /// Statuses with these routes, each of the given number of parents.
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
