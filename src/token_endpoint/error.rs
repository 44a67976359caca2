//! Why a provider issues no tokens.

use crate::table::TokenOutcome;

/// Why there are no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// Too many requests to providers wait.
    Busy,
    /// The provider has failed before, and is not asked for so many seconds.
    Deferred(u64),
    /// The endpoints of the provider are unknown, or it does not respond.
    Unavailable,
    /// The code or the refresh token is not valid, or not any more.
    Denied,
    /// The provider does not accept the client or its request.
    Rejected,
    /// The response cannot be used.
    Invalid,
}

impl TokenError {
    /// What it counts as.
    pub(super) fn outcome(self) -> TokenOutcome {
        match self {
            Self::Busy => TokenOutcome::Busy,
            Self::Deferred(_) => TokenOutcome::Deferred,
            Self::Unavailable => TokenOutcome::Unavailable,
            Self::Denied => TokenOutcome::Denied,
            Self::Rejected => TokenOutcome::Rejected,
            Self::Invalid => TokenOutcome::Invalid,
        }
    }
}
