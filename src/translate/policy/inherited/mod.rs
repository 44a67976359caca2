//! Inherited policies (GEP-713): those on Gateways, listeners, ListenerSets, routes and rules, and what they require of
//! requests. A new kind is a file with its sections, an entry in `index.rs`, and a field of what they require in
//! `effective.rs`. Keeps policies from one translation to the next.

pub(in crate::translate) mod access;
mod attachments;
mod authentication;
mod client;
mod compression;
mod condition;
pub(in crate::translate) mod credential;
mod credentials;
mod effective;
mod error_pages;
mod identity;
mod index;
mod loosened;
mod merge;
mod path;
mod policy;
mod quic;
mod rate_limit;
mod reach;
mod route;
mod status;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::api::reference::BackendObjectRef;
use crate::ir::RouteKind;
use crate::ir::client::ClientPolicies;
use crate::ir::policy::Policies;
use crate::ir::sharing::Text;
use crate::ir::{ListenerKey, ObjectRef, Route};
use crate::status::Condition;

pub(in crate::translate) use self::attachments::Attachments;
pub(in crate::translate) use self::credentials::Credentials;
use self::effective::effective;
use self::index::{Index, Refusals};
use self::path::{Combination, Levels, Path, Sections};
use self::policy::{Content, Policy, Section};
pub(in crate::translate) use self::rate_limit::key_part;
pub(in crate::translate) use self::status::Statuses;
use super::affected::affected;
use crate::translate::affecting::Affecting;
use crate::translate::changes::Changes;
use crate::translate::filter::external_auth;
use crate::translate::gateway::attachment::Parents;
use crate::translate::gateway::quic::Quic;
use crate::translate::input::Input;
use crate::translate::reason::ConditionType;
use crate::translate::source::Source;

/// All inherited policies.
#[derive(Default)]
pub(in crate::translate) struct InheritedPolicies {
    index: Index,
    /// The objects with policies that have changed in this translation.
    touched: BTreeSet<ObjectRef>,
    /// What the same policies require, so that all rules and listeners share it. Of this set of policies alone.
    required: RefCell<FxHashMap<Combination, Arc<Policies>>>,
    /// The same of how clients connect.
    clients: RefCell<FxHashMap<ClientsKey, Arc<ClientPolicies>>>,
}

/// What decides how clients connect: the policies on a listener and on its port, and whether this may have HTTP/3.
type ClientsKey = (Combination, Combination, bool);

/// A server that a policy names.
pub(in crate::translate) struct NamedServer<'a> {
    pub(in crate::translate) field: &'a str,
    pub(in crate::translate) reference: &'a BackendObjectRef,
    /// The kind of routes that forward such requests.
    pub(in crate::translate) requests: RouteKind,
    /// What happens if it cannot be used.
    pub(in crate::translate) outcome: &'static str,
}

/// The servers that a policy names.
pub(in crate::translate) struct NamedServers<'a> {
    pub(in crate::translate) servers: Vec<NamedServer<'a>>,
    policy: &'a Policy,
}

impl NamedServers<'_> {
    /// Returns the objects that the policy targets.
    pub(in crate::translate) fn targets(&self) -> impl Iterator<Item = &ObjectRef> {
        self.policy.targets.iter().map(|target| &target.object)
    }
}

/// A listener of a Gateway.
#[derive(Clone, Copy)]
pub(in crate::translate) struct GatewayListener<'a> {
    pub(in crate::translate) gateway: &'a ObjectRef,
    pub(in crate::translate) listener: &'a ListenerKey,
}

impl InheritedPolicies {
    /// Parses what has changed. Announces the targets of these policies.
    pub(in crate::translate) fn step(&mut self, input: &Input<'_>, changes: &mut Changes) {
        self.touched = self.index.step(input, changes, index::read);
        self.forget_required();
    }

