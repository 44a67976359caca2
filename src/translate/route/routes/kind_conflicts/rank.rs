//! The order in which routes are accepted. Must not know hostnames.

use std::cmp::Ordering;

use crate::ir::Time;
use crate::ir::object_ref::by_text;
use crate::ir::{ObjectRef, RouteKind};

/// The place of a route in the order.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rank {
    pub(super) usability: Usability,
    /// Creation time; `None` counts as oldest.
    pub(super) created: Option<Time>,
    pub(super) route: ObjectRef,
    pub(super) kind: RouteKind,
}

/// Whether a route can serve requests. Routes that can come before those that cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Usability {
    Usable,
    /// It is accepted, but has nothing to serve.
    WithoutRules,
    /// It is not accepted, but its rules respond with an error.
    Unusable,
}

impl Ord for Rank {
    fn cmp(&self, other: &Self) -> Ordering {
        let (one, two) = (&self.route, &other.route);
        let text = || by_text((&one.namespace, &one.name), (&two.namespace, &two.name));
        (self.usability, self.created)
            .cmp(&(other.usability, other.created))
            .then_with(text)
            // The API names no order for routes of one name.
            .then_with(|| one.kind.cmp(&two.kind))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
