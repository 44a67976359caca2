//! Settings of filters, already validated. Must not know how filters are applied.

use std::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Serialize, Serializer};

use super::BackendId;
use super::cors::Cors;
use super::external_auth::ExternalAuth;
use super::path_rewrite::PathRewrite;
pub use super::scheme::Scheme;
use super::serialized;
use super::sharing::Text;
use super::target::BackendTarget;

/// One filter of a rule or of a backendRef.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Filter {
    /// Changes headers of the request.
    RequestHeaders(HeaderChanges),
    /// Changes headers of the response. Shared, because each request clones it for its response.
    ResponseHeaders(Arc<HeaderChanges>),
    /// Responds with a redirect.
    Redirect(Redirect),
    /// Changes host or path of the forwarded request.
    Rewrite(Rewrite),
    /// Cross-origin resource sharing. Shared, because each request clones it for its response.
    Cors(Arc<Cors>),
    /// Responds to preflight requests only. Other responses get their headers from [`Self::ResponseHeaders`].
    Preflight(Arc<Cors>),
    /// Sends a copy of the request to another backend.
    Mirror(Arc<Mirror>),
    /// Asks another backend whether the request may go on.
    ExternalAuth(Arc<ExternalAuth>),
    /// Changes the path by a regular expression.
    RewritePath(Arc<PathRewrite>),
    /// Responds.
    Respond(Arc<Response>),
}

impl Filter {
    /// Returns the target of the requests that the filter sends, if it sends any.
    pub fn target(&self) -> Option<&BackendTarget> {
        match self {
            Self::Mirror(mirror) => Some(&mirror.target),
            Self::ExternalAuth(auth) => Some(&auth.target),
            Self::RequestHeaders(_)
            | Self::ResponseHeaders(_)
            | Self::Redirect(_)
            | Self::Rewrite(_)
            | Self::Cors(_)
            | Self::Preflight(_)
            | Self::RewritePath(_)
            | Self::Respond(_) => None,
        }
    }

    /// Reports whether no request gets past the filter, because it responds to all of them.
    pub fn responds(&self) -> bool {
        matches!(self, Self::Redirect(_) | Self::Respond(_))
    }

    /// Reports whether no preflight request gets past the filter.
    pub fn answers_preflight(&self) -> bool {
        matches!(self, Self::Cors(_) | Self::Preflight(_))
    }

    /// Returns the backend of [`Self::target`].
    pub fn backend(&self) -> Option<&BackendId> {
        self.target().and_then(BackendTarget::backend)
    }
}

/// A response of a filter.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Response {
    /// Status.
    #[serde(serialize_with = "serialized::status")]
    pub status: StatusCode,
    /// Headers; each name once.
    #[serde(serialize_with = "fields")]
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Body.
    #[serde(serialize_with = "serialized::body")]
    pub body: Bytes,
}

/// Header changes: overwrite, append, delete, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct HeaderChanges {
    /// Headers to overwrite; each name once.
    #[serde(serialize_with = "fields")]
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Headers to append; each name once.
    #[serde(serialize_with = "fields")]
    pub add: Vec<(HeaderName, HeaderValue)>,
    /// Headers to delete.
    #[serde(serialize_with = "serialized::names")]
    pub remove: Vec<HeaderName>,
}

/// A redirect. Parts that are `None` are taken from the request (Gateway API, HTTPRequestRedirectFilter).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Redirect {
    /// Scheme.
    pub scheme: Option<Scheme>,
    /// Host, without port.
    pub hostname: Option<Text>,
    /// Port; `None` derives it from the scheme, or else from the listener.
    pub port: Option<u16>,
    /// Path.
    pub path: Option<PathChange>,
    /// Status.
    #[serde(serialize_with = "serialized::status")]
    pub status: StatusCode,
}

/// A rewrite of the forwarded request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Rewrite {
    /// The Host to send.
    #[serde(serialize_with = "serialized::optional_value")]
    pub hostname: Option<HeaderValue>,
    /// The path to send.
    pub path: Option<PathChange>,
}

/// A copy of requests to another backend, whose responses are discarded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Mirror {
    /// Where copies go. With an invalid target no copies are sent.
    pub target: BackendTarget,
    /// The fraction of requests to copy.
    pub share: Fraction,
}

/// A fraction of requests, from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Fraction {
    /// At most the denominator.
    pub numerator: u32,
    /// Denominator.
    pub denominator: NonZeroU32,
}

/// A change of path. The query stays.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum PathChange {
    /// Replaces the whole path; begins with `/`.
    Full(Text),
    /// Replaces the matched prefix.
    Prefix {
        /// The only path prefix of the rule, as in [`super::route::PathMatch::Prefix`]: no `/` at the end.
        prefix: Text,
        /// The replacement, as written.
        replacement: Text,
    },
}

/// Headers with credentials, whose values are never printed.
const SENSITIVE: [HeaderName; 4] = [
    http::header::AUTHORIZATION,
    http::header::PROXY_AUTHORIZATION,
    http::header::COOKIE,
    http::header::SET_COOKIE,
];

fn fields<S: Serializer>(
    fields: &[(HeaderName, HeaderValue)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(name, value)| {
        let shown = if SENSITIVE.contains(name) {
            "<redacted>".into()
        } else {
            String::from_utf8_lossy(value.as_bytes())
        };
        (name.as_str(), shown)
    }))
}
