//! ExternalAuth filters: the backends that authorize requests.

use serde::Serialize;

use super::auth_call::AuthCall;
use super::target::BackendTarget;

/// An ExternalAuth filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExternalAuth {
    /// The authorization server. With an invalid target every request is refused.
    pub target: BackendTarget,
    /// How it is asked.
    #[serde(flatten)]
    pub call: AuthCall,
}
