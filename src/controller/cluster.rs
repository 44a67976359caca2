//! The controller's loop: a snapshot is translated, the objects that its Gateways need are published, and statuses are
//! released as data planes confirm them. Owns the order of these steps; what applies, asks and writes is given to it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

use super::addresses::{self, Replica};
use super::confirmation::{Confirmations, Verdict};
use super::expiry::{self, Expiry};
use crate::api::Resource;
use crate::api::parameters::ServiceType;
use crate::events::{Events, Warning};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::provider::Load;
use crate::provision::{
    self, ClassUsage, DesiredState, Failure, FailureReason, Failures, StreamEndpoint,
};
use crate::status::lease::Leadership;
use crate::status::writer::Statuses;
use crate::status::{DataPlaneState, ParentRef, Reason, StatusReport};
use crate::stream::Published;
use crate::stream::hub::Reports;
use crate::translate::{Options, Translation, Translator};

/// How long a change waits until it is translated. Conditions wait for pods anyway, which must not wait for them.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// The reason of events about replicas that do not serve the current configuration.
const REPLICA_BEHIND: &str = "ReplicaBehind";
/// The reason of events about certificates that are about to expire.
const CERTIFICATE_EXPIRING: &str = "CertificateExpiring";

/// What the loop follows.
pub struct Inputs {
    /// Objects of the cluster, as they have been fed to the pods of Gateways.
    pub published: watch::Receiver<Arc<Published>>,
    /// What the pods report that are connected to this process.
    pub reports: watch::Receiver<Reports>,
    /// Addresses of nodes, where they are wanted.
    pub nodes: watch::Receiver<BTreeSet<IpAddr>>,
    /// What could not be applied.
    pub failures: watch::Receiver<Failures>,
    /// The certificates that pods are to trust; nothing can be made for a Gateway before they are known.
    pub trusted: watch::Receiver<Option<Arc<str>>>,
    /// Whether this process is the one that applies and writes.
    pub leading: watch::Receiver<Leadership>,
    /// Version of the Gateway API's CRDs.
    pub bundle_version: watch::Receiver<Option<String>>,
}

/// What the loop publishes.
pub struct Outputs<P> {
    /// Objects that Gateways need.
    pub needs: watch::Sender<Option<Arc<DesiredState>>>,
    /// GatewayClasses of ours, and whether they are in use.
    pub uses: watch::Sender<ClassUsage>,
    /// Whether addresses of nodes are wanted.
    pub wants_nodes: watch::Sender<bool>,
    /// Gateways whose ready replicas all serve their latest state.
    pub serving: watch::Sender<BTreeSet<ObjectRef>>,
    /// What a person must act on.
    pub events: Events,
    /// Statuses to write; none while another process leads.
    pub statuses: watch::Sender<Option<Statuses>>,
    /// Takes note of a report; of none while another process leads, which alone can make one.
    pub publish: P,
}

/// What is the same for all pods of Gateways.
pub struct PodSettings {
    /// What they run unless their parameters say otherwise.
    pub image: String,
    /// Where they get their configuration.
    pub controller_url: String,
    /// Arguments that all of them have beside those of their parameters.
    pub arguments: Vec<String>,
}

/// What is made of one snapshot.
struct ClusterState {
    published: Arc<Published>,
    translation: Translation,
    /// How pods reach the controller; `None` before that is known.
    endpoint: Option<StreamEndpoint>,
    needs: Arc<DesiredState>,
    replicas: BTreeMap<ObjectRef, BTreeSet<Replica>>,
    /// Which Gateway a ListenerSet belongs to.
    sets: BTreeMap<ObjectRef, ObjectRef>,
}

/// Runs until the provider is gone.
pub async fn run<P>(
    mut inputs: Inputs,
    options: Options,
    pods: &PodSettings,
    mut outputs: Outputs<P>,
) where
    P: FnMut(&Arc<Load>, Option<&Arc<StatusReport>>),
{
    let mut leader: Option<Leader> = None;
    loop {
        let published = inputs.published.borrow_and_update().clone();
        let mut until = None;
        if inputs.leading.borrow_and_update().is_leader {
            let leader = leader.get_or_insert_with(|| Leader::new(options.clone()));
            until = leader.step(published, pods, &mut inputs, &mut outputs);
        } else {
            if leader.take().is_some() {
                // By the time that this leads again they would be old.
                outputs.needs.send_replace(None);
                outputs.statuses.send_replace(None);
            }
            (outputs.publish)(&published.load, None);
        }
        tokio::select! {
            changed = inputs.published.changed() => {
                if changed.is_err() {
                    return;
                }
                sleep(DEBOUNCE).await;
            }
            Ok(()) = inputs.reports.changed() => {}
            Ok(()) = inputs.nodes.changed() => {}
            Ok(()) = inputs.failures.changed() => {}
            Ok(()) = inputs.trusted.changed() => {}
            Ok(()) = inputs.leading.changed() => {}
            Ok(()) = inputs.bundle_version.changed() => {}
            () = deadline(until) => {}
        }
    }
}

