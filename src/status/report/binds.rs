//! The effect of binding sockets on a report.

use std::sync::Arc;

use imbl::ordmap::DiffItem;

use super::{Address, GatewayStatus, ListenerSetStatus, ListenerStatus, StatusReport};
use crate::ir::{Bind, BindReport, Transport};
use crate::status::condition::{Condition, ConditionStatus, ConditionType, Reason};
use crate::status::status_map::StatusMap;

/// The last report before and after binding. A status that both reports share is not computed again.
#[derive(Debug, Default)]
pub struct BoundReport {
    unbound: StatusReport,
    binds: BindReport,
    bound: StatusReport,
}

impl BoundReport {
    /// Returns the next report after binding: listeners without a bound socket are not programmed.
    pub fn follow(&mut self, unbound: StatusReport, binds: &BindReport) -> StatusReport {
        if self.binds != *binds {
            *self = Self {
                binds: binds.clone(),
                ..Self::default()
            };
        }
        let mut bound = StatusReport {
            gateways: std::mem::take(&mut self.bound.gateways),
            listener_sets: std::mem::take(&mut self.bound.listener_sets),
            ..unbound.clone()
        };
        let (before, now) = (&self.unbound.gateways, &unbound.gateways);
        update(&mut bound.gateways, before, now, |gateway| {
            apply_binds_to_gateway(gateway, binds);
        });
        let (before, now) = (&self.unbound.listener_sets, &unbound.listener_sets);
        update(&mut bound.listener_sets, before, now, |set| {
            apply_binds_to_set(set, binds);
        });
        bound.apply_gateways_to_release_backends();
        bound.apply_gateways_to_policies();
        self.unbound = unbound;
        self.bound = bound.clone();
        bound
    }
}

/// Updates statuses by what differs between two versions of that which they are computed from.
fn update<T: Clone + Eq>(
    statuses: &mut StatusMap<T>,
    before: &StatusMap<T>,
    now: &StatusMap<T>,
    change: impl Fn(&mut T),
) {
    for item in before.diff(now) {
        let (name, status) = match item {
            DiffItem::Add(name, status) => (name, status),
            DiffItem::Update { new, .. } => new,
            DiffItem::Remove(name, _) => {
                statuses.remove(name);
                continue;
            }
        };
        let mut new = T::clone(status);
        change(&mut new);
        let new = match new == **status {
            true => status.clone(),
            false => Arc::new(new),
        };
        if statuses.get(name) != Some(&new) {
            statuses.insert(name.clone(), new);
        }
    }
}

fn apply_binds_to_gateway(gateway: &mut GatewayStatus, binds: &BindReport) {
    apply_binds_to_listeners(&mut gateway.listeners, binds);
    apply_binds_to_object(&mut gateway.conditions, &gateway.listeners, Reason::Invalid);
    apply_binds_to_addresses(gateway, binds);
}

fn apply_binds_to_set(set: &mut ListenerSetStatus, binds: &BindReport) {
    apply_binds_to_listeners(&mut set.listeners, binds);
    apply_binds_to_object(&mut set.conditions, &set.listeners, Reason::PortUnavailable);
}

fn is_programmed(condition: &Condition) -> bool {
    condition.is_true(ConditionType::Programmed)
}

fn programmed(conditions: &mut [Condition]) -> Option<&mut Condition> {
    conditions
        .iter_mut()
        .find(|condition| is_programmed(condition))
}

