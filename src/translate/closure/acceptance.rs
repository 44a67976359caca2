//! Which parents accept a route, and which Secrets listeners use: what a closure depends on and several objects decide
//! together. Follows the Gateways and ListenerSets, what routes take, which is memory for patterns and hostnames, and the
//! credentials that policies bring. Must not know the graph.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::Resource;
use crate::api::core::ConfigMap;
use crate::api::gateway::{Gateway, ReferenceGrant};
use crate::api::http_route::HttpRoute;
use crate::api::reference::{ObjectReference, ParentRef};
use crate::api::route_filter::RouteFilter;
use crate::ir::sharing::Text;
use crate::ir::{Hostname, Hostnames, ObjectRef};

use super::super::backend::Backends;
use super::super::budgets::Demand;
use super::super::changes::Changes;
use super::super::gateway::attachment::{
    Attachment, Candidate, GatewayParents, ListenerIndex, Parents,
};
use super::super::gateway::draft::draft;
use super::super::gateway::gateway::GatewayDraft;
use super::super::gateway::listener::ListenerDraft;
use super::super::gateway::occupied::Occupied;
use super::super::gateway::parent::Parent;
use super::super::gateway::set_parents::SetParents;
use super::super::gateway::{added, frontend};
use super::super::input::Input;
use super::super::memo::Memo;
use super::super::patterns::PatternBudgets;
use super::super::route::route::{Built, RouteObject};
use super::super::route::routes::{Claim, KindConflicts};
use super::super::route::{route, routes};
use super::super::source::Source;
use super::credentials::{Attached, GatewayCredentials};

/// The Gateways of this controller with their ListenerSets, and what routes take.
#[derive(Default)]
pub(super) struct Acceptance {
    sets: SetParents,
    gateways: Memo<Listeners>,
    pub(super) parents: Parents,
    /// What the listeners of a Gateway or ListenerSet use.
    uses: BTreeMap<ObjectRef, Uses>,
    budgets: PatternBudgets,
    conflicts: KindConflicts,
    /// What the rules of attached routes take. A change of a Gateway does not translate them again.
    rules: BTreeMap<ObjectRef, Arc<Rules>>,
    pub(super) credentials: GatewayCredentials,
}

/// What the rules of a route take, whatever it attaches to.
struct Rules {
    is_usable: bool,
    /// The names of those that are served.
    names: Box<[Option<Text>]>,
    patterns: Option<Demand>,
    hostnames: Option<Claim>,
}

/// What a route takes, whether or not it gets it, and where it is attached if it has policies.
#[derive(Default)]
pub(super) struct Taken {
    rules: Option<Arc<Rules>>,
    patterns: Option<Demand>,
    hostnames: Option<Claim>,
    attached: Option<Attached>,
}

/// The listeners of a Gateway and of its ListenerSets.
#[derive(Default)]
struct Listeners {
    uses: GatewayUses,
    occupied: Occupied,
}

/// What the listeners of a Gateway and of its ListenerSets use.
type GatewayUses = BTreeMap<ObjectRef, Uses>;

/// What the listeners of a Gateway or ListenerSet use.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Uses {
    /// Indices of the listeners whose certificates are used.
    pub(super) listeners: Vec<usize>,
    /// The objects with certificates of authorities.
    pub(super) authorities: Vec<ObjectReference>,
}

/// Whether a route is accepted.
#[derive(Default)]
pub(super) struct Verdict {
    /// The parents that accept it.
    pub(super) parents: Vec<ObjectRef>,
    /// Whether it sends requests to the backends that it names.
    pub(super) is_usable: bool,
    pub(super) taken: Taken,
}

impl Acceptance {
    /// Updates the Gateways and ListenerSets that have changed. Announces those with other listeners, or others of which
    /// these use the Secrets.
    pub(super) fn step(&mut self, input: &Input<'_>, changes: &mut Changes) {
        self.credentials.step(input, changes);
        self.forget_rules(changes.objects());
        self.parents.begin();
        self.sets.step(input, changes);
        let mut extended = self.sets.extended();
        extended.retain(|name| self.add_sets(input, name, changes).is_some());
        let mut names = self.gateways.outdated(changes);
        names.extend(changes.of::<Gateway>());
        for name in names.difference(&extended.into_iter().collect()) {
            let mut parents = None;
            let computed = input.reading(|| {
                let gateway = input.find::<Gateway>(name)?;
                let draft = draft(input, gateway, self.sets.of_gateway(input, name))?;
                parents = Some(GatewayParents::new(&draft));
                Some(Listeners {
                    uses: gateway_uses(&draft),
                    occupied: Occupied::new(&draft),
                })
            });
            let previous = self.gateways.replace(name, computed).previous;
            self.parents.replace(name, parents, changes);
            self.replace_uses(name, previous.unwrap_or_default().uses, changes);
        }
    }