/// What a process knows while it leads. Others translate nothing: what they would come to could be old when they lead.
struct Leader {
    translator: Translator,
    state: Option<ClusterState>,
    confirmations: Confirmations,
    expiry: Expiry,
}

impl Leader {
    fn new(options: Options) -> Self {
        Self {
            translator: Translator::new(options),
            state: None,
            confirmations: Confirmations::new(Instant::now()),
            expiry: Expiry::default(),
        }
    }

    /// Translates what is new, judges the data planes and publishes both. Returns when to do so again even without news.
    fn step<P>(
        &mut self,
        published: Arc<Published>,
        pods: &PodSettings,
        inputs: &mut Inputs,
        outputs: &mut Outputs<P>,
    ) -> Option<Instant>
    where
        P: FnMut(&Arc<Load>, Option<&Arc<StatusReport>>),
    {
        let endpoint = endpoint(inputs.trusted.borrow_and_update().as_deref(), pods);
        let is_current = |state: &ClusterState| {
            Arc::ptr_eq(&state.published, &published) && state.endpoint == endpoint
        };
        let is_new = !self.state.as_ref().is_some_and(is_current);
        if is_new {
            let previous = self.state.as_ref();
            let served = previous.map(|state| &state.translation.ir);
            let translation = self.translator.translate(&published.load.snapshot, served);
            let new = ClusterState::new(published, translation, (&pods.image, endpoint), previous);
            let gateways = &new.translation.report.gateways;
            self.confirmations
                .retain(|gateway| gateways.contains_key(gateway));
            publish(outputs, &new);
            self.state = Some(new);
        }
        let state = self.state.as_ref()?;
        let reports = inputs.reports.borrow_and_update();
        let verdicts = state.judge(&mut self.confirmations, &reports);
        drop(reports);
        state.tell(&verdicts, outputs);
        let now = (Instant::now(), Timestamp::now());
        let found = self.expiry.look(&state.translation.ir, is_new, now);
        state.tell_expiry(found, &outputs.events);
        let nodes = inputs.nodes.borrow_and_update().clone();
        let failures = inputs.failures.borrow_and_update().clone();
        let version = inputs.bundle_version.borrow_and_update().clone();
        let report = Arc::new(state.report(&verdicts, &failures, &nodes, version.as_deref()));
        (outputs.publish)(&state.published.load, Some(&report));
        let held = Arc::new(state.held(&verdicts));
        outputs
            .statuses
            .send_replace(Some(Statuses { report, held }));
        let deadlines = verdicts.values().filter_map(Verdict::deadline);
        deadlines.chain(self.expiry.next()).min()
    }
}

/// How pods reach the controller, once it is known what they can trust.
fn endpoint(trusted: Option<&str>, pods: &PodSettings) -> Option<StreamEndpoint> {
    trusted.map(|ca| StreamEndpoint {
        url: pods.controller_url.clone(),
        ca: ca.to_owned(),
        arguments: pods.arguments.clone(),
    })
}

/// What Gateways need. What those have whose class or parameters are at fault, or that are being deleted, stays.
fn needs(
    load: &Load,
    translation: &Translation,
    image: &str,
    endpoint: &StreamEndpoint,
    previous: Option<&ClusterState>,
) -> DesiredState {
    let mut needs = DesiredState::default();
    for name in translation.report.gateways.keys() {
        let gateway = load.snapshot.gateways.get(&name.namespace, &name.name);
        let gateway = gateway.filter(|gateway| gateway.metadata.deletion_timestamp.is_none());
        let Some((gateway, data_plane)) = gateway.zip(translation.data_planes.get(name)) else {
            needs.retained.insert(name.clone());
            continue;
        };
        let known = previous.and_then(|state| {
            let snapshot = &state.published.load.snapshot;
            let former = snapshot.gateways.get(&name.namespace, &name.name)?;
            let is_same = Arc::ptr_eq(former, gateway)
                && state.endpoint.as_ref() == Some(endpoint)
                && state.translation.data_planes.get(name) == Some(data_plane);
            state.needs.children.get(name).filter(|_| is_same).cloned()
        });
        let children = known
            .unwrap_or_else(|| provision::children(gateway, data_plane, image, endpoint).into());
        needs.children.insert(name.clone(), children);
    }
    needs
}

