//! State derived from one snapshot: desired objects of all Gateways, progress of their data planes,
//! and the resulting report. Pure.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::addresses::{self, Replica};
use super::confirmation::{self, Confirmations, Verdict};
use crate::api::Resource;
use crate::events::{Events, Warning};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::provider::Load;
use crate::provision::{
    self, ClassUsage, DesiredState, Failure, FailureReason, Failures, StreamEndpoint,
};
use crate::status::{AncestorStatus, DataPlaneState, ParentRef, Reason, StatusReport};
use crate::stream::Published;
use crate::stream::hub::Reports;
use crate::translate::Translation;

/// Settings that all pods of Gateways share.
pub struct PodSettings {
    /// Image, unless GatewayParameters set one.
    pub image: String,
    /// URL of the configuration stream.
    pub controller_url: String,
    /// Arguments of all pods, in addition to those from GatewayParameters.
    pub arguments: Vec<String>,
}

/// Verdict on the data plane of each Gateway.
pub(super) type Verdicts = BTreeMap<ObjectRef, Verdict>;

/// State derived from one snapshot.
pub(super) struct ClusterState {
    pub(super) published: Arc<Published>,
    pub(super) translation: Translation,
    /// How pods reach the controller; `None` until the CA bundle is known.
    pub(super) endpoint: Option<StreamEndpoint>,
    pub(super) desired: Arc<DesiredState>,
    replicas: BTreeMap<ObjectRef, BTreeSet<Replica>>,
    /// Parent Gateway of each ListenerSet.
    listener_set_gateways: BTreeMap<ObjectRef, ObjectRef>,
}

impl ClusterState {
    /// Derives the state. Reuses the parts that are unchanged since `previous`.
    pub(super) fn new(
        published: Arc<Published>,
        translation: Translation,
        (pods, endpoint): (&PodSettings, Option<StreamEndpoint>),
        previous: Option<&Self>,
    ) -> Self {
        let snapshot = &published.load.snapshot;
        let reached = endpoint.clone().unwrap_or_default();
        let desired = desired_state(&published.load, &translation, pods, &reached, previous);
        let set = |set: &Arc<crate::api::gateway::ListenerSet>| {
            let parent = &set.spec.parent_ref;
            let namespace = parent
                .namespace
                .as_deref()
                .unwrap_or(&set.metadata.namespace);
            let gateway = ObjectRef::gateway_api("Gateway", namespace, &parent.name);
            (parent.kind == "Gateway").then(|| (set.object_ref(), gateway))
        };
        Self {
            replicas: addresses::replicas(snapshot, &desired),
            desired: Arc::new(desired),
            listener_set_gateways: snapshot.listener_sets.iter().filter_map(set).collect(),
            endpoint,
            translation,
            published,
        }
    }

