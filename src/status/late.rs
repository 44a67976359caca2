//! Routes whose last change is not served everywhere although the time for it has passed: their statuses are no longer held
//! back, and `Accepted` says so. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::condition::{Condition, ConditionStatus, ConditionType};
use super::held::{Awaited, gateway_behind};
use super::report::StatusReport;
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
    gateways: BTreeMap<ObjectRef, Unserved>,
    /// The revisions that contain the last change of each route, by Gateway.
    revisions: BTreeMap<ObjectRef, BTreeMap<ObjectRef, u64>>,
}

/// What a data plane does not serve.
#[derive(Debug, Default)]
struct Unserved {
    /// Routes in the order of the revisions that contain their last changes.
    routes: BTreeSet<(u64, ObjectRef)>,
    /// The revision up to which the time has passed. Those routes stay late while the data plane catches up, so that no message
    /// comes back.
    late_until: u64,
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
            self.forget(object);
            let statuses = report.routes.get(object).into_iter();
            for status in statuses.flat_map(|statuses| &**statuses) {
                let gateway = gateway_behind(parents, object, &status.parent_ref);
                self.add(object, gateway, unconfirmed);
            }
        }
        self.release(unconfirmed);
        for (route, gateways) in self.late() {
            let Some(statuses) = report.routes.get_mut(route) else {
                continue;
            };
            for status in Arc::make_mut(statuses) {
                let gateway = gateway_behind(parents, route, &status.parent_ref);
                if gateways.contains(&gateway) {
                    status
                        .conditions
                        .iter_mut()
                        .for_each(|it| explain(it, &gateway));
                }
            }
        }
    }

    fn forget(&mut self, route: &ObjectRef) {
        for (gateway, revision) in self.revisions.remove(route).unwrap_or_default() {
            if let Some(unserved) = self.gateways.get_mut(&gateway) {
                unserved.routes.remove(&(revision, route.clone()));
            }
        }
    }

    fn add(&mut self, route: &ObjectRef, gateway: ObjectRef, unconfirmed: Unconfirmed<'_>) {
        let Some(Awaited { wanted, .. }) = unconfirmed.of(&gateway) else {
            return;
        };
        let unserved = self.gateways.entry(gateway.clone()).or_default();
        unserved.routes.insert((*wanted, route.clone()));
        let revisions = self.revisions.entry(route.clone()).or_default();
        revisions.insert(gateway, *wanted);
    }

    /// Removes what is served, and marks what is late.
    fn release(&mut self, unconfirmed: Unconfirmed<'_>) {
        let revisions = &mut self.revisions;
        self.gateways.retain(|gateway, unserved| {
            if let Some(lagging) = unconfirmed.lagging.get(gateway) {
                unserved.late_until = lagging.wanted;
            }
            let progress = unconfirmed.of(gateway);
            let is_served = |(revision, _): &(u64, ObjectRef)| {
                progress.is_none_or(|it| it.reached >= Some(*revision))
            };
            while unserved.routes.first().is_some_and(is_served)
                && let Some((_, route)) = unserved.routes.pop_first()
            {
                let Some(of_route) = revisions.get_mut(&route) else {
                    continue;
                };
                of_route.remove(gateway);
                if of_route.is_empty() {
                    revisions.remove(&route);
                }
            }
            !unserved.routes.is_empty()
        });
    }

    /// Returns the late routes, with the Gateways that do not serve their last change.
    fn late(&self) -> BTreeMap<&ObjectRef, BTreeSet<&ObjectRef>> {
        let mut late: BTreeMap<&ObjectRef, BTreeSet<&ObjectRef>> = BTreeMap::new();
        for (gateway, unserved) in &self.gateways {
            let routes = unserved.routes.iter();
            let routes = routes.take_while(|(revision, _)| *revision <= unserved.late_until);
            for (_, route) in routes {
                late.entry(route).or_default().insert(gateway);
            }
        }
        late
    }
}

impl Unconfirmed<'_> {
    fn of(&self, gateway: &ObjectRef) -> Option<&Awaited> {
        let lagging = self.lagging.get(gateway);
        lagging.or_else(|| self.awaited.get(gateway))
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
