//! HTTPS listeners of one port that share hosts or certificate names without being in conflict: a client may reuse a
//! connection to one of them for the other. Sets only the condition `OverlappingTLSConfig`.

use std::collections::BTreeMap;

use crate::ir::Hostname;

use super::gateway::GatewayDraft;
use super::listener::ListenerDraft;
use crate::translate::protocol::Protocol;
use crate::translate::reason::{Fault, Reason};

/// Marks both listeners of each overlap. Shared certificates take precedence over shared hostnames.
pub(super) fn mark(gateway: &mut GatewayDraft<'_>) {
    let listeners = &gateway.listeners;
    let certified = Overlaps::new(listeners, certified);
    let named = Overlaps::new(listeners, |listener| vec![listener.hostname.clone()]);
    let marks: Vec<_> = (0..listeners.len())
        .map(|index| {
            let by_certificate = certified.of(index);
            let by_certificate =
                by_certificate.map(|other| (Reason::OverlappingCertificates, other));
            let by_name = || Some((Reason::OverlappingHostnames, named.of(index)?));
            let (reason, other) = by_certificate.or_else(by_name)?;
            Some(describe(reason, &listeners[index], &listeners[other]))
        })
        .collect();
    for (listener, mark) in gateway.listeners.iter_mut().zip(marks) {
        listener.overlap = mark;
    }
}

fn describe(reason: Reason, this: &ListenerDraft<'_>, other: &ListenerDraft<'_>) -> Fault {
    let what = if reason == Reason::OverlappingCertificates {
        "certificates"
    } else {
        "hostnames"
    };
    let who = if other.key.origin == this.key.origin {
        format!("listener {}", other.key.name)
    } else {
        "another listener".to_owned()
    };
    let port = this.spec.port;
    let consequence = "requests for that listener on a connection to this one get 421";
    Fault::new(
        reason,
        format!("shares {what} with {who} on port {port}; {consequence}"),
    )
}

fn certified(listener: &ListenerDraft<'_>) -> Vec<Hostname> {
    let certificates = listener.termination.iter();
    let certificates = certificates.flat_map(|one| &one.tls.certificates);
    certificates
        .flat_map(|certificate| &certificate.names)
        .map(|name| Hostname::new(name))
        .collect()
}

/// The first two listeners of an entry: enough to find one that differs from a given listener.
type FirstTwo = Vec<usize>;

/// Sets of hosts by listener, indexed to find overlaps without comparing every pair.
struct Overlaps {
    names: Vec<Vec<(u16, Hostname)>>,
    /// Listeners with exactly this set.
    owners: BTreeMap<(u16, Hostname), FirstTwo>,
    /// Listeners with this set or a subset of it.
    within: BTreeMap<(u16, Hostname), FirstTwo>,
}

impl Overlaps {
    fn new<'a>(
        listeners: &[ListenerDraft<'a>],
        names: impl Fn(&ListenerDraft<'a>) -> Vec<Hostname>,
    ) -> Self {
        let mut overlaps = Self {
            names: Vec::new(),
            owners: BTreeMap::new(),
            within: BTreeMap::new(),
        };
        for (index, listener) in listeners.iter().enumerate() {
            let takes_part = listener.protocol == Protocol::Https && listener.is_accepted();
            let names = if takes_part {
                names(listener)
            } else {
                Vec::new()
            };
            let port = listener.spec.port;
            for name in &names {
                note(&mut overlaps.owners, (port, name.clone()), index);
                for wider in covering(name) {
                    note(&mut overlaps.within, (port, wider), index);
                }
            }
            overlaps
                .names
                .push(names.into_iter().map(|name| (port, name)).collect());
        }
        overlaps
    }

    /// Returns the first other listener with a set that overlaps one of this listener's.
    fn of(&self, index: usize) -> Option<usize> {
        let names = self.names.get(index)?;
        let narrower = names.iter().filter_map(|key| self.within.get(key));
        let wider = names
            .iter()
            .flat_map(|(port, name)| covering(name).into_iter().map(|name| (*port, name)));
        let wider = wider.filter_map(|key| self.owners.get(&key));
        let all = narrower.chain(wider).flatten().copied();
        all.filter(|other| *other != index).min()
    }
}

fn note(map: &mut BTreeMap<(u16, Hostname), FirstTwo>, key: (u16, Hostname), index: usize) {
    let entry = map.entry(key).or_default();
    if entry.len() < 2 && !entry.contains(&index) {
        entry.push(index);
    }
}

/// Returns a set of hosts and all its supersets.
fn covering(name: &Hostname) -> Vec<Hostname> {
    let mut sets = vec![name.clone()];
    let (Hostname::Exact(text) | Hostname::Wildcard(text)) = name else {
        return sets;
    };
    let mut rest: &str = text;
    while let Some((_, suffix)) = rest.split_once('.') {
        sets.push(Hostname::Wildcard(suffix.into()));
        rest = suffix;
    }
    sets.push(Hostname::Any);
    sets
}
