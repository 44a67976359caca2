//! The NetworkPolicy of a Gateway's pods, if the parameters configure one: who may connect to which of their ports.

use serde_json::{Value, json};

use super::child::{Child, ChildKind};
use super::child_plan::Plan;
use super::data_plane::DataPlane;
use crate::settings::{Settings, StreamSource, container_port};

/// Builds the policy: everybody may connect to the ports of the listeners, only the named peers to the port of metrics, and
/// only the pods of the Gateway to the port for these.
/// What pods connect to is not restricted. Pods on the host network have none: it would have no effect.
pub(super) fn network_policy(plan: &Plan<'_>) -> Option<Child> {
    let asked = plan.parameters.network_policy.as_ref()?;
    if plan.is_on_host() {
        return None;
    }
    let mut ingress = Vec::new();
    // Without ports, a rule is for all of them.
    if !plan.data_plane.has_no_ports() {
        ingress.push(json!({"ports": listeners(plan.data_plane)}));
    }
    // Without peers, a rule is for everybody.
    let scrapers = asked.metrics_from.as_ref();
    if let Some(peers) = scrapers.filter(|peers| !peers.is_empty()) {
        let port = json!({"port": Settings::ADMIN.port(), "protocol": "TCP"});
        ingress.push(json!({"from": peers, "ports": [port]}));
    }
    let port = json!({"port": StreamSource::PEERS.port(), "protocol": "TCP"});
    let pods = json!({"podSelector": {"matchLabels": plan.selector()}});
    ingress.push(json!({"from": [pods], "ports": [port]}));
    let spec = json!({
        "podSelector": {"matchLabels": plan.selector()},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    });
    let kind = ChildKind::NetworkPolicy;
    Some(plan.child(kind, &plan.name, None, json!({"spec": spec})))
}

/// Returns the container ports of the listeners.
fn listeners(data_plane: &DataPlane) -> Vec<Value> {
    let DataPlane {
        ports, udp_ports, ..
    } = data_plane;
    let port = |protocol: &str, port: u16| {
        json!({
            "port": container_port(port),
            "protocol": protocol,
        })
    };
    let tcp = ports.iter().map(|number| port("TCP", *number));
    let udp = udp_ports.iter().map(|number| port("UDP", *number));
    tcp.chain(udp).collect()
}