    /// Returns the GatewayClasses of this controller, and whether a Gateway uses them.
    pub(super) fn class_usage(&self) -> ClassUsage {
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

    /// Evaluates the data plane of every Gateway.
    pub(super) fn evaluate(
        &self,
        confirmations: &mut Confirmations,
        reports: &Reports,
    ) -> Verdicts {
        let now = Instant::now();
        let evaluate = |gateway: &ObjectRef| {
            let reports = reports.get(gateway);
            let report = |replica| {
                let Replica { pod, .. }: &Replica = replica;
                (replica, reports.and_then(|reports| reports.get(pod)))
            };
            let replicas = self.replicas.get(gateway).into_iter().flatten();
            let replicas: Vec<_> = replicas.map(report).collect();
            // Every Gateway of this controller has been streamed, so it has a revision.
            let revision = self.published.revisions.get(gateway).copied();
            let verdict = confirmations.evaluate(gateway, revision.unwrap_or(0), &replicas, now);
            let verdict = match verdict {
                // A replica that cannot bind its ports is not ready, and says why.
                Verdict::Absent(_) => {
                    let reports = reports.into_iter().flat_map(BTreeMap::values);
                    Verdict::Absent(confirmation::unbound(reports))
                }
                other => other,
            };
            (gateway.clone(), verdict)
        };
        self.translation
            .report
            .gateways
            .keys()
            .map(evaluate)
            .collect()
    }

    /// Returns the Gateways whose ready replicas all serve their latest revision.
    pub(super) fn serving(verdicts: &Verdicts) -> BTreeSet<ObjectRef> {
        let serving = verdicts.iter();
        let serving = serving.filter(|(_, verdict)| matches!(verdict, Verdict::Confirmed(_)));
        serving.map(|(gateway, _)| gateway.clone()).collect()
    }

    /// Emits a warning event about a Gateway.
    pub(super) fn warn(
        &self,
        gateway: &ObjectRef,
        reason: &'static str,
        message: String,
        events: &Events,
    ) {
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

    /// Builds the conditions and addresses of all objects, as far as data planes have confirmed
    /// them.
    pub(super) fn report(
        &self,
        verdicts: &Verdicts,
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
                Verdict::Confirmed(unbound) => {
                    state.unbound = unbound.clone();
                    state.notice = failure.map(|failure| failure.message.clone());
                }
                Verdict::Awaited(_) => {}
                Verdict::Lagging(message) => {
                    let failure = failure.map(|failure| format!("; {}", failure.message));
                    let message = format!("{message}{}", failure.unwrap_or_default());
                    state.fault = Some((Reason::Pending, message));
                }
                Verdict::Absent(unbound) => {
                    state.unbound = unbound.clone();
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
        report.with_data_planes(&states, |set| self.listener_set_gateways.get(set).cloned())
    }

    fn addresses(&self, gateway: &ObjectRef, nodes: &BTreeSet<IpAddr>) -> DataPlaneState {
        let (snapshot, desired) = (&self.published.load.snapshot, &self.desired);
        let requested = self.translation.data_planes.get(gateway);
        let requested = requested.map_or(&[][..], |data_plane| &data_plane.addresses);
        let replicas = self.replicas.get(gateway);
        addresses::state(snapshot, desired, gateway, requested, replicas, nodes)
    }

    /// Returns the objects whose status is held back until data planes confirm the change.
    pub(super) fn held(&self, verdicts: &Verdicts) -> HashSet<ObjectRef> {
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
            self.listener_set_gateways
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
        for (policy, ancestors) in &self.translation.report.policies {
            let gateway =
                |ancestor: &AncestorStatus| self.gateway_of(policy, &ancestor.ancestor_ref);
            if ancestors
                .iter()
                .filter_map(gateway)
                .any(|it| is_awaited(&it))
            {
                held.insert(policy.clone());
            }
        }
        for (backend, status) in &self.translation.report.release_backends {
            if status.gateways.iter().any(is_awaited) {
                held.insert(backend.clone());
            }
        }
        held
    }

    /// Returns the Gateway behind a parentRef or ancestorRef to a Gateway or ListenerSet.
    fn gateway_of(&self, object: &ObjectRef, parent: &ParentRef) -> Option<ObjectRef> {
        if parent.group != GATEWAY_GROUP {
            return None;
        }
        let namespace = parent.namespace.as_deref().unwrap_or(&object.namespace);
        let name = ObjectRef::gateway_api(&parent.kind, namespace, &parent.name);
        match parent.kind.as_str() {
            "Gateway" => Some(name),
            _ => self.listener_set_gateways.get(&name).cloned(),
        }
    }
}

/// Builds the desired objects of all Gateways. A Gateway that is being deleted, or whose class or
/// parameters are invalid, retains its existing objects.
fn desired_state(
    load: &Load,
    translation: &Translation,
    pods: &PodSettings,
    endpoint: &StreamEndpoint,
    previous: Option<&ClusterState>,
) -> DesiredState {
    let mut desired = DesiredState::default();
    for name in translation.report.gateways.keys() {
        let gateway = load.snapshot.gateways.get(&name.namespace, &name.name);
        let gateway = gateway.filter(|gateway| gateway.metadata.deletion_timestamp.is_none());
        let Some((gateway, data_plane)) = gateway.zip(translation.data_planes.get(name)) else {
            desired.retained.insert(name.clone());
            continue;
        };
        let known = previous.and_then(|state| {
            let snapshot = &state.published.load.snapshot;
            let old = snapshot.gateways.get(&name.namespace, &name.name)?;
            let is_same = Arc::ptr_eq(old, gateway)
                && state.endpoint.as_ref() == Some(endpoint)
                && state.translation.data_planes.get(name) == Some(data_plane);
            state
                .desired
                .children
                .get(name)
                .filter(|_| is_same)
                .cloned()
        });
        let children = known.unwrap_or_else(|| {
            provision::children(gateway, data_plane, &pods.image, endpoint).into()
        });
        desired.children.insert(name.clone(), children);
    }
    desired
}
