//! Reports objects whose current version cannot be parsed, or waits for policies, while an earlier version stays in service.
//! Pure.

use std::sync::Arc;

use super::condition::{Condition, ConditionType, Reason};
use super::report::StatusReport;
use crate::ir::ObjectRef;

/// Why the current version of an object is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its generation.
    pub generation: i64,
    /// What is wrong.
    pub message: String,
    /// Whether nothing is wrong with the version: it waits for policies.
    pub is_pending: bool,
}

impl StatusReport {
    /// Sets `Accepted` to False for the version of an object that is not served, if its status does not depend on data
    /// planes. Objects without any version in service have no status entry and are skipped.
    pub(super) fn refuse(&mut self, object: &ObjectRef, why: &Unreadable) {
        if let Some(conditions) = self.gateway_classes.get_mut(object) {
            let mut changed = conditions.to_vec();
            refuse(&mut changed, Reason::Unsupported, why);
            *conditions = changed.into();
        } else if let Some(parents) = self.routes.get_mut(object) {
            for parent in Arc::make_mut(parents) {
                refuse(&mut parent.conditions, Reason::UnsupportedValue, why);
            }
        } else if let Some(ancestors) = self.policies.get_mut(object) {
            for ancestor in Arc::make_mut(ancestors) {
                refuse(&mut ancestor.conditions, Reason::Invalid, why);
            }
        } else if let Some(parents) = self.backends.get_mut(object) {
            let reason = match &*object.kind == "InferencePool" {
                true => Reason::NotSupportedByParent,
                false => Reason::Invalid,
            };
            for parent in Arc::make_mut(parents) {
                refuse(&mut parent.conditions, reason, why);
            }
        }
    }
}

/// Sets `Accepted` to False for the version of an object that is not served. `reason` is for those that cannot be parsed.
pub(super) fn refuse(conditions: &mut Vec<Condition>, reason: Reason, why: &Unreadable) {
    let Unreadable {
        generation,
        message,
        is_pending,
    } = why;
    let reason = match *is_pending {
        true => Reason::PoliciesPending,
        false => reason,
    };
    let refused = Condition::fails(ConditionType::Accepted, reason, message, *generation);
    match conditions.iter_mut().find(|old| old.kind == refused.kind) {
        Some(old) => *old = refused,
        None => conditions.push(refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::reference::ParentRef;
    use crate::status::ParentStatus;

    #[test]
    fn rejects_route_with_the_unreadable_generation() {
        let route = ObjectRef::gateway_api("HTTPRoute", "shop", "a");
        let kinds = [ConditionType::Accepted, ConditionType::ResolvedRefs];
        let parent = ParentStatus {
            parent_ref: ParentRef::to(&ObjectRef::gateway_api("Gateway", "shop", "edge")),
            controller_name: "example.com/controller".into(),
            conditions: kinds
                .map(|kind| Condition::holds(kind, Reason::Accepted, 1))
                .to_vec(),
        };
        let mut report = StatusReport::default();
        let why = Unreadable {
            generation: 2,
            message: "why".to_owned(),
            is_pending: false,
        };
        report.refuse(&route, &why);
        assert_eq!(report, StatusReport::default());
        report.routes.insert(route.clone(), vec![parent].into());
        report.refuse(&route, &why);
        let conditions = &report.routes[&route][0].conditions;
        let of = |condition: &Condition| {
            (
                condition.kind,
                condition.is_problem(),
                condition.observed_generation,
            )
        };
        let found: Vec<_> = conditions.iter().map(of).collect();
        assert_eq!(found, [(kinds[0], true, 2), (kinds[1], false, 1)]);
    }
}