async fn deadline(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

fn publish<P>(outputs: &Outputs<P>, state: &ClusterState) {
    outputs.needs.send_if_modified(|needs| {
        // Before anything can be made, nothing may be deleted either.
        let new = state.endpoint.is_some().then(|| state.needs.clone());
        let is_news = *needs != new;
        *needs = new;
        is_news
    });
    let data_planes = state.translation.data_planes.values();
    let mut types = data_planes.map(|data_plane| data_plane.parameters.service.kind);
    let wants_nodes = types.any(|kind| kind == Some(ServiceType::NodePort));
    outputs
        .wants_nodes
        .send_if_modified(|wants| std::mem::replace(wants, wants_nodes) != wants_nodes);
    let uses = state.uses();
    outputs.uses.send_if_modified(|known| {
        let is_news = *known != uses;
        *known = uses;
        is_news
    });
}

impl ClusterState {
    /// What of `previous` is the same is used again.
    fn new(
        published: Arc<Published>,
        translation: Translation,
        (image, endpoint): (&str, Option<StreamEndpoint>),
        previous: Option<&Self>,
    ) -> Self {
        let snapshot = &published.load.snapshot;
        let reached = endpoint.clone().unwrap_or_default();
        let needs = needs(&published.load, &translation, image, &reached, previous);
        let set = |set: &Arc<crate::api::gateway::ListenerSet>| {
            let parent = &set.spec.parent_ref;
            let namespace = parent
                .namespace
                .as_deref()
                .unwrap_or(&set.metadata.namespace);
            (
                set.object_ref(),
                ObjectRef::gateway_api("Gateway", namespace, &parent.name),
            )
        };
        Self {
            replicas: addresses::replicas(snapshot, &needs),
            needs: Arc::new(needs),
            sets: snapshot.listener_sets.iter().map(set).collect(),
            endpoint,
            translation,
            published,
        }
    }

    /// Which classes of ours are in use.
    fn uses(&self) -> ClassUsage {
        let snapshot = &self.published.load.snapshot;
        let used: BTreeSet<_> = snapshot
            .gateways
            .iter()
            .map(|gateway| &gateway.spec.gateway_class_name)
            .collect();
        let classes = self.translation.report.gateway_classes.keys();
        classes
            .map(|class| {
                (
                    class.name.to_string(),
                    used.contains(&class.name.to_string()),
                )
            })
            .collect()
    }

    /// What the data planes of every Gateway have come to.
    fn judge(
        &self,
        confirmations: &mut Confirmations,
        reports: &Reports,
    ) -> BTreeMap<ObjectRef, Verdict> {
        let now = Instant::now();
        let judge = |gateway: &ObjectRef| {
            let reports = reports.get(gateway);
            let report = |replica| {
                let Replica { pod, .. }: &Replica = replica;
                (replica, reports.and_then(|reports| reports.get(pod)))
            };
            let replicas = self.replicas.get(gateway).into_iter().flatten();
            let replicas: Vec<_> = replicas.map(report).collect();
            // One that is ours has been fed.
            let revision = self.published.revisions.get(gateway).copied();
            let verdict = confirmations.judge(gateway, revision.unwrap_or(0), &replicas, now);
            (gateway.clone(), verdict)
        };
        self.translation.report.gateways.keys().map(judge).collect()
    }

    /// Tells which Gateways serve, and of replicas that do not.
    fn tell<P>(&self, verdicts: &BTreeMap<ObjectRef, Verdict>, outputs: &Outputs<P>) {
        let serving = verdicts.iter();
        let serving = serving.filter(|(_, verdict)| matches!(verdict, Verdict::Confirmed(_)));
        let serving: BTreeSet<_> = serving.map(|(gateway, _)| gateway.clone()).collect();
        outputs.serving.send_if_modified(|known| {
            let is_news = *known != serving;
            *known = serving;
            is_news
        });
        for (name, verdict) in verdicts {
            match verdict {
                Verdict::Lagging(message) => {
                    self.warn(name, REPLICA_BEHIND, message.clone(), &outputs.events);
                }
                Verdict::Confirmed(_) => outputs.events.clear(name, REPLICA_BEHIND),
                Verdict::Awaited(_) | Verdict::Absent => {}
            }
        }
    }

    fn tell_expiry(&self, found: expiry::Report, events: &Events) {
        for (gateway, message) in found.expiring {
            self.warn(&gateway, CERTIFICATE_EXPIRING, message, events);
        }
        for gateway in found.renewed {
            events.clear(&gateway, CERTIFICATE_EXPIRING);
        }
    }

    fn warn(&self, gateway: &ObjectRef, reason: &'static str, message: String, events: &Events) {
        let gateways = &self.published.load.snapshot.gateways;
        if let Some(object) = gateways.get(&gateway.namespace, &gateway.name) {
            events.warn(Warning {
                object: gateway.clone(),
                version: "v1",
                uid: object.metadata.uid.clone(),
                reason,
                action: "Program",
                message,
            });
        }
    }

    fn report(
        &self,
        verdicts: &BTreeMap<ObjectRef, Verdict>,
        failures: &Failures,
        nodes: &BTreeSet<IpAddr>,
        version: Option<&str>,
    ) -> StatusReport {
        let state = |(gateway, verdict): (&ObjectRef, &Verdict)| {
            let mut state = self.addresses(gateway, nodes);
            let failure = failures.get(gateway);
            let is_taken = |failure: &&Failure| failure.reason == FailureReason::NameTaken;
            state.refusal = failure
                .filter(is_taken)
                .map(|failure| (Reason::NameTaken, failure.message.clone()));
            match verdict {
                Verdict::Confirmed(unbound) => state.unbound = unbound.clone(),
                Verdict::Awaited(_) => {}
                Verdict::Lagging(message) => state.fault = Some((Reason::Pending, message.clone())),
                Verdict::Absent => {
                    let failure = failures.get(gateway);
                    let failure = failure.map(|failure| failure.message.clone());
                    let message = failure
                        .unwrap_or_else(|| "no replica of its data plane is ready yet".to_owned());
                    state.fault = Some((Reason::Pending, message));
                }
            }
            (gateway.clone(), state)
        };
        let states: BTreeMap<_, _> = verdicts.iter().map(state).collect();
        let report = self.translation.report.clone();
        let mut report = report.with_bundle_version(version);
        for problem in &self.published.load.problems {
            if let Some(object) = &problem.object {
                report.refuse(object, problem.generation, &problem.message);
            }
        }
        report.with_data_planes(&states, |set| self.sets.get(set).cloned())
    }

    fn addresses(&self, gateway: &ObjectRef, nodes: &BTreeSet<IpAddr>) -> DataPlaneState {
        let (snapshot, needs) = (&self.published.load.snapshot, &self.needs);
        let requested = self.translation.data_planes.get(gateway);
        let requested = requested.map_or(&[][..], |data_plane| &data_plane.addresses);
        let replicas = self.replicas.get(gateway);
        addresses::state(snapshot, needs, gateway, requested, replicas, nodes)
    }

    /// Objects whose status waits for data planes to follow.
    fn held(&self, verdicts: &BTreeMap<ObjectRef, Verdict>) -> HashSet<ObjectRef> {
        let is_awaited =
            |gateway: &ObjectRef| matches!(verdicts.get(gateway), Some(Verdict::Awaited(_)));
        let mut held = HashSet::new();
        if !verdicts.keys().any(is_awaited) {
            return held;
        }
        held.extend(
            verdicts
                .keys()
                .filter(|gateway| is_awaited(gateway))
                .cloned(),
        );
        held.extend(
            self.sets
                .iter()
                .filter(|(_, gateway)| is_awaited(gateway))
                .map(|(set, _)| set.clone()),
        );
        for (route, parents) in self.translation.report.routes.iter() {
            let gateway = |parent: &ParentRef| self.gateway_of(route, parent);
            let mut gateways = parents
                .iter()
                .filter_map(|parent| gateway(&parent.parent_ref));
            if gateways.any(|gateway| is_awaited(&gateway)) {
                held.insert(route.clone());
            }
        }
        held
    }

    fn gateway_of(&self, route: &ObjectRef, parent: &ParentRef) -> Option<ObjectRef> {
        if parent.group != GATEWAY_GROUP {
            return None;
        }
        let namespace = parent.namespace.as_deref().unwrap_or(&route.namespace);
        let name = ObjectRef::gateway_api(&parent.kind, namespace, &parent.name);
        match parent.kind.as_str() {
            "Gateway" => Some(name),
            _ => self.sets.get(&name).cloned(),
        }
    }
}
