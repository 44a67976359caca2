//! The ready pods of each Gateway and the UDP ports at which clients reach them, from one snapshot to the next: those of the
//! Services that the controller has created for it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::api::Key;
use crate::api::Resource;
use crate::api::core::{EndpointSlice, SERVICE_NAME_LABEL, Service, SliceEndpoint};
use crate::api::gateway::Gateway;
use crate::ir::ObjectRef;
use crate::ir::sharing::Text;
use crate::provision::{GATEWAY_LABEL, MANAGED_BY, MANAGED_BY_LABEL, is_made_for};
use crate::snapshot::{Objects, Snapshot};

/// The ready pods of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pods {
    /// Their addresses by name.
    pub(super) addresses: BTreeMap<String, IpAddr>,
    /// UDP ports that each Service of the Gateway has, and that its load balancer does not refuse.
    pub(super) udp_ports: BTreeSet<u16>,
}

/// The ready pods of all Gateways.
#[derive(Default)]
pub(super) struct ReadyPods {
    services: Objects<Service>,
    endpoint_slices: Objects<EndpointSlice>,
    /// The EndpointSlices of Services of Gateways, by name.
    slices: BTreeMap<Key, BTreeMap<Text, Arc<EndpointSlice>>>,
    /// The Services of Gateways.
    by_gateway: BTreeMap<ObjectRef, BTreeSet<Key>>,
    gateways: BTreeMap<Key, ObjectRef>,
}

impl ReadyPods {
    /// Follows a snapshot. Returns the pods of Gateways for which they may have changed.
    pub(super) fn follow(&mut self, now: &Snapshot) -> BTreeMap<ObjectRef, Pods> {
        let services = std::mem::replace(&mut self.services, now.services.clone());
        let endpoint_slices =
            std::mem::replace(&mut self.endpoint_slices, now.endpoint_slices.clone());
        let mut changed = BTreeSet::new();
        for change in now.services.changes_since(&services) {
            for service in change.versions().filter(|it| is_managed(it)) {
                changed.insert(Key::new(
                    &service.metadata.namespace,
                    &service.metadata.name,
                ));
            }
        }
        for change in now.endpoint_slices.changes_since(&endpoint_slices) {
            if let Some((slice, service)) = change.previous.and_then(|it| service_of(it))
                && let Some(slices) = self.slices.get_mut(&service)
            {
                slices.remove(&slice.metadata.name);
                if slices.is_empty() {
                    self.slices.remove(&service);
                }
                changed.insert(service);
            }
            if let Some((slice, service)) = change.now.and_then(|it| service_of(it)) {
                let slices = self.slices.entry(service.clone()).or_default();
                slices.insert(slice.metadata.name.clone(), slice.clone());
                changed.insert(service);
            }
        }
        let gateways: BTreeSet<_> = changed
            .iter()
            .flat_map(|service| self.assign(now, service))
            .collect();
        let pods = |gateway: ObjectRef| {
            let pods = self.of(&gateway);
            (gateway, pods)
        };
        gateways.into_iter().map(pods).collect()
    }

    /// Returns the ready pods of a Gateway.
    pub(super) fn of(&self, gateway: &ObjectRef) -> Pods {
        let services = || self.by_gateway.get(gateway).into_iter().flatten();
        let slices = services().filter_map(|service| self.slices.get(service));
        let endpoints = slices
            .flat_map(BTreeMap::values)
            .flat_map(|it| &it.endpoints);
        let ready = endpoints.filter(|it| it.conditions.is_ready());
        let mut addresses = BTreeMap::new();
        for (name, address) in ready.filter_map(pod) {
            // Several Services select the same pods, and each family of addresses has its own slices.
            let known = addresses.entry(name.to_owned()).or_insert(address);
            *known = address.min(*known);
        }
        let udp_ports = services().filter_map(|service| {
            let service = self.services.get(&service.namespace, &service.name)?;
            Some(service.reachable_udp_ports())
        });
        Pods {
            addresses,
            udp_ports: udp_ports
                .reduce(|one, other| &one & &other)
                .unwrap_or_default(),
        }
    }

