//! Faults of the parts of objects that are refused because of a field that this version does not know. Must not know what the
//! parts are for.

use super::reason::{Fault, Reason};
use crate::api::{Resource, unknown_fields};

/// Returns the fault of a part of an object, such as `spec`, if it has a field because of which it is refused.
pub(super) fn of_part<T: Resource>(object: &T, part: &str) -> Option<Fault> {
    let field = unknown_fields::refusing(object, part)?;
    let message =
        format!("{field}: unknown field; use a later version of Portcullis, or remove the field");
    Some(Fault::new(Reason::UnsupportedValue, message))
}

/// Returns the fault of an item of a list, such as `spec.rules`.
pub(super) fn of_item<T: Resource>(object: &T, list: &str, index: usize) -> Option<Fault> {
    let is_known = object.meta().unknown_fields.is_empty();
    (!is_known).then(|| of_part(object, &format!("{list}[{index}]")))?
}
