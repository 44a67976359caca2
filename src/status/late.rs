//! Routes whose last change is not served everywhere although the time for it has passed: their statuses are no longer held
//! back, and `Accepted` says so. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::condition::{Condition, ConditionStatus, ConditionType};
use super::held::gateway_behind;
use super::report::{ParentStatus, StatusReport};
use super::status_map::names_changed_since;
use super::waiting::{Awaited, Waiting};
use crate::ir::ObjectRef;

/// The progress of data planes by Gateway: of those that are expected to confirm a change, and of those that have not done so in
/// time.
#[derive(Clone, Copy, Debug)]
pub struct Unconfirmed<'a> {
    /// Within the time for it.
    pub awaited: &'a BTreeMap<ObjectRef, Awaited>,
    /// Afterwards.
    pub lagging: &'a BTreeMap<ObjectRef, Awaited>,
}

/// The changes of routes that data planes have not confirmed, from one report to the next.
#[derive(Debug, Default)]
pub struct LateRoutes {
    waiting: Waiting,
    /// The revision of each Gateway up to which the time has passed. Its routes stay late while the data plane catches up, so
    /// that no message comes back.
    late_until: BTreeMap<ObjectRef, u64>,
    /// The Gateway of each ListenerSet in the last report.
    parents: OrdMap<ObjectRef, Arc<ObjectRef>>,
    /// The late routes of the last report. Reports share a status that is made of the same.
    explained: BTreeMap<ObjectRef, Explained>,
}

/// The status of a late route.
#[derive(Debug)]
struct Explained {
    /// That without the Gateways.
    confirmed: Arc<Vec<ParentStatus>>,
    /// Those that do not serve its last change.
    gateways: BTreeSet<ObjectRef>,
    status: Arc<Vec<ParentStatus>>,
}

impl LateRoutes {
    /// Adds to the conditions of late routes which Gateways do not serve their last change. `changed` are the objects that have
    /// changed since the last report; those of a new leader are not among them.
    pub fn follow(
        &mut self,
        report: &mut StatusReport,
        parents: &OrdMap<ObjectRef, Arc<ObjectRef>>,
        changed: &[ObjectRef],
        unconfirmed: Unconfirmed<'_>,
    ) {
        for object in changed {
            let statuses = report.routes.get(object).into_iter();
            let statuses = statuses.flat_map(|statuses| &**statuses);
            let gateways = statuses.map(|it| gateway_behind(parents, object, &it.parent_ref));
            self.waiting.add(object, gateways, |it| unconfirmed.of(it));
        }
        self.release(unconfirmed);
        if !names_changed_since(parents, &self.parents).is_empty() {
            self.parents = parents.clone();
            self.explained.clear();
        }
        let late = late_routes(&self.waiting, &self.late_until);
        self.explained.retain(|route, _| late.contains_key(route));
        for (route, gateways) in late {
            let Some(status) = report.routes.get_mut(route) else {
                continue;
            };
            let known = self.explained.get(route);
            let known = known.filter(|it| it.is_of(status, &gateways));
            *status = match known {
                Some(known) => known.status.clone(),
                None => {
                    let explained = Explained::new(route, status, &gateways, parents);
                    let status = explained.status.clone();
                    self.explained.insert(route.clone(), explained);
                    status
                }
            };
        }
    }

    /// Removes what is served, and marks what is late.
    fn release(&mut self, unconfirmed: Unconfirmed<'_>) {
        for (gateway, lagging) in unconfirmed.lagging {
            self.late_until.insert(gateway.clone(), lagging.wanted);
        }
        self.waiting.release(|gateway| unconfirmed.of(gateway));
        let by_gateway = &self.waiting.by_gateway;
        self.late_until
            .retain(|gateway, _| by_gateway.contains_key(gateway));
    }
}

/// Returns the late routes, with the Gateways that do not serve their last change.
fn late_routes<'a>(
    waiting: &'a Waiting,
    late_until: &'a BTreeMap<ObjectRef, u64>,
) -> BTreeMap<&'a ObjectRef, BTreeSet<&'a ObjectRef>> {
    let mut late: BTreeMap<&ObjectRef, BTreeSet<&ObjectRef>> = BTreeMap::new();
    for (gateway, until) in late_until {
        let routes = waiting.by_gateway.get(gateway).into_iter().flatten();
        for (_, route) in routes.take_while(|(revision, _)| revision <= until) {
            late.entry(route).or_default().insert(gateway);
        }
    }
    late
}

impl Explained {
    /// Adds to the status of a route which of these Gateways do not serve its last change.
    fn new(
        route: &ObjectRef,
        confirmed: &Arc<Vec<ParentStatus>>,
        gateways: &BTreeSet<&ObjectRef>,
        parents: &OrdMap<ObjectRef, Arc<ObjectRef>>,
    ) -> Self {
        let mut status = confirmed.clone();
        for parent in Arc::make_mut(&mut status) {
            let gateway = gateway_behind(parents, route, &parent.parent_ref);
            if gateways.contains(&gateway) {
                let conditions = parent.conditions.iter_mut();
                conditions.for_each(|it| explain(it, &gateway));
            }
        }
        Self {
            confirmed: confirmed.clone(),
            gateways: gateways.iter().copied().cloned().collect(),
            status,
        }
    }

    fn is_of(&self, confirmed: &Arc<Vec<ParentStatus>>, gateways: &BTreeSet<&ObjectRef>) -> bool {
        Arc::ptr_eq(&self.confirmed, confirmed) && self.gateways.iter().eq(gateways.iter().copied())
    }
}

impl Unconfirmed<'_> {
    fn of(&self, gateway: &ObjectRef) -> Option<Awaited> {
        let lagging = self.lagging.get(gateway);
        lagging.or_else(|| self.awaited.get(gateway)).copied()
    }
}

/// Adds to `Accepted` of a route, if it is True, that a Gateway does not serve the change everywhere.
fn explain(condition: &mut Condition, gateway: &ObjectRef) {
    if condition.kind != ConditionType::Accepted || condition.status != ConditionStatus::True {
        return;
    }
    let message = &mut condition.message;
    if !message.is_empty() {
        message.push_str("; ");
    }
    let why = format!(
        "not all ready replicas of {gateway} serve this generation: see its condition Programmed"
    );
    message.push_str(&why);
}

#[cfg(test)]
mod tests;
