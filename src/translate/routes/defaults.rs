//! Routes that ask for default Gateways (GEP-3793): those Gateways as further parents, and notes about missing ones.

use super::super::attachment::{self, Parents};
use super::super::route::RouteObject;
use super::super::{Input, report};
use crate::api::reference::ParentRef;
use crate::ir::ObjectRef;
use crate::status::Note;

fn is_defaulted<R: RouteObject>(object: &R) -> bool {
    object.use_default_gateways() == Some(attachment::DEFAULT_SCOPE)
}

/// The default Gateways, if the route asks for them and does not name them anyway.
pub(super) fn parents<R: RouteObject>(
    object: &R,
    name: &ObjectRef,
    parents: &Parents,
) -> Vec<ParentRef> {
    if is_defaulted(object) {
        parents.defaults_beside(name, object.parent_refs())
    } else {
        Vec::new()
    }
}

/// What to say of a route whose parents are nowhere.
pub(super) fn notes<R: RouteObject>(
    input: &Input<'_>,
    object: &R,
    name: &ObjectRef,
    parents: &Parents,
) -> Vec<Note> {
    let own = object.parent_refs();
    match (is_defaulted(object), parents.have_defaults()) {
        (true, true) if own.is_empty() => Vec::new(),
        (true, false) => report::without_default(input, name),
        _ => report::orphan_route(input, name, own),
    }
}
