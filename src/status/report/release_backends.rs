//! The effect of Gateways on the status of ReleaseBackends.

use super::{GatewayStatus, StatusReport};
use crate::ir::ObjectRef;
use crate::status::condition::{Condition, ConditionType, Reason};
use crate::status::release_backend::ReleaseBackendStatus;
use crate::status::status_map::{StatusMap, update};

impl StatusReport {
    /// Sets `Programmed` of ReleaseBackends to False while no Gateway that sends requests to them is programmed.
    pub(in crate::status) fn apply_gateways_to_release_backends(&mut self) {
        let gateways = &self.gateways;
        update(&mut self.release_backends, |_, status| {
            wait_for_gateways(status, gateways)
        });
    }
}

/// Sets `Programmed` to False if it is True while no Gateway that sends requests to the ReleaseBackend is programmed.
pub(in crate::status) fn wait_for_gateways(
    status: &mut ReleaseBackendStatus,
    gateways: &StatusMap<GatewayStatus>,
) {
    let is_programmed =
        |gateway: &ObjectRef| gateways.get(gateway).is_some_and(|it| it.is_programmed());
    if status.gateways.iter().any(is_programmed) {
        return;
    }
    let holds = |it: &&mut Condition| it.is_true(ConditionType::Programmed);
    for condition in status.conditions.iter_mut().filter(holds) {
        let message = "no Gateway that sends requests to it is programmed yet";
        let generation = condition.observed_generation;
        *condition = Condition::fails(condition.kind, Reason::Pending, message, generation);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn is_programmed_once_one_of_its_gateways_is() {
        let (web, other) = (
            ObjectRef::gateway_api("Gateway", "infra", "web"),
            ObjectRef::gateway_api("Gateway", "infra", "other"),
        );
        let programmed = || Condition::holds(ConditionType::Programmed, Reason::Programmed, 1);
        let pending = || Condition::fails(ConditionType::Programmed, Reason::Pending, "", 1);
        let name = ObjectRef::new("portcullis.dev", "ReleaseBackend", "shop", "shop");
        let status = ReleaseBackendStatus {
            conditions: vec![programmed()],
            gateways: vec![web.clone(), other.clone()],
            ..ReleaseBackendStatus::default()
        };
        let reason = |web_condition: Condition| {
            let gateway = |condition| GatewayStatus {
                conditions: vec![condition],
                ..GatewayStatus::default()
            };
            let mut report = StatusReport {
                gateways: [
                    (web.clone(), Arc::new(gateway(web_condition))),
                    (other.clone(), Arc::new(gateway(pending()))),
                ]
                .into_iter()
                .collect(),
                release_backends: [(name.clone(), Arc::new(status.clone()))]
                    .into_iter()
                    .collect(),
                ..StatusReport::default()
            };
            report.apply_gateways_to_release_backends();
            report.release_backends[&name].conditions[0].reason
        };
        assert_eq!(reason(programmed()), Reason::Programmed);
        assert_eq!(reason(pending()), Reason::Pending);
    }
}
