//! The requests to backends that policies may target.

use std::collections::{BTreeMap, BTreeSet};

use super::policy::Path;
use crate::ir::sharing::Text;
use crate::ir::{ListenerKey, ObjectRef};

/// Requests to a backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::translate) struct Use {
    /// The Gateway that sends them.
    pub(in crate::translate) gateway: ObjectRef,
    /// The listener that they come through, if it is one alone.
    pub(in crate::translate) listener: Option<ListenerKey>,
    /// The route and the name of its rule, or the policy or the InferencePool that names the backend.
    pub(in crate::translate) route: ObjectRef,
    pub(in crate::translate) rule: Option<Text>,
    /// Whether they are sent for the object in `route` itself, through no Gateway: keys are fetched, or a picker is asked.
    pub(in crate::translate) is_fetch: bool,
}

/// The requests to each backend that policies may target.
pub(in crate::translate) type Uses = BTreeMap<ObjectRef, BTreeSet<Use>>;

impl Use {
    pub(super) fn path(&self) -> Path<'_> {
        Path {
            route: &self.route,
            rule: self.rule.as_deref(),
            consumer: Some(match self.is_fetch {
                true => &self.route.namespace,
                false => &self.gateway.namespace,
            }),
            through: Some((&self.gateway, self.listener.as_ref())).filter(|_| !self.is_fetch),
        }
    }
}

/// Who sends requests to backends.
pub(in crate::translate) trait Requesters {
    /// Returns the requests to a backend.
    fn uses(&self, backend: &ObjectRef) -> BTreeSet<Use>;

    /// Returns the fetches of keys from a backend, for requests of each Gateway.
    fn fetches(&self, backend: &ObjectRef) -> BTreeSet<Use>;

    /// Returns the Gateways that send the requests of an object that a policy names in `from`.
    fn senders(&self, object: &ObjectRef) -> BTreeSet<ObjectRef>;
}
