//! Reconciles the objects that Gateways need in a cluster: applies those that are missing or differ, deletes those that
//! are no longer needed, and repairs what others change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{BoxStream, select_all};
use kube::Client;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ObjectMeta, PartialObjectMeta, Patch,
    PatchParams, PostParams,
};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::desired::{DesiredState, Failure, FailureReason, Failures, Inputs, RolloutOptions};
use super::{Child, ChildKind, MANAGED_BY, MANAGED_BY_LABEL};
use crate::api_server::{FIELD_MANAGER, describe, request};
use crate::backoff::Backoff;
use crate::events::Events;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::{ObjectRef, fingerprint};

/// The ClusterRoleBinding, installed with the controller, that lets data planes read.
const READERS: &str = "portcullis-data-plane";
/// Changes that follow each other sooner are reconciled together.
const DEBOUNCE: Duration = Duration::from_millis(20);
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};
/// Seconds after which the API server ends a watch.
pub(super) const WATCH_SECONDS: u32 = 45;

/// The name of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct ChildKey {
    kind: ChildKind,
    namespace: String,
    name: String,
}

impl ChildKey {
    fn of(child: &Child) -> Self {
        Self {
            kind: child.kind,
            namespace: child.namespace.clone(),
            name: child.name.clone(),
        }
    }
}

impl fmt::Display for ChildKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.kind(), self.namespace, self.name)
    }
}

/// An object that the cluster has.
struct Existing {
    /// The Gateway that it belongs to.
    owner: ObjectRef,
    /// A hash of what no one else should change.
    hash: u64,
}

/// What the cluster has of ours, and what we have made of it.
#[derive(Default)]
struct State {
    existing: BTreeMap<ChildKey, Existing>,
    /// Lists that are not complete yet.
    listed: BTreeMap<ChildKind, BTreeMap<ChildKey, Existing>>,
    /// Kinds that have been listed at least once.
    known: BTreeSet<ChildKind>,
    /// By object, hashes of what was applied and of what the API server made of it.
    applied: HashMap<ChildKey, (u64, u64)>,
    /// Gateways whose objects are as desired, with these.
    reconciled: BTreeMap<ObjectRef, Arc<[Child]>>,
    /// Subjects of the binding, as applied last.
    readers: Option<BTreeSet<(String, String)>>,
}

/// Reconciles our objects with those that `desired` names for as long as it is polled. Without a value of `desired`
/// nothing is touched.
pub async fn reconcile(
    client: &Client,
    inputs: Inputs,
    failures: &watch::Sender<Failures>,
    _options: RolloutOptions,
    _events: &Events,
) {
    let mut desired = inputs.desired;
    let mut state = State::default();
    let mut changes = select_all(ChildKind::ALL.map(|kind| follow(client, kind)));
    let mut failed_rounds = 0;
    loop {
        let wanted = desired.borrow_and_update().clone();
        let mut found = Failures::new();
        if let Some(wanted) = wanted.filter(|_| state.known.len() == ChildKind::ALL.len()) {
            found = state.reconcile(client, &wanted).await;
        }
        let is_well = found.is_empty();
        failures.send_if_modified(|failures| {
            let is_news = *failures != found;
            *failures = found;
            is_news
        });
        let again = async {
            if is_well {
                std::future::pending::<()>().await;
            }
            sleep(BACKOFF.after(failed_rounds)).await;
        };
        tokio::select! {
            changed = desired.changed() => if changed.is_err() {
                return;
            },
            Some((kind, event)) = changes.next() => {
                state.take(kind, event);
                while let Ok(Some((kind, event))) = timeout(DEBOUNCE, changes.next()).await {
                    state.take(kind, event);
                }
            }
            () = again => {}
        }
        failed_rounds = if is_well { 0 } else { failed_rounds + 1 };
    }
}

/// Watches our objects of a kind.
fn follow(
    client: &Client,
    kind: ChildKind,
) -> BoxStream<'static, (ChildKind, Event<PartialObjectMeta<DynamicObject>>)> {
    // Metadata alone is asked for.
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &resource(kind));
    let config = watcher::Config::default()
        .timeout(WATCH_SECONDS)
        .labels(&format!("{MANAGED_BY_LABEL}={MANAGED_BY}"));
    let events = watcher::watcher(api, config).default_backoff();
    let events = events.filter_map(move |event| async move {
        match event {
            Ok(event) => Some((kind, event)),
            Err(error) => {
                tracing::warn!("{} cannot be watched: {}", kind.plural(), describe(&error));
                None
            }
        }
    });
    events.boxed()
}

fn resource(kind: ChildKind) -> ApiResource {
    ApiResource {
        group: kind.group().to_owned(),
        version: kind.version().to_owned(),
        api_version: kind.api_version(),
        kind: kind.kind().to_owned(),
        plural: kind.plural().to_owned(),
    }
}

