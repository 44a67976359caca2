//! Filters that need only the head of a message: pure functions over `http` types, one file per filter. A request's
//! filters also decide what happens to its response.

pub mod compression;
mod cors;
pub mod credentials;
pub mod error_page;
mod facts;
mod header;
mod list;
mod path;
mod redirect;
mod response;
mod rewrite;
pub mod session_cookies;

use http::HeaderMap;
use http::request::Parts;

pub use self::response::ResponsePhase;
pub use crate::ir::filter::Scheme;

pub use self::facts::{FilterError, Level, LocalResponse, RequestFacts};
use self::response::Step;
use crate::ir::Filter;
use crate::ir::filter::{self as ir, HeaderChanges};
use crate::ir::request_path::RequestPath;

/// What a filter decides about a request.
#[derive(Debug)]
pub enum Verdict {
    /// The request goes on to the next filter.
    Continue,
    /// The client gets this response. No later filter and no backend sees the request.
    Respond(LocalResponse),
}

/// Applies header changes to a request.
///
/// # Errors
/// When there is no room for a header.
pub fn change_request(changes: &HeaderChanges, headers: &mut HeaderMap) -> Result<(), FilterError> {
    header::apply(changes, headers)
}

/// Applies header changes to a response. Where there is no room for a header, the response keeps the changes before it.
pub fn change_response(changes: &HeaderChanges, headers: &mut HeaderMap) {
    let _ = header::apply(changes, headers);
}

/// Returns the response of a filter that has one.
fn direct(configured: &ir::Response) -> LocalResponse {
    let mut response = http::Response::new(configured.body.clone());
    *response.status_mut() = configured.status;
    for (name, value) in &configured.headers {
        response.headers_mut().insert(name.clone(), value.clone());
    }
    Box::new(response)
}

/// Applies a filter of `level` to a request, and adds to `phase` what the filter does to the response.
///
/// # Errors
/// When the request does not fit the filter, such as a redirect of a request without a host.
pub fn request(
    filter: &Filter,
    level: Level,
    (parts, path): (&mut Parts, &mut RequestPath),
    facts: &RequestFacts<'_>,
    phase: &mut ResponsePhase,
) -> Result<Verdict, FilterError> {
    match filter {
        Filter::RequestHeaders(changes) => header::apply(changes, &mut parts.headers)?,
        Filter::ResponseHeaders(changes) => phase.push(level, Step::Headers(changes.clone())),
        Filter::Redirect(redirect) => {
            return redirect::response(redirect, (parts, path), facts).map(Verdict::Respond);
        }
        Filter::Rewrite(rewrite) => rewrite::apply(rewrite, parts, path)?,
        Filter::Cors(cors) => {
            let sharing = cors::sharing(cors, &parts.headers);
            if facts.is_preflight {
                return sharing.preflight(&parts.headers).map(Verdict::Respond);
            }
            phase.push(level, Step::Cors(sharing));
        }
        Filter::Preflight(cors) => {
            if facts.is_preflight {
                let sharing = cors::sharing(cors, &parts.headers);
                return sharing.preflight(&parts.headers).map(Verdict::Respond);
            }
        }
        Filter::RewritePath(change) => rewrite::apply_to_path(change, parts, path)?,
        Filter::Respond(response) => return Ok(Verdict::Respond(direct(response))),
        // They send requests, so the proxy applies them: this module does no I/O.
        Filter::Mirror(_) | Filter::ExternalAuth(_) => {}
    }
    Ok(Verdict::Continue)
}

/// Reports whether filters, in this order, answer preflight requests before these or copies of them are sent anywhere.
pub fn answer_preflight(filters: &[Filter]) -> bool {
    let is_change = |filter: &&Filter| {
        matches!(
            filter,
            Filter::RequestHeaders(_)
                | Filter::ResponseHeaders(_)
                | Filter::Rewrite(_)
                | Filter::RewritePath(_)
        )
    };
    let first = filters.iter().find(|filter| !is_change(filter));
    first.is_some_and(Filter::answers_preflight)
}
