//! The criteria that decide between two policies. Must not know how policies are read.

use std::cmp::Ordering;

/// The criterion that decides between two policies, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Criterion {
    /// The level.
    Level,
    /// A section of `from` takes precedence over the whole object.
    FromSection,
    /// One port takes precedence over all ports.
    Port,
    /// The older policy takes precedence.
    Age,
    /// Namespace and name.
    Name,
}

impl Criterion {
    /// Returns the first criterion whose values differ.
    pub(super) fn first(values: [(Self, Ordering); 3]) -> Option<Self> {
        let mut values = values.into_iter();
        let found = values.find(|(_, ordering)| ordering.is_ne());
        found.map(|(criterion, _)| criterion)
    }
}
