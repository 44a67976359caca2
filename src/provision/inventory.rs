//! Cache of the objects that this controller has created, fed by watches: which objects exist,
//! which Gateway owns each, and whether another client has changed them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, select_all};
use kube::Client;
use kube::api::{Api, ApiResource, ObjectMeta};
use kube::core::Object;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};

use super::child::{Child, ChildKind};
use super::ownership::{is_applied_by_us, owner};
use super::partial::{PartialSpec, PartialStatus};
use super::rollout::Record;
use super::{MANAGED_BY, MANAGED_BY_LABEL};
use crate::cluster::api_server::{describe, field_manager};
use crate::ir::{ObjectRef, fingerprint};

/// Timeout of a watch in seconds (`timeoutSeconds`).
pub(super) const WATCH_SECONDS: u32 = 45;

/// Kind, namespace and name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ChildKey {
    pub(super) kind: ChildKind,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl ChildKey {
    pub(super) fn of(child: &Child) -> Self {
        Self {
            kind: child.kind,
            namespace: child.namespace.clone(),
            name: child.name.clone(),
        }
    }
}

impl fmt::Display for ChildKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}

/// The parsed part of any object.
pub(super) type PartialObject = Object<Option<PartialSpec>, PartialStatus>;

/// An object of this controller that exists in the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Existing {
    /// Gateway that owns it.
    pub(super) owner: ObjectRef,
    /// UID of that Gateway.
    pub(super) owner_uid: String,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// Hash that changes when another client changes the object.
    pub(super) hash: u64,
    /// Whether it is being deleted and only waits for finalizers.
    pub(super) is_deleting: bool,
    /// Whether managedFields has Update entries of this controller. An apply does not remove their
    /// fields.
    pub(super) has_updated_fields: bool,
    /// Recorded rollout state.
    pub(super) record: Option<Record>,
    /// Workloads: whether all pods have the latest template and are available.
    pub(super) is_complete: bool,
    /// Workloads: whether any pods are desired.
    pub(super) has_pods: bool,
    /// Workloads: why pods cannot be created.
    pub(super) failure: Option<String>,
}

impl Existing {
    /// Parses an object that this controller has created for a Gateway; `None` for objects of other
    /// owners with the same labels.
    pub(super) fn of(object: &PartialObject) -> Option<Self> {
        let metadata = &object.metadata;
        let owner = owner(metadata).filter(|_| is_applied_by_us(metadata))?;
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let replicas = object.spec.as_ref().and_then(|spec| spec.replicas);
        let status = object.status.clone().unwrap_or_default();
        let generation = metadata.generation.unwrap_or_default();
        Some(Self {
            owner: ObjectRef::gateway_api("Gateway", namespace, &owner.name),
            owner_uid: owner.uid.clone(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            hash: hash_of(metadata, object.spec.as_ref()),
            is_deleting: metadata.deletion_timestamp.is_some(),
            has_updated_fields: has_updated_fields(metadata),
            record: Record::of(metadata),
            is_complete: status.progress.is_complete(generation, replicas),
            has_pods: replicas != Some(0),
            failure: status.failure,
        })
    }

    /// Returns the numeric resourceVersion. Versions of one object can be compared.
    fn version(&self) -> Option<u64> {
        self.resource_version.parse().ok()
    }

    /// Reports whether no relevant part differs.
    fn is_same(&self, other: &Self) -> bool {
        let resource_version = self.resource_version.clone();
        *self
            == Self {
                resource_version,
                ..other.clone()
            }
    }
}

/// Hashes the parts that a change by another client affects: the generation, or the spec for kinds
/// without a generation, or the resourceVersion for kinds without a spec; and labels, annotations
/// and owners.
fn hash_of(metadata: &ObjectMeta, spec: Option<&PartialSpec>) -> u64 {
    let content = match (metadata.generation, spec) {
        (Some(generation), _) => (Some(generation), None, None),
        (None, Some(spec)) => (None, Some(spec.hash), None),
        (None, None) => (None, None, metadata.resource_version.as_ref()),
    };
    let owners = metadata.owner_references.iter().flatten();
    let owners: Vec<_> = owners.map(|owner| (&owner.uid, owner.controller)).collect();
    fingerprint::of(&(content, &metadata.labels, &metadata.annotations, owners))
}

/// Reports whether there are Update entries of this controller. A create or merge patch records its
/// fields with this operation, and later applies would not remove them.
fn has_updated_fields(metadata: &ObjectMeta) -> bool {
    let mut entries = metadata.managed_fields.iter().flatten();
    entries.any(|entry| {
        entry.manager.as_deref() == Some(field_manager())
            && entry.operation.as_deref() == Some("Update")
    })
}

/// Objects of one Gateway.
type Owned = BTreeMap<ChildKey, Existing>;

/// All objects that this controller has created.
#[derive(Default)]
pub(super) struct Inventory {
    objects: BTreeMap<ObjectRef, Owned>,
    owners: HashMap<ChildKey, ObjectRef>,
    /// Lists that are still being received.
    listed: BTreeMap<ChildKind, Vec<(ChildKey, Existing)>>,
    /// Kinds that have been listed at least once.
    known: BTreeSet<ChildKind>,
    /// Workloads that cannot create pods.
    failing: BTreeSet<ChildKey>,
    /// The resourceVersions of deleted objects by UID, since a late response may be older.
    gone: HashMap<String, u64>,
}

impl Inventory {
    /// Reports whether every kind has been listed.
    pub(super) fn is_complete(&self) -> bool {
        self.known.len() == ChildKind::ALL.len()
    }