    /// Parses what has changed as far as it decides which credentials Gateways get. Announces the targets of these policies.
    pub(in crate::translate) fn step_outlines(&mut self, input: &Input<'_>, changes: &mut Changes) {
        self.touched = self.index.step(input, changes, index::outline);
    }

    /// Takes over which policies get no credentials. Returns the changes that follow, if there are any.
    pub(in crate::translate) fn refuse(&mut self, refusals: Refusals) -> Option<Changes> {
        let touched = self.index.refuse(refusals);
        if touched.is_empty() {
            return None;
        }
        let sources = touched.iter().cloned().map(Source::PoliciesOn);
        let changes = Changes::of_sources(sources.collect());
        self.touched = touched;
        self.forget_required();
        Some(changes)
    }

    fn forget_required(&mut self) {
        if !self.touched.is_empty() {
            self.required.get_mut().clear();
            self.clients.get_mut().clear();
        }
    }

    /// Returns the objects with policies that have changed in this translation.
    pub(in crate::translate) fn touched(&self) -> &BTreeSet<ObjectRef> {
        &self.touched
    }

    /// Returns the servers that a policy names, if it names some.
    pub(in crate::translate) fn servers_of(&self, policy: &ObjectRef) -> Option<NamedServers<'_>> {
        let policy = self.index.get(policy)?;
        let external = match policy.sections.get(&Section::External) {
            Some(Ok(Content::External(external, reference))) => Some(NamedServer {
                field: "spec.external.backendRef",
                reference,
                requests: external_auth::requests(&external.call),
                outcome: "requests that need its permission get 500",
            }),
            _ => None,
        };
        let of_pages = policy.page_servers.iter().map(|server| NamedServer {
            field: &server.field,
            reference: &server.reference,
            requests: RouteKind::Http,
            outcome: "responses get no page of it",
        });
        let servers: Vec<_> = external.into_iter().chain(of_pages).collect();
        (!servers.is_empty()).then_some(NamedServers { servers, policy })
    }

    /// Returns the policies that name a backend, each with the objects that it targets. `of_keys` are those that have keys
    /// fetched from it, others those that have requests sent to it.
    pub(in crate::translate) fn naming(
        &self,
        backend: &ObjectRef,
        of_keys: bool,
    ) -> impl Iterator<Item = (&ObjectRef, BTreeSet<&ObjectRef>)> {
        let naming = self.index.naming(backend);
        let naming = naming.filter(move |(_, is_of_keys)| *is_of_keys == of_keys);
        naming.map(|(policy, _)| {
            let targets = policy.targets.iter();
            (&policy.name, targets.map(|target| &target.object).collect())
        })
    }

    /// Reports whether an object or one of its sections has policies.
    pub(in crate::translate) fn has(&self, object: &ObjectRef) -> bool {
        self.index.has(object)
    }

    /// Reports whether there are no policies.
    pub(in crate::translate) fn are_none(&self) -> bool {
        self.index.is_empty()
    }

    /// Returns what policies require of the requests of a listener, except for those of routes with policies of their own.
    pub(in crate::translate) fn on_listener(
        &self,
        place: GatewayListener<'_>,
        parents: &Parents,
    ) -> Option<Arc<Policies>> {
        if self.index.is_empty() {
            return None;
        }
        let existing = Existing {
            parents,
            route: None,
        };
        let required = self.required(place, None, &existing);
        Some(required).filter(|required| !required.are_none())
    }

    /// Returns how clients connect to a listener, as far as policies say it.
    pub(in crate::translate) fn clients(
        &self,
        place: GatewayListener<'_>,
        parents: &Parents,
    ) -> Option<Arc<ClientPolicies>> {
        if !self.index.has_clients() {
            return None;
        }
        let existing = &Existing {
            parents,
            route: None,
        };
        let path = Path {
            gateway: place.gateway,
            listener: place.listener,
            route: None,
        };
        let levels = Levels::new(&self.index, path, existing);
        let of_port = Levels::of_port(&self.index, (place.gateway, place.listener), existing);
        let on_port = of_port.combination();
        let sets_http3 = on_port.iter().any(|it| it.1 == Section::Http3);
        let takes_quic =
            sets_http3 && Quic::of(parents, place.gateway, place.listener) == Quic::Possible;
        let key = (levels.combination(), on_port, takes_quic);
        let mut known = self.clients.borrow_mut();
        let known = known.entry(key);
        let clients = || Arc::new(effective::clients(&levels, &of_port, takes_quic));
        let clients = known.or_insert_with(clients);
        Some(clients.clone()).filter(|clients| !clients.are_none())
    }

    /// Returns a route with what policies require of its requests through a listener. Without policies of its own, it is
    /// the same route.
    pub(in crate::translate) fn on_route(
        &self,
        input: &Input<'_>,
        place: GatewayListener<'_>,
        route: &Arc<Route>,
        parents: &Parents,
    ) -> Arc<Route> {
        if self.index.is_empty() || !self.index.has(&route.object) {
            return route.clone();
        }
        for object in [place.gateway, &place.listener.origin] {
            input.read(|| Source::PoliciesOn(object.clone()));
            input.read(|| Source::ListenersOf(object.clone()));
        }
        let existing = Existing {
            parents,
            route: Some(route),
        };
        let rules = route.rules.iter();
        let rules = rules.map(|rule| {
            let rule = Some((&route.object, rule.id.name.as_ref()));
            self.required(place, rule, &existing)
        });
        Arc::new(Route {
            policies: Some(rules.collect()),
            ..Route::clone(route)
        })
    }

    fn required(
        &self,
        place: GatewayListener<'_>,
        route: Option<(&ObjectRef, Option<&Text>)>,
        sections: &dyn Sections,
    ) -> Arc<Policies> {
        let path = Path {
            gateway: place.gateway,
            listener: place.listener,
            route,
        };
        let levels = Levels::new(&self.index, path, sections);
        let mut required = self.required.borrow_mut();
        let known = required.entry(levels.combination());
        known
            .or_insert_with(|| Arc::new(effective(&levels)))
            .clone()
    }
}