    /// Notes to which Gateway a Service belongs. Returns this Gateway and the former one.
    fn assign(&mut self, now: &Snapshot, service: &Key) -> Vec<ObjectRef> {
        let object = now.services.get(&service.namespace, &service.name);
        let present = object.and_then(|object| gateway_of(now, object));
        let former = match &present {
            Some(gateway) => self.gateways.insert(service.clone(), gateway.clone()),
            None => self.gateways.remove(service),
        };
        if let Some(gateway) = former.as_ref().filter(|_| former != present)
            && let Some(services) = self.by_gateway.get_mut(gateway)
        {
            services.remove(service);
            if services.is_empty() {
                self.by_gateway.remove(gateway);
            }
        }
        if let Some(gateway) = &present {
            let services = self.by_gateway.entry(gateway.clone()).or_default();
            services.insert(service.clone());
        }
        former.into_iter().chain(present).collect()
    }
}

fn is_managed(service: &Service) -> bool {
    let label = service.metadata.labels.get(MANAGED_BY_LABEL);
    label.is_some_and(|it| it == MANAGED_BY)
}

/// Returns the Gateway that a Service was created for.
fn gateway_of(now: &Snapshot, service: &Service) -> Option<ObjectRef> {
    let labels = &service.metadata.labels;
    let name = labels.get(GATEWAY_LABEL).filter(|_| is_managed(service))?;
    let namespace = &service.metadata.namespace;
    let is_owner = |gateway: &&Arc<Gateway>| is_made_for(labels, &gateway.metadata.name);
    let gateway = now.gateways.get(namespace, name).filter(is_owner);
    // Labels of long names are shortened.
    let gateway = gateway.or_else(|| now.gateways.in_namespace(namespace).find(is_owner))?;
    Some(gateway.object_ref())
}

/// Returns a slice with its Service.
fn service_of(slice: &Arc<EndpointSlice>) -> Option<(&Arc<EndpointSlice>, Key)> {
    let service = slice.metadata.labels.get(SERVICE_NAME_LABEL)?;
    Some((slice, Key::new(&slice.metadata.namespace, service)))
}

