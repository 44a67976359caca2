//! Conflicts between the listeners of one Gateway and its ListenerSets. Must not know routes.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::ir::Hostname;
use crate::ir::keyed::KeyedMap;

use super::gateway::GatewayDraft;
use super::listener::ListenerDraft;
use crate::translate::protocol::Protocol;
use crate::translate::reason::{Fault, Reason};

/// Finds conflicts among the listeners of a Gateway. Between objects the earlier one wins: the Gateway, then
/// ListenerSets by age. It wins even if its own listeners are in conflict: a ListenerSet must not get a port that the
/// Gateway requests. Within one object every conflicting listener loses. A listener that lost to an earlier object
/// causes no further conflict, nor does one that is surplus.
pub(super) fn within(gateway: &mut GatewayDraft<'_>) {
    let listeners = &gateway.listeners;
    let slots = Slots::new(listeners);
    let mut lost: Vec<bool> = listeners.iter().map(|it| it.is_surplus).collect();
    let mut conflicts = vec![None; listeners.len()];
    let mut first = 0;
    for own in listeners.chunk_by(|one, two| one.key.origin == two.key.origin) {
        let own = first..first + own.len();
        first = own.end;
        let mut find = |index: usize, among: Range<usize>, lost: &[bool]| {
            let (rival, reason) = slots.find_rival(listeners, lost, index, &among)?;
            let conflict = describe(&listeners[index], &listeners[rival], reason);
            conflicts[index] = Some(conflict);
            Some(())
        };
        for index in own.clone().filter(|index| !listeners[*index].is_surplus) {
            lost[index] = find(index, 0..own.start, &lost).is_some();
        }
        for index in own.clone().filter(|index| !lost[*index]) {
            find(index, own.clone(), &lost);
        }
    }
    for (listener, conflict) in gateway.listeners.iter_mut().zip(conflicts) {
        listener.conflict = conflict;
    }
}

/// Returns the family of protocols that can share a port. `None` occupies no port.
pub(super) fn family(protocol: Protocol) -> Option<u8> {
    match protocol {
        Protocol::Http => Some(0),
        Protocol::Https | Protocol::Tls => Some(1),
        Protocol::Tcp => Some(2),
        Protocol::Udp => Some(3),
        Protocol::Other => None,
    }
}

const TCP: u8 = 2;
const UDP: u8 = 3;

/// Listeners by port and family, and by hostname.
struct Slots<'s> {
    by_family: FxHashMap<(u16, u8), Vec<usize>>,
    by_hostname: KeyedMap<(u16, u8, &'s Hostname), Vec<usize>>,
}

impl<'s> Slots<'s> {
    fn new(listeners: &'s [ListenerDraft<'_>]) -> Self {
        let mut slots = Self {
            by_family: FxHashMap::default(),
            by_hostname: KeyedMap::default(),
        };
        for (index, listener) in listeners.iter().enumerate() {
            let Some(family) = family(listener.protocol) else {
                continue;
            };
            let (port, hostname) = (listener.spec.port, &listener.hostname);
            slots
                .by_family
                .entry((port, family))
                .or_default()
                .push(index);
            let same = slots.by_hostname.entry((port, family, hostname));
            same.or_default().push(index);
        }
        slots
    }

    /// Returns a listener in `among` that conflicts with this one. Listeners that have `lost` are skipped.
    fn find_rival(
        &self,
        listeners: &[ListenerDraft<'_>],
        lost: &[bool],
        index: usize,
        among: &Range<usize>,
    ) -> Option<(usize, Reason)> {
        let this = &listeners[index];
        let own = family(this.protocol)?;
        let rivals = |(found, reason): (&Vec<usize>, Reason)| {
            let mut found = found.iter().copied();
            let conflicts = |other: &usize| among.contains(other) && !lost[*other];
            let rival = found.find(|other| *other != index && conflicts(other))?;
            Some((rival, reason))
        };
        let port = this.spec.port;
        let other_families = (0..UDP).filter(|other| own != UDP && *other != own);
        let other_families = other_families.filter_map(|other| self.by_family.get(&(port, other)));
        let same_slot = if own == TCP || own == UDP {
            let same = self.by_family.get(&(port, own));
            same.map(|same| (same, Reason::ProtocolConflict))
        } else {
            let same = self.by_hostname.get(&(port, own, &this.hostname));
            same.map(|same| (same, Reason::HostnameConflict))
        };
        let found = other_families.map(|other| (other, Reason::ProtocolConflict));
        // Report a protocol conflict first: another hostname would not resolve it.
        found.chain(same_slot).find_map(rivals)
    }
}

fn describe(this: &ListenerDraft<'_>, rival: &ListenerDraft<'_>, reason: Reason) -> Fault {
    let port = this.spec.port;
    let (who, verdict) = if rival.key.origin == this.key.origin {
        let who = format!("listener {}", rival.key.name);
        (who, "neither is served; change one of them")
    } else {
        // Authors of a ListenerSet may not be allowed to see the listeners of others.
        let who = "a listener of the Gateway or of an older ListenerSet".to_owned();
        (who, "that one takes precedence; change this one")
    };
    let (name, what) = if reason == Reason::ProtocolConflict {
        let protocol = &this.spec.protocol;
        (
            "protocol",
            format!("{protocol} cannot share port {port} with"),
        )
    } else {
        let hostname = &this.hostname;
        (
            "hostname",
            format!("{hostname} on port {port} is also the hostname of"),
        )
    };
    let field = this.field(name);
    Fault::new(reason, format!("{field}: {what} {who}; {verdict}"))
}
