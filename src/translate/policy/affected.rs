//! The condition of an object that policies target: it names them. Must not know which policies there are.

use std::collections::BTreeSet;

use crate::status::Condition;
use crate::translate::reason::{ConditionType, Reason};

/// Maximum number of texts in a list.
const MAX_LISTED: usize = 16;

/// Returns the condition of an object that policies with these names target.
pub(super) fn affected(
    kind: ConditionType,
    names: &BTreeSet<String>,
    generation: i64,
) -> Condition {
    let condition = Condition::holds(kind, Reason::PolicyAffected, generation);
    condition.with_message(format!("affected by {}", listed(names, ", ")))
}

/// Joins texts. Names the number of those that are too many.
pub(super) fn listed(texts: &BTreeSet<String>, separator: &str) -> String {
    let shown: Vec<&str> = texts.iter().take(MAX_LISTED).map(String::as_str).collect();
    let shown = shown.join(separator);
    match texts.len().saturating_sub(MAX_LISTED) {
        0 => shown,
        more => format!("{shown}{separator}and {more} more"),
    }
}
