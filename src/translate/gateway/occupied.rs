//! The ports and hosts that the listeners of a Gateway occupy: tells whether a new listener has nothing to do with them, so
//! that it needs no look at the others. May say no without a reason.

use rustc_hash::{FxHashMap, FxHashSet};

use super::conflict;
use super::gateway::GatewayDraft;
use super::listener::ListenerDraft;
use super::listener_set::MAX_OF_NAMESPACE;
use super::overlap;
use crate::api::Resource;
use crate::api::gateway::ListenerSet;
use crate::ir::Hosts;
use crate::ir::sharing;
use crate::ir::sharing::Text;

/// What the listeners of a Gateway occupy, whether they can be served or not. Hosts are kept as digests.
#[derive(Default)]
pub(in crate::translate) struct Occupied {
    /// The family of protocols on each port; `None` if there are several.
    families: FxHashMap<u16, Option<u8>>,
    /// The hostname of each listener on its port.
    hostnames: FxHashSet<u64>,
    /// Hosts that connections to HTTPS listeners may be reused for: of their hostnames and of their certificates.
    named: FxHashSet<u64>,
    /// The same with all wider sets of hosts.
    within: FxHashSet<u64>,
    /// The number of listeners from ListenerSets of each namespace.
    of_namespace: FxHashMap<Text, usize>,
}

impl Occupied {
    pub(in crate::translate) fn new(gateway: &GatewayDraft<'_>) -> Self {
        let mut occupied = Self::default();
        for listener in &gateway.listeners {
            occupied.add(listener);
        }
        occupied
    }

    /// Adds a listener.
    pub(in crate::translate) fn add(&mut self, listener: &ListenerDraft<'_>) {
        let origin = &listener.key.origin;
        if *origin.kind == *ListenerSet::KIND {
            let namespace = origin.namespace.clone();
            *self.of_namespace.entry(namespace).or_default() += 1;
        }
        let port = listener.spec.port;
        if let Some(family) = conflict::family(listener.protocol) {
            let known = self.families.entry(port).or_insert(Some(family));
            *known = known.filter(|known| *known == family);
        }
        self.hostnames
            .insert(digest(port, Hosts::of(&listener.hostname)));
        overlap::for_each_name(listener, |name| {
            self.named.insert(digest(port, name));
            let wider = name.covering().map(|wider| digest(port, wider));
            self.within.extend(wider);
        });
    }

    /// Reports whether the ListenerSets of a namespace may add that many listeners.
    pub(super) fn has_room(&self, namespace: &str, listeners: usize) -> bool {
        let known = self.of_namespace.get(namespace).copied();
        known.unwrap_or_default() + listeners <= MAX_OF_NAMESPACE
    }

    /// Reports whether a listener shares its port with others, and no host with any of them.
    pub(super) fn is_apart(&self, listener: &ListenerDraft<'_>) -> bool {
        let port = listener.spec.port;
        let family = conflict::family(listener.protocol);
        let shares_port = family.is_some() && self.families.get(&port) == Some(&family);
        let hostname = digest(port, Hosts::of(&listener.hostname));
        let mut is_apart = shares_port && !self.hostnames.contains(&hostname);
        overlap::for_each_name(listener, |name| {
            let mut wider = name.covering().map(|wider| digest(port, wider));
            is_apart &= !self.within.contains(&digest(port, name))
                && !wider.any(|wider| self.named.contains(&wider));
        });
        is_apart
    }
}

fn digest(port: u16, hosts: Hosts<'_>) -> u64 {
    sharing::digest((port, hosts))
}