    pub(super) fn get(&self, key: &ChildKey) -> Option<&Existing> {
        self.objects.get(self.owners.get(key)?)?.get(key)
    }

    /// Returns objects of a Gateway.
    pub(super) fn of(&self, gateway: &ObjectRef) -> impl Iterator<Item = (&ChildKey, &Existing)> {
        self.objects.get(gateway).into_iter().flatten()
    }

    /// Returns the Gateways whose workload cannot create pods, each with the workload and the reason.
    pub(super) fn failing(&self) -> impl Iterator<Item = (&ObjectRef, &ChildKey, &str)> {
        self.failing.iter().filter_map(|key| {
            let existing = self.get(key)?;
            Some((&existing.owner, key, existing.failure.as_deref()?))
        })
    }

    /// Gateways that own objects.
    pub(super) fn owners(&self) -> impl Iterator<Item = &ObjectRef> {
        self.objects.keys()
    }

    /// Applies a watch event. Returns the affected Gateways and the names that became free.
    pub(super) fn apply_event(&mut self, kind: ChildKind, event: Event<PartialObject>) -> Changes {
        let mut changes = Changes::default();
        match event {
            Event::Init => {
                self.listed.insert(kind, Vec::new());
            }
            Event::InitApply(object) => {
                if let Some(existing) = Existing::of(&object) {
                    let key = key(kind, &object.metadata);
                    self.listed.entry(kind).or_default().push((key, existing));
                }
            }
            Event::InitDone => {
                let listed = self.listed.remove(&kind).unwrap_or_default();
                self.known.insert(kind);
                let names: BTreeSet<_> = listed.iter().map(|(key, _)| key.clone()).collect();
                let previous = self.owners.keys().filter(|key| key.kind == kind);
                let gone: Vec<_> = previous
                    .filter(|key| !names.contains(key))
                    .cloned()
                    .collect();
                for key in gone {
                    changes.add(self.forget(&key), key);
                }
                for (key, existing) in listed {
                    changes.gateways.extend(self.insert(&key, &existing));
                }
            }
            Event::Apply(object) => {
                let key = key(kind, &object.metadata);
                match Existing::of(&object) {
                    Some(existing) => changes.gateways.extend(self.record(&key, &existing)),
                    // An object without a controller owner does not belong to this controller any
                    // more.
                    None => {
                        self.record_deletion(&object.metadata);
                        changes.add(self.forget(&key), key);
                    }
                }
            }
            Event::Delete(object) => {
                let key = key(kind, &object.metadata);
                self.record_deletion(&object.metadata);
                changes.add(self.forget(&key), key);
            }
        }
        changes
    }

