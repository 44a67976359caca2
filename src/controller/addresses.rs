//! Addresses and ready replicas of each Gateway's data plane, from Services and EndpointSlices.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::api::Key;
use crate::api::core::{SERVICE_NAME_LABEL, Service, SliceEndpoint};
use crate::ir::ObjectRef;
use crate::provision::{ChildKind, DesiredState, is_made_for};
use crate::snapshot::Snapshot;
use crate::status::{Address, DataPlaneState, Reason};

/// Maximum number of `status.addresses` of a Gateway (`maxItems` in the CRD).
const MAX_ADDRESSES: usize = 16;

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

/// Ready pods by Gateway.
pub(super) fn replicas(
    snapshot: &Snapshot,
    desired: &DesiredState,
) -> BTreeMap<ObjectRef, BTreeSet<Replica>> {
    // Several Services of one Gateway select the same pods.
    let all = desired.children.keys().chain(&desired.retained);
    let gateways: BTreeMap<Key, &ObjectRef> = all
        .filter_map(|gateway| Some((services(snapshot, desired, gateway).next()?, gateway)))
        .collect();
    let mut replicas: BTreeMap<ObjectRef, BTreeSet<Replica>> = BTreeMap::new();
    for slice in snapshot.endpoint_slices.iter() {
        let Some(service) = slice.metadata.labels.get(SERVICE_NAME_LABEL) else {
            continue;
        };
        let key = Key::new(&slice.metadata.namespace, service);
        let Some(gateway) = gateways.get(&key) else {
            continue;
        };
        let ready = slice
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.conditions.ready.unwrap_or(true))
            .filter_map(replica);
        replicas
            .entry((*gateway).clone())
            .or_default()
            .extend(ready);
    }
    replicas
}

fn replica(endpoint: &SliceEndpoint) -> Option<Replica> {
    let target = endpoint.target_ref.as_ref();
    let pod = target.filter(|target| target.kind == "Pod");
    Some(Replica {
        pod: pod.map(|pod| pod.name.clone()).unwrap_or_default(),
        address: endpoint.addresses.first()?.parse().ok()?,
    })
}

/// Returns the address state of a Gateway whose `spec.addresses` is `requested`.
pub(super) fn state(
    snapshot: &Snapshot,
    desired: &DesiredState,
    gateway: &ObjectRef,
    requested: &[Option<IpAddr>],
    replicas: Option<&BTreeSet<Replica>>,
    nodes: &BTreeSet<IpAddr>,
) -> DataPlaneState {
    let mut addresses = Vec::new();
    for key in services(snapshot, desired, gateway) {
        if let Some(service) = snapshot.services.get(&key.namespace, &key.name) {
            addresses.extend(of_service(service, replicas, nodes));
        }
    }
    addresses.sort();
    addresses.dedup();
    let mut state = DataPlaneState::default();
    let asked: Vec<_> = requested
        .iter()
        .flatten()
        .copied()
        .map(Address::IPAddress)
        .collect();
    let missing: Vec<_> = asked
        .iter()
        .filter(|address| !addresses.contains(address))
        .collect();
    if !missing.is_empty() {
        let missing: Vec<_> = missing.into_iter().map(Address::to_string).collect();
        let message = format!(
            "spec.addresses: the cluster did not assign {}",
            missing.join(", ")
        );
        state.address_fault = Some((Reason::AddressNotUsable, message));
    } else if addresses.is_empty() {
        let message = "its Service has no address yet".to_owned();
        state.address_fault = Some((Reason::AddressNotAssigned, message));
    }
    if !asked.is_empty() && asked.len() == requested.len() {
        addresses.retain(|address| asked.contains(address));
    }
    addresses.truncate(MAX_ADDRESSES);
    state.addresses = addresses;
    state
}

/// Returns the Services of a Gateway: the existing ones among those desired, or all of its Services
/// if its desired state is unknown.
fn services(
    snapshot: &Snapshot,
    desired: &DesiredState,
    gateway: &ObjectRef,
) -> impl Iterator<Item = Key> {
    let children = desired.children.get(gateway);
    let needed = children.into_iter().flat_map(|children| children.iter());
    // A Service of that name may belong to another Gateway.
    let is_its_own = |key: &Key| {
        let service = snapshot.services.get(&key.namespace, &key.name);
        service.is_some_and(|service| is_made_for(&service.metadata.labels, &gateway.name))
    };
    let needed = needed
        .filter(|child| child.kind == ChildKind::Service)
        .map(|child| Key::new(&child.namespace, &child.name))
        .filter(is_its_own);
    let is_kept = desired.retained.contains(gateway);
    let all = is_kept.then(|| snapshot.services.iter()).into_iter();
    let kept = all.flatten().filter(|service| {
        let metadata = &service.metadata;
        metadata.namespace == *gateway.namespace && is_made_for(&metadata.labels, &gateway.name)
    });
    needed.chain(kept.map(|service| Key::new(&service.metadata.namespace, &service.metadata.name)))
}

fn of_service(
    service: &Service,
    replicas: Option<&BTreeSet<Replica>>,
    nodes: &BTreeSet<IpAddr>,
) -> Vec<Address> {
    let ip = |text: &String| text.parse().ok().map(Address::IPAddress);
    let cluster = &service.spec.cluster_ips;
    if service.spec.kind.as_deref() == Some("LoadBalancer") {
        let ingress = service.status.load_balancer.ingress.iter();
        let address = ingress.filter_map(|ingress| {
            let name = ingress.hostname.as_deref().filter(|name| !name.is_empty());
            ingress
                .ip
                .as_ref()
                .and_then(ip)
                .or_else(|| name.map(|name| Address::Hostname(Arc::from(name))))
        });
        return address.collect();
    }
    if service.spec.kind.as_deref() == Some("NodePort") {
        return nodes.iter().copied().map(Address::IPAddress).collect();
    }
    if cluster.iter().any(|address| address == "None") {
        // Headless: the pods use the host network of their nodes.
        return replicas
            .into_iter()
            .flatten()
            .map(|replica| Address::IPAddress(replica.address))
            .collect();
    }
    cluster.iter().filter_map(ip).collect()
}
