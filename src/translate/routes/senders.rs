//! The Gateways that send requests to backends, for the status of policies and backends.

use std::collections::{BTreeMap, BTreeSet};

use super::super::attachment::{ListenerIndex, Parents};
use super::super::backend_tls::{Senders, TlsPolicies, Use, Uses};
use super::Routes;
use super::entry::Entry;
use crate::ir::ObjectRef;

/// The Gateways that send requests to backends with a status.
pub(in crate::translate) type BackendSenders = BTreeMap<ObjectRef, BTreeSet<ObjectRef>>;

impl Routes {
    /// Returns the Gateways that send the requests of objects that policies name in `from`.
    pub(in crate::translate) fn senders(
        &self,
        parents: &Parents,
        policies: &TlsPolicies,
    ) -> Senders {
        let wanted = policies.senders();
        let mut senders = parents.senders(&wanted);
        if wanted.is_empty() {
            return senders;
        }
        for entry in wanted.iter().filter_map(|name| self.entry(name)) {
            let known = senders.entry(entry.name.clone()).or_default();
            known.extend(entry.gateways(parents));
        }
        senders
    }

    /// Returns the requests to backends that policies target.
    pub(in crate::translate) fn uses<'a>(
        &self,
        parents: &Parents,
        targets: impl Iterator<Item = &'a ObjectRef>,
    ) -> Uses {
        let mut uses = Uses::new();
        for backend in targets {
            for entry in self.referrers_of(backend).filter(|entry| entry.is_usable) {
                let built = entry.any_variant().into_iter();
                let rules = built.flat_map(|built| &built.targetable);
                for (_, rule) in rules.filter(|(target, _)| target == backend) {
                    let of_listener = |(index, _): &(ListenerIndex, _)| Use {
                        gateway: parents.listeners[*index].consumer.gateway.clone(),
                        listener: parents.listeners[*index].key.clone(),
                        route: entry.name.clone(),
                        rule: rule.clone(),
                    };
                    let known = uses.entry(backend.clone()).or_default();
                    known.extend(entry.attached.iter().map(of_listener));
                }
            }
        }
        uses
    }

    /// Returns the Gateways that send requests to backends with a status.
    pub(in crate::translate) fn backend_senders(&self, parents: &Parents) -> BackendSenders {
        let mut senders = BackendSenders::new();
        for kind in &self.kinds {
            for backend in kind.backends_with_status() {
                let gateways = kind
                    .referrers_of(backend)
                    .filter(|entry| entry.sends_to(backend))
                    .flat_map(|entry| entry.gateways(parents));
                let known = senders.entry(backend.clone()).or_default();
                known.extend(gateways);
            }
        }
        senders
    }

    pub(super) fn entry(&self, object: &ObjectRef) -> Option<&Entry> {
        self.kinds.iter().find_map(|kind| kind.entry(object))
    }

    fn referrers_of<'a>(&'a self, object: &'a ObjectRef) -> impl Iterator<Item = &'a Entry> {
        let kinds = self.kinds.iter();
        kinds.flat_map(|kind| kind.referrers_of(object))
    }
}

impl Entry {
    /// Returns the Gateways that the route is attached to.
    fn gateways(&self, parents: &Parents) -> impl Iterator<Item = ObjectRef> {
        let listeners = self.attached.iter();
        listeners.map(|(index, _)| parents.listeners[*index].consumer.gateway.clone())
    }

    /// Reports whether the route has a permitted reference to a backend with a status.
    fn sends_to(&self, backend: &ObjectRef) -> bool {
        let built = self.any_variant().filter(|_| self.is_usable);
        built.is_some_and(|built| built.with_status.contains(backend))
    }
}
