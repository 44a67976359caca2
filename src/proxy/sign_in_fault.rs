//! Why a client cannot sign in at an OpenID provider. Must not know how it tries.

use http::StatusCode;

use super::error_source::ErrorSource;

/// Why a client cannot sign in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignInFault {
    /// The response of the provider is no response to an authorization request.
    Malformed,
    /// No sign-in of this browser has this state.
    UnknownState,
    /// The response is of another issuer (RFC 9207).
    OtherIssuer,
    /// The user or the provider has denied the sign-in.
    Denied,
    /// The provider does not accept the authorization request.
    RequestRefused,
    /// The endpoints of the provider are unknown, or it does not respond.
    Unavailable,
    /// Too many requests to providers wait.
    Busy,
    /// The provider does not accept the code.
    CodeRefused,
    /// The provider does not accept the client.
    ClientRefused,
    /// The tokens of the provider cannot be used.
    InvalidTokens,
    /// The keys that would verify the tokens are unknown.
    UnknownKeys,
    /// The session does not fit into cookies.
    TooLarge,
    /// The cookies of the policy are for another domain than the host.
    OtherDomain,
    /// The host of the request cannot be part of a URL.
    NoUrl,
}

impl SignInFault {
    pub(super) fn source(self) -> ErrorSource {
        match self {
            Self::Malformed
            | Self::UnknownState
            | Self::OtherIssuer
            | Self::Denied
            | Self::CodeRefused
            | Self::NoUrl => ErrorSource::Downstream,
            Self::RequestRefused
            | Self::Unavailable
            | Self::Busy
            | Self::ClientRefused
            | Self::InvalidTokens
            | Self::UnknownKeys
            | Self::TooLarge => ErrorSource::Upstream,
            Self::OtherDomain => ErrorSource::Configuration,
        }
    }

    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::Malformed
            | Self::UnknownState
            | Self::OtherIssuer
            | Self::CodeRefused
            | Self::NoUrl => StatusCode::BAD_REQUEST,
            Self::Denied => StatusCode::FORBIDDEN,
            Self::RequestRefused | Self::ClientRefused | Self::InvalidTokens | Self::TooLarge => {
                StatusCode::BAD_GATEWAY
            }
            Self::Unavailable | Self::Busy | Self::UnknownKeys => StatusCode::SERVICE_UNAVAILABLE,
            Self::OtherDomain => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Malformed => "the response of the identity provider is malformed",
            Self::UnknownState => {
                "the sign-in is over or was begun by another browser: open the page again"
            }
            Self::OtherIssuer => "the sign-in is of another identity provider",
            Self::Denied => "the identity provider has denied the sign-in",
            Self::RequestRefused => "the identity provider does not accept the sign-in",
            Self::Unavailable => "the identity provider is not available",
            Self::Busy => "too many requests to identity providers wait",
            Self::CodeRefused => "the identity provider does not accept the code of the sign-in",
            Self::ClientRefused => "the identity provider does not accept the client of the policy",
            Self::InvalidTokens => "the tokens of the identity provider are not valid",
            Self::UnknownKeys => "the keys of the identity provider are not known yet",
            Self::TooLarge => "the session is too large for cookies",
            Self::OtherDomain => "the cookie domain of the policy is not that of the host",
            Self::NoUrl => "the host cannot be part of a URL",
        }
    }
}
