//! Reports objects whose current version cannot be parsed while the last valid version stays in
//! service. Pure.

use std::sync::Arc;

use super::condition::{Condition, ConditionType, Reason};
use super::report::StatusReport;
use crate::ir::ObjectRef;

impl StatusReport {
    /// Sets `Accepted` to False for a generation of an object that cannot be parsed. Objects
    /// without any valid version have no status entry and are skipped.
    pub fn refuse(&mut self, object: &ObjectRef, generation: i64, why: &str) {
        let refused = |reason| Condition::fails(ConditionType::Accepted, reason, why, generation);
        let put = |conditions: &mut Vec<Condition>, condition: Condition| {
            let accepted = conditions.iter_mut().find(|old| old.kind == condition.kind);
            match accepted {
                Some(old) => *old = condition,
                None => conditions.push(condition),
            }
        };
        if let Some(conditions) = self.gateway_classes.get_mut(object) {
            put(conditions, refused(Reason::Unsupported));
        } else if let Some(gateway) = self.gateways.get_mut(object) {
            put(&mut gateway.conditions, refused(Reason::Invalid));
        } else if let Some(set) = self.listener_sets.get_mut(object) {
            put(&mut set.conditions, refused(Reason::Invalid));
        } else if let Some(parents) = self.routes.get(object) {
            let mut parents = parents.to_vec();
            for parent in &mut parents {
                put(&mut parent.conditions, refused(Reason::UnsupportedValue));
            }
            self.routes.insert(object.clone(), parents.into());
        } else if let Some(ancestors) = self.policies.get_mut(object) {
            for ancestor in ancestors {
                put(&mut ancestor.conditions, refused(Reason::Invalid));
            }
        } else if let Some(parents) = self.backends.get_mut(object) {
            for parent in parents {
                put(&mut parent.conditions, refused(Reason::Invalid));
            }
        } else if let Some(status) = self.release_backends.get_mut(object) {
            let status = Arc::make_mut(status);
            put(&mut status.conditions, refused(Reason::Invalid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{ParentRef, ParentStatus, ReleaseBackendStatus};

    #[test]
    fn rejects_route_with_the_unreadable_generation() {
        let route = ObjectRef::gateway_api("HTTPRoute", "shop", "a");
        let kinds = [ConditionType::Accepted, ConditionType::ResolvedRefs];
        let parent = ParentStatus {
            parent_ref: ParentRef {
                group: String::new(),
                kind: "Gateway".to_owned(),
                namespace: None,
                name: "edge".to_owned(),
                section_name: None,
                port: None,
            },
            controller_name: "example.com/controller".into(),
            conditions: kinds
                .map(|kind| Condition::holds(kind, Reason::Accepted, 1))
                .to_vec(),
        };
        let mut report = StatusReport::default();
        report.refuse(&route, 2, "why");
        assert_eq!(report, StatusReport::default());
        report.routes.insert(route.clone(), [parent].into());
        report.refuse(&route, 2, "why");
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

    #[test]
    fn rejects_release_backend_with_the_unreadable_generation() {
        let name = ObjectRef::new("portcullis.dev", "ReleaseBackend", "shop", "a");
        let mut report = StatusReport::default();
        report.refuse(&name, 3, "cannot be read");
        assert!(report.release_backends.is_empty());
        let status = ReleaseBackendStatus {
            conditions: vec![Condition::holds(
                ConditionType::Accepted,
                Reason::Accepted,
                2,
            )],
            ..ReleaseBackendStatus::default()
        };
        report.release_backends.insert(name.clone(), status.into());
        report.refuse(&name, 3, "cannot be read");
        let accepted = &report.release_backends[&name].conditions[0];
        assert_eq!(accepted.reason, Reason::Invalid);
        assert_eq!(accepted.observed_generation, 3);
    }
}
