//! Matches of HTTPRoute rules, parsed and normalized. All kinds of routes share the conditions on headers.

use http::{HeaderName, Method};

use crate::api::http_route::{HttpMatch, NameValueMatch, PathMatch as ApiPath};
use crate::ir::canonical_path;
use crate::ir::route::{Conditions, HeaderMatch, Match, PathMatch, QueryMatch, ValueMatch};

use super::patterns::RoutePatterns;
use crate::translate::reason::{Fault, Faults, all, both, unsupported};

const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// Translates the matches of a rule. Without matches, every path matches.
pub(in crate::translate) fn translate(
    matches: &[HttpMatch],
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<Vec<Match>, Fault> {
    if matches.is_empty() {
        return Ok(vec![PathMatch::Prefix("".into()).into()]);
    }
    let numbered = matches.iter().enumerate();
    all(numbered
        .map(|(index, condition)| one(condition, &format!("{field}.matches[{index}]"), patterns)))
}

/// Translates one match.
pub(in crate::translate) fn one(
    condition: &HttpMatch,
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<Match, Fault> {
    let path = path(condition.path.as_ref(), &format!("{field}.path"), patterns);
    let method = method(condition.method.as_deref(), field);
    let headers = headers(&condition.headers, field, patterns);
    let query = query(&condition.query_params, field, patterns);
    let ((path, method), (headers, query)) = both(both(path, method), both(headers, query))?;
    let others = Conditions {
        grpc: None,
        method,
        headers,
        query,
    };
    Ok(Match {
        path,
        others: others.into(),
    })
}

fn path(
    path: Option<&ApiPath>,
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<PathMatch, Fault> {
    let kind = path
        .and_then(|path| path.kind.as_deref())
        .unwrap_or("PathPrefix");
    let value = path.and_then(|path| path.value.as_deref()).unwrap_or("/");
    let rooted = value.starts_with('/');
    let named = canonical_path::named(value);
    match kind {
        "Exact" if rooted => Ok(PathMatch::Exact(named.into())),
        "PathPrefix" if rooted => {
            let prefix = named.trim_end_matches('/');
            Ok(PathMatch::Prefix(prefix.into()))
        }
        "Exact" | "PathPrefix" => Err(unsupported(
            field,
            &format!("{value:?} does not begin with /"),
        )),
        "RegularExpression" => patterns.parse(value, field).map(PathMatch::Regex),
        _ => Err(unsupported(field, &format!("type {kind} is not supported"))),
    }
}

fn method(name: Option<&str>, field: &str) -> Result<Option<Method>, Fault> {
    let Some(name) = name else {
        return Ok(None);
    };
    let known = METHODS
        .contains(&name)
        .then(|| Method::from_bytes(name.as_bytes()).ok());
    match known.flatten() {
        Some(method) => Ok(Some(method)),
        None => {
            let message = format!(
                "{name:?} is not supported; methods are {}",
                METHODS.join(", ")
            );
            Err(unsupported(&format!("{field}.method"), &message))
        }
    }
}

fn value(
    condition: &NameValueMatch,
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<ValueMatch, Fault> {
    match condition.kind.as_deref().unwrap_or("Exact") {
        "Exact" => Ok(ValueMatch::Exact(condition.value.as_str().into())),
        "RegularExpression" => patterns
            .parse(&condition.value, field)
            .map(ValueMatch::Regex),
        kind => Err(unsupported(field, &format!("type {kind} is not supported"))),
    }
}

/// Parses conditions on headers. The first of equal names counts, regardless of case (HTTPHeaderMatch).
pub(in crate::translate) fn headers(
    conditions: &[NameValueMatch],
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<Vec<HeaderMatch>, Fault> {
    let (mut headers, mut faults) = (Vec::<HeaderMatch>::new(), Faults::default());
    for (index, condition) in conditions.iter().enumerate() {
        let field = format!("{field}.headers[{index}]");
        let name = HeaderName::from_bytes(condition.name.as_bytes()).map_err(|_| {
            unsupported(
                &field,
                &format!("{:?} is not a header name", condition.name),
            )
        });
        if let Some(name) = faults.keep(name)
            && headers.iter().all(|known| known.name != name)
            && let Some(value) = faults.keep(value(condition, &field, patterns))
        {
            headers.push(HeaderMatch { name, value });
        }
    }
    faults.finish(headers)
}

/// Parses conditions on query parameters. The first of equal names counts (HTTPQueryParamMatch).
fn query(
    conditions: &[NameValueMatch],
    field: &str,
    patterns: &mut RoutePatterns,
) -> Result<Vec<QueryMatch>, Fault> {
    let (mut query, mut faults) = (Vec::<QueryMatch>::new(), Faults::default());
    for (index, condition) in conditions.iter().enumerate() {
        let field = format!("{field}.queryParams[{index}]");
        if query.iter().all(|known| *known.name != *condition.name)
            && let Some(value) = faults.keep(value(condition, &field, patterns))
        {
            query.push(QueryMatch {
                name: condition.name.clone(),
                value,
            });
        }
    }
    faults.finish(query)
}
