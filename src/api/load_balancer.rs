//! The ports of a Service that its load balancer does not have, such as those of a second protocol. Pure.

use std::collections::BTreeSet;

use super::core::{PORTS_ERROR, Service};
use crate::ir::sharing::Text;

/// A port that a load balancer does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPort {
    /// Number and protocol; `None` if the load balancer does not say which port it is.
    pub port: Option<(u16, Text)>,
    /// What is wrong, with the name of the Service.
    pub message: String,
}

impl Service {
    /// Returns the ports that the load balancer says that it does not have. A list of ports without a port of the Service says
    /// so, too: Kubernetes wants all of them in it.
    pub fn refused_ports(&self) -> Vec<RefusedPort> {
        let name = &self.metadata.name;
        let mut refused = Vec::new();
        for ingress in &self.status.load_balancer.ingress {
            let own = self.spec.ports.iter().map(|port| {
                let protocol = port.protocol.clone();
                (port.port, protocol.unwrap_or_else(|| "TCP".into()))
            });
            let is_listed = |(number, protocol): &(u16, Text)| {
                let mut listed = ingress.ports.iter();
                listed.any(|it| it.port == *number && it.protocol == *protocol)
            };
            let missing = own.filter(|port| !ingress.ports.is_empty() && !is_listed(port));
            let missing = missing.map(|port| (port, "it is not in status.loadBalancer"));
            let failed = ingress.ports.iter().filter_map(|it| {
                let error = it.error.as_deref()?;
                Some(((it.port, it.protocol.clone()), error))
            });
            refused.extend(failed.chain(missing).map(|((number, protocol), why)| {
                let what = format!("the load balancer of Service {name} has no {protocol} port");
                RefusedPort {
                    message: format!("{what} {number}: {why}"),
                    port: Some((number, protocol)),
                }
            }));
        }
        let conditions = self.status.conditions.iter();
        let failed = conditions.filter(|it| &*it.kind == PORTS_ERROR && &*it.status == "True");
        refused.extend(failed.map(|condition| {
            let (reason, message) = (&condition.reason, &condition.message);
            let what = format!("the load balancer of Service {name} lacks ports");
            RefusedPort {
                port: None,
                message: format!("{what}: {reason}: {message}"),
            }
        }));
        refused
    }

    /// Returns its UDP ports, without those that its load balancer does not have or may not have.
    pub fn reachable_udp_ports(&self) -> BTreeSet<u16> {
        let refused = self.refused_ports();
        let is_refused = |number: u16| {
            let mut refused = refused.iter().map(|it| it.port.as_ref());
            refused.any(|it| it.is_none_or(|(port, what)| *port == number && &**what == "UDP"))
        };
        let udp = self.spec.ports.iter().filter(|port| {
            let protocol = port.protocol.as_deref();
            protocol == Some("UDP")
        });
        let numbers = udp.map(|port| port.port);
        numbers.filter(|number| !is_refused(*number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A Service with TCP 443 and UDP 443.
    fn service(status: &Value) -> Service {
        let service = json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"ports": [{"port": 443}, {"port": 443, "protocol": "UDP"}]},
            "status": status,
        });
        serde_json::from_value(service).unwrap()
    }

    fn messages(status: &Value) -> Vec<String> {
        let refused = service(status).refused_ports().into_iter();
        refused.map(|it| it.message).collect()
    }

    fn listing(ports: &Value) -> Value {
        json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ports": ports}]}})
    }

    #[test]
    fn ports_with_an_error_or_without_an_entry_are_refused() {
        let tcp = json!({"port": 443, "protocol": "TCP"});
        let udp = |error: Option<&str>| json!({"port": 443, "protocol": "UDP", "error": error});
        let refused = |why: &str| {
            vec![format!(
                "the load balancer of Service web has no UDP port 443: {why}"
            )]
        };
        let cases = [
            (json!([]), Vec::new()),
            (json!([tcp, udp(None)]), Vec::new()),
            (
                json!([tcp, udp(Some("MixedProtocolNotSupported"))]),
                refused("MixedProtocolNotSupported"),
            ),
            (json!([tcp]), refused("it is not in status.loadBalancer")),
        ];
        for (ports, expected) in cases {
            let status = listing(&ports);
            assert_eq!(messages(&status), expected, "{ports}");
            let reachable = service(&status).reachable_udp_ports();
            assert_eq!(reachable.is_empty(), !expected.is_empty(), "{ports}");
        }
    }

    #[test]
    fn condition_of_a_service_refuses_all_udp_ports() {
        let condition = |status: &str| {
            json!({"conditions": [{
                "type": PORTS_ERROR, "status": status,
                "reason": "LoadBalancerMixedProtocolNotSupported", "message": "only TCP",
            }]})
        };
        assert!(messages(&condition("False")).is_empty());
        let reachable = service(&condition("False")).reachable_udp_ports();
        assert_eq!(reachable, [443].into());
        assert_eq!(
            messages(&condition("True")),
            [
                "the load balancer of Service web lacks ports: LoadBalancerMixedProtocolNotSupported: only TCP"
            ]
        );
        let reachable = service(&condition("True")).reachable_udp_ports();
        assert!(reachable.is_empty());
    }
}
