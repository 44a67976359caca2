//! Routes that request default Gateways (GEP-3793): adds those Gateways as parents, and notes that none exists.

use super::super::route::RouteObject;
use crate::api::reference::ParentRef;
use crate::ir::ObjectRef;
use crate::status::Note;
use crate::translate::gateway::attachment::Parents;
use crate::translate::gateway::{attachment, report};
use crate::translate::input::Input;
use crate::translate::source::Source;

fn is_defaulted<R: RouteObject>(object: &R) -> bool {
    object.spec().default_gateways() == Some(attachment::DEFAULT_SCOPE)
}

/// Returns the default Gateways, if the route requests them and does not name them in its parentRefs.
pub(super) fn parents<R: RouteObject>(
    input: &Input<'_>,
    object: &R,
    name: &ObjectRef,
    parents: &Parents,
) -> Vec<ParentRef> {
    if is_defaulted(object) {
        input.read(|| Source::DefaultGateways);
        parents.defaults_beside(name, &object.spec().parent_refs)
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
    let own = &object.spec().parent_refs;
    match (is_defaulted(object), parents.have_defaults()) {
        (true, true) if own.is_empty() => Vec::new(),
        (true, true) => report::orphan_route(input, name, own),
        (true, false) => report::without_default(input, name),
        (false, _) => {
            let mut notes = report::mesh_route(input, name, own);
            notes.extend(report::orphan_route(input, name, own));
            notes
        }
    }
}
