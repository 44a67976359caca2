//! One route: its translations for all consumers, the listeners that it attaches to, and its conditions.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::attachment::{self, Attachment, Candidate, ListenerIndex, Parents};
use super::super::backend::Backends;
use super::super::backend_tls::Consumer;
use super::super::patterns::{Demand, PatternBudgets};
use super::super::route::{Built, RouteObject};
use super::{RouteChange, defaults};
use crate::api::Key;
use crate::api::reference::ParentRef;
use crate::ir::{AttachedRoute, BackendId, Hostname, ObjectRef};
use crate::status::{Note, ParentStatus};

/// The translations of one route by consumer: one for all consumers, unless something in it depends on the consumer.
#[derive(Default)]
struct Variants(Vec<(Option<Consumer>, Arc<Built>)>);

/// The translation of one route object.
pub(super) struct Entry {
    pub(super) name: ObjectRef,
    /// The route for each consumer; empty if this controller manages none of its parents.
    built: Variants,
    /// The listeners that it is attached to, each once.
    pub(super) attached: Vec<(ListenerIndex, Arc<AttachedRoute>)>,
    /// Whether it counts as attached there.
    pub(super) is_usable: bool,
    /// Whether one of these listeners is served, so that the route's backends are part of the configuration.
    pub(super) is_served: bool,
    /// Its conditions without those of [`Shadows`], if this controller manages one of its parents.
    pub(super) status: Option<Arc<[ParentStatus]>>,
    /// The listeners of each parent in `status`.
    pub(super) reached: Vec<Vec<ListenerIndex>>,
    pub(super) notes: Vec<Note>,
    /// What its patterns take on the Gateways that it would attach to, if it has any.
    pub(super) demand: Option<Demand>,
}

/// The work that a change requires for a route.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// Attach again: its parents changed, or whether they accept it.
    Attach,
    /// Translate again: the route changed, or an object that it refers to.
    Translate,
}

impl Variants {
    fn iter(&self) -> impl Iterator<Item = &Arc<Built>> {
        self.0.iter().map(|(_, built)| built)
    }

    /// Returns the route for a consumer. Reuses the known translation, unless `work` requires a new one.
    fn get(
        &mut self,
        consumer: Option<&Consumer>,
        known: &[(Option<Consumer>, Arc<Built>)],
        work: Work,
        build: impl FnOnce() -> Built,
    ) -> Arc<Built> {
        let fits = |(of, built): &&(Option<Consumer>, Arc<Built>)| {
            !built.depends_on_consumer || of.as_ref() == consumer
        };
        if let Some((_, built)) = self.0.iter().find(fits) {
            return built.clone();
        }
        let former = known.iter().find(fits).filter(|_| work == Work::Attach);
        let built = match former {
            Some((_, built)) => built.clone(),
            None => Arc::new(build().like(self.0.iter().chain(known).map(|(_, built)| &**built))),
        };
        // Most routes have one variant.
        self.0.reserve_exact(1);
        self.0.push((consumer.cloned(), built.clone()));
        built
    }
}

impl Entry {
    /// Attaches a route, and translates it unless its former translation can be reused.
    pub(super) fn new<R: RouteObject>(
        change: &RouteChange<'_>,
        object: &R,
        former: Option<&Self>,
        work: Work,
        backends: &mut Backends,
        budgets: &PatternBudgets,
    ) -> Self {
        let (input, parents) = (change.input, change.parents);
        let name = former.map_or_else(|| object.object_ref(), |former| former.name.clone());
        let hostnames = object.hostnames().iter();
        let hostnames: Vec<_> = hostnames.map(|name| Hostname::new(name)).collect();
        let candidate = Candidate {
            name: &name,
            hostnames: &hostnames,
        };
        let defaults = defaults::parents(object, &name, parents);
        let reached: Vec<_> = object
            .parent_refs()
            .iter()
            .chain(&defaults)
            .filter_map(|parent| Some((parent, parents.attach(input, &candidate, parent)?)))
            .collect();
        let mut entry = Self {
            notes: defaults::notes(input, object, &name, parents),
            built: Variants::default(),
            attached: Vec::new(),
            is_usable: false,
            is_served: false,
            status: None,
            reached: Vec::new(),
            demand: None,
            name,
        };
        if reached.is_empty() {
            return entry;
        }
        let mut variants = Variants::default();
        let known = former.map(|former| &former.built);
        let mut build = |consumer: Option<&Consumer>| {
            let known = known.map_or(&[][..], |known| &known.0);
            variants.get(consumer, known, work, || {
                Built::new(input, object, &entry.name, consumer, backends)
            })
        };
        let mut status = Vec::with_capacity(reached.len());
        let mut attached = Vec::new();
        let gateways = gateways(&reached, parents);
        let reached = within_budgets(reached, &entry.name, parents, budgets);
        for (parent, attachment) in &reached {
            let listeners = attachment.as_ref().map_or(&[][..], Vec::as_slice);
            let indices = listeners.iter().map(|(listener, _)| *listener);
            entry.reached.push(indices.collect());
            let mut first: Option<Arc<Built>> = None;
            for (listener, hostnames) in listeners {
                let built = build(Some(&parents.listeners[*listener].consumer));
                attached.push((*listener, hostnames, built.clone()));
                // Report unresolved references of any listener in the status of the parent.
                if first.as_ref().is_none_or(|it| it.unresolved.is_none()) {
                    first = Some(built);
                }
            }
            let built = first.unwrap_or_else(|| build(None));
            status.push(ParentStatus {
                parent_ref: attachment::reported(parent),
                controller_name: input.options.controller_name.clone(),
                conditions: built.conditions(attachment, parents, object.meta().generation),
            });
        }
        let built = attached.iter().map(|(_, _, built)| &**built);
        entry.notes.extend(ignored_priorities(&entry.name, built));
        for (listener, hostnames, built) in attached {
            entry.is_usable |= built.unusable.is_none();
            entry.attach(listener, hostnames, &built, former);
        }
        let mut listeners = entry.attached.iter().map(|(listener, _)| *listener);
        entry.is_served = listeners.any(|listener| parents.listeners[listener].is_served);
        let status: Arc<[_]> = status.into();
        let known = former.and_then(|former| former.status.as_ref());
        // Reuse the equal status, so that later comparisons see the same pointer.
        let same = known.filter(|known| **known == status).cloned();
        entry.status = Some(same.unwrap_or(status));
        entry.built = variants;
        entry.demand = entry.demand_on(gateways);
        entry.attached.shrink_to_fit();
        entry.reached.shrink_to_fit();
        entry
    }

