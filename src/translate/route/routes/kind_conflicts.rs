//! Hostnames that routes of different kinds claim on one listener. Where those of an HTTPRoute and a GRPCRoute
//! intersect, exactly one of the two is accepted (`GRPCRoute.spec.hostnames`, GEP-1016): the older one, then the first by
//! name. A route that is not accepted blocks no other. Depends only on the routes, not on the order in which they came.

mod hosts;
mod on_listener;
mod rank;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use self::on_listener::{Loss, OnListener};
use self::rank::{Rank, Usability};
use super::super::route::Built;
use crate::ir::Time;
use crate::ir::packed::pack;
use crate::ir::{Hostnames, ListenerKey, ObjectRef, RouteKind};
use crate::translate::gateway::attachment::{Attachment, Parents};
use crate::translate::reason::{Fault, Reason};

/// Listeners that a message names at most.
const MAX_NAMED: usize = 3;

/// The routes of all listeners.
#[derive(Default)]
pub(in crate::translate) struct KindConflicts {
    claims: BTreeMap<ObjectRef, Arc<Claim>>,
    listeners: FxHashMap<Arc<ListenerKey>, OnListener>,
    /// Listeners whose routes have changed.
    changed: FxHashSet<Arc<ListenerKey>>,
    /// Routes that were not accepted on a listener that they no longer claim.
    withdrawn: BTreeSet<ObjectRef>,
    /// The last claim. The routes of a team mostly claim the same, which they share.
    last: Option<Arc<Claim>>,
}

/// What a route claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::translate) struct Claim {
    kind: RouteKind,
    usability: Usability,
    /// Creation time; `None` counts as oldest.
    created: Option<Time>,
    listeners: Hosts,
}

/// The listeners that a route would attach to, each once, with its hostnames there.
pub(in crate::translate) type Hosts = Arc<[(Arc<ListenerKey>, Hostnames)]>;

impl Claim {
    /// Returns the claim of a route on these listeners; `None` if it serves none of them.
    pub(in crate::translate) fn new(built: &Built, listeners: Hosts) -> Option<Self> {
        Self::of(built)?.on(listeners)
    }

    /// Returns the claim of a route that has no listeners yet; `None` if it cannot serve any.
    pub(in crate::translate) fn of(built: &Built) -> Option<Self> {
        let usability = match (built.unusable(), built.route.rules.is_empty()) {
            (None, false) => Usability::Usable,
            (None, true) => Usability::WithoutRules,
            (Some(_), false) => Usability::Unusable,
            (Some(_), true) => return None,
        };
        Some(Self {
            kind: built.route.kind,
            usability,
            created: built.route.created,
            listeners: Hosts::default(),
        })
    }

    /// Returns the same claim on these listeners; `None` without any.
    pub(in crate::translate) fn on(self, listeners: Hosts) -> Option<Self> {
        (!listeners.is_empty()).then_some(Self { listeners, ..self })
    }

    /// Returns its hostnames on a listener.
    fn hostnames_on(&self, listener: &ListenerKey) -> Option<&Hostnames> {
        let mut listeners = self.listeners.iter();
        let found = listeners.find(|(key, _)| **key == *listener);
        found.map(|(_, hostnames)| hostnames)
    }

    fn rank(&self, route: &ObjectRef) -> Rank {
        Rank {
            usability: self.usability,
            created: self.created,
            route: route.clone(),
            kind: self.kind,
        }
    }
}

impl KindConflicts {
    /// Stores the first claims in as few nodes as possible.
    pub(in crate::translate) fn pack(&mut self) {
        pack(&mut self.claims);
    }

    /// Replaces the claim of a route; `None` if it has none.
    pub(in crate::translate) fn replace(&mut self, route: &ObjectRef, claim: Option<Claim>) {
        if self.claims.get(route).map(Arc::as_ref) == claim.as_ref() {
            return;
        }
        let claim = claim.map(|claim| self.shared(claim));
        let previous = self.claims.remove(route);
        if let Some(previous) = &previous {
            for (key, _) in previous.listeners.iter() {
                if let Some(listener) = self.listeners.get_mut(key) {
                    listener.remove(route, || previous.rank(route));
                }
                self.changed.insert(key.clone());
            }
        }
        if let Some(claim) = &claim {
            for (key, hostnames) in claim.listeners.iter() {
                let listener = self.listeners.entry(key.clone()).or_default();
                listener.insert(route, claim.kind, || (claim.rank(route), hostnames.clone()));
                self.changed.insert(key.clone());
            }
        }
        let is_claimed = |key: &ListenerKey| {
            let claim = claim.as_ref();
            claim.is_some_and(|claim| claim.hostnames_on(key).is_some())
        };
        for (key, _) in previous
            .iter()
            .flat_map(|previous| previous.listeners.iter())
        {
            if !is_claimed(key)
                && let Some(listener) = self.listeners.get_mut(key)
                && listener.forget(route)
            {
                self.withdrawn.insert(route.clone());
            }
        }
        if let Some(claim) = claim {
            self.claims.insert(route.clone(), claim);
        }
    }

