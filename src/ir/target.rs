//! What a reference to a backend resolves to.

use serde::Serialize;

use super::sharing::Text;
use crate::ir::BackendId;

/// What a backendRef or the reference of a filter resolves to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum BackendTarget {
    /// A backend of [`super::Ir::backends`].
    Backend(BackendId),
    /// Nowhere: requests get 500, for this reason.
    Invalid(Text),
}

impl BackendTarget {
    /// Returns the backend, unless the target is invalid.
    pub fn backend(&self) -> Option<&BackendId> {
        match self {
            Self::Backend(id) => Some(id),
            Self::Invalid(_) => None,
        }
    }
}
