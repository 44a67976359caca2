//! RouteFilters.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

use crate::api::route_filter::{DirectResponse, RegexRewrite, RouteFilter, RouteFilterSpec};
use crate::ir::filter::Response;
use crate::ir::path_rewrite::PathRewrite;
use crate::ir::{Filter, ObjectRef};

use crate::translate::config_map;
use crate::translate::input::Input;
use crate::translate::patterns::RoutePatterns;
use crate::translate::reason::{Fault, unsupported};
use crate::translate::unknown_field;

/// Maximum length of a body in bytes: each pod keeps it.
const MAX_BODY: usize = 64 * 1024;

/// Translates a filter that the rule at `field` names. Its pattern is one of the route's.
pub(in crate::translate) fn translate(
    input: &Input<'_>,
    object: &RouteFilter,
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<Filter, Fault> {
    let field = format!("{field}: RouteFilter {}", object.metadata.name);
    if let Some(fault) = unknown_field::of_part(object, "spec") {
        return Err(unsupported(&field, &fault.message));
    }
    // Destructured, so that a new field fails to compile until it is handled here.
    let RouteFilterSpec {
        regex_rewrite,
        direct_response,
    } = &object.spec;
    match (regex_rewrite, direct_response) {
        (Some(rewrite), None) => self::rewrite(rewrite, &field, patterns),
        (None, Some(response)) => {
            let body = body(input, &object.metadata.namespace, response, &field)?;
            self::response(response, body, &field)
        }
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

/// Returns the body of the response of a filter in `namespace`.
fn body(
    input: &Input<'_>,
    namespace: &str,
    response: &DirectResponse,
    field: &str,
) -> Result<Bytes, Fault> {
    let field = format!("{field}: spec.directResponse");
    match (&response.body, &response.config_map_ref) {
        (Some(_), Some(_)) => Err(unsupported(&field, "has both body and configMapRef")),
        (None, None) => Ok(Bytes::new()),
        (None, Some(reference)) => {
            let map = ObjectRef::core("ConfigMap", namespace, &reference.name);
            let text = config_map::text(input, &map, &reference.key);
            text.map_err(|why| unsupported(&format!("{field}.configMapRef"), &why))
        }
        (Some(body), None) if body.len() > MAX_BODY => {
            let message = format!("has {} bytes, of at most {MAX_BODY}", body.len());
            Err(unsupported(&format!("{field}.body"), &message))
        }
        (Some(body), None) => Ok(body.clone().into()),
    }
}

fn response(response: &DirectResponse, body: Bytes, field: &str) -> Result<Filter, Fault> {
    // Destructured, so that a new field fails to compile until it is handled.
    let DirectResponse {
        status,
        body: _,
        config_map_ref,
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
    // RFC 9110, 15.3.5, 15.3.6 and 15.4.5.
    let is_empty = matches!(status.as_u16(), 204 | 205 | 304);
    if is_empty && !body.is_empty() {
        let message = format!("a response with status {} has none", status.as_u16());
        let source = match config_map_ref {
            None => "body",
            Some(_) => "configMapRef",
        };
        return Err(unsupported(&format!("{field}.{source}"), &message));
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
        body,
    })))
}
