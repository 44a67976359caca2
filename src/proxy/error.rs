//! Everything that can go wrong with a request, each with the one answer it gets. Knows no connection.

use http::StatusCode;

use crate::table::UpstreamFault;
use crate::upstream::SendError;

/// Who a failure is due to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The client: its request cannot be served by anyone.
    Downstream,
    /// A backend, or its absence.
    Upstream,
    /// The configuration.
    Configuration,
}

/// Why a request is answered by the proxy itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// The request's framing, target or Host cannot be trusted; the connection ends after the answer.
    BadRequest(&'static str),
    /// A method that a reverse proxy must not serve.
    MethodNotAllowed,
    /// An expectation other than `100-continue`.
    ExpectationFailed,
    /// More header fields than allowed.
    TooManyFields,
    /// The host belongs to another HTTPS listener than the one that the connection was opened to.
    Misdirected,
    /// No listener for the host, or no rule that matches.
    NotFound(&'static str),
    /// The rule cannot be served as written, or this share of it.
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
    /// Who is to blame.
    pub(crate) fn source(self) -> Source {
        match self {
            Self::BadRequest(_)
            | Self::MethodNotAllowed
            | Self::ExpectationFailed
            | Self::TooManyFields
            | Self::Misdirected
            | Self::NotFound(_)
            | Self::BodyTimeout
            | Self::Send(SendError::RequestBody) => Source::Downstream,
            Self::Broken | Self::NoBackend | Self::Filter => Source::Configuration,
            Self::RequestTimeout | Self::BackendSilent | Self::Send(SendError::Backend(..)) => {
                Source::Upstream
            }
        }
    }

    /// The status that the client gets.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::BadRequest(_) | Self::Send(SendError::RequestBody) => StatusCode::BAD_REQUEST,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::ExpectationFailed => StatusCode::EXPECTATION_FAILED,
            Self::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
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
                UpstreamFault::Reset | UpstreamFault::Protocol => StatusCode::BAD_GATEWAY,
            },
        }
    }

    /// What the client and the access log are told.
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::BadRequest(reason) | Self::NotFound(reason) => reason,
            Self::MethodNotAllowed => "the method is not served",
            Self::ExpectationFailed => "the expectation is not known",
            Self::TooManyFields => "too many header fields",
            Self::Misdirected => "this host is served on another connection",
            Self::Broken => "the route cannot be served as configured",
            Self::NoBackend => "the route has no backend",
            Self::Filter => "the route's filters do not fit this request",
            Self::RequestTimeout => "no complete answer within the route's request timeout",
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
                | Self::TooManyFields
                | Self::BodyTimeout
        )
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        Self::Send(error)
    }
}
