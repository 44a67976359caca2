//! Request errors and the one response to each, as HTTP and as gRPC.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::table::UpstreamFault;
use crate::upstream::SendError;

/// The side that caused an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorSource {
    /// The client: no server could serve the request.
    Downstream,
    /// A backend, or a missing backend.
    Upstream,
    /// The configuration.
    Configuration,
}

/// Why the proxy responds to a request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// Ambiguous framing, target or Host; the connection closes after the response.
    BadRequest(&'static str),
    /// A method that a reverse proxy must not serve.
    MethodNotAllowed,
    /// An expectation other than `100-continue`.
    ExpectationFailed,
    /// Too many headers.
    TooManyHeaders,
    /// The host belongs to another HTTPS listener than the one of this connection.
    Misdirected,
    /// No listener for the host, or no matching rule.
    NotFound(&'static str),
    /// The rule or the selected backendRef is invalid.
    Broken,
    /// The rule has no backend.
    NoBackend,
    /// The request body is larger than the limit of an ExternalAuth filter.
    BodyTooLarge,
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
    /// The side that caused the error.
    pub(crate) fn source(self) -> ErrorSource {
        match self {
            Self::BadRequest(_)
            | Self::MethodNotAllowed
            | Self::ExpectationFailed
            | Self::TooManyHeaders
            | Self::Misdirected
            | Self::NotFound(_)
            | Self::BodyTimeout
            | Self::BodyTooLarge
            | Self::Send(SendError::RequestBody) => ErrorSource::Downstream,
            Self::Broken | Self::NoBackend | Self::Filter => ErrorSource::Configuration,
            Self::RequestTimeout
            | Self::BackendIdle
            | Self::AuthorizationUnavailable
            | Self::AuthorizationTimeout
            | Self::Send(SendError::Backend(..)) => ErrorSource::Upstream,
        }
    }

    /// Status of the HTTP response.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::Send(SendError::RequestBody) => StatusCode::BAD_REQUEST,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::ExpectationFailed => StatusCode::EXPECTATION_FAILED,
            Self::TooManyHeaders => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Broken | Self::NoBackend | Self::Filter => StatusCode::INTERNAL_SERVER_ERROR,
            Self::RequestTimeout | Self::BackendIdle | Self::AuthorizationTimeout => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::AuthorizationUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Send(SendError::Backend(fault, _)) => match fault {
                UpstreamFault::NoEndpoint | UpstreamFault::Connect => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
                UpstreamFault::ConnectTimeout | UpstreamFault::Timeout => {
                    StatusCode::GATEWAY_TIMEOUT
                }
                UpstreamFault::Reset | UpstreamFault::Refused | UpstreamFault::Protocol => {
                    StatusCode::BAD_GATEWAY
                }
            },
        }
    }

    /// gRPC status of the response to a gRPC call.
    pub(crate) fn grpc_status(self) -> GrpcStatus {
        match self {
            Self::BadRequest(_)
            | Self::ExpectationFailed
            | Self::TooManyHeaders
            | Self::Send(SendError::RequestBody) => GrpcStatus::Internal,
            Self::NotFound(_) | Self::MethodNotAllowed => GrpcStatus::Unimplemented,
            Self::BodyTooLarge => GrpcStatus::ResourceExhausted,
            Self::Misdirected
            | Self::Broken
            | Self::NoBackend
            | Self::Filter
            | Self::AuthorizationUnavailable => GrpcStatus::Unavailable,
            Self::RequestTimeout
            | Self::BodyTimeout
            | Self::BackendIdle
            | Self::AuthorizationTimeout => GrpcStatus::DeadlineExceeded,
            Self::Send(SendError::Backend(error, _)) => match error {
                UpstreamFault::Timeout => GrpcStatus::DeadlineExceeded,
                UpstreamFault::NoEndpoint
                | UpstreamFault::Connect
                | UpstreamFault::ConnectTimeout
                | UpstreamFault::Reset
                | UpstreamFault::Refused
                | UpstreamFault::Protocol => GrpcStatus::Unavailable,
            },
        }
    }

    /// Text for the client and the access log.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::BadRequest(reason) | Self::NotFound(reason) => reason,
            Self::MethodNotAllowed => "method not allowed",
            Self::ExpectationFailed => "unsupported expectation",
            Self::TooManyHeaders => "too many headers",
            Self::Misdirected => "this host is served on another connection",
            Self::Broken => "the route cannot be served as configured",
            Self::NoBackend => "the route has no backend",
            Self::Filter => "the route's filters do not fit this request",
            Self::RequestTimeout => "no complete response within the route's request timeout",
            Self::BodyTimeout => "timed out waiting for the request body",
            Self::BackendIdle => "timed out waiting for the backend",
            Self::BodyTooLarge => {
                "the request body is larger than the route's authorization allows"
            }
            Self::AuthorizationUnavailable => "the authorization server is not available",
            Self::AuthorizationTimeout => "the authorization server did not respond in time",
            Self::Send(SendError::RequestBody) => "the request body failed",
            Self::Send(SendError::Backend(_, detail)) => detail,
        }
    }

    /// Whether an HTTP/1 connection must close after the response, since its next bytes are
    /// ambiguous.
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

/// Whether the headers mark a gRPC call (gRPC over HTTP/2, "Request-Headers").
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    value
        .and_then(|value| value.strip_prefix(GRPC))
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// gRPC status codes that the proxy uses (gRPC, "Status codes and their use").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcStatus {
    /// The deadline expired before the call completed.
    DeadlineExceeded = 4,
    /// A limit is exceeded.
    ResourceExhausted = 8,
    /// No route matches the method.
    Unimplemented = 12,
    /// The call violated the protocol.
    Internal = 13,
    /// The service is currently unavailable.
    Unavailable = 14,
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
    fn recognizes_grpc_by_its_content_type() {
        let cases = [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ];
        for (value, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            assert_eq!(is_grpc(&headers), expected, "{value}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
