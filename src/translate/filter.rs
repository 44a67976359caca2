//! Filters of HTTPRoutes, parsed into values that can be applied without further checks. What cannot be served as
//! written is a fault, never skipped. Knows nothing of rules beyond their path prefix.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::api::http_route::{
    HeaderModifier, HeaderValue as Field, HttpFilter, PathModifier, RequestRedirect, UrlRewrite,
};
use crate::ir::Filter;
use crate::ir::filter::{HeaderChanges, PathChange, Redirect, Rewrite, Scheme};

use super::reason::{Fault, Reason};

/// Fields that frame a message or belong to one connection: changing them would break the exchange.
const FRAMING: [&str; 10] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "proxy-authenticate",
];

/// Translates the filters of one rule or backendRef. `prefix` is the rule's path prefix if that is its only match.
pub(super) fn translate(
    filters: &[HttpFilter],
    place: &str,
    prefix: Option<&Arc<str>>,
) -> Result<Vec<Filter>, Fault> {
    let has = |kind: &str| filters.iter().any(|filter| filter.kind == kind);
    if has("RequestRedirect") && has("URLRewrite") {
        let message = format!(
            "{place}.filters: RequestRedirect and URLRewrite exclude each other; remove one"
        );
        return Err(Fault::new(Reason::IncompatibleFilters, message));
    }
    let numbered = filters.iter().enumerate();
    numbered
        .map(|(index, filter)| one(filter, &format!("{place}.filters[{index}]"), prefix))
        .collect()
}

fn one(filter: &HttpFilter, place: &str, prefix: Option<&Arc<str>>) -> Result<Filter, Fault> {
    let missing = || {
        unsupported(
            place,
            &format!("type is {} but its block is missing", filter.kind),
        )
    };
    match filter.kind.as_str() {
        "RequestHeaderModifier" => {
            let block = filter
                .request_header_modifier
                .as_ref()
                .ok_or_else(missing)?;
            let place = format!("{place}.requestHeaderModifier");
            headers(block, &place).map(Filter::RequestHeaders)
        }
        "ResponseHeaderModifier" => {
            let block = filter
                .response_header_modifier
                .as_ref()
                .ok_or_else(missing)?;
            let place = format!("{place}.responseHeaderModifier");
            headers(block, &place).map(Filter::ResponseHeaders)
        }
        "RequestRedirect" => {
            let block = filter.request_redirect.as_ref().ok_or_else(missing)?;
            redirect(block, &format!("{place}.requestRedirect"), prefix).map(Filter::Redirect)
        }
        "URLRewrite" => {
            let block = filter.url_rewrite.as_ref().ok_or_else(missing)?;
            rewrite(block, &format!("{place}.urlRewrite"), prefix).map(Filter::Rewrite)
        }
        kind => Err(unsupported(
            place,
            &format!("filter type {kind} is not served by this version"),
        )),
    }
}

fn unsupported(place: &str, message: &str) -> Fault {
    Fault::new(Reason::UnsupportedValue, format!("{place}: {message}"))
}

fn headers(block: &HeaderModifier, place: &str) -> Result<HeaderChanges, Fault> {
    let mut remove = Vec::new();
    for (index, name) in block.remove.iter().enumerate() {
        let name = header_name(name, &format!("{place}.remove[{index}]"))?;
        if !remove.contains(&name) {
            remove.push(name);
        }
    }
    Ok(HeaderChanges {
        set: fields(&block.set, &format!("{place}.set"))?,
        add: fields(&block.add, &format!("{place}.add"))?,
        remove,
    })
}

/// Of equal names the first counts (HTTPHeaderFilter).
fn fields(fields: &[Field], place: &str) -> Result<Vec<(HeaderName, HeaderValue)>, Fault> {
    let mut parsed: Vec<(HeaderName, HeaderValue)> = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        let place = format!("{place}[{index}]");
        let name = header_name(&field.name, &place)?;
        let value = HeaderValue::from_str(field.value.trim_matches([' ', '\t'])).map_err(|_| {
            let message =
                format!("the value of header {name} has characters that no header may have");
            unsupported(&place, &message)
        })?;
        if parsed.iter().all(|(known, _)| *known != name) {
            parsed.push((name, value));
        }
    }
    Ok(parsed)
}

