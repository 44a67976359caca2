//! The controller's loop: a snapshot is translated, the objects that its Gateways need are published, and statuses are
//! released as data planes confirm them. Owns the order of these steps; what applies, asks and writes is given to it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio::time::sleep_until;

use super::addresses;
use super::confirmation::{Confirmations, Verdict};
use crate::api::Resource;
use crate::api::parameters::ServiceType;
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::provider::Load;
use crate::provision::{self, ClassUsage, DesiredState, Failures};
use crate::replicas::{Answers, Replica};
use crate::status::writer::Statuses;
use crate::status::{DataPlaneState, ParentRef, Reason, StatusReport, served};
use crate::translate::{Options, Translation, Translator};

/// What the loop follows.
pub struct Inputs {
    /// Objects of the cluster.
    pub loads: watch::Receiver<Arc<Load>>,
    /// What replicas have answered; meaningful only while leading.
    pub answers: watch::Receiver<Answers>,
    /// Addresses of nodes, where they are wanted.
    pub nodes: watch::Receiver<BTreeSet<IpAddr>>,
    /// What could not be applied.
    pub failures: watch::Receiver<Failures>,
    /// Whether this process is the one that applies, asks and writes.
    pub leading: watch::Receiver<bool>,
    /// Version of the Gateway API's CRDs.
    pub bundle_version: watch::Receiver<Option<String>>,
}

/// What the loop publishes.
pub struct Outputs<P> {
    /// Objects that Gateways need.
    pub needs: watch::Sender<Option<Arc<DesiredState>>>,
    /// Replicas to ask.
    pub replicas: watch::Sender<BTreeSet<Replica>>,
    /// GatewayClasses of ours, and whether they are in use.
    pub uses: watch::Sender<ClassUsage>,
    /// Whether addresses of nodes are wanted.
    pub wants_nodes: watch::Sender<bool>,
    /// Statuses to write; none while another process leads.
    pub statuses: watch::Sender<Option<Statuses>>,
    /// Takes note of a report; of none while another process leads, which alone can make one.
    pub publish: P,
}

/// What is made of one snapshot.
struct ClusterState {
    load: Arc<Load>,
    translation: Translation,
    /// Fingerprints of Gateways that have ports.
    fingerprints: BTreeMap<ObjectRef, String>,
    needs: Arc<DesiredState>,
    replicas: BTreeMap<ObjectRef, BTreeSet<IpAddr>>,
    /// Which Gateway a ListenerSet belongs to.
    sets: BTreeMap<ObjectRef, ObjectRef>,
}

/// Runs until the provider is gone. `image` is what data planes run unless their parameters say otherwise.
pub async fn run<P>(mut inputs: Inputs, options: Options, image: &str, mut outputs: Outputs<P>)
where
    P: FnMut(&Arc<Load>, Option<&Arc<StatusReport>>),
{
    let mut translator = Translator::new(options);
    let mut confirmations = Confirmations::default();
    let mut state: Option<ClusterState> = None;
    let mut is_leading = false;
    loop {
        let load = inputs.loads.borrow_and_update().clone();
        if state
            .as_ref()
            .is_none_or(|state| !Arc::ptr_eq(&state.load, &load))
        {
            let previous = state.as_ref().map(|state| &state.translation.ir);
            let translation = translator.translate(&load.snapshot, previous);
            let new = ClusterState::new(load.clone(), translation, image, state.as_ref());
            confirmations.retain(|gateway| new.translation.report.gateways.contains_key(gateway));
            publish(&outputs, &new);
            state = Some(new);
        }
        let was_leading = std::mem::replace(&mut is_leading, *inputs.leading.borrow_and_update());
        if is_leading && !was_leading {
            confirmations.restart();
        }
        let mut until = None;
        match &state {
            Some(state) if is_leading => {
                let verdicts = state.judge(&mut confirmations, &inputs.answers.borrow_and_update());
                until = verdicts.values().filter_map(Verdict::deadline).min();
                let nodes = inputs.nodes.borrow_and_update().clone();
                let failures = inputs.failures.borrow_and_update().clone();
                let version = inputs.bundle_version.borrow_and_update().clone();
                let report =
                    Arc::new(state.report(&verdicts, &failures, &nodes, version.as_deref()));
                (outputs.publish)(&state.load, Some(&report));
                let held = Arc::new(state.held(&verdicts));
                let statuses = Statuses { report, held };
                outputs.statuses.send_replace(Some(statuses));
            }
            _ => {
                (outputs.publish)(&load, None);
                // By the time that this leads again they would be old.
                outputs.statuses.send_replace(None);
            }
        }
        tokio::select! {
            changed = inputs.loads.changed() => if changed.is_err() {
                return;
            },
            Ok(()) = inputs.answers.changed() => {}
            Ok(()) = inputs.nodes.changed() => {}
            Ok(()) = inputs.failures.changed() => {}
            Ok(()) = inputs.leading.changed() => {}
            Ok(()) = inputs.bundle_version.changed() => {}
            () = deadline(until) => {}
        }
    }
}

