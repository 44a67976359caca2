//! The Gateways that send the requests of routes and policies to backends, for the status of policies and backends.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::route::Built;
use super::Routes;
use super::translated_route::TranslatedRoute;
use crate::api::Resource;
use crate::api::inference_pool::InferencePool;
use crate::ir::sharing::Text;
use crate::ir::{ListenerKey, ObjectRef};
use crate::translate::gateway::attachment::{ListenerIndex, Parents};
use crate::translate::gateway::quic::Quic;
use crate::translate::input::Input;
use crate::translate::policy::backend_tls::{Requesters, Use};
use crate::translate::policy::inherited::{Attachments, InheritedPolicies};
use crate::translate::reference_grant;
use crate::translate::source::Source;

/// All routes and policies, for questions about their requests.
pub(in crate::translate) struct RouteRequests<'a> {
    pub(in crate::translate) input: &'a Input<'a>,
    pub(in crate::translate) routes: &'a Routes,
    pub(in crate::translate) parents: &'a Parents,
    pub(in crate::translate) policies: &'a InheritedPolicies,
}

impl Requesters for RouteRequests<'_> {
    fn uses(&self, backend: &ObjectRef) -> BTreeSet<Use> {
        self.input.read(|| Source::RequestsTo(backend.clone()));
        let mut uses = BTreeSet::new();
        let referrers = self.routes.referrers_of(backend);
        for entry in referrers.filter(|entry| entry.is_usable) {
            let built = entry.any_variant().into_iter();
            let rules = built.flat_map(|built| &built.targetable);
            for (_, rule) in rules.filter(|(target, _)| target == backend) {
                let of_listener = |(index, _): &(ListenerIndex, _)| Use {
                    gateway: self.parents[*index].consumer.gateway.clone(),
                    listener: Some(ListenerKey::clone(&self.parents[*index].key)),
                    route: entry.name.clone(),
                    rule: rule.clone(),
                    is_fetch: false,
                };
                uses.extend(entry.attached.iter().map(of_listener));
            }
        }
        uses.extend(self.of_policies(backend, false));
        uses.extend(self.of_pools(backend));
        uses
    }

    fn fetches(&self, backend: &ObjectRef) -> BTreeSet<Use> {
        self.input.read(|| Source::RequestsTo(backend.clone()));
        self.of_policies(backend, true).collect()
    }

    fn senders(&self, object: &ObjectRef) -> BTreeSet<ObjectRef> {
        self.input.read(|| Source::ListenersOf(object.clone()));
        self.input.read(|| Source::AttachmentOf(object.clone()));
        let entry = self.routes.translated(object).into_iter();
        let of_entry = entry.flat_map(|entry| entry.gateways(self.parents));
        let sender = self.parents.sender(object).cloned();
        of_entry.chain(sender).collect()
    }
}

impl RouteRequests<'_> {
    /// Returns the questions to a server that picks endpoints of pools: one for each request to a pool.
    fn of_pools(&self, backend: &ObjectRef) -> impl Iterator<Item = Use> {
        let pools = self.input.in_namespace::<InferencePool>(&backend.namespace);
        let asking = pools.filter(move |pool| {
            let picker = pool.spec.endpoint_picker_ref.as_ref();
            picker.is_some_and(|it| it.field().object_ref(&backend.namespace) == *backend)
        });
        asking.flat_map(move |pool| {
            let pool = pool.object_ref();
            self.input.read(|| Source::RequestsTo(pool.clone()));
            let senders = self.routes.backend_senders(self.parents, &pool);
            of_gateways(senders, pool, true)
        })
    }

    /// Returns the requests to a server that policies name, or the fetches of keys from it.
    fn of_policies(&self, backend: &ObjectRef, is_fetch: bool) -> impl Iterator<Item = Use> {
        let naming = self.policies.naming(backend, is_fetch);
        let permitted = naming.filter(|(policy, _)| {
            reference_grant::check(self.input, policy, backend, "backendRef").is_ok()
        });
        permitted.flat_map(move |(policy, targets)| {
            let listeners = targets.into_iter().flat_map(|it| self.listeners_of(it));
            let gateways: BTreeSet<_> = listeners.map(|(gateway, _)| gateway).collect();
            of_gateways(gateways, policy.clone(), is_fetch)
        })
    }
}

/// Returns the requests of a policy or a pool through all listeners of Gateways.
fn of_gateways(
    gateways: BTreeSet<ObjectRef>,
    object: ObjectRef,
    is_fetch: bool,
) -> impl Iterator<Item = Use> {
    gateways.into_iter().map(move |gateway| Use {
        gateway,
        listener: None,
        route: object.clone(),
        rule: None,
        is_fetch,
    })
}

impl Attachments for RouteRequests<'_> {
    fn listeners_of(&self, object: &ObjectRef) -> Vec<(ObjectRef, Arc<ListenerKey>)> {
        self.input.read(|| Source::ListenersOf(object.clone()));
        self.input.read(|| Source::AttachmentOf(object.clone()));
        let entry = self.routes.translated(object).into_iter();
        let attached = entry.flat_map(|entry| entry.attached.iter().map(|(index, _)| *index));
        let places = attached.chain(self.parents.of_object(object));
        let listener = |place: ListenerIndex| {
            let parent = &self.parents[place];
            (parent.consumer.gateway.clone(), parent.key.clone())
        };
        places.map(listener).collect()
    }

    fn on_port_of(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Vec<Text> {
        self.input.read(|| Source::ListenersOf(gateway.clone()));
        self.parents.on_port_of(gateway, listener)
    }

    fn quic(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Quic {
        self.input.read(|| Source::ListenersOf(gateway.clone()));
        Quic::of(self.parents, gateway, listener)
    }

    fn rule_names_of(&self, route: &ObjectRef) -> Vec<Text> {
        let built = self.routes.translated(route);
        let built = built.and_then(TranslatedRoute::any_variant).into_iter();
        built.flat_map(Built::rule_names).flatten().collect()
    }
}

impl Routes {
    /// Returns the Gateways that send requests to a backend with a status.
    pub(in crate::translate) fn backend_senders(
        &self,
        parents: &Parents,
        backend: &ObjectRef,
    ) -> BTreeSet<ObjectRef> {
        let referrers = self.referrers_of(backend);
        let senders = referrers.filter(|entry| entry.sends_to(backend));
        senders.flat_map(|entry| entry.gateways(parents)).collect()
    }

    pub(super) fn translated(&self, object: &ObjectRef) -> Option<&TranslatedRoute> {
        self.kinds.iter().find_map(|kind| kind.translated(object))
    }

    fn referrers_of(&self, object: &ObjectRef) -> impl Iterator<Item = &TranslatedRoute> {
        let kinds = self.kinds.iter();
        kinds.flat_map(|kind| kind.referrers_of(object))
    }
}

impl TranslatedRoute {
    /// Returns the Gateways that the route is attached to.
    fn gateways(&self, parents: &Parents) -> impl Iterator<Item = ObjectRef> {
        let listeners = self.attached.iter();
        listeners.map(|(index, _)| parents[*index].consumer.gateway.clone())
    }

    /// Reports whether the route has a permitted reference to a backend with a status.
    fn sends_to(&self, backend: &ObjectRef) -> bool {
        let built = self.any_variant().filter(|_| self.is_usable);
        built.is_some_and(|built| built.with_status().contains(backend))
    }
}