impl State {
    /// Takes note of an event.
    fn take(&mut self, kind: ChildKind, event: Event<PartialObjectMeta<DynamicObject>>) {
        match event {
            Event::Init => {
                self.listed.insert(kind, BTreeMap::new());
            }
            Event::InitApply(object) => {
                if let Some(existing) = ours(&object.metadata) {
                    let key = key(kind, &object.metadata);
                    self.listed.entry(kind).or_default().insert(key, existing);
                }
            }
            Event::InitDone => {
                let listed = self.listed.remove(&kind).unwrap_or_default();
                self.existing.retain(|key, _| key.kind != kind);
                self.existing.extend(listed);
                self.known.insert(kind);
                self.reconciled.clear();
            }
            Event::Apply(object) => {
                let key = key(kind, &object.metadata);
                let Some(existing) = ours(&object.metadata) else {
                    // An object that has lost its owner is no longer ours.
                    return self.forget(&key);
                };
                self.reconciled.remove(&existing.owner);
                self.existing.insert(key, existing);
            }
            Event::Delete(object) => self.forget(&key(kind, &object.metadata)),
        }
    }

    fn forget(&mut self, key: &ChildKey) {
        if let Some(former) = self.existing.remove(key) {
            self.reconciled.remove(&former.owner);
        }
    }

    /// Applies and deletes until everything is as desired, and returns what failed.
    async fn reconcile(&mut self, client: &Client, desired: &DesiredState) -> Failures {
        let mut failures = Failures::new();
        let is_reconciled = |gateway: &ObjectRef, children: &Arc<[Child]>| {
            let reconciled = self.reconciled.get(gateway);
            reconciled.is_some_and(|reconciled| Arc::ptr_eq(reconciled, children))
        };
        let pending: Vec<_> = desired
            .children
            .iter()
            .filter(|(gateway, children)| !is_reconciled(gateway, children))
            .collect();
        // Only accounts that are ours may be bound, and before there are pods that read.
        let is_account = |child: &&Child| child.kind == ChildKind::ServiceAccount;
        for (gateway, children) in &pending {
            let accounts = children.iter().filter(is_account);
            self.apply_all(client, gateway, accounts, &mut failures)
                .await;
        }
        self.bind_readers(client, desired, &mut failures).await;
        for (gateway, children) in pending {
            let others = children.iter().filter(|child| !is_account(child));
            if !failures.contains_key(gateway) {
                self.apply_all(client, gateway, others, &mut failures).await;
            }
            if !failures.contains_key(gateway) {
                self.reconciled.insert(gateway.clone(), children.clone());
            }
        }
        self.delete_others(client, desired).await;
        failures
    }

    async fn apply_all<'a>(
        &mut self,
        client: &Client,
        gateway: &ObjectRef,
        children: impl Iterator<Item = &'a Child>,
        failures: &mut Failures,
    ) {
        for child in children {
            if let Err(error) = self.apply(client, gateway, child).await {
                let (kind, name) = (child.kind.kind(), &child.name);
                let message = format!("{kind} {name} cannot be applied: {error}");
                tracing::warn!("{gateway}: {message}; it is retried");
                let reason = FailureReason::Refused;
                failures
                    .entry(gateway.clone())
                    .or_insert(Failure { reason, message });
            }
        }
    }

    /// Deletes what no Gateway needs.
    async fn delete_others(&mut self, client: &Client, desired: &DesiredState) {
        let children = desired
            .children
            .values()
            .flat_map(|children| children.iter());
        let needed: BTreeSet<ChildKey> = children.map(ChildKey::of).collect();
        let superfluous: Vec<ChildKey> = self
            .existing
            .iter()
            .filter(|(key, existing)| {
                !needed.contains(key) && !desired.retained.contains(&existing.owner)
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in superfluous {
            self.delete(client, key).await;
        }
        self.applied.retain(|key, _| needed.contains(key));
        self.reconciled
            .retain(|gateway, _| desired.children.contains_key(gateway));
    }

    async fn apply(
        &mut self,
        client: &Client,
        gateway: &ObjectRef,
        child: &Child,
    ) -> Result<(), String> {
        let key = ChildKey::of(child);
        let wanted = fingerprint::of(&child.object);
        let hash = self.existing.get(&key).map(|existing| existing.hash);
        if hash.is_some() && self.applied.get(&key).copied() == hash.map(|hash| (wanted, hash)) {
            return Ok(());
        }
        let api = api(client, &key);
        if hash.is_none() && !self.applied.contains_key(&key) {
            check_ownership(&api, child).await?;
        }
        let object = send(&api, child).await?;
        let hash = hash_of(&object.metadata);
        self.applied.insert(key.clone(), (wanted, hash));
        let owner = gateway.clone();
        self.existing.insert(key, Existing { owner, hash });
        Ok(())
    }

    /// Deletes an object. One that remains is deleted with the next change.
    async fn delete(&mut self, client: &Client, key: ChildKey) {
        let api = api(client, &key);
        let deleted = match request(api.delete(&key.name, &DeleteParams::background())).await {
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(()),
            Ok(deleted) => deleted.map(drop).map_err(|error| describe(&error)),
            Err(timeout) => Err(timeout),
        };
        match deleted {
            Ok(()) => tracing::info!("{key} is no longer needed and is deleted"),
            Err(error) => return tracing::warn!("{key} cannot be deleted: {error}"),
        }
        self.existing.remove(&key);
    }

    /// Binds the ServiceAccounts of all data planes, and no others, to the ClusterRole that lets them read.
    async fn bind_readers(
        &mut self,
        client: &Client,
        desired: &DesiredState,
        failures: &mut Failures,
    ) {
        // Accounts that are no longer needed stay bound until they are deleted: terminating pods still read.
        let accounts: BTreeSet<_> = self
            .existing
            .keys()
            .filter(|key| key.kind == ChildKind::ServiceAccount)
            .map(|key| (key.namespace.clone(), key.name.clone()))
            .collect();
        if self.readers.as_ref() == Some(&accounts) {
            return;
        }
        let subject = |(namespace, name): &(String, String)| json!({"kind": "ServiceAccount", "namespace": namespace, "name": name});
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": READERS},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": READERS},
            "subjects": accounts.iter().map(subject).collect::<Vec<_>>(),
        });
        let resource = ApiResource {
            group: "rbac.authorization.k8s.io".to_owned(),
            version: "v1".to_owned(),
            api_version: "rbac.authorization.k8s.io/v1".to_owned(),
            kind: "ClusterRoleBinding".to_owned(),
            plural: "clusterrolebindings".to_owned(),
        };
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&binding);
        let applied = request(api.patch(READERS, &params, &patch)).await;
        let Err(error) = applied.and_then(|applied| applied.map_err(|error| describe(&error)))
        else {
            self.readers = Some(accounts);
            return;
        };
        let message = format!("ClusterRoleBinding {READERS} cannot be applied: {error}");
        tracing::warn!("{message}; it is retried");
        for gateway in desired.children.keys() {
            failures.entry(gateway.clone()).or_insert_with(|| Failure {
                reason: FailureReason::Refused,
                message: message.clone(),
            });
        }
    }
}

