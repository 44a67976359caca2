//! What an API server checks of an object's shape, from the schemas of the Gateway API release (`generate`) and small
//! ones of ours for the core kinds. Knows nothing of any single kind.

use serde_json::{Map, Value};

use super::admission::Finding;
use super::object::Kind;

/// Applies defaults to the object, and returns everything that is wrong with it.
pub(super) fn apply(_kind: &Kind, _value: &mut Map<String, Value>) -> Vec<Finding> {
    Vec::new()
}
