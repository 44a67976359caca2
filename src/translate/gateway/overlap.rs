//! HTTPS and TLS listeners of one port that share hosts or certificate names without being in conflict: a client may reuse a
//! connection to one of them for the other. Sets only the condition `OverlappingTLSConfig`.

use crate::ir::keyed::KeyedMap;
use crate::ir::{Hostname, Hosts};

use super::gateway::GatewayDraft;
use super::listener::ListenerDraft;
use crate::translate::protocol::Protocol;
use crate::translate::reason::{Fault, Reason};

/// Marks both listeners of each overlap. Shared certificates take precedence over shared hostnames.
pub(super) fn mark(gateway: &mut GatewayDraft<'_>) {
    let listeners = &gateway.listeners;
    let takes_part = |listener: &ListenerDraft<'_>| is_tls(listener) && listener.is_accepted();
    let certified: Vec<_> = listeners.iter().map(certified).collect();
    let sets = |index: usize| certified[index].iter();
    let certified = Overlaps::new(listeners, takes_part, sets);
    let named = Overlaps::new(listeners, takes_part, |index: usize| {
        std::slice::from_ref(&listeners[index].hostname).iter()
    });
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

/// Calls `visit` with the hostname of an HTTPS listener and the names of its certificates.
pub(super) fn for_each_name(listener: &ListenerDraft<'_>, mut visit: impl FnMut(Hosts<'_>)) {
    if is_tls(listener) {
        visit(Hosts::of(&listener.hostname));
        certified(listener).iter().map(Hosts::of).for_each(visit);
    }
}

fn is_tls(listener: &ListenerDraft<'_>) -> bool {
    matches!(listener.protocol, Protocol::Https | Protocol::Tls)
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
    let consequence = match this.protocol {
        Protocol::Https => "; requests for that listener on a connection to this one get 421",
        _ => "; a client that reuses a connection for other hosts may reach the wrong one",
    };
    Fault::new(
        reason,
        format!("shares {what} with {who} on port {port}{consequence}"),
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

/// A set of hosts on a port.
type HostSet<'h> = (u16, Hosts<'h>);

/// The first two listeners of an entry: enough to find one that differs from a given listener.
#[derive(Clone, Copy)]
struct FirstTwo(usize, Option<usize>);

/// Sets of hosts by listener, indexed to find overlaps without comparing every pair.
struct Overlaps<'h> {
    sets: Vec<Vec<HostSet<'h>>>,
    /// Listeners with exactly this set.
    owners: KeyedMap<HostSet<'h>, FirstTwo>,
    /// Listeners with this set or a subset of it.
    within: KeyedMap<HostSet<'h>, FirstTwo>,
}

impl<'h> Overlaps<'h> {
    fn new<'a, N: Iterator<Item = &'h Hostname>>(
        listeners: &[ListenerDraft<'a>],
        takes_part: impl Fn(&ListenerDraft<'a>) -> bool,
        names: impl Fn(usize) -> N,
    ) -> Self {
        let mut overlaps = Self {
            sets: Vec::with_capacity(listeners.len()),
            owners: KeyedMap::default(),
            within: KeyedMap::default(),
        };
        for (index, listener) in listeners.iter().enumerate() {
            let port = listener.spec.port;
            let names = takes_part(listener).then(|| names(index));
            let sets = names.into_iter().flatten();
            let sets: Vec<_> = sets.map(|name| (port, Hosts::of(name))).collect();
            for (port, set) in &sets {
                note(&mut overlaps.owners, (*port, *set), index);
                for wider in set.covering() {
                    note(&mut overlaps.within, (*port, wider), index);
                }
            }
            overlaps.sets.push(sets);
        }
        overlaps
    }

    /// Returns the first other listener with a set that overlaps one of this listener's.
    fn of(&self, index: usize) -> Option<usize> {
        let sets = self.sets.get(index)?;
        let narrower = sets.iter().filter_map(|set| self.within.get(set));
        let covering = |(port, set): &HostSet<'h>| {
            let port = *port;
            set.covering().map(move |wider| (port, wider))
        };
        let wider = sets.iter().flat_map(covering);
        let wider = wider.filter_map(|set| self.owners.get(&set));
        let all = narrower.chain(wider);
        let all = all.flat_map(|two| std::iter::once(two.0).chain(two.1));
        all.filter(|other| *other != index).min()
    }
}

fn note<'h>(map: &mut KeyedMap<HostSet<'h>, FirstTwo>, set: HostSet<'h>, index: usize) {
    let two = map.entry(set).or_insert(FirstTwo(index, None));
    if two.0 != index && two.1.is_none() {
        two.1 = Some(index);
    }
}
