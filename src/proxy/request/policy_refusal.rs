//! Why policies do not let a request pass.

use http::HeaderMap;

use crate::proxy::error::Error;

/// Why a request does not pass.
pub(super) struct PolicyRefusal {
    pub(super) error: Error,
    /// Headers of its response.
    pub(super) headers: HeaderMap,
}

impl From<Error> for PolicyRefusal {
    fn from(error: Error) -> Self {
        Self {
            error,
            headers: HeaderMap::new(),
        }
    }
}
