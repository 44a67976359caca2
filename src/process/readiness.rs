//! Decides from the results of binding and from the problems of objects whether the process is ready. Before it is ready for
//! the first time, every port of a Gateway must be bound, and no policy that protects requests may be without effect because
//! nothing says which ones: a rollout must not replace a pod by one that serves less, or more than it should. Afterwards one bound port suffices: a later mistake of one team must not take
//! the process away from the others. For the same reason ports that only ListenerSets declare never
//! count, unless no port is bound at all.

use std::sync::Arc;

use crate::ir::{Bind, BindReport, Port, Transport};
use crate::provider::Problem;

/// Maximum number of ports, and of objects, that the reason names.
const MAX_NAMED: usize = 8;

/// Whether the process has been ready.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    was_ready: bool,
}

impl Readiness {
    /// Returns why the process is not ready with these results; `None` if it is.
    pub(super) fn follow(
        &mut self,
        binds: &BindReport,
        ports: &[Arc<Port>],
        problems: &[Problem],
    ) -> Option<String> {
        // HTTP/3 is beside other versions of HTTP, and does not replace them.
        let is_bound = |(bind, result): (&Bind, &Result<_, _>)| {
            result.is_ok() && bind.transport != Transport::Quic
        };
        let any_bound = binds.is_empty() || binds.iter().any(is_bound);
        let missing = |bind: &Bind| match (any_bound, self.was_ready) {
            (true, true) => false,
            (true, false) => is_of_gateway(*bind, ports),
            (false, _) => true,
        };
        let failed = binds.iter().filter(|(bind, _)| missing(bind));
        let failed: Vec<_> = failed
            .filter_map(|(bind, result)| Some(describe(*bind, result.as_ref().err()?)))
            .collect();
        let open = problems.iter().filter(|problem| problem.leaves_open);
        let open = open.filter(|_| !self.was_ready);
        let open: Vec<_> = open.map(ToString::to_string).collect();
        let reasons = [listed(&failed, "ports"), listed(&open, "objects")];
        let reasons: Vec<_> = reasons.into_iter().flatten().collect();
        self.was_ready |= reasons.is_empty();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// Returns the first reasons, and how many more of them there are; `None` if there are none.
fn listed(reasons: &[String], what: &str) -> Option<String> {
    let more = reasons.len().saturating_sub(MAX_NAMED);
    let named = reasons[..reasons.len() - more].join("; ");
    match more {
        _ if reasons.is_empty() => None,
        0 => Some(named),
        _ => Some(format!("{named}; and {more} more {what}")),
    }
}

fn describe(bind: Bind, error: &str) -> String {
    let address = bind.address.map(|address| format!(" on {address}"));
    let address = address.unwrap_or_default();
    format!("port {}{address} is not bound: {error}", bind.port)
}

/// Reports whether a listener of a Gateway itself declares the port, and not only ListenerSets.
fn is_of_gateway(bind: Bind, ports: &[Arc<Port>]) -> bool {
    let mut ports = ports.iter().filter(|port| port.bind == bind);
    ports.any(|port| {
        let mut listeners = port.listeners.iter();
        listeners.any(|listener| listener.key.origin == port.gateway)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;
    use crate::finding::Severity;
    use crate::ir::{Hostname, Listener, ListenerKey, ObjectRef, Protocol};

    /// A port with one listener, of the Gateway or of a ListenerSet.
    fn port(number: u16, kind: &str) -> Arc<Port> {
        let gateway = ObjectRef::gateway_api("Gateway", "infra", "edge");
        let listener = Listener {
            key: ListenerKey {
                origin: ObjectRef::gateway_api(kind, "infra", "edge"),
                name: "one".into(),
            },
            hostname: Hostname::Any,
            protocol: Protocol::Http,
            policies: None,
            clients: None,
            routes: Default::default(),
        };
        Arc::new(Port {
            bind: Bind::tcp(None, number),
            gateway,
            listeners: vec![Arc::new(listener)],
        })
    }

    fn binds(results: &[(u16, bool)]) -> BindReport {
        let result = |is_bound| match is_bound {
            true => Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, 1))),
            false => Err(Arc::from("permission denied")),
        };
        let results = results.iter();
        let results = results.map(|(port, bound)| (Bind::tcp(None, *port), result(*bound)));
        results.collect()
    }

    #[test]
    fn first_configuration_needs_all_ports_of_gateways() {
        let mut readiness = Readiness::default();
        let ports = [port(80, "Gateway"), port(443, "Gateway")];
        let reason = readiness.follow(&binds(&[(80, false), (443, true)]), &ports, &[]);
        assert_eq!(
            reason.as_deref(),
            Some("port 80 is not bound: permission denied")
        );
        assert_eq!(
            readiness.follow(&binds(&[(80, true), (443, true)]), &ports, &[]),
            None
        );
    }

    #[test]
    fn later_configurations_need_one_port() {
        let mut readiness = Readiness::default();
        let ports = [port(80, "Gateway"), port(443, "Gateway")];
        assert_eq!(
            readiness.follow(&binds(&[(80, true)]), &ports[..1], &[]),
            None
        );
        assert_eq!(
            readiness.follow(&binds(&[(80, true), (443, false)]), &ports, &[]),
            None
        );
        let reason = readiness.follow(&binds(&[(80, false), (443, false)]), &ports, &[]);
        assert!(reason.is_some_and(|it| it.contains("port 80") && it.contains("port 443")));
        assert_eq!(readiness.follow(&binds(&[]), &[], &[]), None);
    }

    #[test]
    fn ports_of_listener_sets_count_only_when_no_port_is_bound() {
        let ports = [port(80, "Gateway"), port(8443, "ListenerSet")];
        let follow =
            |results: &[(u16, bool)]| Readiness::default().follow(&binds(results), &ports, &[]);
        assert_eq!(follow(&[(80, true), (8443, false)]), None);
        assert!(follow(&[(80, false), (8443, false)]).is_some());
    }

    #[test]
    fn names_a_bounded_number_of_ports() {
        let failed: Vec<_> = (1..=20).map(|port| (port, false)).collect();
        let reason = Readiness::default()
            .follow(&binds(&failed), &[], &[])
            .unwrap();
        assert!(reason.ends_with("and 12 more ports"), "{reason}");
    }

    #[test]
    fn unreadable_policies_keep_a_process_from_becoming_ready() {
        let open = Problem {
            leaves_open: true,
            ..Problem::of_file(Severity::Error, "a.yaml", "no target of it can be read")
        };
        let other = Problem::of_file(Severity::Error, "b.yaml", "is empty");
        let mut readiness = Readiness::default();
        let reason = readiness.follow(&binds(&[]), &[], &[other.clone(), open.clone()]);
        assert_eq!(reason, Some(open.to_string()));
        assert_eq!(readiness.follow(&binds(&[]), &[], &[other]), None);
        // A later mistake does not take the process from others.
        assert_eq!(readiness.follow(&binds(&[]), &[], &[open]), None);
    }
}
