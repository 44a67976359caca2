//! Everything that can go wrong with a request, each with the one response it gets, as HTTP and as gRPC. Knows no
//! connection.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::table::UpstreamFault;
use crate::upstream::SendError;

/// The side that caused a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorSource {
    /// The client: its request cannot be served by anyone.
    Downstream,
    /// A backend, or its absence.
    Upstream,
    /// The configuration.
    Configuration,
}

/// Why the proxy itself responds to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// The request's framing, target or Host cannot be trusted; the connection ends after the response.
    BadRequest(&'static str),
    /// A method that a reverse proxy must not serve.
    MethodNotAllowed,
    /// An expectation other than `100-continue`.
    ExpectationFailed,
    /// More headers than allowed.
    TooManyHeaders,
    /// The host belongs to another HTTPS listener than the one that the connection was opened to.
    Misdirected,
    /// No listener for the host, or no rule that matches.
    NotFound(&'static str),
    /// The rule cannot be served as written, or the selected backendRef of it.
    Broken,
    /// The rule has no backend.
    NoBackend,
    /// A rewrite produced something that cannot be sent.
    Filter,
    /// The whole exchange took longer than the rule allows.
    RequestTimeout,
    /// The client's body stopped coming.
    BodyTimeout,
    /// The backend neither took nor sent anything for too long.
    BackendSilent,
    /// Sending failed.
    Send(SendError),
}

impl Error {
    /// The side that caused it.
    pub(crate) fn source(self) -> ErrorSource {
        match self {
            Self::BadRequest(_)
            | Self::MethodNotAllowed
            | Self::ExpectationFailed
            | Self::TooManyHeaders
            | Self::Misdirected
            | Self::NotFound(_)
            | Self::BodyTimeout
            | Self::Send(SendError::RequestBody) => ErrorSource::Downstream,
            Self::Broken | Self::NoBackend | Self::Filter => ErrorSource::Configuration,
            Self::RequestTimeout | Self::BackendSilent | Self::Send(SendError::Backend(..)) => {
                ErrorSource::Upstream
            }
        }
    }

    /// The status that the client gets.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::Send(SendError::RequestBody) => StatusCode::BAD_REQUEST,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::ExpectationFailed => StatusCode::EXPECTATION_FAILED,
            Self::TooManyHeaders => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Broken | Self::NoBackend | Self::Filter => StatusCode::INTERNAL_SERVER_ERROR,
            Self::RequestTimeout | Self::BackendSilent => StatusCode::GATEWAY_TIMEOUT,
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

    /// The gRPC status that the client of a gRPC call gets instead.
    pub(crate) fn grpc_status(self) -> GrpcStatus {
        match self {
            Self::BadRequest(_)
            | Self::ExpectationFailed
            | Self::TooManyHeaders
            | Self::Send(SendError::RequestBody) => GrpcStatus::Internal,
            Self::NotFound(_) | Self::MethodNotAllowed => GrpcStatus::Unimplemented,
            Self::Misdirected | Self::Broken | Self::NoBackend | Self::Filter => {
                GrpcStatus::Unavailable
            }
            Self::RequestTimeout | Self::BodyTimeout | Self::BackendSilent => {
                GrpcStatus::DeadlineExceeded
            }
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

    /// The text that client and access log get.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::BadRequest(reason) | Self::NotFound(reason) => reason,
            Self::MethodNotAllowed => "the method is not served",
            Self::ExpectationFailed => "the expectation is not known",
            Self::TooManyHeaders => "too many headers",
            Self::Misdirected => "this host is served on another connection",
            Self::Broken => "the route cannot be served as configured",
            Self::NoBackend => "the route has no backend",
            Self::Filter => "the route's filters do not fit this request",
            Self::RequestTimeout => "no complete response within the route's request timeout",
            Self::BodyTimeout => "the request body did not come in time",
            Self::BackendSilent => "the backend was silent for too long",
            Self::Send(SendError::RequestBody) => "the request body failed",
            Self::Send(SendError::Backend(_, detail)) => detail,
        }
    }

    /// Whether the connection must not carry another HTTP/1 request: its next bytes cannot be trusted.
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

/// Whether the head of a request says that it is a gRPC call (gRPC over HTTP/2, "Request-Headers").
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    value
        .and_then(|value| value.strip_prefix(GRPC))
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// The gRPC status codes that the proxy uses (gRPC, "Status codes and their use").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcStatus {
    /// The deadline passed before the call was over.
    DeadlineExceeded = 4,
    /// No route serves the method.
    Unimplemented = 12,
    /// The call broke the protocol.
    Internal = 13,
    /// The service cannot be reached now.
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