    /// Records an object from a response, unless a later version is known. Returns the Gateways
    /// whose objects have changed.
    pub(super) fn record(&mut self, key: &ChildKey, existing: &Existing) -> Vec<ObjectRef> {
        let is_later =
            |known: &Existing| known.uid == existing.uid && known.version() > existing.version();
        let gone = self.gone.get(&existing.uid);
        let is_gone = gone.is_some_and(|gone| existing.version() < Some(*gone));
        if is_gone || self.get(key).is_some_and(is_later) {
            return Vec::new();
        }
        self.insert(key, existing)
    }

    /// Remembers the resourceVersion of a deletion.
    fn record_deletion(&mut self, metadata: &ObjectMeta) {
        let version = metadata.resource_version.as_ref();
        let version = version.and_then(|version| version.parse().ok());
        if let Some((uid, version)) = metadata.uid.clone().zip(version) {
            self.gone.insert(uid, version);
        }
    }

    /// Clears the remembered deletions. Called when no request is in flight whose response could be
    /// older.
    pub(super) fn clear_deletions(&mut self) {
        self.gone.clear();
    }

    fn insert(&mut self, key: &ChildKey, existing: &Existing) -> Vec<ObjectRef> {
        let owner = &existing.owner;
        match existing.failure {
            Some(_) => self.failing.insert(key.clone()),
            None => self.failing.remove(key),
        };
        let mut touched = Vec::new();
        if let Some(previous) = self.owners.insert(key.clone(), owner.clone())
            && previous != *owner
        {
            self.remove(&previous, key);
            touched.push(previous);
        }
        let objects = self.objects.entry(owner.clone()).or_default();
        let previous = objects.insert(key.clone(), existing.clone());
        if previous.is_none_or(|previous| !previous.is_same(existing)) {
            touched.push(owner.clone());
        }
        touched
    }

    /// Removes an object. Returns the Gateway that owned it.
    pub(super) fn forget(&mut self, key: &ChildKey) -> Option<ObjectRef> {
        let owner = self.owners.remove(key)?;
        self.failing.remove(key);
        self.remove(&owner, key);
        Some(owner)
    }

    fn remove(&mut self, owner: &ObjectRef, key: &ChildKey) {
        if let Some(objects) = self.objects.get_mut(owner) {
            objects.remove(key);
            if objects.is_empty() {
                self.objects.remove(owner);
            }
        }
    }
}

/// Effect of an event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// Gateways whose objects have changed.
    pub(super) gateways: Vec<ObjectRef>,
    /// Names that became free.
    pub(super) freed: Vec<ChildKey>,
}

impl Changes {
    fn add(&mut self, owner: Option<ObjectRef>, key: ChildKey) {
        self.gateways.extend(owner);
        self.freed.push(key);
    }
}

