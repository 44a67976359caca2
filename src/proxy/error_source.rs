//! The side that causes an error.

/// The side that caused an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorSource {
    /// The client. No server could serve its request.
    Downstream,
    /// A backend, or a missing backend.
    Upstream,
    /// The configuration.
    Configuration,
}