fn header_name(name: &str, place: &str) -> Result<HeaderName, Fault> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| unsupported(place, &format!("{name:?} is not a header name")))?;
    if parsed == http::header::HOST {
        let message = "Host cannot be changed as a header; use a URLRewrite filter with hostname";
        return Err(unsupported(place, message));
    }
    if FRAMING.contains(&parsed.as_str()) {
        let message = format!("header {parsed} belongs to the connection and cannot be changed");
        return Err(unsupported(place, &message));
    }
    Ok(parsed)
}

fn redirect(
    block: &RequestRedirect,
    place: &str,
    prefix: Option<&Arc<str>>,
) -> Result<Redirect, Fault> {
    let scheme = match block.scheme.as_deref() {
        None => None,
        Some("http") => Some(Scheme::Http),
        Some("https") => Some(Scheme::Https),
        Some(other) => {
            let message = format!("{other:?} is not supported; use http or https");
            return Err(unsupported(&format!("{place}.scheme"), &message));
        }
    };
    let code = block.status_code.unwrap_or(302);
    let status = match code {
        301 | 302 | 303 | 307 | 308 => StatusCode::from_u16(code).ok(),
        _ => None,
    };
    let status = status.ok_or_else(|| {
        let message = format!("{code} is not supported; use 301, 302, 303, 307 or 308");
        unsupported(&format!("{place}.statusCode"), &message)
    })?;
    Ok(Redirect {
        scheme,
        hostname: hostname(block.hostname.as_deref(), place)?.map(Arc::from),
        port: block.port,
        path: path(block.path.as_ref(), place, prefix)?,
        status,
    })
}

fn rewrite(block: &UrlRewrite, place: &str, prefix: Option<&Arc<str>>) -> Result<Rewrite, Fault> {
    let hostname = hostname(block.hostname.as_deref(), place)?;
    Ok(Rewrite {
        hostname: hostname.and_then(|name| HeaderValue::from_str(name).ok()),
        path: path(block.path.as_ref(), place, prefix)?,
    })
}

/// A precise hostname, whose characters are all fit for a header.
fn hostname<'h>(name: Option<&'h str>, place: &str) -> Result<Option<&'h str>, Fault> {
    let Some(name) = name else {
        return Ok(None);
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if name.is_empty() || !name.bytes().all(fits) {
        let message = format!("{name:?} is not a hostname without wildcard and port");
        return Err(unsupported(&format!("{place}.hostname"), &message));
    }
    Ok(Some(name))
}

fn path(
    change: Option<&PathModifier>,
    place: &str,
    prefix: Option<&Arc<str>>,
) -> Result<Option<PathChange>, Fault> {
    let Some(change) = change else {
        return Ok(None);
    };
    let place = format!("{place}.path");
    let missing = || {
        unsupported(
            &place,
            &format!("type is {} but its member is missing", change.kind),
        )
    };
    match change.kind.as_str() {
        "ReplaceFullPath" => {
            let text = change.replace_full_path.as_deref().ok_or_else(missing)?;
            let whole = rooted(text, &place)?;
            Ok(Some(PathChange::Full(if whole.is_empty() {
                "/".into()
            } else {
                whole
            })))
        }
        "ReplacePrefixMatch" => {
            let text = change.replace_prefix_match.as_deref().ok_or_else(missing)?;
            let prefix = prefix.ok_or_else(|| {
                let message =
                    "ReplacePrefixMatch needs a rule with exactly one match, of type PathPrefix";
                unsupported(&place, message)
            })?;
            Ok(Some(PathChange::Prefix {
                prefix: prefix.clone(),
                replacement: rooted(text, &place)?,
            }))
        }
        kind => Err(unsupported(
            &place,
            &format!("type {kind} is not supported"),
        )),
    }
}

/// A path that stays a path when it is put into a request line: begins with `/` unless empty, has no query and only
/// characters that a target may have.
fn rooted(text: &str, place: &str) -> Result<Arc<str>, Fault> {
    let fits = |byte: u8| {
        byte.is_ascii_graphic()
            && !matches!(
                byte,
                b'?' | b'#' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
            )
    };
    if !text.bytes().all(fits) {
        let message = format!(
            "{text:?} has characters that a path cannot have; percent-encode them (a query is kept by itself)"
        );
        return Err(unsupported(place, &message));
    }
    Ok(if text.is_empty() || text.starts_with('/') {
        text.into()
    } else {
        format!("/{text}").into()
    })
}
