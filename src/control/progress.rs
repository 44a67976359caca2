//! The state of each Gateway's data plane: whether it serves the latest revision, and its addresses. Updated by what
//! differs from the previous observations. Pure: the caller passes the time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use imbl::{OrdMap, OrdSet};

use super::addresses;
use super::cluster_state::ClusterState;
use super::confirmation::{self, Confirmations, START_HOLD, Shortfall, Verdict};
use super::services::Replica;
use crate::ir::ObjectRef;
use crate::provision::{Failure, FailureReason, Failures};
use crate::status::{Awaited, DataPlaneState, Reason, names_changed_since};
use crate::stream::hub::Reports;

/// What is observed besides objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observations {
    /// Reports of the pods that are connected to this process.
    pub reports: Reports,
    /// Addresses of nodes.
    pub nodes: BTreeSet<IpAddr>,
    /// Provisioning failures by Gateway.
    pub failures: Failures,
    /// Version of the installed Gateway API CRDs, if known.
    pub bundle_version: Option<String>,
}

/// The progress of all data planes.
pub(super) struct Progress {
    /// When this process became the leader.
    since: Instant,
    /// Gateways that are older than this leader and whose objects it has not failed to apply; `None` before the first ones
    /// are known.
    inherited: Option<BTreeSet<ObjectRef>>,
    confirmations: Confirmations,
    verdicts: BTreeMap<ObjectRef, Verdict>,
    /// Gateways whose data planes are expected to confirm a change, and until when.
    awaited: BTreeMap<ObjectRef, (Instant, Awaited)>,
    /// Gateways whose data planes have not confirmed a change in time.
    lagging: BTreeMap<ObjectRef, Awaited>,
    serving: OrdSet<ObjectRef>,
    states: OrdMap<ObjectRef, Arc<DataPlaneState>>,
    seen: Observations,
}

