//! Listeners that cannot stand beside each other: in one Gateway with its ListenerSets, and between Gateways on one
//! address. Also marks those that overlap without conflict. Knows nothing of routes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::ir::{Hostname, ObjectRef};

use super::gateway::{self, GatewayDraft};
use super::listener::{ListenerDraft, Protocol};
use super::reason::{Fault, Reason};

/// Finds conflicts among the listeners of each Gateway. Within one object nobody wins; between objects the earlier one
/// does (Gateway, then ListenerSets by age), even while its own listeners are in conflict: a ListenerSet must not get
/// what the Gateway asked for.
pub(super) fn within_gateways(gateways: &mut [GatewayDraft<'_>]) {
    for gateway in gateways {
        let conflicts: Vec<_> = (0..gateway.listeners.len())
            .map(|index| find_conflict(&gateway.listeners, index))
            .collect();
        for (listener, conflict) in gateway.listeners.iter_mut().zip(conflicts) {
            listener.conflict = conflict;
        }
    }
}

fn find_conflict(listeners: &[ListenerDraft<'_>], index: usize) -> Option<Fault> {
    let this = &listeners[index];
    let rivals = listeners.iter().enumerate().filter(|(other, rival)| {
        let same_object = rival.key.origin == this.key.origin;
        *other != index && rival.spec.port == this.spec.port && (same_object || *other < index)
    });
    let found = rivals.filter_map(|(_, rival)| Some((rival, clash(this, rival)?)));
    // A protocol that cannot share the port is the greater obstacle: tell of it first.
    let (rival, reason) = found.min_by_key(|(_, reason)| *reason != Reason::ProtocolConflict)?;
    let port = this.spec.port;
    let same_object = rival.key.origin == this.key.origin;
    let who = if same_object {
        format!("listener {}", rival.key.name)
    } else {
        // Authors of a ListenerSet need not see the names of others' listeners.
        "a listener of the Gateway or of an earlier ListenerSet".to_owned()
    };
    let (field, what) = if reason == Reason::ProtocolConflict {
        (
            "protocol",
            format!(
                "protocol {} cannot share port {port} with",
                this.spec.protocol
            ),
        )
    } else {
        (
            "hostname",
            format!("hostname {} on port {port} is also that of", this.hostname),
        )
    };
    let verdict = if same_object {
        "none of them is served; change one"
    } else {
        "that one is served; change this one"
    };
    Some(Fault::new(
        reason,
        format!("{}: {what} {who}; {verdict}", this.place(field)),
    ))
}

fn clash(one: &ListenerDraft<'_>, two: &ListenerDraft<'_>) -> Option<Reason> {
    use Protocol::{Http, Https, Other, Tcp, Tls, Udp};
    match (one.protocol, two.protocol) {
        // What nobody serves takes no port from anyone.
        (Other, _) | (_, Other) => None,
        (Udp, Udp) => Some(Reason::ProtocolConflict),
        (Udp, _) | (_, Udp) => None,
        (Http, Http) | (Https | Tls, Https | Tls) => {
            (one.hostname == two.hostname).then_some(Reason::HostnameConflict)
        }
        (Http | Https | Tls | Tcp, _) => Some(Reason::ProtocolConflict),
    }
}

/// Gives every address and port to the oldest Gateway that wants it; expects Gateways in that order. A listener holds
/// its port also while it has no certificate, so that repairing one Gateway never stops another.
pub(super) fn across_gateways(gateways: &mut [GatewayDraft<'_>]) {
    let mut claims: BTreeMap<u16, Vec<(Option<IpAddr>, ObjectRef)>> = BTreeMap::new();
    for gateway in gateways
        .iter_mut()
        .filter(|gateway| gateway.fault.is_none())
    {
        for listener in &mut gateway.listeners {
            if !listener.is_accepted() {
                continue;
            }
            let port = listener.spec.port;
            let held = claims.entry(port).or_default();
            let rival = held.iter().find(|(taken, holder)| {
                let overlaps = |address: &Option<IpAddr>| gateway::overlap(*taken, *address);
                *holder != gateway.name && gateway.addresses.iter().any(overlaps)
            });
            if let Some((_, holder)) = rival {
                let message = format!(
                    "{}: port {port} is held by {holder}, which is older or comes first by name; use another port, or \
                     other spec.addresses",
                    listener.place("port")
                );
                listener.rejected = Some(Fault::new(Reason::PortUnavailable, message));
            } else if !held.iter().any(|(_, holder)| *holder == gateway.name) {
                let addresses = gateway.addresses.iter();
                held.extend(addresses.map(|address| (*address, gateway.name.clone())));
            }
        }
    }
}

/// Marks TLS listeners of one port that share hosts or certificate names: a client may reuse a connection to one of
/// them for the other.
pub(super) fn mark_overlaps(gateways: &mut [GatewayDraft<'_>]) {
    for gateway in gateways {
        let marks: Vec<_> = (0..gateway.listeners.len())
            .map(|index| find_overlap(&gateway.listeners, index))
            .collect();
        for (listener, mark) in gateway.listeners.iter_mut().zip(marks) {
            listener.overlap = mark;
        }
    }
}

fn find_overlap(listeners: &[ListenerDraft<'_>], index: usize) -> Option<Fault> {
    let this = &listeners[index];
    let takes_part = |listener: &ListenerDraft<'_>| {
        listener.protocol == Protocol::Https && listener.is_accepted()
    };
    if !takes_part(this) {
        return None;
    }
    let names = certified(this);
    let others = listeners.iter().enumerate().filter(|(other, listener)| {
        *other != index && listener.spec.port == this.spec.port && takes_part(listener)
    });
    let found = others.filter_map(|(_, other)| {
        let meets = |name: &Hostname| {
            certified(other)
                .iter()
                .any(|own| own.intersection(name).is_some())
        };
        if names.iter().any(meets) {
            Some((Reason::OverlappingCertificates, other))
        } else {
            let shared = this.hostname.intersection(&other.hostname);
            shared.map(|_| (Reason::OverlappingHostnames, other))
        }
    });
    let (reason, other) = found.min_by_key(|(reason, _)| *reason)?;
    let what = if reason == Reason::OverlappingCertificates {
        "certificates"
    } else {
        "hostnames"
    };
    let port = this.spec.port;
    let who = if other.key.origin == this.key.origin {
        format!("listener {}", other.key.name)
    } else {
        "another listener".to_owned()
    };
    Some(Fault::new(
        reason,
        format!(
            "shares {what} with {who} on port {port}; requests for the other one on a reused connection get 421"
        ),
    ))
}

fn certified(listener: &ListenerDraft<'_>) -> Vec<Hostname> {
    let certificates = listener.tls.iter().flat_map(|tls| &tls.certificates);
    certificates
        .flat_map(|certificate| &certificate.names)
        .map(|name| Hostname::new(name))
        .collect()
}
