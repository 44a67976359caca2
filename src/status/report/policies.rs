//! The effect of Gateways on the status of policies.

use std::sync::Arc;

use super::{AncestorStatus, GatewayStatus, StatusReport};
use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::status::condition::{Condition, ConditionType, Reason};
use crate::status::status_map::StatusMap;

impl StatusReport {
    /// Sets `Programmed` of policies to False for Gateways that are not programmed.
    pub(in crate::status) fn apply_gateways_to_policies(&mut self) {
        let gateways = &self.gateways;
        let changed = self.policies.iter().filter_map(|(policy, ancestors)| {
            let ancestors = waiting(policy, ancestors, gateways)?;
            Some((policy.clone(), ancestors))
        });
        let changed: Vec<_> = changed.collect();
        self.policies.extend(changed);
    }
}

/// Returns the statuses of a policy with `Programmed` False for Gateways that are not programmed; `None` if nothing
/// changes.
pub(in crate::status) fn waiting(
    policy: &ObjectRef,
    ancestors: &[AncestorStatus],
    gateways: &StatusMap<GatewayStatus>,
) -> Option<Arc<[AncestorStatus]>> {
    let is_waiting = |ancestor: &AncestorStatus| {
        let reference = &ancestor.ancestor_ref;
        let gateway = || reference.object_ref(&policy.namespace);
        reference.group == GATEWAY_GROUP
            && ancestor.conditions.iter().any(holds)
            && !gateways
                .get(&gateway())
                .is_some_and(|it| it.is_programmed())
    };
    if !ancestors.iter().any(is_waiting) {
        return None;
    }
    let mut ancestors = ancestors.to_vec();
    for ancestor in ancestors.iter_mut().filter(|it| is_waiting(it)) {
        for condition in ancestor.conditions.iter_mut().filter(|it| holds(it)) {
            let message = "the Gateway is not programmed";
            let generation = condition.observed_generation;
            *condition = Condition::fails(condition.kind, Reason::Pending, message, generation);
        }
    }
    Some(ancestors.into())
}

fn holds(condition: &Condition) -> bool {
    condition.is_true(ConditionType::Programmed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::reference::ParentRef;

    #[test]
    fn policy_is_programmed_where_its_gateway_is() {
        let programmed = |holds| {
            let kind = ConditionType::Programmed;
            match holds {
                true => Condition::holds(kind, Reason::Programmed, 1),
                false => Condition::fails(kind, Reason::Invalid, "", 1),
            }
        };
        let gateway = |name: &str| ObjectRef::gateway_api("Gateway", "infra", name);
        let gateways = [("up", true), ("down", false)].map(|(name, holds)| {
            let status = GatewayStatus {
                conditions: vec![programmed(holds)],
                ..GatewayStatus::default()
            };
            (gateway(name), Arc::new(status))
        });
        let ancestor = |name: &str| AncestorStatus {
            ancestor_ref: ParentRef::to(&gateway(name)),
            controller_name: "example.com/ours".into(),
            conditions: vec![programmed(true)],
        };
        let policy = ObjectRef::new("portcullis.dev", "AccessPolicy", "infra", "a");
        let mut report = StatusReport {
            gateways: gateways.into_iter().collect(),
            policies: StatusMap::unit(policy.clone(), [ancestor("up"), ancestor("down")].into()),
            ..StatusReport::default()
        };
        report.apply_gateways_to_policies();
        let reasons = report.policies[&policy].iter();
        let reasons: Vec<_> = reasons.map(|it| it.conditions[0].reason).collect();
        assert_eq!(reasons, [Reason::Programmed, Reason::Pending]);
    }
}