fn pod(endpoint: &SliceEndpoint) -> Option<(&str, IpAddr)> {
    let target = endpoint.target_ref.as_ref();
    let pod = target.filter(|target| target.kind == "Pod")?;
    Some((&pod.name, endpoint.addresses.first()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::Kind;

    fn insert(cluster: &mut Snapshot, api_version: &str, kind: &str, object: &Value) {
        let kind = Kind::find(api_version, kind).unwrap();
        cluster.insert(kind.decode(object).unwrap());
    }

    fn gateway(cluster: &mut Snapshot, name: &str) {
        let gateway = json!({
            "metadata": {"namespace": "infra", "name": name},
            "spec": {"gatewayClassName": "ours", "listeners": []},
        });
        insert(cluster, "gateway.networking.k8s.io/v1", "Gateway", &gateway);
    }

    fn service(cluster: &mut Snapshot, name: &str, gateway: &str) {
        let labels = json!({MANAGED_BY_LABEL: MANAGED_BY, GATEWAY_LABEL: gateway});
        let service = json!({
            "metadata": {"namespace": "infra", "name": name, "labels": labels}, "spec": {},
        });
        insert(cluster, "v1", "Service", &service);
    }

    fn slice(cluster: &mut Snapshot, service: &str, pods: &[(&str, &str, bool)]) {
        let endpoints = pods.iter().map(|(name, address, ready)| {
            json!({
                "addresses": [address], "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "name": name},
            })
        });
        let slice = json!({
            "metadata": {
                "namespace": "infra", "name": format!("{service}-1"),
                "labels": {SERVICE_NAME_LABEL: service},
            },
            "addressType": "IPv4", "endpoints": endpoints.collect::<Vec<_>>(),
        });
        insert(cluster, "discovery.k8s.io/v1", "EndpointSlice", &slice);
    }

    fn name(gateway: &str) -> ObjectRef {
        ObjectRef::gateway_api("Gateway", "infra", gateway)
    }

    fn pods(pods: &[(&str, &str)]) -> Pods {
        let pods = pods.iter();
        let pods = pods.map(|(name, address)| ((*name).to_owned(), address.parse().unwrap()));
        Pods {
            addresses: pods.collect(),
            udp_ports: BTreeSet::new(),
        }
    }

    #[test]
    fn udp_ports_are_those_that_all_services_of_a_gateway_have() {
        let mut cluster = Snapshot::default();
        let mut ready = ReadyPods::default();
        gateway(&mut cluster, "edge");
        let mut ports = |name: &str, numbers: &[u16], error: Option<&str>| {
            let listed = json!([{"port": 8443, "protocol": "UDP", "error": error}]);
            let ports = numbers.iter();
            let ports = ports.map(|port| json!({"port": port, "protocol": "UDP"}));
            let mut ports: Vec<_> = ports.collect();
            ports.push(json!({"port": 80}));
            let mut service = json!({
                "metadata": {
                    "namespace": "infra", "name": name,
                    "labels": {MANAGED_BY_LABEL: MANAGED_BY, GATEWAY_LABEL: "edge"},
                },
                "spec": {"ports": ports},
            });
            if error.is_some() {
                service["status"] = json!({"loadBalancer": {"ingress": [{"ports": listed}]}});
            }
            insert(&mut cluster, "v1", "Service", &service);
            ready
                .follow(&cluster)
                .remove(&self::name("edge"))
                .unwrap()
                .udp_ports
        };
        assert_eq!(ports("one", &[443, 8443], None), [443, 8443].into());
        assert_eq!(ports("two", &[8443], None), [8443].into());
        assert!(ports("two", &[8443], Some("refused")).is_empty());
        assert!(ports("two", &[], None).is_empty());
    }

    #[test]
    fn pods_are_the_ready_endpoints_of_the_services_of_a_gateway() {
        let mut cluster = Snapshot::default();
        let mut ready = ReadyPods::default();
        gateway(&mut cluster, "edge");
        slice(
            &mut cluster,
            "edge-ours",
            &[("b", "10.0.0.2", true), ("a", "10.0.0.1", true)],
        );
        slice(&mut cluster, "web", &[("w", "10.0.0.9", true)]);
        assert!(
            ready.follow(&cluster).is_empty(),
            "no Service of the Gateway"
        );
        service(&mut cluster, "edge-ours", "edge");
        let both = pods(&[("a", "10.0.0.1"), ("b", "10.0.0.2")]);
        assert_eq!(
            ready.follow(&cluster),
            [(name("edge"), both.clone())].into()
        );
        assert!(ready.follow(&cluster).is_empty());
        // A second Service of the Gateway selects the same pods.
        service(&mut cluster, "edge-udp", "edge");
        slice(
            &mut cluster,
            "edge-udp",
            &[("a", "10.0.0.1", true), ("b", "fd00::2", true)],
        );
        assert_eq!(
            ready.follow(&cluster),
            [(name("edge"), both.clone())].into()
        );
        assert_eq!(ready.of(&name("edge")), both);
        cluster.services.remove(&Key::new("infra", "edge-udp"));
        ready.follow(&cluster);
        slice(
            &mut cluster,
            "edge-ours",
            &[("b", "10.0.0.2", false), ("a", "10.0.0.1", true)],
        );
        let one = pods(&[("a", "10.0.0.1")]);
        assert_eq!(ready.follow(&cluster), [(name("edge"), one)].into());
        cluster.services.remove(&Key::new("infra", "edge-ours"));
        assert_eq!(
            ready.follow(&cluster),
            [(name("edge"), Pods::default())].into()
        );
    }
}
