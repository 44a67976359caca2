//! Shapes of proposals and earlier releases that the released API replaced: each is an error that shows what to write
//! today. Knows nothing of the rules of the released shapes.

use serde_json::{Map, Value};

use super::admission::Finding;
use super::object::Kind;

/// The finding against an object whose kind or version is one of the past.
pub(super) fn kind(
    _api_version: &str,
    _kind: &str,
    _value: &Map<String, Value>,
) -> Option<Finding> {
    None
}

/// Findings against fields of the past in an object of a released kind.
pub(super) fn shapes(_kind: &Kind, _value: &Map<String, Value>) -> Vec<Finding> {
    Vec::new()
}
