//! One route: its translations for all consumers, the listeners that it attaches to, and its conditions.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::route::{Built, RouteObject};
use super::defaults;
use super::kind_conflicts::{self, Claim, KindConflicts};
use super::place;
use crate::api::reference::ParentRef;
use crate::ir::{AttachedRoute, BackendId, Hostname, Hostnames, ObjectRef};
use crate::status::{Note, ParentStatus};
use crate::translate::backend::Backends;
use crate::translate::budgets::Demand;
use crate::translate::consumer::Consumer;
use crate::translate::gateway::attachment::{Attachment, Candidate, ListenerIndex, Parents};
use crate::translate::input::Input;
use crate::translate::memo::Reads;
use crate::translate::patterns::PatternBudgets;
use crate::translate::policy::inherited::InheritedPolicies;
use crate::translate::source::Source;

/// The translations of one route by consumer: one for all consumers, unless something in it depends on the consumer.
enum Variants {
    One(Variant),
    /// None or several, which few routes have.
    Other(Option<Box<VariantList>>),
}

struct VariantList(Vec<Variant>);

impl Default for Variants {
    fn default() -> Self {
        Self::Other(None)
    }
}

/// A translation with its consumer, if it depends on that.
type Variant = (Option<Box<Consumer>>, Arc<Built>);

/// The translation of one route object.
pub(super) struct TranslatedRoute {
    pub(super) name: ObjectRef,
    /// The route for each consumer; empty if this controller manages none of its parents.
    built: Variants,
    /// The listeners that it is attached to, each once.
    pub(super) attached: Box<[(ListenerIndex, Arc<AttachedRoute>)]>,
    /// Whether it is accepted where it is attached.
    pub(super) is_usable: bool,
    /// Whether one of these listeners is served, so that the route's backends are part of the configuration.
    pub(super) is_served: bool,
    /// Its conditions without those of [`Shadows`], if this controller manages one of its parents.
    pub(super) status: Option<Arc<Vec<ParentStatus>>>,
    /// The listeners of each parent in `status`.
    pub(super) reached: Arc<Vec<Vec<ListenerIndex>>>,
    /// What it is computed from.
    pub(super) reads: RouteReads,
}

/// What a route is computed from.
#[derive(Default)]
pub(super) struct RouteReads {
    pub(super) of_attachment: Reads,
    pub(super) of_translation: Reads,
}

/// What follows from a translation for the decisions about all routes, and is kept there.
#[derive(Default)]
pub(super) struct Consequences {
    pub(super) notes: Vec<Note>,
    /// What its patterns take on the Gateways that it would attach to, if it has any.
    pub(super) demand: Option<Demand>,
    /// The hostnames that it would serve, if there are any.
    pub(super) claim: Option<Claim>,
    /// What the translations read that were not reused.
    pub(super) translation_reads: Vec<Source>,
}

/// The last route of a kind that was attached. Routes of one team follow each other, and often have equal parents.
#[derive(Default)]
pub(super) struct Last {
    status: Option<Arc<Vec<ParentStatus>>>,
    reached: Arc<Vec<Vec<ListenerIndex>>>,
}

/// What all routes decide together.
pub(super) struct Decisions<'a> {
    pub(super) budgets: &'a PatternBudgets,
    pub(super) conflicts: &'a KindConflicts,
    pub(super) policies: &'a InheritedPolicies,
}

/// The work that a change requires for a route.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Work {
    /// Attach again: its parents changed, or whether they accept it.
    Attach,
    /// Translate again: the route changed, or an object that it refers to.
    Translate,
}

impl Variants {
    fn all(&self) -> &[Variant] {
        match self {
            Self::One(only) => std::slice::from_ref(only),
            Self::Other(list) => list.as_ref().map_or(&[], |list| &list.0),
        }
    }

