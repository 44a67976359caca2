//! Filters of HTTPRoutes and GRPCRoutes, parsed into values that need no further checks. A filter that cannot be
//! applied as written is a fault and never skipped. Must not know rules, except for their path prefix.

mod backend;
pub(super) mod cors;
pub(super) mod external_auth;
mod mirror;
pub(super) mod route_filter;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::header::{CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, TRAILER};
use http::{HeaderName, HeaderValue, StatusCode};

use crate::api::filter::{
    HeaderModifier, HeaderValue as Field, HttpFilter, PathModifier, RequestRedirect, UrlRewrite,
};
use crate::ir::Filter;
use crate::ir::filter::{HeaderChanges, PathChange, Redirect, Rewrite, Scheme};
use crate::ir::hop_by_hop::HOP_BY_HOP;
use crate::ir::path_normalization;
use crate::ir::sharing::Text;

use super::filter::backend::ResolveBackend;
use super::reason::{Fault, Faults, Reason, all, both, unsupported};

/// Headers, beside the hop-by-hop ones, that frame a message or belong to one connection. Changing them would break the
/// exchange.
const FRAMING: [HeaderName; 3] = [CONTENT_LENGTH, TRAILER, PROXY_AUTHENTICATE];

/// Translates the filters of one rule or backendRef. `prefix` is the rule's path prefix if that is its only match;
/// `extensions` are the filters that are objects of their own, by their place; `backend` resolves a reference to a backend.
pub(super) fn translate(
    filters: &[HttpFilter],
    field: &str,
    prefix: Option<&Text>,
    extensions: &BTreeMap<usize, Filter>,
    backend: ResolveBackend<'_>,
) -> Result<Vec<Filter>, Fault> {
    let has = |kind: &str| filters.iter().any(|filter| filter.kind == kind);
    if has("RequestRedirect") && has("URLRewrite") {
        let message = format!(
            "{field}.filters: RequestRedirect and URLRewrite exclude each other; remove one"
        );
        return Err(Fault::new(Reason::IncompatibleFilters, message));
    }
    let numbered = filters.iter().enumerate();
    let filters = all(numbered.map(|(index, filter)| {
        if let Some(extension) = extensions.get(&index) {
            return Ok(extension.clone());
        }
        one(
            filter,
            &format!("{field}.filters[{index}]"),
            prefix,
            backend,
        )
    }));
    filters.map(cors_first)
}

/// Moves a CORS filter before a filter that can end the list. After a redirect it would have no effect, although
/// browsers follow only redirects that the origin may read. Preflight requests have no credentials, so an authorization
/// server would deny them.
fn cors_first(mut filters: Vec<Filter>) -> Vec<Filter> {
    let position = |is: fn(&Filter) -> bool| filters.iter().position(is);
    let end = position(|filter| {
        matches!(
            filter,
            Filter::Redirect(_) | Filter::ExternalAuth(_) | Filter::Respond(_)
        )
    });
    let cors = position(|filter| matches!(filter, Filter::Cors(_)));
    if let (Some(end), Some(cors)) = (end, cors)
        && end < cors
    {
        filters[end..=cors].rotate_right(1);
    }
    filters
}

fn one(
    filter: &HttpFilter,
    field: &str,
    prefix: Option<&Text>,
    backend: ResolveBackend<'_>,
) -> Result<Filter, Fault> {
    let missing = || {
        unsupported(
            field,
            &format!("type is {} but its block is missing", filter.kind),
        )
    };
    match filter.kind.as_str() {
        "RequestHeaderModifier" => {
            let block = filter
                .request_header_modifier
                .as_ref()
                .ok_or_else(missing)?;
            let field = format!("{field}.requestHeaderModifier");
            headers(block, Message::Request, &field).map(Filter::RequestHeaders)
        }
        "ResponseHeaderModifier" => {
            let block = filter
                .response_header_modifier
                .as_ref()
                .ok_or_else(missing)?;
            let field = format!("{field}.responseHeaderModifier");
            let changes = headers(block, Message::Response, &field);
            changes.map(|changes| Filter::ResponseHeaders(Arc::new(changes)))
        }
        "RequestRedirect" => {
            let block = filter.request_redirect.as_ref().ok_or_else(missing)?;
            redirect(block, &format!("{field}.requestRedirect"), prefix).map(Filter::Redirect)
        }
        "URLRewrite" => {
            let block = filter.url_rewrite.as_ref().ok_or_else(missing)?;
            rewrite(block, &format!("{field}.urlRewrite"), prefix).map(Filter::Rewrite)
        }
        "CORS" => {
            let block = filter.cors.as_ref().ok_or_else(missing)?;
            cors::translate(block, &format!("{field}.cors"))
                .map(|cors| Filter::Cors(Arc::new(cors)))
        }
        "RequestMirror" => {
            let block = filter.request_mirror.as_ref().ok_or_else(missing)?;
            mirror::translate(block, &format!("{field}.requestMirror"), backend)
                .map(|mirror| Filter::Mirror(Arc::new(mirror)))
        }
        "ExternalAuth" => {
            let block = filter.external_auth.as_ref().ok_or_else(missing)?;
            external_auth::translate(block, &format!("{field}.externalAuth"), backend)
                .map(|auth| Filter::ExternalAuth(Arc::new(auth)))
        }
        kind => Err(unsupported(
            field,
            &format!("filter type {kind} is not supported"),
        )),
    }
}

