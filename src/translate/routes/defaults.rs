//! Routes that request default Gateways (GEP-3793): adds those Gateways as parents, and notes that none exists.

use super::super::attachment::{self, Parents};
use super::super::route::RouteObject;
use super::super::{Input, report};
use crate::api::reference::ParentRef;
use crate::ir::ObjectRef;
use crate::status::Note;

fn is_defaulted<R: RouteObject>(object: &R) -> bool {
    object.use_default_gateways() == Some(attachment::DEFAULT_SCOPE)
}

/// Returns the default Gateways, if the route requests them and does not name them in its parentRefs.
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

/// Returns notes on a route whose parents do not exist.
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
