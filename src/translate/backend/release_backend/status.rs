//! The status of a ReleaseBackend: its conditions, and the current share of each release.

use std::collections::BTreeSet;

use crate::api::core::{ServicePort, TargetPort};
use crate::status::{Condition, Percent, ReleaseBackendStatus, ReleaseStatus};

use super::super::super::reason::{ConditionType, Fault, Reason, judge};
use super::super::kind::{Sources, Users};
use super::endpoints::Groups;
use super::parsed::{Counted, ParsedReleaseBackend};
use super::weights;
use crate::translate::endpoints::transport;

/// Maximum number of releases in a status (`maxItems` in the CRD).
const MAX_RELEASES: usize = 128;
/// Maximum number of Gateways in a message.
const MAX_GATEWAYS: usize = 8;

impl ParsedReleaseBackend {
    pub(super) fn count(&self, sources: &Sources<'_, '_>) -> Counted {
        let Ok(found) = &self.load_balancer else {
            return Counted::default();
        };
        let mut ports = found.ports.iter();
        let Some(port) = ports.find(|port| transport(port.protocol.as_deref()).is_some()) else {
            return Counted::default();
        };
        let groups = self.groups(found, sources, port);
        Counted {
            releases: self.release_statuses(&groups),
            notes: self.notes(&groups, port),
        }
    }

    fn release_statuses(&self, groups: &Groups) -> Vec<ReleaseStatus> {
        let spec = &self.object.spec;
        let shares = weights::weigh(spec, &groups.releases);
        let sum: u64 = shares.iter().map(|share| share.weight).sum();
        let listed = spec.releases.iter().map(|it| it.value.as_str());
        let known = groups.releases.keys().map(String::as_str);
        // Listed releases first, so that truncation omits others.
        let mut names: Vec<&str> = Vec::new();
        let mut seen = BTreeSet::new();
        names.extend(listed.chain(known).filter(|name| seen.insert(*name)));
        names.truncate(MAX_RELEASES);
        names.sort_unstable();
        let status = |name: &str| {
            let share = shares.iter().find(|share| share.name == name);
            let wanted = spec.releases.iter().find(|it| it.value == name);
            let group = groups.releases.get(name);
            ReleaseStatus {
                value: name.into(),
                ready: group.map_or(0, |group| group.ready.len()),
                weight: wanted.map_or(0, |release| release.weight),
                effective_percent: Percent::of(share.map_or(0, |share| share.weight), sum),
            }
        };
        names.into_iter().map(status).collect()
    }

    fn notes(&self, groups: &Groups, port: &ServicePort) -> Vec<String> {
        let mut notes = Vec::new();
        if groups.unlabelled > 0 {
            let count = counted(groups.unlabelled, "endpoint");
            let split_by = &self.object.spec.split_by;
            notes.push(format!(
                "no request goes to {count} without label {split_by}"
            ));
        }
        if groups.portless > 0 {
            let count = counted(groups.portless, "pod");
            let port = match &port.target_port {
                Some(TargetPort::Name(name)) => format!("a port named {name}"),
                _ => "a valid targetPort".to_owned(),
            };
            notes.push(format!("no request goes to {count} without {port}"));
        }
        notes
    }

    pub(super) fn status(&self, users: &Users<'_>) -> ReleaseBackendStatus {
        let fault = self.load_balancer.as_ref().err();
        let invalid = fault.filter(|fault| fault.reason == Reason::Invalid);
        let generation = self.object.metadata.generation;
        let condition = |kind, good, fault| judge(kind, good, fault, generation);
        let accepted = condition(ConditionType::Accepted, Reason::Accepted, invalid);
        let resolved = condition(ConditionType::ResolvedRefs, Reason::ResolvedRefs, fault);
        ReleaseBackendStatus {
            conditions: vec![
                noted(accepted, &self.unused),
                noted(resolved, &self.counted.notes),
                self.programmed(fault, users),
            ],
            releases: self.counted.releases.clone(),
            gateways: users.gateways.iter().cloned().collect(),
        }
    }

    fn programmed(&self, fault: Option<&Fault>, users: &Users<'_>) -> Condition {
        let kind = ConditionType::Programmed;
        let generation = self.object.metadata.generation;
        let fails = |reason, message| Condition::fails(kind, reason, message, generation);
        if fault.is_some() {
            let message = "it gets no requests: see Accepted and ResolvedRefs";
            return fails(Reason::Invalid, message);
        }
        let gateways = users.gateways;
        if gateways.is_empty() {
            return fails(Reason::Unused, "no route of a Gateway refers to it");
        }
        if !users.is_served {
            let message = "no route that refers to it can send requests to it: see ResolvedRefs of the routes";
            return fails(Reason::Unused, message);
        }
        let mut names: Vec<_> = gateways.iter().map(ToString::to_string).collect();
        if names.len() > MAX_GATEWAYS {
            let more = format!("{} more", names.len() - MAX_GATEWAYS);
            names.truncate(MAX_GATEWAYS);
            names.push(more);
        }
        let message = format!("receives requests from {}", names.join(", "));
        Condition::holds(kind, Reason::Programmed, generation).with_message(message)
    }
}

/// Appends notes to the message of a condition.
fn noted(mut condition: Condition, notes: &[String]) -> Condition {
    let own = std::mem::take(&mut condition.message);
    let parts = Some(own).filter(|own| !own.is_empty()).into_iter();
    let parts: Vec<_> = parts.chain(notes.iter().cloned()).collect();
    condition.with_message(parts.join("; "))
}

fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        count => format!("{count} {noun}s"),
    }
}