    fn push(&mut self, variant: Variant) {
        *self = match std::mem::take(self) {
            Self::Other(None) => Self::One(variant),
            Self::One(first) => Self::Other(Some(Box::new(VariantList(vec![first, variant])))),
            Self::Other(Some(mut list)) => {
                list.0.push(variant);
                Self::Other(Some(list))
            }
        };
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Built>> {
        self.all().iter().map(|(_, built)| built)
    }

    /// Returns the route for a consumer. Reuses the previous translation, unless `work` requires a new one.
    fn get(
        &mut self,
        consumer: Option<&Consumer>,
        previous: &[Variant],
        work: Work,
        build: impl FnOnce() -> Built,
    ) -> Arc<Built> {
        let fits =
            |(of, built): &&Variant| !built.depends_on_consumer() || of.as_deref() == consumer;
        if let Some((_, built)) = self.all().iter().find(fits) {
            return built.clone();
        }
        let reusable = previous.iter().find(fits).filter(|_| work == Work::Attach);
        let built = match reusable {
            Some((_, built)) => built.clone(),
            None => {
                let known = self.all().iter().chain(previous);
                Arc::new(build().like(known.map(|(_, built)| &**built)))
            }
        };
        let consumer = consumer.filter(|_| built.depends_on_consumer());
        let consumer = consumer.map(|consumer| Box::new(consumer.clone()));
        self.push((consumer, built.clone()));
        built
    }
}

impl Last {
    /// Shares what a route has in common with the last one. `is_new` tells whether its status differs from that of its
    /// previous version.
    pub(super) fn share(&mut self, entry: &mut TranslatedRoute, is_new: bool) {
        if is_new && entry.status == self.status {
            entry.status.clone_from(&self.status);
        }
        if entry.reached == self.reached {
            entry.reached = self.reached.clone();
        }
        self.status.clone_from(&entry.status);
        self.reached = entry.reached.clone();
    }
}

impl TranslatedRoute {
    fn unattached(name: ObjectRef) -> Self {
        Self {
            name,
            built: Variants::default(),
            attached: Box::default(),
            is_usable: false,
            is_served: false,
            status: None,
            reached: Arc::default(),
            reads: RouteReads::default(),
        }
    }

    /// Attaches a route, and translates it unless its previous translation can be reused.
    pub(super) fn new<R: RouteObject>(
        input: &Input<'_>,
        parents: &Parents,
        object: &R,
        previous: Option<&Self>,
        work: Work,
        backends: &mut Backends,
        decisions: &Decisions<'_>,
    ) -> (Self, Consequences) {
        let name = previous.map_or_else(|| object.object_ref(), |previous| previous.name.clone());
        let defaults = defaults::parents(input, object, &name, parents);
        let reached = reached(input, parents, object, &name, &defaults);
        let mut follows = Consequences {
            notes: defaults::notes(input, object, &name, parents),
            ..Consequences::default()
        };
        let mut entry = Self::unattached(name);
        if reached.is_empty() {
            return (entry, follows);
        }
        let mut variants = Variants::default();
        let previous_variants = previous.map_or(&[][..], |previous| previous.built.all());
        let mut build = |consumer: Option<&Consumer>| {
            variants.get(consumer, previous_variants, work, || {
                let build = || Built::new(input, object, &entry.name, consumer, backends);
                let (built, reads) = input.reading(build);
                follows.translation_reads.extend(reads);
                built
            })
        };
        let generation = object.meta().generation;
        let affected = decisions.policies.on(&entry.name, generation);
        let mut status = Vec::with_capacity(reached.len());
        let mut of_parents = Vec::with_capacity(reached.len());
        let mut attached = Vec::new();
        let gateways = gateways(&reached, parents);
        let reached = within_budgets(reached, &entry.name, parents, decisions.budgets);
        let hosts = kind_conflicts::hosts(reached.iter().map(|(_, it)| it), parents);
        for (parent, attachment) in reached {
            let (attachment, lost) = decisions.conflicts.admit(&entry.name, attachment, parents);
            let listeners = attachment.as_ref().map_or(&[][..], Vec::as_slice);
            let mut indices: Vec<_> = listeners.iter().map(|(listener, _)| *listener).collect();
            indices.sort_unstable();
            of_parents.push(indices);
            let mut first: Option<Arc<Built>> = None;
            for (listener, hostnames) in listeners {
                let built = build(Some(&parents[*listener].consumer));
                attached.push((*listener, hostnames.clone(), built.clone()));
                // Report unresolved references of any listener in the status of the parent.
                if first.as_ref().is_none_or(|it| it.unresolved().is_none()) {
                    first = Some(built);
                }
            }
            let built = first.unwrap_or_else(|| build(None));
            let mut conditions =
                built.conditions(&attachment, lost.as_deref(), parents, generation);
            conditions.extend_from_slice(&affected);
            status.push(ParentStatus {
                parent_ref: parent.clone(),
                controller_name: input.options.controller_name.clone(),
                conditions,
            });
            if let Some(message) = lost.filter(|_| built.unusable().is_none()) {
                let object = entry.name.clone();
                follows.notes.push(Note { object, message });
            }
        }
        let built = attached.iter().map(|(_, _, built)| &**built);
        follows.notes.extend(ignored_priorities(&entry.name, built));
        // Several parentRefs may reach the same listeners.
        follows.notes.dedup();
        entry.attach_translations((input, parents, decisions.policies), attached, previous);
        entry.status = Some(shared(status, previous));
        entry.reached = of_parents.into();
        entry.built = variants;
        let built = entry.any_variant();
        follows.demand = built.and_then(|it| it.demand(gateways));
        follows.claim = built.and_then(|it| Claim::new(it, hosts));
        (entry, follows)
    }

