//! Merges the state of data planes into statuses: Gateways and listeners are Programmed only where
//! replicas serve them, and have the addresses that the cluster assigned. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::condition::{Condition, ConditionStatus, ConditionType, Reason};
use super::report::{Address, GatewayStatus, ListenerSetStatus, ListenerStatus};
use crate::ir::{Bind, ObjectRef, Transport};

/// State of a Gateway's data plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataPlaneState {
    /// Addresses where clients reach the data plane.
    pub addresses: Vec<Address>,
    /// Why the addresses differ from the requested ones.
    pub address_fault: Option<(Reason, String)>,
    /// Why the Gateway is not accepted.
    pub refusal: Option<(Reason, String)>,
    /// Why nothing is served.
    pub fault: Option<(Reason, String)>,
    /// A failure that does not prevent the present pods from serving.
    pub notice: Option<String>,
    /// TCP and UDP ports that replicas could not bind, on all addresses as listeners declare them, with the error.
    pub unbound: BTreeMap<Bind, String>,
    /// QUIC ports that replicas could not bind, as listeners declare them, with the error. Without its QUIC port, a listener is
    /// still served.
    pub without_quic: BTreeMap<u16, String>,
    /// Why replicas do not serve all objects that they have.
    pub unread: Option<String>,
}

/// Applies the state of a data plane to the status of its Gateway.
pub(super) fn confirm_gateway(gateway: &mut GatewayStatus, state: &DataPlaneState) {
    gateway.addresses.clone_from(&state.addresses);
    set_listeners_programmed(&mut gateway.listeners, state);
    let fault = state.fault.clone().or_else(|| unbound(&gateway.listeners));
    let unread = state.unread.clone().map(|why| (Reason::Pending, why));
    let fault = fault.as_ref().or(state.address_fault.as_ref());
    let fault = fault.or(unread.as_ref());
    set_false(&mut gateway.conditions, ConditionType::Programmed, fault);
    let refusal = state.refusal.as_ref();
    set_false(&mut gateway.conditions, ConditionType::Accepted, refusal);
    set_notice(&mut gateway.conditions, state.notice.as_ref());
}

/// Applies the state of a data plane to a ListenerSet of its Gateway.
pub(super) fn confirm_listener_set(
    set: &mut ListenerSetStatus,
    gateway: &ObjectRef,
    state: &DataPlaneState,
    of_gateway: &GatewayStatus,
) {
    set_listeners_programmed(&mut set.listeners, state);
    let fault = state.fault.clone().or_else(|| unbound(&set.listeners));
    let refused = is_refused(of_gateway).then(|| parent_fault(gateway, "accepted"));
    let unprogrammed = state.address_fault.as_ref();
    let unprogrammed = unprogrammed.map(|_| parent_fault(gateway, "programmed"));
    let unprogrammed = refused.clone().or(unprogrammed);
    let unprogrammed = unprogrammed.map(|why| (Reason::ParentNotProgrammed, why));
    let fault = fault.or(unprogrammed);
    let conditions = &mut set.conditions;
    set_false(conditions, ConditionType::Programmed, fault.as_ref());
    let refused = refused.map(|why| (Reason::ParentNotAccepted, why));
    set_false(conditions, ConditionType::Accepted, refused.as_ref());
}

/// Reports whether a Gateway itself is not accepted. Its own listeners do not concern its ListenerSets.
fn is_refused(gateway: &GatewayStatus) -> bool {
    let mut conditions = gateway.conditions.iter();
    conditions.any(|one| {
        one.kind == ConditionType::Accepted
            && one.status == ConditionStatus::False
            && one.reason != Reason::ListenersNotValid
    })
}

fn parent_fault(gateway: &ObjectRef, what: &str) -> String {
    format!("{gateway} is not {what}: see its conditions")
}

/// Sets the message of `Programmed` if it is True.
fn set_notice(conditions: &mut [Condition], notice: Option<&String>) {
    let holds = |condition: &&mut Condition| condition.is_true(ConditionType::Programmed);
    if let (Some(notice), Some(condition)) = (notice, conditions.iter_mut().find(holds)) {
        condition.message.clone_from(notice);
    }
}