    /// Adds the new ListenerSets of a Gateway if they are [apart](added::are_apart) from its other listeners. Otherwise
    /// returns `None`: the Gateway has to be drafted.
    fn add_sets(
        &mut self,
        input: &Input<'_>,
        name: &ObjectRef,
        changes: &mut Changes,
    ) -> Option<()> {
        let object = input.find::<Gateway>(name)?;
        if !added::is_only_extended(&self.gateways, object, changes) {
            return None;
        }
        let known = self.gateways.get_mut(name)?;
        let added = self.sets.added(name);
        let (draft, reads) = input.reading(|| added::draft_of(input, object, &added));
        let draft = draft?;
        if draft.sets.len() != added.len() || !added::are_apart(&draft, &known.occupied) {
            return None;
        }
        for ((place, _), set) in added.into_iter().zip(&draft.sets) {
            let listeners = &draft.listeners[set.listeners.clone()];
            let parents = listeners.iter().map(|it| Parent::new(&draft, it)).collect();
            (self.parents).insert_set(name, place, &set.name, parents, changes);
            let uses = Uses::of(listeners);
            listeners.iter().for_each(|it| known.occupied.add(it));
            known.uses.insert(set.name.clone(), uses.clone());
            self.uses.insert(set.name.clone(), uses);
        }
        self.gateways.extend(name, reads);
        Some(())
    }

    /// Replaces what the listeners of a Gateway and of its ListenerSets use.
    fn replace_uses(&mut self, gateway: &ObjectRef, previous: GatewayUses, changes: &mut Changes) {
        let none = GatewayUses::new();
        let now = self.gateways.get(gateway).map_or(&none, |it| &it.uses);
        for object in previous
            .into_keys()
            .filter(|object| !now.contains_key(object))
        {
            // Another Gateway may have the ListenerSet by now, and may have admitted it.
            let owner = self.sets.of_set(&object).filter(|owner| *owner != gateway);
            let uses = owner.and_then(|owner| self.gateways.get(owner));
            if !uses.is_some_and(|it| it.uses.contains_key(&object)) {
                self.uses.remove(&object);
                changes.announce(Source::ListenersOf(object));
            }
        }
        for (object, uses) in now {
            if self.uses.get(object) != Some(uses) {
                self.uses.insert(object.clone(), uses.clone());
                changes.announce(Source::ListenersOf(object.clone()));
            }
        }
    }

    /// Returns what the listeners of a Gateway or ListenerSet use, if its Gateway belongs to this controller.
    pub(super) fn uses(&self, name: &ObjectRef) -> Option<&Uses> {
        self.uses.get(name)
    }

    /// Replaces what a route takes.
    pub(super) fn replace(&mut self, route: &ObjectRef, taken: Taken) {
        let Taken {
            rules,
            patterns,
            hostnames,
            attached,
        } = taken;
        match rules {
            Some(rules) => drop(self.rules.insert(route.clone(), rules)),
            None => drop(self.rules.remove(route)),
        }
        self.budgets.replace(route, patterns);
        self.conflicts.replace(route, hostnames);
        self.credentials.attach(route, attached);
    }

    /// Forgets what the rules of changed routes take; of all routes of its namespace if a RouteFilter or a ConfigMap
    /// changed, and of all routes if a ReferenceGrant changed, which rules may need.
    fn forget_rules(&mut self, changed: &[ObjectRef]) {
        let is_grant = |name: &ObjectRef| &*name.kind == ReferenceGrant::KIND;
        match changed.iter().any(is_grant) {
            true => self.rules.clear(),
            false => changed.iter().for_each(|name| self.forget_rules_of(name)),
        }
    }

    fn forget_rules_of(&mut self, changed: &ObjectRef) {
        if ![RouteFilter::KIND, ConfigMap::KIND].contains(&&*changed.kind) {
            self.rules.remove(changed);
            return;
        }
        let first = ObjectRef::gateway_api(HttpRoute::KIND, &changed.namespace, "");
        let of_namespace = self.rules.range(first.clone()..);
        let is_same =
            |name: &&ObjectRef| name.kind == first.kind && name.namespace == first.namespace;
        let names: Vec<_> = of_namespace
            .map(|(name, _)| name)
            .take_while(is_same)
            .cloned()
            .collect();
        names.iter().for_each(|name| drop(self.rules.remove(name)));
    }

    /// Decides again which routes exceed a budget. Returns those for which that has changed.
    pub(super) fn decide_budgets(&mut self) -> BTreeSet<ObjectRef> {
        self.budgets.decide()
    }

    /// Decides again which routes get their hostnames. Returns those for which that has changed.
    pub(super) fn decide_conflicts(&mut self) -> BTreeSet<ObjectRef> {
        self.conflicts.decide()
    }

    /// Decides again which credentials policies bring. Returns the objects of which a Gateway may use something else.
    pub(super) fn decide_credentials(
        &mut self,
        input: &Input<'_>,
        changes: &mut Changes,
    ) -> BTreeSet<ObjectRef> {
        self.credentials.decide(input, &self.parents, changes)
    }