impl Progress {
    /// Creates the state of a new leader.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            inherited: None,
            confirmations: Confirmations::new(now),
            verdicts: BTreeMap::new(),
            awaited: BTreeMap::new(),
            lagging: BTreeMap::new(),
            serving: OrdSet::new(),
            states: OrdMap::new(),
            seen: Observations::default(),
        }
    }

    /// Returns the last observations.
    pub(super) fn seen(&self) -> &Observations {
        &self.seen
    }

    /// Returns the states of the data planes.
    pub(super) fn states(&self) -> &OrdMap<ObjectRef, Arc<DataPlaneState>> {
        &self.states
    }

    /// Returns the Gateways whose ready replicas all serve their latest revision.
    pub(super) fn serving(&self) -> &OrdSet<ObjectRef> {
        &self.serving
    }

    /// Returns the Gateways whose data planes are expected to confirm a change.
    pub(super) fn awaited(&self) -> BTreeMap<ObjectRef, Awaited> {
        let awaited = self.awaited.iter();
        awaited
            .map(|(gateway, (_, awaited))| (gateway.clone(), *awaited))
            .collect()
    }

    /// Returns the Gateways whose data planes have not confirmed a change in time.
    pub(super) fn lagging(&self) -> &BTreeMap<ObjectRef, Awaited> {
        &self.lagging
    }

    /// Returns when to evaluate again without new observations.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.awaited.values().map(|(until, _)| *until).min()
    }

    /// Applies new observations. `changed` are the Gateways for which the state of the cluster may have changed. Returns
    /// the Gateways with another verdict; without one they are gone.
    pub(super) fn follow(
        &mut self,
        cluster: &ClusterState,
        mut changed: BTreeSet<ObjectRef>,
        seen: Observations,
        now: Instant,
    ) -> Vec<(ObjectRef, Option<Verdict>)> {
        let previous = std::mem::replace(&mut self.seen, seen);
        let gateways = || cluster.now.report.gateways.keys().cloned().collect();
        let inherited = self.inherited.get_or_insert_with(gateways);
        let tried = failures_changed(&self.seen.failures, &previous.failures);
        for gateway in &tried {
            inherited.remove(gateway);
        }
        changed.extend(tried);
        changed.extend(names_changed_since(&self.seen.reports, &previous.reports));
        let mut turned = Vec::new();
        let evaluated: BTreeSet<_> = changed.iter().chain(self.awaited.keys()).cloned().collect();
        for gateway in &evaluated {
            if self.evaluate(cluster, gateway, now) {
                turned.push((gateway.clone(), self.verdicts.get(gateway).cloned()));
            }
        }
        changed.extend(turned.iter().map(|(gateway, _)| gateway.clone()));
        if self.seen.nodes != previous.nodes {
            changed.extend(self.verdicts.keys().cloned());
        }
        for gateway in &changed {
            self.update_state(cluster, gateway);
        }
        turned
    }

    /// Evaluates the data plane of a Gateway. Returns whether the verdict is another one.
    fn evaluate(&mut self, cluster: &ClusterState, gateway: &ObjectRef, now: Instant) -> bool {
        if !cluster.now.report.gateways.contains_key(gateway) {
            self.confirmations.forget(gateway);
            self.awaited.remove(gateway);
            self.lagging.remove(gateway);
            if self.serving.contains(gateway) {
                self.serving.remove(gateway);
            }
            return self.verdicts.remove(gateway).is_some();
        }
        let verdict = self.verdict(cluster, gateway, now);
        match verdict.awaited() {
            Some(awaited) => drop(self.awaited.insert(gateway.clone(), awaited)),
            None => drop(self.awaited.remove(gateway)),
        }
        match &verdict {
            Verdict::Lagging(_, lagging) => drop(self.lagging.insert(gateway.clone(), *lagging)),
            _ => drop(self.lagging.remove(gateway)),
        }
        let is_serving = matches!(verdict, Verdict::Confirmed(_));
        match (is_serving, self.serving.contains(gateway)) {
            (true, false) => drop(self.serving.insert(gateway.clone())),
            (false, true) => drop(self.serving.remove(gateway)),
            _ => {}
        }
        let is_same = self.verdicts.get(gateway) == Some(&verdict);
        self.verdicts.insert(gateway.clone(), verdict);
        !is_same
    }

    fn verdict(&mut self, cluster: &ClusterState, gateway: &ObjectRef, now: Instant) -> Verdict {
        let reports = self.seen.reports.get(gateway);
        let report = |replica| {
            let Replica { pod, .. }: &Replica = replica;
            (replica, reports.and_then(|reports| reports.get(pod)))
        };
        let replicas = cluster.served(gateway).map(|served| &served.replicas);
        let replicas: Vec<_> = replicas.into_iter().flatten().map(report).collect();
        let wanted = cluster.revision(gateway);
        match (self.confirmations).evaluate(gateway, wanted, &replicas, now) {
            // A replica that cannot bind its ports is not ready, and says why.
            Verdict::Absent(_) => {
                let reports = reports.into_iter().flat_map(|reports| reports.values());
                let unbound = confirmation::unbound(reports);
                let until = self.since + START_HOLD;
                // The previous leader may have failed to apply its objects. Its status does not change before this one has
                // tried.
                let is_inherited = (self.inherited.as_ref()).is_some_and(|it| it.contains(gateway));
                match is_inherited && unbound.is_empty() && now < until {
                    true => {
                        let awaited = Awaited {
                            wanted,
                            reached: None,
                        };
                        Verdict::Awaited(until, awaited, Shortfall::default())
                    }
                    false => Verdict::Absent(unbound),
                }
            }
            other => other,
        }
    }

    fn update_state(&mut self, cluster: &ClusterState, gateway: &ObjectRef) {
        let Some(verdict) = self.verdicts.get(gateway) else {
            if self.states.contains_key(gateway) {
                self.states.remove(gateway);
            }
            return;
        };
        let requested = cluster.now.data_planes.get(gateway);
        let requested = requested.map_or(&[][..], |it| &it.addresses);
        let addresses = addresses::state(cluster.served(gateway), requested, &self.seen.nodes);
        let failure = self.seen.failures.get(gateway);
        let state = with_verdict(addresses, verdict, failure);
        if self
            .states
            .get(gateway)
            .is_none_or(|known| **known != state)
        {
            self.states.insert(gateway.clone(), Arc::new(state));
        }
    }
}

/// Adds the verdict on a data plane and the failure to apply its objects to its addresses.
fn with_verdict(
    mut state: DataPlaneState,
    verdict: &Verdict,
    failure: Option<&Failure>,
) -> DataPlaneState {
    let message = failure.map(|failure| failure.message.clone());
    let is_taken = |failure: &Failure| failure.reason == FailureReason::NameTaken;
    state.refusal = message
        .clone()
        .filter(|_| failure.is_some_and(is_taken))
        .map(|message| (Reason::NameTaken, message));
    match verdict {
        Verdict::Confirmed(shortfall) | Verdict::Awaited(_, _, shortfall) => {
            let Shortfall {
                unbound,
                without_quic,
                unread,
            } = shortfall;
            state.unbound.clone_from(unbound);
            state.without_quic.clone_from(without_quic);
            state.unread.clone_from(unread);
            let failures: Vec<_> = message.into_iter().chain(state.notice.take()).collect();
            state.notice = (!failures.is_empty()).then(|| failures.join("; "));
        }
        Verdict::Lagging(lagging, _) => {
            let failure = message.map(|failure| format!("; {failure}"));
            let message = format!("{lagging}{}", failure.unwrap_or_default());
            state.fault = Some((Reason::Pending, message));
        }
        Verdict::Absent(unbound) => {
            state.unbound.clone_from(unbound);
            let absent = || "no replica of its data plane is ready yet".to_owned();
            state.fault = Some((Reason::Pending, message.unwrap_or_else(absent)));
        }
    }
    state
}

fn failures_changed(now: &Failures, previous: &Failures) -> Vec<ObjectRef> {
    let names = now.keys().chain(previous.keys());
    let changed = names.filter(|name| now.get(*name) != previous.get(*name));
    changed.cloned().collect()
}
