//! Keeps the objects that Gateways need in a cluster as they ought to be: applies what is missing or differs, deletes
//! what is no longer needed, and repairs what others change. Knows not why an object looks as it does.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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

use super::{Child, ChildKind, MANAGED_BY, MANAGED_BY_LABEL};
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::ir::{ObjectRef, fingerprint};

/// Who applies, in the objects' managedFields.
const FIELD_MANAGER: &str = "portcullis.dev/controller";
/// The ClusterRoleBinding, installed with the controller, that lets data planes read.
const READERS: &str = "portcullis-data-plane";
/// The longest that one request may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// What comes together is dealt with together.
const QUIET: Duration = Duration::from_millis(20);
/// The first and the longest wait after something failed.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Seconds after which the API server ends a watch.
pub(super) const WATCH_SECONDS: u32 = 45;

/// The objects that Gateways need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// By Gateway. The same list means the same objects.
    pub children: BTreeMap<ObjectRef, Arc<[Child]>>,
    /// Gateways of which nobody knows what they need: what they have stays as it is.
    pub kept: BTreeSet<ObjectRef>,
}

/// Why a Gateway's objects could not be applied, by Gateway.
pub type Failures = BTreeMap<ObjectRef, String>;

/// An object by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Place {
    kind: ChildKind,
    namespace: String,
    name: String,
}

impl Place {
    fn of(child: &Child) -> Self {
        Self {
            kind: child.kind,
            namespace: child.namespace.clone(),
            name: child.name.clone(),
        }
    }
}

/// An object that the cluster has.
struct Existing {
    /// The Gateway that it belongs to.
    owner: ObjectRef,
    /// A hash of what nobody but us should change.
    look: u64,
}

/// What the cluster has of ours, and what we have made of it.
#[derive(Default)]
struct State {
    existing: BTreeMap<Place, Existing>,
    /// Lists that are not complete yet.
    listed: BTreeMap<ChildKind, BTreeMap<Place, Existing>>,
    /// Kinds that have been listed at least once.
    known: BTreeSet<ChildKind>,
    /// By object, hashes of what was applied and of what the API server made of it.
    applied: HashMap<Place, (u64, u64)>,
    /// Gateways whose objects are as they should be, with these.
    settled: BTreeMap<ObjectRef, Arc<[Child]>>,
    /// Subjects of the binding, as applied last.
    readers: Option<BTreeSet<(String, String)>>,
}

/// Keeps the objects that `needs` names, and no others of ours, for as long as it is polled. Until `needs` has a value
/// nothing is touched.
pub async fn keep(
    client: &Client,
    mut needs: watch::Receiver<Option<Arc<Needs>>>,
    failures: &watch::Sender<Failures>,
) {
    let mut state = State::default();
    let mut changes = select_all(ChildKind::ALL.map(|kind| follow(client, kind)));
    let mut wait = WAITS.0;
    loop {
        let wanted = needs.borrow_and_update().clone();
        let mut found = Failures::new();
        if let Some(wanted) = wanted.filter(|_| state.known.len() == ChildKind::ALL.len()) {
            found = state.settle(client, &wanted).await;
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
            sleep(wait).await;
        };
        tokio::select! {
            changed = needs.changed() => if changed.is_err() {
                return;
            },
            Some((kind, event)) = changes.next() => {
                state.take(kind, event);
                while let Ok(Some((kind, event))) = timeout(QUIET, changes.next()).await {
                    state.take(kind, event);
                }
            }
            () = again => {}
        }
        wait = if is_well {
            WAITS.0
        } else {
            (wait * 2).min(WAITS.1)
        };
    }
}

