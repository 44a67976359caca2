//! What data planes make of a report: Gateways and listeners are programmed only where replicas really serve them, and
//! have the addresses that the cluster gave. Pure; knows not how either was found out.

use std::collections::BTreeMap;

use super::condition::{Condition, ConditionStatus, ConditionType, Reason};
use super::report::{Address, ListenerStatus, StatusReport};
use crate::ir::ObjectRef;

/// What is known of a Gateway's data planes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataPlaneState {
    /// Addresses at which clients reach them.
    pub addresses: Vec<Address>,
    /// Why the addresses are not what they should be.
    pub address_fault: Option<(Reason, String)>,
    /// Why nothing is served.
    pub fault: Option<(Reason, String)>,
    /// Ports that could not be bound, as listeners declare them, and why.
    pub unbound: BTreeMap<u16, String>,
}

impl StatusReport {
    /// The report as the data planes of Gateways confirm it. `gateway_of` tells to which Gateway a ListenerSet belongs.
    #[must_use]
    pub fn with_data_planes(
        mut self,
        states: &BTreeMap<ObjectRef, DataPlaneState>,
        gateway_of: impl Fn(&ObjectRef) -> Option<ObjectRef>,
    ) -> Self {
        let none = DataPlaneState::default();
        for (name, gateway) in &mut self.gateways {
            let state = states.get(name).unwrap_or(&none);
            gateway.addresses.clone_from(&state.addresses);
            settle(&mut gateway.listeners, state);
            let fault = state.fault.clone().or_else(|| unbound(&gateway.listeners));
            lower(
                &mut gateway.conditions,
                fault.as_ref().or(state.address_fault.as_ref()),
            );
        }
        for (name, set) in &mut self.listener_sets {
            let Some(state) = gateway_of(name).and_then(|gateway| states.get(&gateway)) else {
                continue;
            };
            settle(&mut set.listeners, state);
            let fault = state.fault.clone().or_else(|| unbound(&set.listeners));
            lower(&mut set.conditions, fault.as_ref());
        }
        self
    }
}

fn settle(listeners: &mut [ListenerStatus], state: &DataPlaneState) {
    for listener in listeners {
        let ports = listener.binds.iter().map(|bind| bind.port);
        let unbound = ports.filter_map(|port| Some((port, state.unbound.get(&port)?)));
        let failures: Vec<_> = unbound
            .map(|(port, why)| format!("port {port}: {why}"))
            .collect();
        let unbound =
            (!failures.is_empty()).then(|| (Reason::PortUnavailable, failures.join("; ")));
        lower(
            &mut listener.conditions,
            unbound.as_ref().or(state.fault.as_ref()),
        );
    }
}

/// Why none of an object's listeners is programmed, when that is because no port could be bound.
fn unbound(listeners: &[ListenerStatus]) -> Option<(Reason, String)> {
    let programmed = |listener: &ListenerStatus| {
        let mut conditions = listener.conditions.iter();
        conditions
            .any(|one| one.kind == ConditionType::Programmed && one.status == ConditionStatus::True)
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
            "none of its ports is bound: see its listeners".to_owned(),
        )
    })
}

/// Makes `Programmed` false where it was true.
fn lower(conditions: &mut [Condition], fault: Option<&(Reason, String)>) {
    let is_programmed = |condition: &&mut Condition| {
        condition.kind == ConditionType::Programmed && condition.status == ConditionStatus::True
    };
    if let (Some((reason, message)), Some(condition)) =
        (fault, conditions.iter_mut().find(is_programmed))
    {
        *condition = Condition::fails(
            condition.kind,
            *reason,
            message,
            condition.observed_generation,
        );
    }
}