fn key(kind: ChildKind, metadata: &ObjectMeta) -> ChildKey {
    ChildKey {
        kind,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

pub(super) fn resource(kind: ChildKind) -> ApiResource {
    ApiResource {
        group: kind.group().to_owned(),
        version: kind.version().to_owned(),
        api_version: kind.api_version(),
        kind: kind.name().to_owned(),
        plural: kind.plural().to_owned(),
    }
}

/// Returns the watch events of all kinds.
pub(super) fn watch_children(
    client: &Client,
) -> BoxStream<'static, (ChildKind, Event<PartialObject>)> {
    select_all(ChildKind::ALL.map(|kind| watch_kind(client, kind))).boxed()
}

fn watch_kind(
    client: &Client,
    kind: ChildKind,
) -> BoxStream<'static, (ChildKind, Event<PartialObject>)> {
    let api: Api<PartialObject> = Api::all_with(client.clone(), &resource(kind));
    let config = watcher::Config::default()
        .timeout(WATCH_SECONDS)
        .labels(&format!("{MANAGED_BY_LABEL}={MANAGED_BY}"));
    // kube's watcher recovers at the next poll after an error, so that it needs a back-off.
    let events = watcher::watcher(api, config).default_backoff();
    let events = events.filter_map(move |event| async move {
        match event {
            Ok(event) => Some((kind, event)),
            Err(error) => {
                tracing::warn!("cannot watch {}: {}", kind.plural(), describe(&error));
                None
            }
        }
    });
    events.boxed()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::api_server::FIELD_MANAGER;

    /// Returns a Service of Gateway `web`.
    fn service(uid: &str, version: u64, change: impl FnOnce(&mut Value)) -> PartialObject {
        let mut object = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "web", "namespace": "shop", "uid": uid,
                "resourceVersion": version.to_string(),
                "ownerReferences": [{
                    "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web",
                    "uid": "1", "controller": true,
                }],
                "managedFields": [{"manager": FIELD_MANAGER, "operation": "Apply"}],
            },
            "spec": {"ports": [{"port": 80}]},
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    fn name() -> ChildKey {
        ChildKey {
            kind: ChildKind::Service,
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
        }
    }

    fn record(inventory: &mut Inventory, object: &PartialObject) {
        inventory.record(&name(), &Existing::of(object).unwrap());
    }

    fn uid(inventory: &Inventory) -> Option<&str> {
        inventory.get(&name()).map(|existing| existing.uid.as_str())
    }

    #[test]
    fn response_older_than_a_deletion_is_ignored() {
        let mut inventory = Inventory::default();
        let gone = Event::Delete(service("a", 7, |_| {}));
        inventory.apply_event(ChildKind::Service, gone);
        record(&mut inventory, &service("a", 5, |_| {}));
        assert_eq!(uid(&inventory), None);
        record(&mut inventory, &service("b", 6, |_| {}));
        assert_eq!(uid(&inventory), Some("b"));
    }

    #[test]
    fn event_older_than_a_response_is_ignored() {
        let mut inventory = Inventory::default();
        record(&mut inventory, &service("a", 5, |_| {}));
        let old = service("a", 4, |service| service["spec"]["ports"] = json!([]));
        let changes = inventory.apply_event(ChildKind::Service, Event::Apply(old));
        assert_eq!(changes, Changes::default());
        let new = service("a", 6, |service| service["spec"]["ports"] = json!([]));
        let changes = inventory.apply_event(ChildKind::Service, Event::Apply(new));
        assert_eq!(changes.gateways.len(), 1);
    }

    #[test]
    fn list_replaces_known_objects() {
        let mut inventory = Inventory::default();
        record(&mut inventory, &service("a", 5, |_| {}));
        inventory.apply_event(ChildKind::Service, Event::Init);
        assert_eq!(uid(&inventory), Some("a"));
        let changes = inventory.apply_event(ChildKind::Service, Event::InitDone);
        assert_eq!(changes.freed, [name()]);
        assert_eq!(uid(&inventory), None);
        assert_eq!(inventory.owners().count(), 0);
    }

    #[test]
    fn only_spec_changes_count() {
        let hash = |change: fn(&mut Value)| Existing::of(&service("a", 5, change)).unwrap().hash;
        let plain = hash(|_| {});
        let status = hash(|service| {
            service["metadata"]["resourceVersion"] = json!("6");
            service["status"] = json!({"loadBalancer": {}});
        });
        assert_eq!(plain, status);
        assert_ne!(plain, hash(|service| service["spec"]["ports"] = json!([])));
        assert_ne!(
            plain,
            hash(|service| service["metadata"]["labels"] = json!({"a": "b"}))
        );
    }
}