fn set_listeners_programmed(listeners: &mut [ListenerStatus], state: &DataPlaneState) {
    for listener in listeners {
        let failure = |bind: &Bind| {
            let everywhere = Bind {
                address: None,
                ..*bind
            };
            let why = state.unbound.get(&everywhere)?;
            Some(format!("port {}: {why}", bind.port))
        };
        let failures: Vec<_> = listener.binds.iter().filter_map(failure).collect();
        let unbound =
            (!failures.is_empty()).then(|| (Reason::PortUnavailable, failures.join("; ")));
        let without_http3 = without_http3(&listener.binds, state);
        let fault = unbound.as_ref().or(state.fault.as_ref());
        if fault.is_some() || without_http3.is_some() {
            let conditions = Arc::make_mut(&mut listener.conditions);
            set_false(conditions, ConditionType::Programmed, fault);
            set_notice(conditions, without_http3.as_ref());
        }
    }
}

/// Returns why clients of a listener with HTTP/3 do not learn of it; `None` if all replicas have bound its QUIC port, or if it
/// has no HTTP/3.
fn without_http3(binds: &[Bind], state: &DataPlaneState) -> Option<String> {
    let mut tcp = binds.iter().filter(|it| it.transport == Transport::Tcp);
    tcp.find_map(|bind| {
        let (port, why) = (bind.port, state.without_quic.get(&bind.port)?);
        Some(format!("HTTP/3 is not advertised: port {port}/quic: {why}"))
    })
}

/// Returns the fault of an object without programmed listeners, if failed binds are the cause.
fn unbound(listeners: &[ListenerStatus]) -> Option<(Reason, String)> {
    let programmed = |listener: &ListenerStatus| {
        let mut conditions = listener.conditions.iter();
        conditions.any(|one| one.is_true(ConditionType::Programmed))
    };
    let is_unbound = |listener: &ListenerStatus| {
        listener
            .conditions
            .iter()
            .any(|one| one.reason == Reason::PortUnavailable)
    };
    let none = !listeners.iter().any(programmed) && listeners.iter().any(is_unbound);
    none.then(|| {
        (
            Reason::Invalid,
            "none of its ports is bound: see the conditions of its listeners".to_owned(),
        )
    })
}

