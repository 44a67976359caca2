//! The filters that need nothing but a message head: pure functions over `http` types, one file per filter. A request's
//! filters also decide what is done to its response.

mod cors;
mod header;
mod path;
mod redirect;
mod response;
mod rewrite;

use bytes::Bytes;
use http::Response;
use http::request::Parts;

pub use self::response::ResponsePhase;
pub use crate::ir::filter::Scheme;

use self::response::Step;
use crate::ir::Filter;

/// What a filter makes of a request.
#[derive(Debug)]
pub enum Verdict {
    /// The request goes on to the next filter.
    Continue,
    /// The client gets this response; no other filter and no backend sees the request.
    Respond(LocalResponse),
}

/// A response that a filter makes. Boxed, since it is rare and every request has room for it.
pub type LocalResponse = Box<Response<Bytes>>;

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
    /// There would be more headers than a message can hold.
    #[error("too many headers")]
    TooManyHeaders,
}

/// Applies a filter of `level` to a request, and notes in `phase` what the filter does to the response.
///
/// # Errors
/// When the filter and the request do not go together, such as a redirect without any host.
pub fn request(
    filter: &Filter,
    level: Level,
    parts: &mut Parts,
    facts: &RequestFacts<'_>,
    phase: &mut ResponsePhase,
) -> Result<Verdict, FilterError> {
    match filter {
        Filter::RequestHeaders(changes) => header::apply(changes, &mut parts.headers)?,
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
        // They send requests, which no function of this module can.
        Filter::Mirror(_) | Filter::ExternalAuth(_) => {}
    }
    Ok(Verdict::Continue)
}

/// Where a filter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// In a rule.
    Rule,
    /// In a backendRef.
    Backend,
}
