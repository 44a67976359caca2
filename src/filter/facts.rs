//! What filters know of a request apart from its head, and how they end it.

use bytes::Bytes;
use http::Response;

use crate::ir::filter::Scheme;
use crate::ir::path_normalization::BadPath;

/// A response of a filter. Boxed, because every request reserves room for it and few get one.
pub type LocalResponse = Box<Response<Bytes>>;

/// Properties of a request that are not in its head.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// Scheme of the client's connection.
    pub scheme: Scheme,
    /// The host that the client requested, without port.
    pub host: &'a str,
    /// The port that the listener declares.
    pub listener_port: u16,
    /// Whether it was a preflight request before the first filter.
    pub is_preflight: bool,
}

/// Why a filter cannot be applied. The client gets status 500, or 400 for a path that it would be refused for, too, and without a
/// host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The new host is not valid in a URI.
    #[error("the rewritten host is not valid")]
    Host,
    /// The new path is not valid in a URI.
    #[error("the rewritten path is not valid")]
    Path,
    /// What the client sent becomes a path that is refused.
    #[error("{0}")]
    RefusedPath(BadPath),
    /// The location is not a valid header value.
    #[error("the redirect's location is not valid")]
    Location,
    /// The redirect keeps the host, but the request names none.
    #[error("the request names no host to redirect to")]
    NoHost,
    /// The message would have more headers than `http::HeaderMap` can hold.
    #[error("too many headers")]
    TooManyHeaders,
}

/// Where a filter is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// In a rule.
    Rule,
    /// In a backendRef.
    Backend,
}
