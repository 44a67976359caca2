//! The target of a backendRef or of a filter at run time.

use std::sync::Arc;

use super::backend::Backend;
use super::backends::Backends;
use crate::ir;
use crate::ir::sharing::Text;

/// The target of a backendRef or of a filter.
#[derive(Clone, Debug)]
pub enum BackendTarget {
    /// A backend.
    Backend(Arc<Backend>),
    /// None, for this reason: requests get a 500.
    Invalid(Text),
}

impl BackendTarget {
    pub(super) fn new(ir: &ir::route::BackendTarget, backends: &Backends) -> Self {
        match ir {
            ir::route::BackendTarget::Backend(id) => backends.get(id).cloned().map_or_else(
                || Self::Invalid("the backend is not part of the configuration".into()),
                Self::Backend,
            ),
            ir::route::BackendTarget::Invalid(reason) => Self::Invalid(reason.clone()),
        }
    }

    /// Whether the target is a backend that the table does not have.
    pub(super) fn is_missing(&self, ir: &ir::route::BackendTarget) -> bool {
        matches!(
            (self, ir),
            (Self::Invalid(_), ir::route::BackendTarget::Backend(_))
        )
    }

    /// Whether this target, of the previous table or this one, would be the same node again.
    pub(super) fn is_current(&self, ir: &ir::route::BackendTarget, backends: &Backends) -> bool {
        match (self, ir) {
            (Self::Backend(node), _) => !backends.is_gone(node),
            (Self::Invalid(_), ir::route::BackendTarget::Backend(id)) => backends.get(id).is_none(),
            (Self::Invalid(_), ir::route::BackendTarget::Invalid(_)) => true,
        }
    }
}