/// Fails when an object of this name exists that is not ours: applying would adopt it.
async fn check_ownership(api: &Api<DynamicObject>, child: &Child) -> Result<(), String> {
    let object = serde_json::from_value(child.object.clone()).map_err(|error| error.to_string())?;
    let only_tried = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match request(api.create(&only_tried, &object)).await? {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let why = "one of this name exists already and belongs to another owner; rename it or the Gateway";
            Err(why.to_owned())
        }
        // Applying reports whatever else is wrong.
        _ => Ok(()),
    }
}

/// Applies an object, and returns what the API server made of it.
async fn send(api: &Api<DynamicObject>, child: &Child) -> Result<DynamicObject, String> {
    let forced = PatchParams::apply(FIELD_MANAGER).force();
    let object = Patch::Apply(&child.object);
    let mut sent = request(api.patch(&child.name, &forced, &object)).await?;
    if has_foreign_ports(child, &sent) {
        let ports = json!({"spec": {"ports": child.object["spec"]["ports"]}});
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        sent = request(api.patch(&child.name, &params, &Patch::Merge(&ports))).await?;
        if sent.is_ok() {
            sent = request(api.patch(&child.name, &forced, &object)).await?;
        }
    }
    sent.map_err(|error| describe(&error))
}

/// Whether a Service has ports of another field manager: applying leaves them there, and is refused where they have the
/// names of ours.
fn has_foreign_ports(child: &Child, sent: &Result<DynamicObject, kube::Error>) -> bool {
    let count = |object: &Value| object["spec"]["ports"].as_array().map(Vec::len);
    child.kind == ChildKind::Service
        && match sent {
            Ok(object) => count(&object.data) != count(&child.object),
            Err(kube::Error::Api(status)) => status.code == 422,
            Err(_) => false,
        }
}

fn api(client: &Client, key: &ChildKey) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &key.namespace, &resource(key.kind))
}

fn key(kind: ChildKind, metadata: &ObjectMeta) -> ChildKey {
    ChildKey {
        kind,
        namespace: metadata.namespace.clone().unwrap_or_default(),
        name: metadata.name.clone().unwrap_or_default(),
    }
}

/// An object that has our label and belongs to a Gateway: what others label like that is theirs.
fn ours(metadata: &ObjectMeta) -> Option<Existing> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| {
        let is_gateway = owner.kind == "Gateway" && owner.api_version.starts_with(GATEWAY_GROUP);
        is_gateway && owner.controller == Some(true)
    })?;
    Some(Existing {
        owner: ObjectRef::gateway_api("Gateway", namespace, &owner.name),
        hash: hash_of(metadata),
    })
}

/// A hash of what changes when somebody changes an object: its generation, or its version where nothing counts
/// generations, and its labels and annotations.
fn hash_of(metadata: &ObjectMeta) -> u64 {
    let version = metadata
        .generation
        .is_none()
        .then_some(&metadata.resource_version);
    fingerprint::of(&(
        metadata.generation,
        version,
        &metadata.labels,
        &metadata.annotations,
    ))
}
