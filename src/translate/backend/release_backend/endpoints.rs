//! The endpoints of a load balancer by release: from EndpointSlices, with the labels of the pods that they name, or
//! from pods with given labels.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::api::Resource;
use crate::api::core::{EndpointSlice, ServicePort, SliceEndpoint, TargetPort};
use crate::api::pod::{ContainerPort, Pod};
use crate::ir::ObjectRef;
use crate::translate::backend::pods;
use crate::translate::input::Input;

use crate::translate::endpoints::{self, EndpointState, transport};

/// Endpoints by release.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub(super) releases: BTreeMap<String, Group>,
    /// Number of endpoints whose pod has no release label, or that have no pod.
    pub(super) unlabelled: usize,
    /// Number of pods without the port.
    pub(super) portless: usize,
}

/// The endpoints of one release, sorted and without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) ready: Vec<SocketAddr>,
    /// Endpoints that still serve while they terminate.
    pub(super) draining: Vec<SocketAddr>,
}

/// The pods of a namespace that may be endpoints.
pub(super) struct Pods<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) namespace: &'a str,
    /// The label whose values are the releases.
    pub(super) split_by: &'a str,
}

/// Returns the release of a pod with these labels.
fn release<'a>(labels: &'a BTreeMap<String, String>, split_by: &str) -> Option<&'a str> {
    let value = labels.get(split_by)?;
    Some(value.as_str()).filter(|value| !value.is_empty())
}

impl Pods<'_> {
    /// Returns the endpoints of pods that EndpointSlices name.
    pub(super) fn of_slices(&self, slices: &[Arc<EndpointSlice>], port: &ServicePort) -> Groups {
        // Of every port, since the endpoints of all ports are computed again together.
        for endpoint in slices.iter().flat_map(|slice| &slice.endpoints) {
            self.labels_of(endpoint);
        }
        let mut groups = Groups::default();
        for (endpoint, address) in endpoints::addresses(slices, port) {
            let Some(state) = endpoints::state(endpoint) else {
                continue;
            };
            let labels = self.labels_of(endpoint);
            let release = labels.and_then(|labels| release(labels, self.split_by));
            groups.add(release, state, address);
        }
        groups.sort();
        groups
    }

    fn labels_of(&self, endpoint: &SliceEndpoint) -> Option<&BTreeMap<String, String>> {
        let name = endpoint.pod_name()?;
        let pod = ObjectRef::new(Pod::GROUP, Pod::KIND, self.namespace, name);
        self.input.labels_of(&pod)
    }

    /// Returns the endpoints of pods with these labels.
    pub(super) fn selected(&self, labels: &BTreeMap<String, String>, port: &ServicePort) -> Groups {
        let mut groups = Groups::default();
        for pod in self.input.pods_labelled(self.namespace, labels) {
            let (Some(state), Some(address)) = (pods::state(pod), pods::address(pod)) else {
                continue;
            };
            match number(pod, port) {
                Some(number) => {
                    let address = SocketAddr::new(address, number);
                    groups.add(release(&pod.metadata.labels, self.split_by), state, address);
                }
                None => groups.portless += 1,
            }
        }
        groups.sort();
        groups
    }
}

impl Groups {
    fn add(&mut self, release: Option<&str>, state: EndpointState, address: SocketAddr) {
        let Some(release) = release else {
            self.unlabelled += 1;
            return;
        };
        let group = self.releases.entry(release.to_owned()).or_default();
        match state {
            EndpointState::Ready => group.ready.push(address),
            EndpointState::Draining => group.draining.push(address),
        }
    }

    fn sort(&mut self) {
        for Group { ready, draining } in self.releases.values_mut() {
            for addresses in [&mut *ready, &mut *draining] {
                addresses.sort_unstable();
                addresses.dedup();
            }
            // An endpoint can be in two EndpointSlices temporarily, with different states.
            draining.retain(|address| ready.binary_search(address).is_err());
        }
    }
}

/// Returns the number of a Service port in a pod. A named port can have another number in each release.
fn number(pod: &Pod, port: &ServicePort) -> Option<u16> {
    match &port.target_port {
        None | Some(TargetPort::Number(0)) => Some(port.port),
        Some(TargetPort::Number(number)) => u16::try_from(*number).ok(),
        Some(TargetPort::Name(name)) => {
            let mut ports = pod.running_containers().flat_map(|it| &it.ports);
            let wanted = transport(port.protocol.as_deref());
            let is_named = |port: &&ContainerPort| {
                port.name.as_deref() == Some(name.as_str())
                    && transport(port.protocol.as_deref()) == wanted
            };
            ports.find(is_named).map(|port| port.container_port)
        }
    }
}