/// Sets a condition to False if it is True and there is a fault.
fn set_false(conditions: &mut [Condition], kind: ConditionType, fault: Option<&(Reason, String)>) {
    let holds = |condition: &&mut Condition| condition.is_true(kind);
    if let (Some((reason, message)), Some(condition)) = (fault, conditions.iter_mut().find(holds)) {
        *condition = Condition::fails(
            condition.kind,
            *reason,
            message,
            condition.observed_generation,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(port: u16) -> ListenerStatus {
        let programmed = Condition::holds(ConditionType::Programmed, Reason::Programmed, 1);
        ListenerStatus {
            name: port.to_string().into(),
            attached_routes: 0,
            supported_kinds: [].into(),
            conditions: Arc::new(vec![programmed]),
            port,
            hostname: crate::ir::Hostname::Any,
            binds: vec![Bind::tcp(None, port)],
        }
    }

    /// Reasons of `Programmed` of a Gateway and of its two listeners on ports 80 and 443.
    fn reasons(state: &DataPlaneState) -> [Reason; 3] {
        let mut gateway = GatewayStatus {
            conditions: listener(0).conditions.to_vec(),
            listeners: vec![listener(80), listener(443)],
            ..GatewayStatus::default()
        };
        confirm_gateway(&mut gateway, state);
        let of_listeners = gateway.listeners.iter().map(|one| one.conditions[0].reason);
        let mut all = vec![gateway.conditions[0].reason];
        all.extend(of_listeners);
        all.try_into().unwrap()
    }

    fn unbound(ports: &[u16]) -> DataPlaneState {
        DataPlaneState {
            unbound: ports
                .iter()
                .map(|port| (Bind::tcp(None, *port), "taken".to_owned()))
                .collect(),
            ..DataPlaneState::default()
        }
    }

    #[test]
    fn listener_on_unbound_port_is_not_programmed() {
        use Reason::{Invalid, PortUnavailable, Programmed};
        assert_eq!(reasons(&unbound(&[])), [Programmed, Programmed, Programmed]);
        assert_eq!(
            reasons(&unbound(&[80])),
            [Programmed, PortUnavailable, Programmed]
        );
        assert_eq!(
            reasons(&unbound(&[80, 443])),
            [Invalid, PortUnavailable, PortUnavailable]
        );
    }

    #[test]
    fn port_of_another_transport_does_not_concern_a_listener() {
        use Reason::{PortUnavailable, Programmed};
        let udp = Bind {
            transport: Transport::Udp,
            ..Bind::tcp(None, 443)
        };
        let state = DataPlaneState {
            unbound: [(udp, "taken".to_owned())].into(),
            ..DataPlaneState::default()
        };
        assert_eq!(reasons(&state), [Programmed, Programmed, Programmed]);
        let mut of_udp = listener(443);
        of_udp.binds = vec![udp];
        let mut listeners = [of_udp];
        set_listeners_programmed(&mut listeners, &state);
        assert_eq!(listeners[0].conditions[0].reason, PortUnavailable);
    }

    #[test]
    fn listener_without_its_quic_port_is_programmed_and_says_so() {
        let state = DataPlaneState {
            without_quic: [(443, "taken".to_owned())].into(),
            ..DataPlaneState::default()
        };
        let mut gateway = GatewayStatus {
            conditions: listener(0).conditions.to_vec(),
            listeners: vec![listener(80), listener(443)],
            ..GatewayStatus::default()
        };
        confirm_gateway(&mut gateway, &state);
        let shown = gateway.listeners.iter().map(|listener| {
            let condition = &listener.conditions[0];
            (condition.status, condition.message.as_str())
        });
        let message = "HTTP/3 is not advertised: port 443/quic: taken";
        let expected = [
            (ConditionStatus::True, ""),
            (ConditionStatus::True, message),
        ];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
        assert_eq!(gateway.conditions[0].status, ConditionStatus::True);
    }

    /// Reasons of `Accepted` and `Programmed` of a ListenerSet, all of whose listeners are served.
    fn reasons_of_set(state: &DataPlaneState) -> [Reason; 2] {
        let gateway = ObjectRef::gateway_api("Gateway", "infra", "edge");
        let accepted = Condition::holds(ConditionType::Accepted, Reason::Accepted, 1);
        let conditions = [vec![accepted], listener(0).conditions.to_vec()].concat();
        let mut status = GatewayStatus {
            conditions: conditions.clone(),
            listeners: vec![listener(80)],
            ..GatewayStatus::default()
        };
        let mut set = ListenerSetStatus {
            conditions,
            listeners: vec![listener(81)],
        };
        confirm_gateway(&mut status, state);
        confirm_listener_set(&mut set, &gateway, state, &status);
        let reasons: Vec<_> = set
            .conditions
            .iter()
            .map(|condition| condition.reason)
            .collect();
        reasons.try_into().unwrap()
    }

    /// Its listeners are served, and other objects.
    #[test]
    fn gateway_with_objects_that_a_replica_cannot_read_is_not_programmed() {
        use Reason::{Pending, Programmed};
        let state = DataPlaneState {
            unread: Some("why".to_owned()),
            ..DataPlaneState::default()
        };
        assert_eq!(reasons(&state), [Pending, Programmed, Programmed]);
    }

    #[test]
    fn listener_set_follows_its_gateway() {
        use Reason::{
            Accepted, AddressNotAssigned, NameTaken, ParentNotAccepted, ParentNotProgrammed,
            Programmed,
        };
        let fault = |reason| Some((reason, "why".to_owned()));
        let fine = reasons_of_set(&DataPlaneState::default());
        assert_eq!(fine, [Accepted, Programmed]);
        let without_address = reasons_of_set(&DataPlaneState {
            address_fault: fault(AddressNotAssigned),
            ..DataPlaneState::default()
        });
        assert_eq!(without_address, [Accepted, ParentNotProgrammed]);
        let refused = reasons_of_set(&DataPlaneState {
            refusal: fault(NameTaken),
            ..DataPlaneState::default()
        });
        assert_eq!(refused, [ParentNotAccepted, ParentNotProgrammed]);
    }

    #[test]
    fn failure_beside_serving_pods_is_the_message_of_programmed() {
        let mut gateway = GatewayStatus {
            conditions: listener(0).conditions.to_vec(),
            ..GatewayStatus::default()
        };
        let state = DataPlaneState {
            notice: Some("exceeded quota".to_owned()),
            ..DataPlaneState::default()
        };
        confirm_gateway(&mut gateway, &state);
        let programmed = &gateway.conditions[0];
        assert_eq!(programmed.status, ConditionStatus::True);
        assert_eq!(programmed.message, "exceeded quota");
    }

    #[test]
    fn programmed_requires_a_data_plane_and_an_address() {
        use Reason::{AddressNotAssigned, Pending, Programmed};
        let fault = |reason| Some((reason, "why".to_owned()));
        let state = DataPlaneState {
            fault: fault(Pending),
            ..DataPlaneState::default()
        };
        assert_eq!(reasons(&state), [Pending, Pending, Pending]);
        let state = DataPlaneState {
            address_fault: fault(AddressNotAssigned),
            ..DataPlaneState::default()
        };
        assert_eq!(
            reasons(&state),
            [AddressNotAssigned, Programmed, Programmed]
        );
    }
}
