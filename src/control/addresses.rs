//! The addresses of a Gateway's data plane, from its Services. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::services::{Replica, Served};
use crate::api::core::Service;
use crate::status::{Address, DataPlaneState, Reason};

/// Maximum number of `status.addresses` of a Gateway (`maxItems` in the CRD).
const MAX_ADDRESSES: usize = 16;

/// Returns the address state of a Gateway whose `spec.addresses` is `requested`.
pub(super) fn state(
    served: Option<&Served>,
    requested: &[Option<IpAddr>],
    nodes: &BTreeSet<IpAddr>,
) -> DataPlaneState {
    let services = served.into_iter().flat_map(|it| {
        it.services
            .iter()
            .map(move |service| (service, &it.replicas))
    });
    let addresses = services.flat_map(|(service, replicas)| of_service(service, replicas, nodes));
    let mut addresses: Vec<_> = addresses.collect();
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
    let services = served.into_iter().flat_map(|it| &it.services);
    let refused = services.flat_map(|service| service.refused_ports());
    let refused: BTreeSet<_> = refused.map(|port| port.message).collect();
    if !refused.is_empty() {
        let refused: Vec<_> = refused.into_iter().collect();
        state.notice = Some(refused.join("; "));
    }
    state
}

fn of_service(
    service: &Service,
    replicas: &BTreeSet<Replica>,
    nodes: &BTreeSet<IpAddr>,
) -> Vec<Address> {
    let ip = |text: &str| text.parse().ok().map(Address::IPAddress);
    let cluster = &service.spec.cluster_ips;
    if service.spec.kind.as_deref() == Some("LoadBalancer") {
        let ingress = service.status.load_balancer.ingress.iter();
        let address = ingress.filter_map(|ingress| {
            let name = ingress.hostname.as_deref().filter(|name| !name.is_empty());
            ingress
                .ip
                .as_deref()
                .and_then(ip)
                .or_else(|| name.map(|name| Address::Hostname(Arc::from(name))))
        });
        return address.collect();
    }
    if service.spec.kind.as_deref() == Some("NodePort") {
        return nodes.iter().copied().map(Address::IPAddress).collect();
    }
    if cluster.iter().any(|address| **address == *"None") {
        // Headless: the pods use the host network of their nodes.
        return replicas
            .iter()
            .map(|replica| Address::IPAddress(replica.address))
            .collect();
    }
    cluster.iter().filter_map(|text| ip(text)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ports_that_a_load_balancer_refuses_are_noticed() {
        let service = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ports": [
                {"port": 443, "protocol": "UDP", "error": "MixedProtocolNotSupported"},
            ]}]}},
        });
        let served = Served {
            services: vec![Arc::new(serde_json::from_value(service).unwrap())],
            replicas: BTreeSet::new(),
        };
        let notice = state(Some(&served), &[], &BTreeSet::new()).notice;
        assert_eq!(
            notice.as_deref(),
            Some("the load balancer of Service web has no UDP port 443: MixedProtocolNotSupported")
        );
    }
}