    /// Returns what its patterns take on these Gateways, if anything.
    fn demand_on(&self, gateways: Vec<ObjectRef>) -> Option<Demand> {
        let built = self.any_variant()?;
        let is_needed = built.pattern_cost > 0 && !gateways.is_empty();
        is_needed.then(|| Demand {
            created: built.route.created,
            cost: built.pattern_cost,
            gateways,
        })
    }

    /// Attaches the route to a listener, once even if two parentRefs select it. A route without rules is not attached.
    fn attach(
        &mut self,
        listener: ListenerIndex,
        hostnames: &[Hostname],
        built: &Built,
        former: Option<&Self>,
    ) {
        let is_known = self.attached.iter().any(|(known, _)| *known == listener);
        if is_known || built.route.rules.is_empty() {
            return;
        }
        let route = AttachedRoute {
            hostnames: hostnames.to_vec(),
            route: built.route.clone(),
        };
        let known = former.into_iter().flat_map(|former| &former.attached);
        let same = known
            .map(|(_, known)| known)
            .find(|known| ***known == route);
        let route = same.cloned().unwrap_or_else(|| Arc::new(route));
        self.attached.push((listener, route));
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = &BackendId> {
        self.built.iter().flat_map(|built| &built.backends)
    }

    /// Returns any variant. All of them refer to the same objects.
    pub(super) fn any_variant(&self) -> Option<&Built> {
        self.built.iter().next().map(|built| &**built)
    }

    /// Reports whether the route with this key refers to objects in `namespaces` other than its own.
    pub(super) fn refers_into(&self, key: &Key, namespaces: &BTreeSet<String>) -> bool {
        let references = self.any_variant().map_or(&[][..], |it| &it.references);
        references.iter().any(|target| {
            *target.namespace != *key.namespace && namespaces.contains(&*target.namespace)
        })
    }
}

/// Returns a note for each reason for which the priority of a route is ignored.
fn ignored_priorities<'a>(
    route: &ObjectRef,
    built: impl Iterator<Item = &'a Built>,
) -> impl Iterator<Item = Note> {
    let messages = built.filter_map(|built| built.ignored_priority.clone());
    let messages: BTreeSet<_> = messages.collect();
    messages.into_iter().map(move |message| Note {
        object: route.clone(),
        message,
    })
}

/// The parents of a route, each with the listeners that it selects.
type Reached<'a> = Vec<(&'a ParentRef, Attachment)>;

/// Returns the Gateways that a route attaches to, each once.
fn gateways(reached: &Reached<'_>, parents: &Parents) -> Vec<ObjectRef> {
    let attached = reached.iter().filter_map(|(_, attachment)| {
        let (listener, _) = attachment.as_ref().ok()?.first()?;
        Some(parents.listeners[*listener].consumer.gateway.clone())
    });
    let gateways: BTreeSet<_> = attached.collect();
    gateways.into_iter().collect()
}

/// Refuses to attach a route to Gateways on which its patterns exceed a limit.
fn within_budgets<'a>(
    reached: Reached<'a>,
    route: &ObjectRef,
    parents: &Parents,
    budgets: &PatternBudgets,
) -> Reached<'a> {
    let admitted = |(parent, attachment): (&'a ParentRef, Attachment)| {
        let listeners = attachment.as_ref().ok();
        let listener = listeners.and_then(|listeners| listeners.first());
        let fault = listener.and_then(|(listener, _)| {
            budgets.fault(route, &parents.listeners[*listener].consumer.gateway)
        });
        (parent, fault.map_or(attachment, Err))
    };
    reached.into_iter().map(admitted).collect()
}
