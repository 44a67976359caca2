//! ReferenceGrants: whether an object may refer to an object of another namespace. Must not know what the reference is
//! for.

use crate::api::gateway::ReferenceGrant;
use crate::api::unknown_fields;
use crate::ir::ObjectRef;
use crate::ir::object_ref::released;

use super::input::Input;
use super::reason::{Fault, Reason};

/// Checks whether `from` may refer to `to`: always within a namespace, otherwise if a grant of the target's namespace
/// permits it. `field` is the path of the reference in `from`.
pub(super) fn check(
    input: &Input<'_>,
    from: &ObjectRef,
    to: &ObjectRef,
    field: &str,
) -> Result<(), Fault> {
    if from.namespace == to.namespace || permitting(input, from, to).next().is_some() {
        return Ok(());
    }
    Err(refused(from, to, field))
}

/// Returns why `from` may not refer to `to` without a grant.
pub(super) fn refused(from: &ObjectRef, to: &ObjectRef, field: &str) -> Fault {
    Fault::new(
        Reason::RefNotPermitted,
        format!(
            "{field} refers to {to}, and no ReferenceGrant in namespace {} permits it; add one there with from \
             {{group: \"{}\", kind: {}, namespace: {}}} to {{group: \"{}\", kind: {}}}",
            to.namespace, from.group, from.kind, from.namespace, to.group, to.kind
        ),
    )
}

/// Returns the grants that permit `from` to refer to `to`, an object of another namespace.
pub(super) fn permitting<'a>(
    input: &Input<'a>,
    from: &ObjectRef,
    to: &ObjectRef,
) -> impl Iterator<Item = &'a ReferenceGrant> {
    let grants = input.grants_of(&to.namespace);
    grants
        .map(AsRef::as_ref)
        .filter(move |grant| permits(grant, from, to))
}

/// Reports whether a grant of the namespace of `to` permits `from` to refer to it.
pub(super) fn permits(grant: &ReferenceGrant, from: &ObjectRef, to: &ObjectRef) -> bool {
    // A field that this version does not know may be a condition.
    let is_known = unknown_fields::refusing(grant, "spec").is_none();
    is_known
        && grant.spec.from.iter().any(|source| {
            released(&source.group, &source.kind) == (&*from.group, &*from.kind)
                && source.namespace == *from.namespace
        })
        && grant.spec.to.iter().any(|target| {
            let named = target.name.as_deref().filter(|name| !name.is_empty());
            target.group == *to.group
                && target.kind == *to.kind
                && named.is_none_or(|name| name == &*to.name)
        })
}