/// What Gateways need. The needs of those whose class or parameters are at fault are unknown.
fn needs(
    load: &Load,
    translation: &Translation,
    image: &str,
    previous: Option<&ClusterState>,
) -> DesiredState {
    let mut needs = DesiredState::default();
    for name in translation.report.gateways.keys() {
        let gateway = load.snapshot.gateways.get(&name.namespace, &name.name);
        let Some((gateway, data_plane)) = gateway.zip(translation.data_planes.get(name)) else {
            needs.retained.insert(name.clone());
            continue;
        };
        let known = previous.and_then(|state| {
            let former = state
                .load
                .snapshot
                .gateways
                .get(&name.namespace, &name.name)?;
            let is_same = Arc::ptr_eq(former, gateway)
                && state.translation.data_planes.get(name) == Some(data_plane);
            state.needs.children.get(name).filter(|_| is_same).cloned()
        });
        let children = known.unwrap_or_else(|| {
            provision::children(gateway, data_plane, image, &Default::default()).into()
        });
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
        let is_news = needs.as_ref() != Some(&state.needs);
        *needs = Some(state.needs.clone());
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
    let replicas = state.replicas.iter().flat_map(|(gateway, addresses)| {
        addresses.iter().map(|address| Replica {
            gateway: gateway.clone(),
            address: *address,
        })
    });
    let replicas: BTreeSet<_> = replicas.collect();
    outputs.replicas.send_if_modified(|known| {
        let is_news = *known != replicas;
        *known = replicas;
        is_news
    });
}

impl ClusterState {
    /// What of `previous` is the same is used again.
    fn new(
        load: Arc<Load>,
        translation: Translation,
        image: &str,
        previous: Option<&Self>,
    ) -> Self {
        let snapshot = &load.snapshot;
        let ir = &translation.ir;
        let with_ports: BTreeSet<_> = ir.ports.iter().map(|port| &port.gateway).collect();
        let fingerprints = with_ports
            .into_iter()
            .map(|gateway| (gateway.clone(), served::fingerprint(ir, gateway)))
            .collect();
        let needs = needs(&load, &translation, image, previous);
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
            fingerprints,
            replicas: addresses::replicas(snapshot, &needs),
            needs: Arc::new(needs),
            sets: snapshot.listener_sets.iter().map(set).collect(),
            translation,
            load,
        }
    }

    /// Which classes of ours are in use.
    fn uses(&self) -> ClassUsage {
        let snapshot = &self.load.snapshot;
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
        answers: &Answers,
    ) -> BTreeMap<ObjectRef, Verdict> {
        let now = Instant::now();
        let none = BTreeSet::new();
        let judge = |gateway: &ObjectRef| {
            let addresses = self.replicas.get(gateway).unwrap_or(&none);
            let answer = |address: &IpAddr| {
                let replica = Replica {
                    gateway: gateway.clone(),
                    address: *address,
                };
                (*address, answers.get(&replica))
            };
            let replicas: Vec<_> = addresses.iter().map(answer).collect();
            let wanted = self.fingerprints.get(gateway).cloned();
            let verdict = confirmations.judge(gateway, &wanted, &replicas, now);
            (gateway.clone(), verdict)
        };
        self.translation.report.gateways.keys().map(judge).collect()
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
        for problem in &self.load.problems {
            if let Some(object) = &problem.object {
                report.refuse(object, problem.generation, &problem.message);
            }
        }
        report.with_data_planes(&states, |set| self.sets.get(set).cloned())
    }

    fn addresses(&self, gateway: &ObjectRef, nodes: &BTreeSet<IpAddr>) -> DataPlaneState {
        let (snapshot, needs) = (&self.load.snapshot, &self.needs);
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
