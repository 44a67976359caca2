//! Routes of kinds that are not served: each gets a condition that says so. Must not know rules.

use std::sync::Arc;

use crate::api::Object;
use crate::api::policy::UnservedRoute;
use crate::api::reference::ParentRef;
use crate::ir::{Hostname, ObjectRef};
use crate::status::{Note, ParentStatus};
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::memo::Memo;
use crate::translate::reason::{ConditionType, Fault, Reason};
use crate::translate::report::{Report, put};

use super::attachment::{Candidate, Parents};
use super::report::orphan_route;

/// The routes of unserved kinds.
#[derive(Default)]
pub(in crate::translate) struct UnservedRoutes(Memo<Refused>);

/// A refused route.
struct Refused {
    statuses: Arc<[ParentStatus]>,
    notes: Vec<Note>,
}

impl UnservedRoutes {
    /// Updates the statuses and notes of routes that have changed, or of which a parent has.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        parents: &Parents,
        changes: &Changes,
        report: &mut Report,
    ) {
        let mut names = self.0.outdated(changes);
        names.extend(changes.of_routes_except(&input.kinds.served_routes()));
        for name in names {
            let computed = input.reading(|| match input.object(&name) {
                Some(Object::UnservedRoute(route)) => Some(refuse(input, parents, &name, &route)),
                _ => None,
            });
            self.0.replace(&name, computed);
            let now = self.0.get(&name);
            let statuses = now.map(|now| now.statuses.clone());
            let statuses = statuses.filter(|statuses| !statuses.is_empty());
            put(&mut report.statuses.routes, &name, statuses);
            let notes = now.map_or_else(Vec::new, |now| now.notes.clone());
            report.notes.replace(&name, notes);
        }
    }
}

fn refuse(
    input: &Input<'_>,
    parents: &Parents,
    name: &ObjectRef,
    route: &UnservedRoute,
) -> Refused {
    let UnservedRoute {
        kind,
        metadata,
        spec,
    } = route;
    let hostnames = spec.hostnames.iter().map(|name| Hostname::new(name));
    let hostnames: Vec<_> = hostnames.collect();
    let candidate = Candidate {
        name,
        hostnames: &hostnames,
    };
    let supported = input.kinds.served_routes().join(", ");
    let status = |reference: &ParentRef| {
        let fault = match parents.attach(input, &candidate, reference)? {
            Err(fault) if fault.reason == Reason::NoMatchingParent => fault,
            _ => {
                let message = format!("{kind} is not supported (supported: {supported})");
                Fault::new(Reason::NotAllowedByListeners, message)
            }
        };
        Some(ParentStatus {
            parent_ref: reference.clone(),
            controller_name: input.options.controller_name.clone(),
            conditions: vec![fault.against(ConditionType::Accepted, metadata.generation)],
        })
    };
    Refused {
        statuses: spec.parent_refs.iter().filter_map(status).collect(),
        notes: orphan_route(input, name, &spec.parent_refs),
    }
}
