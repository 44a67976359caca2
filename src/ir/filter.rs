//! What filters do to a request or response, with every value already checked. Knows not how they are applied.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use serde::{Serialize, Serializer};

use super::BackendId;
use super::cors::Cors;
use super::external_auth::ExternalAuth;
use super::route::Target;

/// A step of a rule or of one of its backends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Filter {
    /// Changes the request's header fields.
    RequestHeaders(HeaderChanges),
    /// Changes the response's headers. Shared, so that a request takes it to its response at no cost.
    ResponseHeaders(Arc<HeaderChanges>),
    /// Answers with a redirect.
    Redirect(Redirect),
    /// Changes host or path of the forwarded request.
    Rewrite(Rewrite),
    /// Cross-origin resource sharing. Shared, so that a request takes it to its response at no cost.
    Cors(Arc<Cors>),
    /// Sends a copy of the request to another backend.
    Mirror(Arc<Mirror>),
    /// Asks another backend whether the request may go on.
    ExternalAuth(Arc<ExternalAuth>),
}

impl Filter {
    /// The target of the requests that the filter sends, if it sends any.
    pub fn target(&self) -> Option<&Target> {
        match self {
            Self::Mirror(mirror) => Some(&mirror.target),
            Self::ExternalAuth(auth) => Some(&auth.target),
            Self::RequestHeaders(_)
            | Self::ResponseHeaders(_)
            | Self::Redirect(_)
            | Self::Rewrite(_)
            | Self::Cors(_) => None,
        }
    }

    /// The backend of these requests.
    pub fn backend(&self) -> Option<&BackendId> {
        self.target().and_then(Target::backend)
    }
}

/// Changes of header fields: overwrite, append, delete, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct HeaderChanges {
    /// Fields to overwrite; each name once.
    #[serde(serialize_with = "fields")]
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Fields to append; each name once.
    #[serde(serialize_with = "fields")]
    pub add: Vec<(HeaderName, HeaderValue)>,
    /// Fields to delete.
    #[serde(serialize_with = "names")]
    pub remove: Vec<HeaderName>,
}

/// A redirect. Absent parts are the request's own (Gateway API, HTTPRequestRedirectFilter).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Redirect {
    /// Scheme.
    pub scheme: Option<Scheme>,
    /// Host, without port.
    pub hostname: Option<Arc<str>>,
    /// Port; absent means derived from scheme, else from the listener.
    pub port: Option<u16>,
    /// Path.
    pub path: Option<PathChange>,
    /// Status.
    #[serde(serialize_with = "status")]
    pub status: StatusCode,
}

/// A scheme that a redirect can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Scheme {
    /// `http`
    Http,
    /// `https`
    Https,
}

/// A rewrite of the forwarded request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Rewrite {
    /// The Host to send.
    #[serde(serialize_with = "host")]
    pub hostname: Option<HeaderValue>,
    /// The path to send.
    pub path: Option<PathChange>,
}

/// A copy of requests to another backend, whose responses are discarded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Mirror {
    /// Where copies go. With an invalid target there are none.
    pub target: Target,
    /// The requests that are copied.
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

/// A change of path; the query survives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum PathChange {
    /// The whole path becomes this; begins with `/`.
    Full(Arc<str>),
    /// The matched prefix becomes something else.
    Prefix {
        /// The rule's only path prefix, as [`super::route::PathMatch::Prefix`] holds it: no `/` at the end.
        prefix: Arc<str>,
        /// What it becomes, as written.
        replacement: Arc<str>,
    },
}

/// Field names whose values are credentials and are never printed.
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

fn names<S: Serializer>(names: &[HeaderName], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(names.iter().map(HeaderName::as_str))
}

fn status<S: Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

fn host<S: Serializer>(host: &Option<HeaderValue>, serializer: S) -> Result<S::Ok, S::Error> {
    match host {
        Some(host) => serializer.collect_str(&String::from_utf8_lossy(host.as_bytes())),
        None => serializer.serialize_none(),
    }
}
