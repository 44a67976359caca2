//! The report as data planes confirm it, from one translation or observation to the next. A change costs what it touches.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use super::condition::Reason;
use super::data_planes::{DataPlaneState, confirm_gateway, confirm_listener_set};
use super::release_backend::ReleaseBackendStatus;
use super::report::release_backends::wait_for_gateways;
use super::report::{GatewayStatus, ListenerSetStatus, StatusReport};
use super::status_map::{StatusMap, names_changed_since, set_or_remove};
use super::unreadable::{Unreadable, refuse};
use crate::ir::ObjectRef;

/// What a confirmed report is made of. Clones are cheap.
#[derive(Clone, Debug, Default)]
pub struct Confirmation {
    /// The translated report.
    pub translated: StatusReport,
    /// The state of the data plane of each Gateway.
    pub states: OrdMap<ObjectRef, Arc<DataPlaneState>>,
    /// The Gateway of each ListenerSet.
    pub parents: OrdMap<ObjectRef, Arc<ObjectRef>>,
    /// Objects whose current version is not served.
    pub unreadable: Arc<BTreeMap<ObjectRef, Unreadable>>,
    /// Version of the installed Gateway API CRDs, if known.
    pub bundle_version: Option<String>,
}

/// The report as data planes confirm it.
#[derive(Debug, Default)]
pub struct ConfirmedReport {
    seen: Confirmation,
    /// The ListenerSets of each Gateway.
    sets: BTreeMap<Arc<ObjectRef>, BTreeSet<ObjectRef>>,
    report: StatusReport,
}

impl ConfirmedReport {
    /// Returns the report for these inputs. Computes only what differs from the previous inputs.
    pub fn follow(&mut self, now: Confirmation) -> StatusReport {
        let previous = std::mem::replace(&mut self.seen, now);
        let (now, report) = (&self.seen, &mut self.report);
        let unreadable = unreadable_changed(&previous.unreadable, &now.unreadable);
        let parents = names_changed_since(&now.parents, &previous.parents);
        for set in &parents {
            move_set(&mut self.sets, set, &previous, now);
        }
        let mut gateways: BTreeSet<ObjectRef> = unreadable.clone();
        let (statuses, previous_statuses) = (&now.translated, &previous.translated);
        gateways.extend(names_changed_since(
            &statuses.gateways,
            &previous_statuses.gateways,
        ));
        gateways.extend(names_changed_since(&now.states, &previous.states));
        let mut has_turned = false;
        for name in &gateways {
            let status = now.gateway(name);
            let is_programmed = status.as_ref().is_some_and(GatewayStatus::is_programmed);
            let known = report.gateways.get(name);
            has_turned |= is_programmed != known.is_some_and(|it| it.is_programmed());
            set_or_remove(&mut report.gateways, name, status);
        }
        let mut sets = unreadable.clone();
        sets.extend(parents);
        let previous_sets = &previous_statuses.listener_sets;
        sets.extend(names_changed_since(&statuses.listener_sets, previous_sets));
        let of_gateways = gateways.iter().filter_map(|gateway| self.sets.get(gateway));
        sets.extend(of_gateways.flatten().cloned());
        for name in &sets {
            let status = now.listener_set(name, &report.gateways);
            set_or_remove(&mut report.listener_sets, name, status);
        }
        let mut backends = unreadable;
        let all = &statuses.release_backends;
        backends.extend(names_changed_since(
            all,
            &previous_statuses.release_backends,
        ));
        if has_turned {
            backends.extend(all.keys().cloned());
        }
        for name in &backends {
            let status = now.release_backend(name, &report.gateways);
            set_or_remove(&mut report.release_backends, name, status);
        }
        now.others_into(report);
        report.apply_gateways_to_policies();
        report.clone()
    }
}

impl Confirmation {
    /// Computes the status of a Gateway.
    fn gateway(&self, name: &ObjectRef) -> Option<GatewayStatus> {
        let mut status = GatewayStatus::clone(self.translated.gateways.get(name)?);
        if let Some(why) = self.unreadable.get(name) {
            refuse(&mut status.conditions, Reason::Invalid, why);
        }
        let none = Arc::default();
        confirm_gateway(&mut status, self.states.get(name).unwrap_or(&none));
        Some(status)
    }

    /// Computes the status of a ListenerSet from that of its Gateway.
    fn listener_set(
        &self,
        name: &ObjectRef,
        gateways: &StatusMap<GatewayStatus>,
    ) -> Option<ListenerSetStatus> {
        let mut status = ListenerSetStatus::clone(self.translated.listener_sets.get(name)?);
        if let Some(why) = self.unreadable.get(name) {
            refuse(&mut status.conditions, Reason::Invalid, why);
        }
        if let Some(gateway) = self.parents.get(name)
            && let Some(state) = self.states.get(&**gateway)
            && let Some(of_gateway) = gateways.get(&**gateway)
        {
            confirm_listener_set(&mut status, gateway, state, of_gateway);
        }
        Some(status)
    }

    /// Computes the status of a ReleaseBackend from those of its Gateways.
    fn release_backend(
        &self,
        name: &ObjectRef,
        gateways: &StatusMap<GatewayStatus>,
    ) -> Option<ReleaseBackendStatus> {
        let mut status = ReleaseBackendStatus::clone(self.translated.release_backends.get(name)?);
        if let Some(why) = self.unreadable.get(name) {
            refuse(&mut status.conditions, Reason::Invalid, why);
        }
        wait_for_gateways(&mut status, gateways);
        Some(status)
    }

    /// Sets the statuses that do not depend on data planes.
    fn others_into(&self, report: &mut StatusReport) {
        let others = StatusReport {
            gateways: std::mem::take(&mut report.gateways),
            listener_sets: std::mem::take(&mut report.listener_sets),
            release_backends: std::mem::take(&mut report.release_backends),
            ..self.translated.clone()
        };
        *report = others.with_bundle_version(self.bundle_version.as_deref());
        for (object, why) in &*self.unreadable {
            report.refuse(object, why);
        }
    }
}

/// Returns the objects that can be parsed again, or cannot any more, or for another reason.
fn unreadable_changed(
    previous: &Arc<BTreeMap<ObjectRef, Unreadable>>,
    now: &Arc<BTreeMap<ObjectRef, Unreadable>>,
) -> BTreeSet<ObjectRef> {
    if Arc::ptr_eq(previous, now) {
        return BTreeSet::new();
    }
    let names = previous.keys().chain(now.keys());
    let changed = names.filter(|name| previous.get(*name) != now.get(*name));
    changed.cloned().collect()
}

/// Moves a ListenerSet from its previous Gateway to its present one.
fn move_set(
    sets: &mut BTreeMap<Arc<ObjectRef>, BTreeSet<ObjectRef>>,
    set: &ObjectRef,
    previous: &Confirmation,
    now: &Confirmation,
) {
    if let Some(gateway) = previous.parents.get(set)
        && let Some(of_gateway) = sets.get_mut(gateway)
    {
        of_gateway.remove(set);
        if of_gateway.is_empty() {
            sets.remove(gateway);
        }
    }
    if let Some(gateway) = now.parents.get(set) {
        sets.entry(gateway.clone()).or_default().insert(set.clone());
    }
}

#[cfg(test)]
mod tests;