fn apply_binds_to_listeners(listeners: &mut [ListenerStatus], binds: &BindReport) {
    for listener in listeners {
        let mut conditions = listener.conditions.iter();
        let Some(place) = conditions.position(is_programmed) else {
            continue;
        };
        let condition = &listener.conditions[place];
        let outcomes = listener.binds.iter().map(|bind| (bind, binds.get(bind)));
        let (mut bound, mut failures) = (false, Vec::new());
        for (bind, outcome) in outcomes {
            match outcome {
                Some(Ok(_)) => bound = true,
                Some(Err(error)) => failures.push(format!("cannot bind {bind}: {error}")),
                None => {}
            }
        }
        if bound {
            failures.extend(without_http3(&listener.binds, binds));
        }
        let (kind, generation) = (condition.kind, condition.observed_generation);
        let failures = failures.join("; ");
        let now = if bound {
            Condition {
                message: failures,
                ..condition.clone()
            }
        } else if failures.is_empty() {
            let message = "its port is not bound yet";
            Condition::fails(kind, Reason::Pending, message, generation)
        } else {
            let message = format!("{failures}; retrying");
            Condition::fails(kind, Reason::PortUnavailable, &message, generation)
        };
        if now != *condition {
            Arc::make_mut(&mut listener.conditions)[place] = now;
        }
    }
}

/// Returns why clients of a listener do not learn of its HTTP/3, for each of its QUIC ports that could not be bound.
fn without_http3(own: &[Bind], binds: &BindReport) -> impl Iterator<Item = String> {
    let tcp = own.iter().filter(|bind| bind.transport == Transport::Tcp);
    tcp.filter_map(move |bind| {
        let quic = bind.quic();
        let error = binds.get(&quic)?.as_ref().err()?;
        Some(format!(
            "HTTP/3 is not advertised: cannot bind {quic}: {error}"
        ))
    })
}

fn apply_binds_to_object(
    conditions: &mut [Condition],
    listeners: &[ListenerStatus],
    failed: Reason,
) {
    let Some(condition) = programmed(conditions) else {
        return;
    };
    let state = |listener: &ListenerStatus| {
        let conditions = listener.conditions.iter();
        let mut programmed = conditions.filter(|one| one.kind == ConditionType::Programmed);
        programmed.next().map(|one| (one.status, one.reason))
    };
    let states: Vec<_> = listeners.iter().filter_map(state).collect();
    let generation = condition.observed_generation;
    if states
        .iter()
        .any(|(status, _)| *status == ConditionStatus::True)
    {
        return;
    }
    if states.iter().any(|(_, reason)| *reason == Reason::Pending) {
        let message = "none of its ports is bound yet";
        *condition = Condition::fails(condition.kind, Reason::Pending, message, generation);
    } else {
        let message = "none of its listeners is programmed: see their conditions";
        *condition = Condition::fails(condition.kind, failed, message, generation);
    }
}

/// Keeps only the requested addresses on which a socket is bound (status.addresses).
fn apply_binds_to_addresses(gateway: &mut GatewayStatus, binds: &BindReport) {
    let unusable = |address: &Address| {
        let on_address =
            |bind: &&Bind| bind.address.map(Address::IPAddress).as_ref() == Some(address);
        let all = gateway
            .listeners
            .iter()
            .flat_map(|listener| &listener.binds);
        let mut outcomes = all
            .filter(on_address)
            .map(|bind| binds.get(bind))
            .peekable();
        outcomes.peek().is_some() && outcomes.all(|outcome| matches!(outcome, Some(Err(_))))
    };
    let (bad, good): (Vec<_>, Vec<_>) = gateway.addresses.iter().cloned().partition(unusable);
    gateway.addresses = good;
    if bad.is_empty() {
        return;
    }
    let of_programmed = |condition: &&mut Condition| condition.kind == ConditionType::Programmed;
    if let Some(condition) = gateway.conditions.iter_mut().find(of_programmed) {
        let failure = |address: &Address| {
            let mut failed = binds.iter().filter_map(|(bind, result)| {
                let is_own = bind.address.map(Address::IPAddress).as_ref() == Some(address);
                is_own.then_some((bind.port, result.as_ref().err()?))
            });
            let (port, error) = failed.next()?;
            Some(format!(
                "no port is bound on {address}: port {port}: {error}"
            ))
        };
        let failures: Vec<_> = bad.iter().filter_map(failure).collect();
        let message = format!("spec.addresses: {}", failures.join("; "));
        let generation = condition.observed_generation;
        *condition = Condition::fails(
            condition.kind,
            Reason::AddressNotUsable,
            &message,
            generation,
        );
    }
}
