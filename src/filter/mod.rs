//! Filters that need only the head of a message: pure functions over `http` types, one file per filter. A request's
//! filters also decide what happens to its response.

mod alias;
mod cors;
mod header;
mod path;
mod redirect;
mod response;
mod rewrite;

use bytes::Bytes;
use http::Response;
use http::request::Parts;

pub use self::alias::{has_symbol, is_alias, remove_aliases};
pub use self::response::ResponsePhase;
pub use crate::ir::filter::Scheme;

use self::response::Step;
use crate::ir::Filter;

/// What a filter decides about a request.
#[derive(Debug)]
pub enum Verdict {
    /// The request goes on to the next filter.
    Continue,
    /// The client gets this response. No later filter and no backend sees the request.
    Respond(LocalResponse),
}

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
}

/// Why a filter cannot be applied. The client gets status 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The new host is not valid in a URI.
    #[error("the rewritten host is not valid")]
    Host,
    /// The new path is not valid in a URI.
    #[error("the rewritten path is not valid")]
    Path,
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

/// Applies a filter of `level` to a request, and adds to `phase` what the filter does to the response.
///
/// # Errors
/// When the request does not fit the filter, such as a redirect of a request without a host.
pub fn request(
    filter: &Filter,
    level: Level,
    parts: &mut Parts,
    facts: &RequestFacts<'_>,
    phase: &mut ResponsePhase,
) -> Result<Verdict, FilterError> {
    match filter {
        Filter::RequestHeaders(changes) => header::apply_to_request(changes, &mut parts.headers)?,
        Filter::ResponseHeaders(changes) => phase.push(level, Step::Headers(changes.clone())),
        Filter::Redirect(redirect) => {
            return redirect::response(redirect, parts, facts).map(Verdict::Respond);
        }
        Filter::Rewrite(rewrite) => rewrite::apply(rewrite, parts)?,
        Filter::Cors(cors) => {
            let sharing = cors::sharing(cors, &parts.headers);
            if cors::is_preflight(parts) {
                return sharing.preflight(&parts.headers).map(Verdict::Respond);
            }
            phase.push(level, Step::Cors(sharing));
        }
        // They send requests, so the proxy applies them: this module does no I/O.
        Filter::Mirror(_) | Filter::ExternalAuth(_) => {}
    }
    Ok(Verdict::Continue)
}

/// Where a filter is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// In a rule.
    Rule,
    /// In a backendRef.
    Backend,
}
