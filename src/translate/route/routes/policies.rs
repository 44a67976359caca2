//! What inherited policies require on listeners: which of them a change affects. Must not know routes.

use std::collections::BTreeSet;

use super::place;
use super::totals::Totals;
use crate::ir::ObjectRef;
use crate::translate::changes::Changes;
use crate::translate::gateway::attachment::Parents;
use crate::translate::policy::inherited::InheritedPolicies;
use crate::translate::source::Source;

/// Updates what policies require on listeners that are new, or on which policies have changed.
pub(super) fn on_listeners(
    totals: &mut Totals,
    policies: &InheritedPolicies,
    parents: &Parents,
    changes: &Changes,
) {
    if policies.are_none() && !totals.have_policies() {
        return;
    }
    let changed = changes.sources().iter().filter_map(|source| match source {
        Source::ListenersOf(object) | Source::PoliciesOn(object) => Some(object),
        _ => None,
    });
    let changed: BTreeSet<&ObjectRef> = changed.collect();
    let of_objects = changed.iter().flat_map(|object| {
        // Policies on a Gateway apply to the listeners of its ListenerSets too.
        parents.of_gateway(object).chain(parents.of_object(object))
    });
    let places: BTreeSet<_> = of_objects.collect();
    for place in places {
        let required = policies.on_listener(place::of_listener(place, parents), parents);
        let clients = policies.clients(place::of_listener(place, parents), parents);
        totals.set_policies(place, required, clients);
    }
}