/// The message that a header modifier changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    Request,
    Response,
}

/// Translates the header changes at `field`.
pub(super) fn headers(
    block: &HeaderModifier,
    of: Message,
    field: &str,
) -> Result<HeaderChanges, Fault> {
    let remove = removed(&block.remove, of, &format!("{field}.remove"));
    let set = fields(&block.set, &format!("{field}.set"));
    let add = fields(&block.add, &format!("{field}.add"));
    let (remove, (set, add)) = both(remove, both(set, add))?;
    if let Some(index) = block
        .add
        .iter()
        .position(|it| it.name.eq_ignore_ascii_case("host"))
    {
        return Err(fixed_host(of, &format!("{field}.add[{index}]")));
    }
    if let Some(index) = block
        .set
        .iter()
        .position(|it| it.name.eq_ignore_ascii_case("host"))
    {
        let field = format!("{field}.set[{index}]");
        if of == Message::Response {
            return Err(fixed_host(of, &field));
        }
        let value = set.iter().find(|(name, _)| *name == HOST);
        if !value.is_some_and(|(_, value)| is_authority(value)) {
            let message = "the value of Host is not a host name or address with an optional port";
            return Err(unsupported(&field, message));
        }
    }
    let named = |list: &[(HeaderName, HeaderValue)]| -> Vec<HeaderName> {
        list.iter().map(|(name, _)| name.clone()).collect()
    };
    one_action(
        field,
        [
            ("set", &named(&set)),
            ("add", &named(&add)),
            ("remove", &remove),
        ],
    )?;
    Ok(HeaderChanges { set, add, remove })
}

/// Parses the names of headers to remove. Returns each once.
fn removed(names: &[String], of: Message, field: &str) -> Result<Vec<HeaderName>, Fault> {
    let (mut parsed, mut faults) = (Vec::new(), Faults::default());
    for (index, name) in names.iter().enumerate() {
        let field = format!("{field}[{index}]");
        let name = header_name(name, &field).and_then(|name| match name == HOST {
            true => Err(fixed_host(of, &field)),
            false => Ok(name),
        });
        let name = faults.keep(name);
        parsed.extend(name.filter(|name| !parsed.contains(name)));
    }
    faults.finish(parsed)
}

/// Refuses a header with several actions: which of them should win is undefined (HTTPHeaderFilter).
fn one_action(field: &str, actions: [(&str, &[HeaderName]); 3]) -> Result<(), Fault> {
    for (at, (one, names)) in actions.iter().enumerate() {
        for (other, others) in &actions[at + 1..] {
            if let Some(name) = names.iter().find(|name| others.contains(name)) {
                let message = format!(
                    "header {name} is in {one} and in {other}; a header can have one action"
                );
                return Err(unsupported(field, &message));
            }
        }
    }
    Ok(())
}

fn fixed_host(of: Message, field: &str) -> Fault {
    let message = match of {
        Message::Request => {
            "Host cannot be added or removed, because a request has exactly one; use set"
        }
        Message::Response => "a response has no Host",
    };
    unsupported(field, message)
}

/// Reports whether a value is `uri-host [ ":" port ]` (RFC 9110, 7.2).
fn is_authority(value: &HeaderValue) -> bool {
    let authority = http::uri::Authority::try_from(value.as_bytes());
    authority.is_ok_and(|it| {
        let port = it.as_str().get(it.host().len()..).unwrap_or_default();
        !it.host().is_empty()
            && !it.as_str().contains('@')
            && (port.is_empty() || it.port_u16().is_some_and(|port| port > 0))
    })
}

/// Parses headers to set or add. The first of equal names counts (HTTPHeaderFilter).
fn fields(fields: &[Field], field: &str) -> Result<Vec<(HeaderName, HeaderValue)>, Fault> {
    let mut parsed: Vec<(HeaderName, HeaderValue)> = Vec::new();
    let mut faults = Faults::default();
    for (index, header) in fields.iter().enumerate() {
        let header = faults.keep(self::field(header, &format!("{field}[{index}]")));
        let is_new = |name: &HeaderName| parsed.iter().all(|(known, _)| known != name);
        let header = header.filter(|(name, _)| is_new(name));
        parsed.extend(header);
    }
    faults.finish(parsed)
}

