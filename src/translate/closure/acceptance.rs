//! Which parents accept a route, and which Secrets listeners use: what a closure depends on and several objects decide
//! together. Follows the Gateways and ListenerSets, and what the patterns of routes take. Must not know the graph.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::reference::{ObjectReference, ParentRef, SecretRef};
use crate::ir::{Hostname, ObjectRef};
use crate::snapshot::Snapshot;

use super::super::attachment::{Candidate, Parents, parent_name};
use super::super::backend::Backends;
use super::super::listener::{ListenerDraft, Protocol};
use super::super::patterns::{Demand, PatternBudgets};
use super::super::route::{self, Built, RouteObject};
use super::super::{Input, conflict, frontend, gateway, listener_set};

/// The Gateways of this controller with their ListenerSets, and the demands of routes.
#[derive(Default)]
pub(super) struct Acceptance {
    pub(super) parents: Parents,
    /// What the listeners of a Gateway or ListenerSet use.
    uses: BTreeMap<ObjectRef, Uses>,
    pub(super) budgets: PatternBudgets,
}

/// The objects with certificates that listeners use.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Uses {
    pub(super) certificates: Vec<SecretRef>,
    pub(super) authorities: Vec<ObjectReference>,
}

/// Whether a route is accepted.
pub(super) struct Verdict {
    /// The parents that accept it.
    pub(super) parents: Vec<ObjectRef>,
    /// Whether it sends requests to the backends that it names.
    pub(super) is_usable: bool,
    /// What its patterns take.
    pub(super) demand: Option<Demand>,
}

/// A change of Gateways and ListenerSets.
#[derive(Default)]
pub(super) struct ParentChanges {
    /// Those with other listeners, or other Secrets that these use.
    pub(super) objects: BTreeSet<ObjectRef>,
    /// Whether the default Gateways are others.
    pub(super) defaults: bool,
}

impl Acceptance {
    /// Applies the changes of Gateways and ListenerSets.
    pub(super) fn follow(&mut self, input: &Input<'_>, before: &Snapshot) -> ParentChanges {
        let now = input.snapshot;
        let is_same = now.gateway_classes == before.gateway_classes
            && now.gateways == before.gateways
            && now.listener_sets == before.listener_sets
            && now.namespaces == before.namespaces;
        if is_same {
            return ParentChanges::default();
        }
        let classes = gateway::classes(input);
        let mut gateways = gateway::ours(input, &classes);
        let sets = listener_set::merge(input, &mut gateways);
        conflict::within_gateways(&mut gateways);
        let mut uses: BTreeMap<ObjectRef, Uses> = BTreeMap::new();
        for gateway in &gateways {
            let own = uses.entry(gateway.name.clone()).or_default();
            own.authorities = frontend::used_authorities(gateway);
            let listeners = gateway.listeners.iter();
            for listener in
                listeners.filter(|it| it.protocol == Protocol::Https && it.is_accepted())
            {
                let origin = uses.entry(listener.key.origin.clone()).or_default();
                origin.certificates.extend(certificates(listener));
            }
        }
        let parents = Parents::new(&gateways, &sets);
        let mut objects = parents.changed_since(&self.parents);
        let named: BTreeSet<_> = uses.keys().chain(self.uses.keys()).collect();
        let named = named.into_iter();
        objects.extend(
            named
                .filter(|name| uses.get(*name) != self.uses.get(*name))
                .cloned(),
        );
        let defaults = !parents.have_same_defaults(&self.parents);
        self.parents = parents;
        self.uses = uses;
        ParentChanges { objects, defaults }
    }

    /// Returns what the listeners of a Gateway or ListenerSet use, if its Gateway belongs to this controller.
    pub(super) fn uses(&self, name: &ObjectRef) -> Option<&Uses> {
        self.uses.get(name)
    }

    /// Decides which parents accept a route. `needs_rules` says whether that depends on its rules.
    pub(super) fn of_route<R: RouteObject>(
        &self,
        input: &Input<'_>,
        name: &ObjectRef,
        object: &R,
        references: &[ParentRef],
        needs_rules: bool,
    ) -> Verdict {
        let hostnames = object.hostnames().iter();
        let hostnames: Vec<_> = hostnames.map(|name| Hostname::new(name)).collect();
        let candidate = Candidate {
            name,
            hostnames: &hostnames,
        };
        let are_valid = route::invalid_hostname(object.hostnames()).is_none();
        let references = references.iter().filter(|_| are_valid);
        let attached = references.filter_map(|reference| {
            let attachment = self.parents.attach(input, &candidate, reference)?.ok()?;
            let (listener, _) = attachment.first()?;
            let gateway = self.parents.listeners[*listener].consumer.gateway.clone();
            Some((parent_name(reference, &name.namespace), gateway))
        });
        let mut attached: Vec<_> = attached.collect();
        let is_open = needs_rules && !attached.is_empty();
        // Without backends: whether a route is usable does not depend on them.
        let built = is_open.then(|| {
            let mut backends = Backends::new(input.options);
            Built::new(input, object, name, None, &mut backends)
        });
        let cost = built.as_ref().map_or(0, |built| built.pattern_cost);
        let gateways: BTreeSet<_> = attached
            .iter()
            .map(|(_, gateway)| gateway.clone())
            .collect();
        let demand = (cost > 0).then(|| Demand {
            created: built.as_ref().and_then(|built| built.route.created),
            cost,
            gateways: gateways.into_iter().collect(),
        });
        attached.retain(|(_, gateway)| self.budgets.fault(name, gateway).is_none());
        Verdict {
            parents: attached.into_iter().map(|(parent, _)| parent).collect(),
            is_usable: built.is_none_or(|built| built.unusable.is_none()),
            demand,
        }
    }
}

fn certificates(listener: &ListenerDraft<'_>) -> impl Iterator<Item = SecretRef> {
    let tls = listener.spec.tls.iter();
    tls.flat_map(|tls| tls.certificate_refs.iter().cloned())
}
