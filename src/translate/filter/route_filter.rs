//! RouteFilters.

use std::sync::Arc;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

use crate::api::route_filter::{DirectResponse, RegexRewrite, RouteFilter, RouteFilterSpec};
use crate::ir::Filter;
use crate::ir::filter::Response;
use crate::ir::path_rewrite::PathRewrite;

use crate::translate::filter::fault::unsupported;
use crate::translate::patterns::RoutePatterns;
use crate::translate::reason::Fault;

/// Maximum length of a body in bytes: each pod keeps it.
const MAX_BODY: usize = 64 * 1024;

/// Translates a filter that the rule at `field` names. Its pattern is one of the route's.
pub(in crate::translate) fn translate(
    object: &RouteFilter,
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<Filter, Fault> {
    let field = format!("{field}: RouteFilter {}", object.metadata.name);
    // Destructured, so that a new field fails to compile until it is handled here.
    let RouteFilterSpec {
        regex_rewrite,
        direct_response,
    } = &object.spec;
    match (regex_rewrite, direct_response) {
        (Some(rewrite), None) => self::rewrite(rewrite, &field, patterns),
        (None, Some(response)) => self::response(response, &field),
        _ => Err(unsupported(
            &field,
            "spec needs one of regexRewrite and directResponse",
        )),
    }
}

fn rewrite(
    rewrite: &RegexRewrite,
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<Filter, Fault> {
    let RegexRewrite {
        pattern,
        replacement,
    } = rewrite;
    let pattern = patterns.parse(pattern, &format!("{field}: spec.regexRewrite.pattern"))?;
    let rewrite = PathRewrite::new(pattern, replacement);
    let rewrite = rewrite.map_err(|why| {
        let field = format!("{field}: spec.regexRewrite.replacement");
        unsupported(&field, &format!("{replacement:?}: {why}"))
    })?;
    Ok(Filter::RewritePath(Arc::new(rewrite)))
}

fn response(response: &DirectResponse, field: &str) -> Result<Filter, Fault> {
    let DirectResponse {
        status,
        body,
        headers: fields,
    } = response;
    let field = format!("{field}: spec.directResponse");
    let code = StatusCode::from_u16(*status).ok();
    let Some(status) = code.filter(|code| (200..=599).contains(&code.as_u16())) else {
        return Err(unsupported(
            &format!("{field}.status"),
            &format!("{status} is not 200 to 599"),
        ));
    };
    let body = body.clone().unwrap_or_default();
    // RFC 9110, 15.3.5, 15.3.6 and 15.4.5.
    let is_empty = matches!(status.as_u16(), 204 | 205 | 304);
    if is_empty && !body.is_empty() {
        let message = format!("a response with status {} has none", status.as_u16());
        return Err(unsupported(&format!("{field}.body"), &message));
    }
    if body.len() > MAX_BODY {
        let message = format!("has {} bytes, of at most {MAX_BODY}", body.len());
        return Err(unsupported(&format!("{field}.body"), &message));
    }
    let mut set = super::fields(fields, &format!("{field}.headers"))?;
    let has_type = set.iter().any(|(name, _)| *name == CONTENT_TYPE);
    if !body.is_empty() && !has_type {
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        set.push((CONTENT_TYPE, text));
    }
    Ok(Filter::Respond(Arc::new(Response {
        status,
        headers: set,
        body: body.into(),
    })))
}