    /// Decides which parents accept a route.
    pub(super) fn of_route<R: RouteObject>(
        &self,
        input: &Input<'_>,
        name: &ObjectRef,
        object: &R,
        references: &[ParentRef],
    ) -> Verdict {
        let hostnames = object.spec().hostnames.iter();
        let hostnames: Vec<_> = hostnames.map(|name| Hostname::new(name)).collect();
        let candidate = Candidate {
            name,
            hostnames: &hostnames,
        };
        let are_valid = route::invalid_hostname(&object.spec().hostnames).is_none();
        let references = references.iter().filter(|_| are_valid);
        let attached = references.filter_map(|reference| {
            let attachment = self.parents.attach(input, &candidate, reference)?.ok()?;
            let (listener, _) = attachment.first()?;
            let gateway = self.parents[*listener].consumer.gateway.clone();
            let parent = reference.object_ref(&name.namespace);
            Some((parent, gateway, attachment))
        });
        let mut attached: Vec<_> = attached.collect();
        if attached.is_empty() {
            return Verdict::default();
        }
        let gateways = attached.iter().map(|(_, gateway, _)| gateway.clone());
        let gateways: BTreeSet<_> = gateways.collect();
        let gateways: Vec<_> = gateways.into_iter().collect();
        let known = self.rules.get(name).cloned();
        let rules = known.unwrap_or_else(|| Arc::new(Rules::of(input, object, name, &gateways)));
        let patterns = rules.patterns.clone();
        let patterns = patterns.map(|demand| Demand { gateways, ..demand });
        attached.retain(|(_, gateway, _)| self.budgets.fault(name, gateway).is_none());
        let attached = attached.into_iter();
        let attached: Vec<(_, Attachment)> =
            attached.map(|(parent, _, it)| (parent, Ok(it))).collect();
        let hosts = routes::hosts(attached.iter().map(|(_, it)| it), &self.parents);
        let accepting = attached.into_iter().filter_map(|(parent, attachment)| {
            let (admitted, _) = self.conflicts.admit(name, attachment, &self.parents);
            Some((parent, admitted.ok()?))
        });
        let (parents, listeners): (_, Vec<_>) = accepting.unzip();
        let has_policies = self.credentials.has_policies(name);
        Verdict {
            parents,
            is_usable: rules.is_usable,
            taken: Taken {
                patterns,
                hostnames: rules.hostnames.clone().and_then(|it| it.on(hosts)),
                attached: has_policies.then(|| self.attached(&rules, &listeners)),
                rules: Some(rules),
            },
        }
    }

    /// Returns where a route is attached. A route without rules is not.
    fn attached(&self, rules: &Rules, listeners: &[Vec<(ListenerIndex, Hostnames)>]) -> Attached {
        let listeners = listeners.iter().flatten();
        let listeners = listeners.filter(|_| !rules.names.is_empty());
        let listener = |(place, _): &(ListenerIndex, Hostnames)| {
            let parent = &self.parents[*place];
            (parent.consumer.gateway.clone(), parent.key.clone())
        };
        Attached {
            listeners: listeners.map(listener).collect(),
            rule_names: rules.names.iter().flatten().cloned().collect(),
        }
    }
}

impl Rules {
    fn of<R: RouteObject>(
        input: &Input<'_>,
        object: &R,
        name: &ObjectRef,
        gateways: &[ObjectRef],
    ) -> Self {
        // Without backends: whether a route is usable does not depend on them.
        let mut backends = Backends::new(input.options);
        let built = Built::new(input, object, name, None, &mut backends);
        Self {
            is_usable: built.unusable().is_none(),
            names: built.rule_names().collect(),
            patterns: built.demand(gateways.to_vec()),
            hostnames: Claim::of(&built),
        }
    }
}

/// Returns what the listeners of a Gateway and of its ListenerSets use.
fn gateway_uses(gateway: &GatewayDraft<'_>) -> GatewayUses {
    let mut uses = GatewayUses::new();
    let own = uses.entry(gateway.name.clone()).or_default();
    own.authorities = frontend::used_authorities(gateway);
    // The drafts of an object are in the order of its listeners.
    let origins = gateway
        .listeners
        .chunk_by(|one, two| one.key.origin == two.key.origin);
    for listeners in origins {
        let origin = uses.entry(listeners[0].key.origin.clone()).or_default();
        origin.listeners = Uses::of(listeners).listeners;
    }
    uses
}

impl Uses {
    /// Returns what the listeners of one object use, which are in its order.
    fn of(listeners: &[ListenerDraft<'_>]) -> Self {
        let is_used = |it: &ListenerDraft<'_>| it.terminates_tls() && it.is_accepted();
        let used = (0..listeners.len()).filter(|at| is_used(&listeners[*at]));
        Self {
            listeners: used.collect(),
            ..Self::default()
        }
    }
}
