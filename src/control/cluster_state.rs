//! State derived from the last snapshot, updated by what differs from the previous one: desired objects of all Gateways, their
//! Services and pods, and the classes in use. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::desired::{DesiredObjects, PodSettings};
use super::services::{Served, Services};
use super::translated::Translated;
use crate::api::Resource;
use crate::api::gateway::ListenerSet;
use crate::api::parameters::ServiceType;
use crate::ir::ObjectRef;
use crate::provision::{ClassUsage, DesiredState, StreamEndpoint};
use crate::snapshot::Snapshot;
use crate::status::names_changed_since;

/// State derived from the last snapshot.
#[derive(Debug, Default)]
pub(super) struct ClusterState {
    pub(super) now: Translated,
    desired: DesiredObjects,
    services: Services,
    /// The Gateway of each ListenerSet.
    pub(super) parents: OrdMap<ObjectRef, Arc<ObjectRef>>,
    /// The revision that the pods of each Gateway must reach.
    revisions: OrdMap<ObjectRef, u64>,
    /// Gateways whose addresses are those of nodes.
    on_nodes: BTreeSet<ObjectRef>,
    /// Number of Gateways by class.
    users: BTreeMap<String, usize>,
}

impl ClusterState {
    /// Applies a translated snapshot. Returns the Gateways for which anything but their translated status may have changed.
    pub(super) fn follow(
        &mut self,
        now: Translated,
        revisions: &OrdMap<ObjectRef, u64>,
        pods: &PodSettings,
        endpoint: &StreamEndpoint,
    ) -> BTreeSet<ObjectRef> {
        let previous = std::mem::replace(&mut self.now, now);
        let now = &self.now;
        let mut dirty = now.gateways_changed_since(&previous);
        let desired = self.desired.follow(now, &dirty, pods, endpoint);
        let (snapshot, previous) = (&now.snapshot, &previous.snapshot);
        let services = (self.services).follow(previous, snapshot, self.desired.state(), &desired);
        self.follow_nodes(&dirty);
        self.follow_parents(previous);
        self.follow_classes(previous);
        dirty.extend(services);
        dirty.extend(names_changed_since(revisions, &self.revisions));
        self.revisions.clone_from(revisions);
        dirty
    }

    /// Returns the desired objects of all Gateways.
    pub(super) fn desired(&self) -> &DesiredState {
        self.desired.state()
    }

    /// Returns the Services and ready pods of a Gateway.
    pub(super) fn served(&self, gateway: &ObjectRef) -> Option<&Served> {
        self.services.of(gateway)
    }

    /// Returns the revision that the pods of a Gateway must reach.
    pub(super) fn revision(&self, gateway: &ObjectRef) -> u64 {
        // Every Gateway of this controller has been streamed, so it has a revision.
        self.revisions.get(gateway).copied().unwrap_or(0)
    }

    /// Reports whether addresses of nodes are needed.
    pub(super) fn wants_nodes(&self) -> bool {
        !self.on_nodes.is_empty()
    }

    /// Returns the GatewayClasses of this controller, and whether a Gateway uses them.
    pub(super) fn class_usage(&self) -> ClassUsage {
        let classes = self.now.report.gateway_classes.keys();
        let usage = classes.map(|class| {
            let name = class.name.to_string();
            let is_used = self.users.contains_key(&name);
            (name, is_used)
        });
        usage.collect()
    }

    fn follow_nodes(&mut self, gateways: &BTreeSet<ObjectRef>) {
        for gateway in gateways {
            let data_plane = self.now.data_planes.get(gateway);
            let kind = data_plane.and_then(|it| it.parameters.service.kind);
            match kind == Some(ServiceType::NodePort) {
                true => self.on_nodes.insert(gateway.clone()),
                false => self.on_nodes.remove(gateway),
            };
        }
    }

    fn follow_parents(&mut self, previous: &Snapshot) {
        let sets = &self.now.snapshot.listener_sets;
        for change in sets.changes_since(&previous.listener_sets) {
            let key = change.key;
            let name = ObjectRef::gateway_api(ListenerSet::KIND, &key.namespace, &key.name);
            match change.now.and_then(|set| parent(set)) {
                Some(gateway) => drop(self.parents.insert(name, Arc::new(gateway))),
                None => drop(self.parents.remove(&name)),
            }
        }
    }

    fn follow_classes(&mut self, previous: &Snapshot) {
        let gateways = &self.now.snapshot.gateways;
        for change in gateways.changes_since(&previous.gateways) {
            if let Some(gateway) = change.now {
                let class = &gateway.spec.gateway_class_name;
                *self.users.entry(class.clone()).or_default() += 1;
            }
            if let Some(gateway) = change.previous {
                let class = &gateway.spec.gateway_class_name;
                if let Some(users) = self.users.get_mut(class) {
                    *users -= 1;
                }
                self.users.retain(|_, users| *users > 0);
            }
        }
    }
}

/// Returns the Gateway of a ListenerSet.
fn parent(set: &ListenerSet) -> Option<ObjectRef> {
    let parent = &set.spec.parent_ref;
    let namespace = parent.namespace.as_deref();
    let namespace = namespace.unwrap_or(&set.metadata.namespace);
    let gateway = || ObjectRef::gateway_api("Gateway", namespace, &parent.name);
    (parent.kind == "Gateway").then(gateway)
}
