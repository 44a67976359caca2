//! Request errors and the one response to each, as HTTP and as gRPC.

use http::StatusCode;

pub(crate) use super::error_source::ErrorSource;
use super::grpc::GrpcStatus;
use super::sign_in_fault::SignInFault;
use crate::table::UpstreamFault;
use crate::upstream::SendError;

/// Why the proxy responds to a request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// Ambiguous framing, target or Host; the connection closes after the response.
    BadRequest(&'static str),
    /// The path has escaped slashes: a policy redirects to the path without them.
    EscapedSlash,
    /// A method that a reverse proxy must not serve.
    MethodNotAllowed,
    /// A gRPC call over HTTP/1, which cannot carry its status: only HTTP/2 has trailers that clients read.
    GrpcOverHttp1,
    /// An extended CONNECT with a protocol other than `websocket`.
    UnsupportedProtocol,
    /// An expectation other than `100-continue`.
    ExpectationFailed,
    /// Too many headers.
    TooManyHeaders,
    /// The host belongs to a different HTTPS listener than this connection.
    Misdirected,
    /// No listener for the host, or no matching rule.
    NotFound(&'static str),
    /// A policy does not permit the address of the client.
    AddressRefused,
    /// A limit of a policy is exceeded.
    LimitExceeded(StatusCode),
    /// A policy asks for credentials, and the request has no valid ones.
    Unauthenticated,
    /// The client cannot sign in, or its session has a problem.
    SignIn(SignInFault),
    /// Too many passwords wait to be verified.
    PasswordsWait,
    /// The rules of a policy do not let the client send the request.
    Unauthorized,
    /// A policy that protects the rule is broken.
    BrokenPolicy,
    /// The rule or the selected backendRef is invalid.
    InvalidRule,
    /// The rule has no backend.
    NoBackend,
    /// The rule allows a retry, but the retry budget of the backend does not.
    RetryBudget,
    /// The request body is larger than a limit of an ExternalAuth filter or of a policy.
    BodyTooLarge,
    /// The client may not keep another request body for an ExternalAuth filter or a policy.
    KeptBytes,
    /// The endpoint picker of the backend cannot be reached.
    PickerUnavailable,
    /// The authorization server failed or cannot be reached.
    AuthorizationUnavailable,
    /// The authorization server did not respond in time.
    AuthorizationTimeout,
    /// A rewrite produced an invalid request.
    Filter,
    /// The exchange exceeded the request timeout of the rule.
    RequestTimeout,
    /// The client stalled in the request body.
    BodyTimeout,
    /// The backend neither read nor sent anything within the timeout.
    BackendIdle,
    /// Sending to the backend failed.
    Send(SendError),
}

impl Error {
    /// Returns the side that caused the error.
    pub(crate) fn source(self) -> ErrorSource {
        match self {
            Self::BadRequest(_)
            | Self::EscapedSlash
            | Self::MethodNotAllowed
            | Self::UnsupportedProtocol
            | Self::GrpcOverHttp1
            | Self::ExpectationFailed
            | Self::TooManyHeaders
            | Self::Misdirected
            | Self::NotFound(_)
            | Self::AddressRefused
            | Self::LimitExceeded(_)
            | Self::Unauthenticated
            | Self::PasswordsWait
            | Self::Unauthorized
            | Self::BodyTimeout
            | Self::BodyTooLarge
            | Self::KeptBytes
            | Self::Send(SendError::RequestBody) => ErrorSource::Downstream,
            Self::SignIn(fault) => fault.source(),
            Self::BrokenPolicy | Self::InvalidRule | Self::NoBackend | Self::Filter => {
                ErrorSource::Configuration
            }
            Self::RequestTimeout
            | Self::BackendIdle
            | Self::RetryBudget
            | Self::PickerUnavailable
            | Self::AuthorizationUnavailable
            | Self::AuthorizationTimeout
            | Self::Send(SendError::Backend(..)) => ErrorSource::Upstream,
        }
    }

    /// Returns the error of a request whose body may exceed what its route permits: [`Self::BodyTooLarge`] if the body failed
    /// for that.
    pub(crate) fn or_too_large(self, is_too_large: bool) -> Self {
        match self {
            Self::Send(SendError::RequestBody) if is_too_large => Self::BodyTooLarge,
            other => other,
        }
    }

    /// Returns the status of the HTTP response.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::Send(SendError::RequestBody) => StatusCode::BAD_REQUEST,
            Self::EscapedSlash => StatusCode::TEMPORARY_REDIRECT,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            // RFC 9220, 3, which is the same rule for HTTP/3.
            Self::UnsupportedProtocol => StatusCode::NOT_IMPLEMENTED,
            Self::GrpcOverHttp1 => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::ExpectationFailed => StatusCode::EXPECTATION_FAILED,
            Self::TooManyHeaders => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::AddressRefused | Self::Unauthorized => StatusCode::FORBIDDEN,
            Self::LimitExceeded(status) => status,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::SignIn(fault) => fault.status(),
            Self::BrokenPolicy | Self::InvalidRule | Self::NoBackend | Self::Filter => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            Self::RequestTimeout | Self::BackendIdle | Self::AuthorizationTimeout => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::RetryBudget
            | Self::KeptBytes
            | Self::PasswordsWait
            | Self::PickerUnavailable
            | Self::AuthorizationUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Send(SendError::Backend(fault, _)) => match fault {
                UpstreamFault::NoEndpoint
                | UpstreamFault::Connect
                | UpstreamFault::Descriptors
                | UpstreamFault::Local
                | UpstreamFault::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
                UpstreamFault::ConnectTimeout | UpstreamFault::Timeout => {
                    StatusCode::GATEWAY_TIMEOUT
                }
                UpstreamFault::Reset | UpstreamFault::Refused | UpstreamFault::Protocol => {
                    StatusCode::BAD_GATEWAY
                }
            },
        }
    }

    /// Returns the gRPC status of the response to a gRPC request.
    pub(crate) fn grpc_status(self) -> GrpcStatus {
        match self {
            // The backend timed out, but the deadline of the call has not passed.
            Self::Send(SendError::Backend(UpstreamFault::ConnectTimeout, _)) => {
                GrpcStatus::Unavailable
            }
            // The same call would fail again, so UNAVAILABLE would invite useless retries.
            Self::GrpcOverHttp1 => GrpcStatus::Unimplemented,
            // Whatever the status of the policy for other requests is.
            Self::LimitExceeded(_) => GrpcStatus::ResourceExhausted,
            _ => self.status().into(),
        }
    }

    /// Returns the text for the client and the access log.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::BadRequest(reason) | Self::NotFound(reason) => reason,
            Self::EscapedSlash => "the path has an escaped slash",
            Self::MethodNotAllowed => "method not allowed",
            Self::UnsupportedProtocol => "unsupported protocol of an extended CONNECT",
            Self::GrpcOverHttp1 => "gRPC needs HTTP/2, and this request uses HTTP/1",
            Self::ExpectationFailed => "unsupported expectation",
            Self::TooManyHeaders => "too many headers",
            Self::Misdirected => "this host is served on another connection",
            Self::AddressRefused => "this address may not send requests here",
            Self::LimitExceeded(_) => "too many requests: a limit is exceeded",
            Self::Unauthenticated => "credentials are missing or not valid",
            Self::SignIn(fault) => fault.message(),
            Self::Unauthorized => "this client may not send this request",
            Self::PasswordsWait => "too many passwords wait to be verified",
            Self::BrokenPolicy => "a policy that protects the route is broken",
            Self::InvalidRule => "the route cannot be served as configured",
            Self::NoBackend => "the route has no backend",
            Self::RetryBudget => {
                "the backend failed, and its traffic policy permits no further retries at present"
            }
            Self::Filter => "the route's filters do not fit this request",
            Self::RequestTimeout => "no complete response within the request timeout",
            Self::BodyTimeout => "timed out waiting for the request body",
            Self::BackendIdle => "timed out waiting for the backend",
            Self::BodyTooLarge => "the request body is larger than the route permits",
            Self::KeptBytes => "too many request bodies of this client are kept",
            Self::PickerUnavailable => "the endpoint picker of the backend is not available",
            Self::AuthorizationUnavailable => "the authorization server is not available",
            Self::AuthorizationTimeout => "the authorization server did not respond in time",
            Self::Send(SendError::RequestBody) => "the request body failed",
            Self::Send(SendError::Backend(_, detail)) => detail,
        }
    }

    /// Reports whether an HTTP/1 connection must close after the response, because the next bytes
    /// are ambiguous.
    pub(crate) fn closes(self) -> bool {
        matches!(
            self,
            Self::BadRequest(_)
                | Self::MethodNotAllowed
                | Self::ExpectationFailed
                | Self::TooManyHeaders
                | Self::BodyTimeout
        )
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        Self::Send(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_a_grpc_status() {
        let backend = |fault| Error::Send(SendError::Backend(fault, "detail"));
        for (error, status) in [
            (Error::NotFound("no route"), GrpcStatus::Unimplemented),
            (Error::GrpcOverHttp1, GrpcStatus::Unimplemented),
            (Error::MethodNotAllowed, GrpcStatus::Unimplemented),
            (Error::BadRequest("bad"), GrpcStatus::Internal),
            (Error::TooManyHeaders, GrpcStatus::ResourceExhausted),
            (
                Error::LimitExceeded(StatusCode::SERVICE_UNAVAILABLE),
                GrpcStatus::ResourceExhausted,
            ),
            (Error::Misdirected, GrpcStatus::Unavailable),
            (Error::AddressRefused, GrpcStatus::PermissionDenied),
            (Error::Unauthenticated, GrpcStatus::Unauthenticated),
            (Error::Unauthorized, GrpcStatus::PermissionDenied),
            (Error::PasswordsWait, GrpcStatus::Unavailable),
            (Error::BrokenPolicy, GrpcStatus::Unavailable),
            (Error::InvalidRule, GrpcStatus::Unavailable),
            (Error::NoBackend, GrpcStatus::Unavailable),
            (Error::RetryBudget, GrpcStatus::Unavailable),
            (Error::PickerUnavailable, GrpcStatus::Unavailable),
            (Error::RequestTimeout, GrpcStatus::DeadlineExceeded),
            (Error::BackendIdle, GrpcStatus::DeadlineExceeded),
            (backend(UpstreamFault::NoEndpoint), GrpcStatus::Unavailable),
            (backend(UpstreamFault::Connect), GrpcStatus::Unavailable),
            (
                backend(UpstreamFault::ConnectTimeout),
                GrpcStatus::Unavailable,
            ),
            (
                backend(UpstreamFault::Timeout),
                GrpcStatus::DeadlineExceeded,
            ),
            (backend(UpstreamFault::Reset), GrpcStatus::Unavailable),
        ] {
            assert_eq!(error.grpc_status(), status, "{error:?}");
        }
    }
}
