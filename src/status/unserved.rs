//! Routes that are served in no version since they have waited for policies for too long. The translation does not have them, so
//! that nothing else in their status says why. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::condition::Reason;
use super::report::{ParentStatus, StatusReport};
use super::unreadable::{Unreadable, refuse};
use crate::api::reference::ParentRef;
use crate::ir::ObjectRef;

/// The last versions of objects that have waited for policies for too long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unserved {
    /// The parents of each route, as it names them.
    pub routes: BTreeMap<ObjectRef, Vec<ParentRef>>,
    /// The GatewayClass of each Gateway.
    pub gateways: BTreeMap<ObjectRef, ObjectRef>,
}

impl Unserved {
    /// Adds the status of each route that a report lacks: for each parent that this controller manages, or will manage,
    /// `Accepted` is False and says why.
    pub fn explain(
        &self,
        report: &mut StatusReport,
        unreadable: &BTreeMap<ObjectRef, Unreadable>,
        controller: &Arc<str>,
    ) {
        for (route, parents) in &self.routes {
            let is_known = report.routes.get(route).is_some_and(|it| !it.is_empty());
            let Some(why) = unreadable.get(route).filter(|_| !is_known) else {
                continue;
            };
            let known = &*report;
            let managed = parents
                .iter()
                .filter(|to| self.is_managed(known, &to.object_ref(&route.namespace)));
            let statuses: Vec<_> = managed.map(|to| status(to, controller, why)).collect();
            if !statuses.is_empty() {
                report.routes.insert(route.clone(), Arc::new(statuses));
            }
        }
    }

    fn is_managed(&self, report: &StatusReport, parent: &ObjectRef) -> bool {
        let class = self.gateways.get(parent);
        class.is_some_and(|class| report.gateway_classes.contains_key(class))
            || report.gateways.contains_key(parent)
            || report.listener_sets.contains_key(parent)
    }
}

fn status(parent: &ParentRef, controller: &Arc<str>, why: &Unreadable) -> ParentStatus {
    let mut conditions = Vec::new();
    refuse(&mut conditions, Reason::PoliciesPending, why);
    ParentStatus {
        parent_ref: parent.clone(),
        controller_name: controller.clone(),
        conditions,
    }
}
