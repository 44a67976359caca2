//! Applies the filters of a rule or of a backend to a message head: pure functions over `http` types, one file per
//! filter. Knows nothing of bodies, connections or how a rule was found.

mod header;
mod path;
mod redirect;
mod rewrite;

use http::HeaderMap;
use http::request::Parts;

pub use crate::ir::filter::Scheme;

use crate::ir::Filter;

/// What the filters of a request came to.
#[derive(Debug)]
pub enum Verdict {
    /// The request goes on.
    Continue,
    /// The client gets this answer, without a body.
    Answer(http::Response<()>),
}

/// What filters need to know of a request beyond its head.
#[derive(Clone, Copy, Debug)]
pub struct RequestFacts<'a> {
    /// Scheme of the connection that it came in by.
    pub scheme: Scheme,
    /// The host that the client asked for, without port.
    pub host: &'a str,
    /// The port that the listener declares.
    pub listener_port: u16,
}

/// Why a filter could not be applied; answered with 500.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The new host is no host.
    #[error("the rewritten host is not valid")]
    Host,
    /// The new path is no path.
    #[error("the rewritten path is not valid")]
    Path,
    /// The location is no header value.
    #[error("the redirect's location is not valid")]
    Location,
    /// The redirect keeps the host, and the request names none.
    #[error("the request names no host to redirect to")]
    NoHost,
    /// The message would have more fields than it can hold.
    #[error("too many header fields")]
    TooManyFields,
}

/// Applies `filters` to a request, in order, up to the first that answers it.
pub fn request(
    filters: &[Filter],
    parts: &mut Parts,
    facts: &RequestFacts<'_>,
) -> Result<Verdict, FilterError> {
    for filter in filters {
        match filter {
            Filter::RequestHeaders(changes) => header::apply(changes, &mut parts.headers)?,
            Filter::ResponseHeaders(_) => {}
            Filter::Redirect(redirect) => {
                return redirect::answer(redirect, parts, facts).map(Verdict::Answer);
            }
            Filter::Rewrite(rewrite) => rewrite::apply(rewrite, parts)?,
        }
    }
    Ok(Verdict::Continue)
}

/// Applies `filters` to the head of a response, in order.
pub fn response(filters: &[Filter], headers: &mut HeaderMap) {
    for filter in filters {
        if let Filter::ResponseHeaders(changes) = filter {
            // It fails only beyond 24,000 fields, which no parser lets through; such a response stays as it is.
            let _ = header::apply(changes, headers);
        }
    }
}