/// Watches our objects of a kind, for ever.
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
    let told = events.filter_map(move |event| async move {
        match event {
            Ok(event) => Some((kind, event)),
            Err(error) => {
                tracing::warn!("{} cannot be watched: {error}", kind.kind());
                None
            }
        }
    });
    told.boxed()
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
    /// Takes note of what a watch tells.
    fn take(&mut self, kind: ChildKind, event: Event<PartialObjectMeta<DynamicObject>>) {
        match event {
            Event::Init => {
                self.listed.insert(kind, BTreeMap::new());
            }
            Event::InitApply(object) => {
                if let Some(existing) = ours(&object.metadata) {
                    let place = place(kind, &object.metadata);
                    self.listed.entry(kind).or_default().insert(place, existing);
                }
            }
            Event::InitDone => {
                let listed = self.listed.remove(&kind).unwrap_or_default();
                self.existing.retain(|place, _| place.kind != kind);
                self.existing.extend(listed);
                self.known.insert(kind);
                self.settled.clear();
            }
            Event::Apply(object) => {
                let place = place(kind, &object.metadata);
                let Some(existing) = ours(&object.metadata) else {
                    // What has lost its owner is no more ours than what is gone.
                    return self.forget(&place);
                };
                self.settled.remove(&existing.owner);
                self.existing.insert(place, existing);
            }
            Event::Delete(object) => self.forget(&place(kind, &object.metadata)),
        }
    }

    fn forget(&mut self, place: &Place) {
        if let Some(former) = self.existing.remove(place) {
            self.settled.remove(&former.owner);
        }
    }

    /// Applies and deletes until everything is as it is needed, and tells what could not be done.
    async fn settle(&mut self, client: &Client, needs: &Needs) -> Failures {
        let mut failures = Failures::new();
        let settled = |gateway: &ObjectRef, children: &Arc<[Child]>| {
            let settled = self.settled.get(gateway);
            settled.is_some_and(|settled| Arc::ptr_eq(settled, children))
        };
        let unsettled: Vec<_> = needs
            .children
            .iter()
            .filter(|(gateway, children)| !settled(gateway, children))
            .collect();
        // Only accounts that are ours may be let read, and that before there are pods that do.
        let is_account = |child: &&Child| child.kind == ChildKind::ServiceAccount;
        for (gateway, children) in &unsettled {
            let accounts = children.iter().filter(is_account);
            self.apply_all(client, gateway, accounts, &mut failures)
                .await;
        }
        self.let_read(client, needs, &mut failures).await;
        for (gateway, children) in unsettled {
            let others = children.iter().filter(|child| !is_account(child));
            if !failures.contains_key(gateway) {
                self.apply_all(client, gateway, others, &mut failures).await;
            }
            if !failures.contains_key(gateway) {
                self.settled.insert(gateway.clone(), children.clone());
            }
        }
        self.delete_others(client, needs).await;
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
                tracing::warn!("{gateway}: {message}; it is tried again");
                failures.entry(gateway.clone()).or_insert(message);
            }
        }
    }

    /// Deletes what no Gateway needs any more.
    async fn delete_others(&mut self, client: &Client, needs: &Needs) {
        let children = needs.children.values().flat_map(|children| children.iter());
        let needed: BTreeSet<Place> = children.map(Place::of).collect();
        let superfluous: Vec<Place> = self
            .existing
            .iter()
            .filter(|(place, existing)| {
                !needed.contains(place) && !needs.kept.contains(&existing.owner)
            })
            .map(|(place, _)| place.clone())
            .collect();
        for place in superfluous {
            self.delete(client, place).await;
        }
        self.applied.retain(|place, _| needed.contains(place));
        self.settled
            .retain(|gateway, _| needs.children.contains_key(gateway));
    }

    async fn apply(
        &mut self,
        client: &Client,
        gateway: &ObjectRef,
        child: &Child,
    ) -> Result<(), String> {
        let place = Place::of(child);
        let wanted = fingerprint::of(&child.object);
        let look = self.existing.get(&place).map(|existing| existing.look);
        if look.is_some() && self.applied.get(&place).copied() == look.map(|look| (wanted, look)) {
            return Ok(());
        }
        let api = api(client, &place);
        if look.is_none() && !self.applied.contains_key(&place) {
            leave_to_others(&api, child).await?;
        }
        let object = send(&api, child).await?;
        let look = look_of(&object.metadata);
        self.applied.insert(place.clone(), (wanted, look));
        let owner = gateway.clone();
        self.existing.insert(place, Existing { owner, look });
        Ok(())
    }

    /// Deletes what is not needed any more. What fails is still there, and is tried again.
    async fn delete(&mut self, client: &Client, place: Place) {
        let api = api(client, &place);
        let deleted = timeout(
            PATIENCE,
            api.delete(&place.name, &DeleteParams::background()),
        )
        .await;
        match deleted {
            Ok(Ok(_)) => tracing::info!(
                "{} {}/{} is not needed any more",
                place.kind.kind(),
                place.namespace,
                place.name
            ),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => {}
            _ => {
                tracing::warn!(
                    "{} {}/{} cannot be deleted",
                    place.kind.kind(),
                    place.namespace,
                    place.name
                );
                return;
            }
        }
        self.existing.remove(&place);
    }

    /// Lets the ServiceAccounts of all data planes read what they serve from, and nobody else.
    async fn let_read(&mut self, client: &Client, needs: &Needs, failures: &mut Failures) {
        // Those that are not needed any more are deleted; until then, pods that leave read to their end.
        let accounts: BTreeSet<_> = self
            .existing
            .keys()
            .filter(|place| place.kind == ChildKind::ServiceAccount)
            .map(|place| (place.namespace.clone(), place.name.clone()))
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
        let error = match timeout(PATIENCE, api.patch(READERS, &params, &patch)).await {
            Ok(Ok(_)) => {
                self.readers = Some(accounts);
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer within 10 s".to_owned(),
        };
        let message = format!("ClusterRoleBinding {READERS} cannot be applied: {error}");
        tracing::warn!("{message}; it is tried again");
        for gateway in needs.children.keys() {
            failures
                .entry(gateway.clone())
                .or_insert_with(|| message.clone());
        }
    }
}