impl Affecting for InheritedPolicies {
    fn conditions(&self, input: &Input<'_>, object: &ObjectRef, generation: i64) -> Vec<Condition> {
        input.read(|| Source::PolicyNamesOn(object.clone()));
        self.on(object, generation)
    }
}

impl InheritedPolicies {
    /// Returns the conditions that name the policies on an object, one for each kind.
    pub(in crate::translate) fn on(&self, object: &ObjectRef, generation: i64) -> Vec<Condition> {
        if self.index.is_empty() {
            return Vec::new();
        }
        let mut names: BTreeMap<ConditionType, BTreeSet<String>> = BTreeMap::new();
        let within = self.index.within(object);
        for policy in within.flat_map(|(_, on_target)| on_target.policies()) {
            let of_kind = names.entry(policy.affected).or_default();
            of_kind.insert(policy.name.to_string());
        }
        let names = names.into_iter();
        let conditions = names.map(|(kind, names)| affected(kind, &names, generation));
        conditions.collect()
    }
}

/// The listeners and rules that policies may target.
struct Existing<'a> {
    parents: &'a Parents,
    route: Option<&'a Route>,
}

impl Sections for Existing<'_> {
    fn has(&self, object: &ObjectRef, section: &str) -> bool {
        if let Some(route) = self.route.filter(|route| route.object == *object) {
            let mut names = route
                .rules
                .iter()
                .filter_map(|rule| rule.id.name.as_deref());
            return names.any(|name| name == section);
        }
        self.parents.has_listener(object, section)
    }

    fn on_port_of(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Vec<Text> {
        self.parents.on_port_of(gateway, listener)
    }
}

/// Reports whether a target is a route.
fn is_route(object: &ObjectRef) -> bool {
    object.kind.ends_with("Route")
}

#[cfg(test)]
mod tests;
