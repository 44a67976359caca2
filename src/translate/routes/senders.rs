//! Which Gateways send requests to which backends, for the status of policies and backends.

use std::collections::{BTreeMap, BTreeSet};

use super::super::attachment::{ListenerIndex, Parents};
use super::super::backend_tls::{Senders, TlsPolicies, Use, Uses};
use super::{Entry, Routes};
use crate::ir::ObjectRef;

/// The Gateways that send requests to backends with a status.
pub(in crate::translate) type BackendSenders = BTreeMap<ObjectRef, BTreeSet<ObjectRef>>;

impl Routes {
    /// The Gateways that send the requests of the objects that policies name in `from`.
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
        for entry in self.entries().filter(|entry| wanted.contains(&entry.name)) {
            let known = senders.entry(entry.name.clone()).or_default();
            known.extend(entry.gateways(parents));
        }
        senders
    }

    /// The requests to the backends that policies target.
    pub(in crate::translate) fn uses(&self, parents: &Parents, policies: &TlsPolicies) -> Uses {
        let mut uses = Uses::new();
        if policies.is_empty() {
            return uses;
        }
        for entry in self.entries() {
            let built = entry.built.iter().take(1);
            let backends = built.flat_map(|built| &built.targetable);
            for (backend, rule) in backends.filter(|(backend, _)| policies.target(backend)) {
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
        uses
    }

    /// The Gateways that send requests to backends with a status.
    pub(in crate::translate) fn backend_senders(&self, parents: &Parents) -> BackendSenders {
        let mut senders = BackendSenders::new();
        for entry in self.entries() {
            let built = entry.built.iter().take(1);
            for backend in built.flat_map(|built| &built.with_status) {
                let known = senders.entry(backend.clone()).or_default();
                known.extend(entry.gateways(parents));
            }
        }
        senders
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.kinds.iter().flat_map(|kind| kind.entries())
    }
}

impl Entry {
    /// The Gateways that the route is attached to.
    fn gateways(&self, parents: &Parents) -> impl Iterator<Item = ObjectRef> {
        let listeners = self.attached.iter();
        listeners.map(|(index, _)| parents.listeners[*index].consumer.gateway.clone())
    }
}