/// Fails when there is an object under this name that is not ours: applying would take it over.
async fn leave_to_others(api: &Api<DynamicObject>, child: &Child) -> Result<(), String> {
    let object = serde_json::from_value(child.object.clone()).map_err(|error| error.to_string())?;
    let only_tried = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match request(api.create(&only_tried, &object)).await? {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
            let why = "one of this name exists already and is not ours; rename it or the Gateway";
            Err(why.to_owned())
        }
        // Whatever else is wrong, applying tells.
        _ => Ok(()),
    }
}

/// Applies an object, and returns what the API server made of it.
async fn send(api: &Api<DynamicObject>, child: &Child) -> Result<DynamicObject, String> {
    let forced = PatchParams::apply(FIELD_MANAGER).force();
    let object = Patch::Apply(&child.object);
    let mut sent = request(api.patch(&child.name, &forced, &object)).await?;
    if has_strange_ports(child, &sent) {
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
    sent.map_err(|error| error.to_string())
}

/// Whether a Service has ports that others have given to it: applying leaves them there, and is refused where they have
/// the names of ours.
fn has_strange_ports(child: &Child, sent: &Result<DynamicObject, kube::Error>) -> bool {
    let count = |object: &Value| object["spec"]["ports"].as_array().map(Vec::len);
    child.kind == ChildKind::Service
        && match sent {
            Ok(object) => count(&object.data) != count(&child.object),
            Err(kube::Error::Api(status)) => status.code == 422,
            Err(_) => false,
        }
}

/// What a request comes to, unless it takes too long.
async fn request<T>(request: impl Future<Output = T>) -> Result<T, String> {
    let answered = timeout(PATIENCE, request).await;
    answered.map_err(|_| "no answer within 10 s".to_owned())
}

fn api(client: &Client, place: &Place) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), &place.namespace, &resource(place.kind))
}

fn place(kind: ChildKind, metadata: &ObjectMeta) -> Place {
    Place {
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
        look: look_of(metadata),
    })
}

/// A hash of what changes when somebody changes an object: its generation, or its version where nothing counts
/// generations, and its labels and annotations.
fn look_of(metadata: &ObjectMeta) -> u64 {
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
