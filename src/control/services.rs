//! The Services of each Gateway's data plane and the ready pods behind them, from one snapshot to the next. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::api::Key;
use crate::api::core::{EndpointSlice, SERVICE_NAME_LABEL, Service, SliceEndpoint};
use crate::ir::ObjectRef;
use crate::ir::sharing::Text;
use crate::provision::{ChildKind, DesiredState, is_made_for};
use crate::snapshot::Snapshot;

/// A ready pod of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Replica {
    /// Name of the pod; empty if the endpoint has no `targetRef`.
    pub(super) pod: String,
    /// IP address of the pod.
    pub(super) address: IpAddr,
}

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {} ({})", self.pod, self.address)
    }
}

/// The Services and ready pods of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Served {
    /// The existing Services.
    pub(super) services: Vec<Arc<Service>>,
    /// The ready pods. Several Services of one Gateway select the same pods.
    pub(super) replicas: BTreeSet<Replica>,
}

/// The Services of all Gateways.
#[derive(Debug, Default)]
pub(super) struct Services {
    by_gateway: BTreeMap<ObjectRef, OfGateway>,
    /// The Gateways that have, or want to have, a Service of this name.
    gateways: BTreeMap<Key, BTreeSet<ObjectRef>>,
    /// The EndpointSlices of every Service, by name.
    slices: BTreeMap<Key, BTreeMap<Text, Arc<EndpointSlice>>>,
}

#[derive(Debug, Default)]
struct OfGateway {
    /// The names of its Services, some of which may not exist.
    names: BTreeSet<Key>,
    served: Served,
}

impl Services {
    /// Returns the Services and ready pods of a Gateway.
    pub(super) fn of(&self, gateway: &ObjectRef) -> Option<&Served> {
        self.by_gateway.get(gateway).map(|it| &it.served)
    }

    /// Applies the changes from `previous` to `now`. `changed` are the Gateways whose desired objects may have changed.
    /// Returns the Gateways whose Services or ready pods may have changed.
    pub(super) fn follow(
        &mut self,
        previous: &Snapshot,
        now: &Snapshot,
        desired: &DesiredState,
        changed: &BTreeSet<ObjectRef>,
    ) -> BTreeSet<ObjectRef> {
        let mut dirty = changed.clone();
        for change in now.services.changes_since(&previous.services) {
            dirty.extend(self.gateways.get(change.key).into_iter().flatten().cloned());
            let is_made_for = |gateway: &&ObjectRef| {
                let mut versions = change.versions();
                *gateway.namespace == *change.key.namespace
                    && versions.any(|it| is_made_for(&it.metadata.labels, &gateway.name))
            };
            dirty.extend(desired.retained.iter().filter(is_made_for).cloned());
        }
        let slices = now.endpoint_slices.changes_since(&previous.endpoint_slices);
        for change in slices {
            let services = change.versions().filter_map(|slice| service_of(slice));
            for service in services {
                let gateways = self.gateways.get(&service);
                dirty.extend(gateways.into_iter().flatten().cloned());
            }
            self.replace_slice(change.previous, change.now);
        }
        for gateway in &dirty {
            self.update(now, desired, gateway);
        }
        dirty
    }

    fn replace_slice(
        &mut self,
        previous: Option<&Arc<EndpointSlice>>,
        now: Option<&Arc<EndpointSlice>>,
    ) {
        if let Some(slice) = previous
            && let Some(service) = service_of(slice)
            && let Some(slices) = self.slices.get_mut(&service)
        {
            slices.remove(&slice.metadata.name);
            if slices.is_empty() {
                self.slices.remove(&service);
            }
        }
        if let Some(slice) = now
            && let Some(service) = service_of(slice)
        {
            let slices = self.slices.entry(service).or_default();
            slices.insert(slice.metadata.name.clone(), slice.clone());
        }
    }

    fn update(&mut self, snapshot: &Snapshot, desired: &DesiredState, gateway: &ObjectRef) {
        let names = names(snapshot, desired, gateway);
        let previous = self.by_gateway.get(gateway).map(|it| &it.names);
        let none = BTreeSet::new();
        let previous = previous.unwrap_or(&none);
        for gone in previous.difference(&names) {
            if let Some(gateways) = self.gateways.get_mut(gone) {
                gateways.remove(gateway);
                if gateways.is_empty() {
                    self.gateways.remove(gone);
                }
            }
        }
        for new in names.difference(previous) {
            let gateways = self.gateways.entry(new.clone()).or_default();
            gateways.insert(gateway.clone());
        }
        let served = self.served(snapshot, gateway, &names);
        match names.is_empty() {
            true => drop(self.by_gateway.remove(gateway)),
            false => drop(
                self.by_gateway
                    .insert(gateway.clone(), OfGateway { names, served }),
            ),
        }
    }

    fn served(&self, snapshot: &Snapshot, gateway: &ObjectRef, names: &BTreeSet<Key>) -> Served {
        let all = names.iter().filter_map(|key| {
            let service = snapshot.services.get(&key.namespace, &key.name)?;
            // A Service of that name may belong to another Gateway.
            is_made_for(&service.metadata.labels, &gateway.name).then_some((key, service))
        });
        let all: Vec<_> = all.collect();
        let slices = all.first().and_then(|(key, _)| self.slices.get(*key));
        let slices = slices.into_iter().flat_map(BTreeMap::values);
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        let ready = endpoints.filter(|it| it.conditions.is_ready());
        Served {
            replicas: ready.filter_map(replica).collect(),
            services: all
                .into_iter()
                .map(|(_, service)| service.clone())
                .collect(),
        }
    }
}

/// Returns the names of the Services that a Gateway should have, or of all that it has if its desired state is unknown.
fn names(snapshot: &Snapshot, desired: &DesiredState, gateway: &ObjectRef) -> BTreeSet<Key> {
    if desired.retained.contains(gateway) {
        let services = snapshot.services.in_namespace(&gateway.namespace);
        let own = services.filter(|it| is_made_for(&it.metadata.labels, &gateway.name));
        return own
            .map(|it| Key::new(&it.metadata.namespace, &it.metadata.name))
            .collect();
    }
    let children = desired.children.get(gateway).into_iter();
    let children = children.flat_map(|children| children.iter());
    let services = children.filter(|child| child.kind == ChildKind::Service);
    services
        .map(|child| Key::new(&child.namespace, &child.name))
        .collect()
}

/// Returns the Service of an EndpointSlice.
fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let service = slice.metadata.labels.get(SERVICE_NAME_LABEL)?;
    Some(Key::new(&slice.metadata.namespace, service))
}

fn replica(endpoint: &SliceEndpoint) -> Option<Replica> {
    let target = endpoint.target_ref.as_ref();
    let pod = target.filter(|target| target.kind == "Pod");
    Some(Replica {
        pod: pod.map(|pod| pod.name.to_string()).unwrap_or_default(),
        address: endpoint.addresses.first()?.parse().ok()?,
    })
}