    /// Attaches the translation for each listener there, with what policies require of requests through it.
    fn attach_translations(
        &mut self,
        (input, parents, policies): (&Input<'_>, &Parents, &InheritedPolicies),
        translations: Vec<(ListenerIndex, Hostnames, Arc<Built>)>,
        previous: Option<&Self>,
    ) {
        let mut attached = Vec::with_capacity(translations.len());
        for (listener, hostnames, built) in translations {
            self.is_usable |= built.unusable().is_none();
            let at = (listener, parents);
            let route = place::on_route(input, policies, at, &built.route);
            let route = AttachedRoute { hostnames, route };
            attach(&mut attached, listener, route, previous);
        }
        self.attached = attached.into();
        let mut listeners = self.attached.iter().map(|(listener, _)| *listener);
        self.is_served = listeners.any(|listener| parents[listener].is_served);
    }

    pub(super) fn claims(&self) -> impl Iterator<Item = &BackendId> {
        self.built.iter().flat_map(|built| built.backends())
    }

    /// Returns the listeners on which it is accepted, each once. On these it counts as attached, also without rules.
    pub(super) fn accepted_on(&self) -> BTreeSet<ListenerIndex> {
        let reached = self.reached.iter().flatten().copied();
        reached.filter(|_| self.is_usable).collect()
    }

    /// Reports whether there is a translation of the route.
    pub(super) fn is_translated(&self) -> bool {
        !self.built.all().is_empty()
    }

    /// Returns any variant. All of them refer to the same objects.
    pub(super) fn any_variant(&self) -> Option<&Built> {
        self.built.iter().next().map(|built| &**built)
    }
}

/// Attaches a route to a listener, once even if two parentRefs select it. A route without rules is not attached.
fn attach(
    attached: &mut Vec<(ListenerIndex, Arc<AttachedRoute>)>,
    listener: ListenerIndex,
    route: AttachedRoute,
    previous: Option<&TranslatedRoute>,
) {
    let is_known = attached.iter().any(|(known, _)| *known == listener);
    if is_known || route.route.rules.is_empty() {
        return;
    }
    let of_previous = previous.map_or(&[][..], |previous| &previous.attached);
    let mut known = of_previous.iter().chain(&*attached).map(|(_, it)| it);
    let same = known.find(|it| ***it == route);
    let route = same.cloned().unwrap_or_else(|| Arc::new(route));
    attached.push((listener, route));
}

/// Returns the status of the previous version if it is equal, so that later comparisons see the same pointer.
fn shared(status: Vec<ParentStatus>, previous: Option<&TranslatedRoute>) -> Arc<Vec<ParentStatus>> {
    let previous = previous.and_then(|previous| previous.status.as_ref());
    let same = previous.filter(|it| ***it == status).cloned();
    same.unwrap_or_else(|| Arc::new(status))
}

/// Returns a note for each reason for which the priority of a route is ignored.
fn ignored_priorities<'a>(
    route: &ObjectRef,
    built: impl Iterator<Item = &'a Built>,
) -> impl Iterator<Item = Note> {
    let messages = built.filter_map(|built| built.ignored_priority().map(str::to_owned));
    let messages: BTreeSet<_> = messages.collect();
    messages.into_iter().map(move |message| Note {
        object: route.clone(),
        message,
    })
}

/// The parents of a route, each with the listeners that it selects.
type Reached<'a> = Vec<(&'a ParentRef, Attachment)>;

/// Returns the parents of a route that this controller manages. `defaults` are those that it does not name itself.
fn reached<'a, R: RouteObject>(
    input: &Input<'_>,
    parents: &Parents,
    object: &'a R,
    name: &ObjectRef,
    defaults: &'a [ParentRef],
) -> Reached<'a> {
    let hostnames = object.spec().hostnames.iter();
    let hostnames: Vec<_> = hostnames.map(|name| Hostname::new(name)).collect();
    let candidate = Candidate {
        name,
        hostnames: &hostnames,
    };
    let named = object.spec().parent_refs.iter();
    let reached = named
        .chain(defaults)
        .filter_map(|parent| Some((parent, parents.attach(input, &candidate, parent)?)));
    reached.collect()
}

/// Returns the Gateways that a route attaches to, each once.
fn gateways(reached: &Reached<'_>, parents: &Parents) -> Vec<ObjectRef> {
    let attached = reached.iter().filter_map(|(_, attachment)| {
        let (listener, _) = attachment.as_ref().ok()?.first()?;
        Some(parents[*listener].consumer.gateway.clone())
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
        let fault = listener
            .and_then(|(listener, _)| budgets.fault(route, &parents[*listener].consumer.gateway));
        (parent, fault.map_or(attachment, Err))
    };
    reached.into_iter().map(admitted).collect()
}
