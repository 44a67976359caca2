//! The Services of a Gateway: one per requested address.

use serde_json::{Value, json};

use super::child::{Child, ChildKind};
use super::child_plan::{Plan, set};
use super::data_plane::DataPlane;
use super::name;
use super::patch::{Patched, merge};
use crate::api::parameters::ServiceType;
use crate::settings::container_port;

/// Builds the Services: none without ports, else one per requested address (at least one), since a
/// load balancer has one address.
pub(super) fn services(plan: &Plan<'_>) -> Vec<Child> {
    if plan.data_plane.has_no_ports() {
        return Vec::new();
    }
    if plan.is_on_host() {
        return vec![headless(plan)];
    }
    let asked = plan.parameters.service.kind;
    let kind = asked.unwrap_or(ServiceType::LoadBalancer);
    let addresses = &plan.data_plane.addresses;
    if kind != ServiceType::LoadBalancer || addresses.is_empty() {
        return vec![service(plan, &plan.name, &spec(plan, kind))];
    }
    let of_address = |(index, address): (usize, _)| {
        let name = match index {
            0 => plan.name.clone(),
            _ => name::dns_label(&format!("{}-{}", plan.name, index + 1)),
        };
        let mut spec = spec(plan, kind);
        set(&mut spec, "loadBalancerIP", address);
        service(plan, &name, &spec)
    };
    addresses
        .iter()
        .copied()
        .enumerate()
        .map(of_address)
        .collect()
}

/// Builds the headless Service that selects the pods of a host-network Gateway, so that the
/// controller finds ready pods. Its name differs because a Service with a cluster IP cannot become
/// headless.
fn headless(plan: &Plan<'_>) -> Child {
    let spec = json!({
        "type": ServiceType::ClusterIp,
        "clusterIP": "None",
        "selector": plan.selector(),
        "ports": ports(plan, |port| port),
    });
    let name = name::dns_label(&format!("{}-headless", plan.name));
    service(plan, &name, &spec)
}

fn service(plan: &Plan<'_>, name: &str, spec: &Value) -> Child {
    let annotations = plan.parameters.service.annotations.as_ref();
    plan.child(ChildKind::Service, name, annotations, json!({"spec": spec}))
}

fn spec(plan: &Plan<'_>, kind: ServiceType) -> Value {
    let parameters = &plan.parameters.service;
    let mut spec = json!({
        "type": kind,
        "selector": plan.selector(),
        "ports": ports(plan, container_port),
    });
    if kind != ServiceType::ClusterIp {
        let policy = parameters.external_traffic_policy.as_ref();
        set(&mut spec, "externalTrafficPolicy", policy);
    }
    if kind == ServiceType::LoadBalancer {
        let class = parameters.load_balancer_class.as_ref();
        set(&mut spec, "loadBalancerClass", class);
        let ranges = parameters.load_balancer_source_ranges.as_ref();
        set(&mut spec, "loadBalancerSourceRanges", ranges);
    }
    let policy = parameters.ip_family_policy.as_ref();
    set(&mut spec, "ipFamilyPolicy", policy);
    set(&mut spec, "ipFamilies", parameters.ip_families.as_ref());
    let mut fields = json!({"spec": spec});
    if let Some(patch) = &parameters.patch {
        merge(Patched::Service, &mut fields, patch);
    }
    fields["spec"].take()
}

/// Builds the ports, without `appProtocol`: with it, some clouds probe `/` of the listener, which
/// may have no such route.
fn ports(plan: &Plan<'_>, target: fn(u16) -> u16) -> Vec<Value> {
    let port = |prefix: &str, protocol: &str, port: u16| {
        json!({
            "name": format!("{prefix}-{port}"),
            "port": port,
            "targetPort": target(port),
            "protocol": protocol,
        })
    };
    let DataPlane {
        ports, udp_ports, ..
    } = plan.data_plane;
    let tcp = ports.iter().map(|number| port("port", "TCP", *number));
    let udp = udp_ports.iter().map(|number| port("udp", "UDP", *number));
    tcp.chain(udp).collect()
}
