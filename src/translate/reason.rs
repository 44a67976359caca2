//! Faults: a reason with a message, and its conversion into a condition. Must not know what was checked.

use crate::status::Condition;
pub(super) use crate::status::{ConditionType, Reason};

/// A problem of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// Returns the condition with status False.
    pub(super) fn against(&self, kind: ConditionType, generation: i64) -> Condition {
        Condition::fails(kind, self.reason, &self.message, generation)
    }
}

/// Merges several faults: the first reason and all messages.
pub(super) fn merge(faults: &[Fault]) -> Option<Fault> {
    let first = faults.first()?;
    let mut messages: Vec<&str> = Vec::new();
    for fault in faults {
        if !messages.contains(&fault.message.as_str()) {
            messages.push(&fault.message);
        }
    }
    Some(Fault::new(first.reason, messages.join("; ")))
}

/// Returns a condition that is True, or False with the fault.
pub(super) fn judge(
    kind: ConditionType,
    good: Reason,
    fault: Option<&Fault>,
    generation: i64,
) -> Condition {
    match fault {
        Some(fault) => fault.against(kind, generation),
        None => Condition::holds(kind, good, generation),
    }
}