fn field(header: &Field, field: &str) -> Result<(HeaderName, HeaderValue), Fault> {
    let name = header_name(&header.name, field)?;
    let value = HeaderValue::from_str(header.value.trim_matches([' ', '\t']));
    let value = value.map_err(|_| {
        let message =
            format!("the value of header {name} has characters that are not allowed in headers");
        unsupported(field, &message)
    })?;
    Ok((name, value))
}

fn header_name(name: &str, field: &str) -> Result<HeaderName, Fault> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| unsupported(field, &format!("{name:?} is not a header name")))?;
    if HOP_BY_HOP.contains(&parsed) || FRAMING.contains(&parsed) {
        let message = format!("header {parsed} belongs to the connection and cannot be changed");
        return Err(unsupported(field, &message));
    }
    Ok(parsed)
}

fn redirect(
    block: &RequestRedirect,
    field: &str,
    prefix: Option<&Text>,
) -> Result<Redirect, Fault> {
    let scheme = match block.scheme.as_deref() {
        None => Ok(None),
        Some("http") => Ok(Some(Scheme::Http)),
        Some("https") => Ok(Some(Scheme::Https)),
        Some(other) => {
            let message = format!("{other:?} is not supported; use http or https");
            Err(unsupported(&format!("{field}.scheme"), &message))
        }
    };
    let code = block.status_code.unwrap_or(302);
    let status = match code {
        301 | 302 | 303 | 307 | 308 => StatusCode::from_u16(code).ok(),
        _ => None,
    };
    let status = status.ok_or_else(|| {
        let message = format!("{code} is not supported; use 301, 302, 303, 307 or 308");
        unsupported(&format!("{field}.statusCode"), &message)
    });
    let hostname = hostname(block.hostname.as_deref(), field);
    let path = path(block.path.as_ref(), field, prefix);
    let ((scheme, status), (hostname, path)) = both(both(scheme, status), both(hostname, path))?;
    Ok(Redirect {
        scheme,
        hostname: hostname.map(Text::from),
        port: block.port,
        path,
        status,
    })
}

fn rewrite(block: &UrlRewrite, field: &str, prefix: Option<&Text>) -> Result<Rewrite, Fault> {
    let hostname = hostname(block.hostname.as_deref(), field);
    let path = path(block.path.as_ref(), field, prefix);
    let (hostname, path) = both(hostname, path)?;
    Ok(Rewrite {
        hostname: hostname.and_then(|name| HeaderValue::from_str(name).ok()),
        path,
    })
}

/// Parses a hostname without wildcard and port.
fn hostname<'h>(name: Option<&'h str>, field: &str) -> Result<Option<&'h str>, Fault> {
    let Some(name) = name else {
        return Ok(None);
    };
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    if name.is_empty() || !name.bytes().all(fits) {
        let message = format!("{name:?} is not a hostname without wildcard and port");
        return Err(unsupported(&format!("{field}.hostname"), &message));
    }
    Ok(Some(name))
}

fn path(
    change: Option<&PathModifier>,
    field: &str,
    prefix: Option<&Text>,
) -> Result<Option<PathChange>, Fault> {
    let Some(change) = change else {
        return Ok(None);
    };
    let field = format!("{field}.path");
    let missing = || {
        unsupported(
            &field,
            &format!("type is {} but its member is missing", change.kind),
        )
    };
    match change.kind.as_str() {
        "ReplaceFullPath" => {
            let text = change.replace_full_path.as_deref().ok_or_else(missing)?;
            let whole = rooted(text, &field)?;
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
                unsupported(&field, message)
            })?;
            Ok(Some(PathChange::Prefix {
                prefix: prefix.clone(),
                replacement: rooted(text, &field)?,
            }))
        }
        kind => Err(unsupported(
            &field,
            &format!("type {kind} is not supported"),
        )),
    }
}

/// Parses a path that is valid in a request line: begins with `/` unless empty, has no query, and only characters that
/// RFC 3986 allows.
fn rooted(text: &str, field: &str) -> Result<Text, Fault> {
    let fits = |byte: u8| {
        byte.is_ascii_graphic()
            && !matches!(
                byte,
                b'?' | b'#' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
            )
    };
    if !text.bytes().all(fits) {
        let message = format!(
            "{text:?} has characters that a path cannot have; percent-encode them (the query of the request is kept)"
        );
        return Err(unsupported(field, &message));
    }
    let path: Text = match text.is_empty() || text.starts_with('/') {
        true => text.into(),
        false => format!("/{text}").into(),
    };
    match path_normalization::rewritten(path.to_string(), None) {
        Err(why) => Err(unsupported(field, &format!("{text:?}: {why}"))),
        Ok(_) => Ok(path),
    }
}
