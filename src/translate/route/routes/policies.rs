//! What inherited policies require on listeners: which of them a change affects. Must not know routes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::totals::Totals;
use crate::ir::{ObjectRef, Route};
use crate::translate::changes::Changes;
use crate::translate::gateway::attachment::{ListenerIndex, Parents};
use crate::translate::input::Input;
use crate::translate::policy::inherited::{InheritedPolicies, Place};
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
        let required = policies.on_listener(self::place(place, parents), parents);
        totals.set_policies(place, required);
    }
}

/// Returns a route with what policies require of its requests through a listener.
pub(super) fn on_route(
    input: &Input<'_>,
    policies: &InheritedPolicies,
    (listener, parents): (ListenerIndex, &Parents),
    route: &Arc<Route>,
) -> Arc<Route> {
    policies.on_route(input, place(listener, parents), route, parents)
}

/// Returns a listener as policies see it.
fn place(index: ListenerIndex, parents: &Parents) -> Place<'_> {
    Place {
        gateway: &parents[index].consumer.gateway,
        listener: &parents[index].key,
    }
}