    /// Shares what a claim has in common with the last one.
    fn shared(&mut self, mut claim: Claim) -> Arc<Claim> {
        if let Some(last) = &self.last {
            if **last == claim {
                return last.clone();
            }
            if last.listeners == claim.listeners {
                claim.listeners = last.listeners.clone();
            }
        }
        let claim = Arc::new(claim);
        self.last = Some(claim.clone());
        claim
    }

    /// Decides again which routes are accepted. Returns those for which that has changed.
    pub(in crate::translate) fn decide(&mut self) -> BTreeSet<ObjectRef> {
        let mut differ = std::mem::take(&mut self.withdrawn);
        for key in self.changed.drain() {
            if let Some(listener) = self.listeners.get_mut(&key) {
                let claims = &self.claims;
                let claim_of = |route: &ObjectRef| {
                    let claim = claims.get(route)?;
                    Some((claim.rank(route), claim.hostnames_on(&key)?.clone()))
                };
                listener.decide(claim_of, &mut differ);
                if listener.is_empty() {
                    self.listeners.remove(&key);
                }
            }
        }
        differ
    }

    /// Returns the part of an attachment where a route is accepted, with a message about the rest, if there is any.
    pub(in crate::translate) fn admit(
        &self,
        route: &ObjectRef,
        attachment: Attachment,
        parents: &Parents,
    ) -> (Attachment, Option<String>) {
        let mut lost = Vec::new();
        let attachment = attachment.map(|mut listeners| {
            listeners.retain(|(listener, _)| {
                let key = &parents[*listener].key;
                let loss = self.listeners.get(key).and_then(|it| it.loss(route));
                lost.extend(loss.map(|loss| (&**key, loss)));
                loss.is_none()
            });
            listeners
        });
        match attachment {
            Ok(listeners) if listeners.is_empty() && !lost.is_empty() => {
                let message = message(&lost);
                (Err(Fault::new(Reason::HostnameConflict, message)), None)
            }
            attachment => {
                let partly = || format!("not attached to every listener: {}", message(&lost));
                (attachment, (!lost.is_empty()).then(partly))
            }
        }
    }
}

/// Returns the listeners of attachments with the hostnames there, each listener once. Objects that no API server has
/// validated may have several listeners of one name, which count as one with all of their hostnames.
pub(in crate::translate) fn hosts<'a>(
    attachments: impl Iterator<Item = &'a Attachment>,
    parents: &Parents,
) -> Hosts {
    let reached = attachments.filter_map(|attachment| attachment.as_ref().ok());
    let mut listeners = BTreeMap::new();
    for (listener, hostnames) in reached.flatten() {
        listeners.entry(*listener).or_insert(hostnames);
    }
    let mut places: FxHashMap<&Arc<ListenerKey>, usize> = FxHashMap::default();
    let mut hosts: Vec<(Arc<ListenerKey>, Hostnames)> = Vec::with_capacity(listeners.len());
    for (listener, hostnames) in listeners {
        let key = &parents[listener].key;
        match places.entry(key) {
            Entry::Vacant(place) => {
                place.insert(hosts.len());
                hosts.push((key.clone(), hostnames.clone()));
            }
            Entry::Occupied(place) => {
                let known = &mut hosts[*place.get()].1;
                let both: BTreeSet<_> = known.iter().chain(hostnames.iter()).cloned().collect();
                *known = Arc::new(both.into_iter().collect());
            }
        }
    }
    hosts.into()
}

/// Says to which routes one lost, where, and what to do.
fn message(lost: &[(&ListenerKey, &Loss)]) -> String {
    let mut message = String::new();
    for (index, (listener, loss)) in lost.iter().take(MAX_NAMED).enumerate() {
        let separator = if index > 0 { ", " } else { "" };
        let (winner, hostname) = (loss.winner(), &loss.hostname);
        let _ = write!(
            message,
            "{separator}{winner} has hostname {hostname} on {listener}"
        );
    }
    if lost.len() > MAX_NAMED {
        let _ = write!(message, ", and {} more", lost.len() - MAX_NAMED);
    }
    message.push_str(
        "; an HTTPRoute and a GRPCRoute cannot share a hostname on a listener, where only the older one, or the first \
         by name, is accepted; use another hostname or listener",
    );
    message
}
