//! The path of a request, as it decides and as it is forwarded: normalized as its listener says, once that is known.

use std::borrow::Cow;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Uri, request};

use super::framing::is_multiplexed;
use crate::ir::client::PathSettings;
use crate::ir::path_normalization::{self, Normalized};
use crate::ir::request_path::RequestPath;
use crate::proxy::error::Error;
use crate::table::{Listener, RequestView, Rule};

/// What follows for a request from its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PathState {
    /// Whether its client has to ask for the normalized path.
    pub(super) is_decoded: bool,
    /// Whether a backend may take the path for another one.
    pub(super) is_ambiguous: bool,
}

/// Normalizes the path of a request as its listener says, and makes its target one in origin form.
pub(super) fn normalize(
    parts: &mut request::Parts,
    settings: Option<&Arc<PathSettings>>,
) -> Result<(RequestPath, PathState), Error> {
    let path = parts.uri.path();
    let scheme = parts.uri.scheme_str();
    let is_http =
        |scheme: &str| scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    if !scheme.is_none_or(is_http) {
        return Err(Error::BadRequest(
            "the scheme of the request target is not http or https",
        ));
    }
    if path == "*" && parts.method == Method::OPTIONS {
        return Ok(Default::default());
    }
    // RFC 9113, 8.3.1, and RFC 9114, 4.3.1: only HTTP/1's absolute form may omit the path before a query.
    let misses_path =
        |target: &PathAndQuery| is_multiplexed(parts.version) && target.as_str().starts_with('?');
    if !path.starts_with('/') || parts.uri.path_and_query().is_none_or(misses_path) {
        return Err(Error::BadRequest("the request target is not a path"));
    }
    let normalized = path_normalization::normalize_with(path, settings.map(|it| &**it));
    let Normalized {
        path,
        canonical,
        is_decoded,
        is_ambiguous,
    } = normalized.map_err(Error::BadRequest)?;
    let state = PathState {
        is_decoded,
        is_ambiguous,
    };
    let target = match path {
        Cow::Borrowed(_) if parts.uri.authority().is_none() => None,
        Cow::Borrowed(path) => Some(origin_form(&parts.uri, path)),
        Cow::Owned(path) => Some(with_query(path, parts.uri.query())),
    };
    if let Some(target) = target {
        let target = target.ok_or(Error::BadRequest("malformed request target"))?;
        parts.uri = target.into();
    }
    Ok((RequestPath::new(canonical, settings), state))
}

/// Returns path and query, as they are.
fn origin_form(uri: &Uri, path: &str) -> Option<PathAndQuery> {
    let target = uri.path_and_query()?;
    match target.as_str().starts_with('/') {
        true => Some(target.clone()),
        // RFC 9112, 3.2.1: an absolute target without a path has the path `/`.
        false => with_query(path.to_owned(), uri.query()),
    }
}

fn with_query(path: String, query: Option<&str>) -> Option<PathAndQuery> {
    let target = match query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    PathAndQuery::try_from(target).ok()
}

/// Returns a `Location` for the path and query of a request, on the same host. A path that begins with two slashes would
/// name another host (RFC 3986, 4.2), also with a backslash for one.
pub(super) fn location(uri: &Uri) -> Option<HeaderValue> {
    let target = uri.path_and_query()?.as_str();
    let names_host = matches!(target.as_bytes(), [_, b'/' | b'\\', ..]);
    match names_host {
        true => HeaderValue::try_from(format!("/.{target}")).ok(),
        false => HeaderValue::try_from(target).ok(),
    }
}

/// Refuses a request whose path a backend may take for another one, if that would make a difference to the listener.
pub(super) fn check_readings(listener: &Listener, view: &RequestView<'_>) -> Result<(), Error> {
    let Some(rule) = listener.find(view) else {
        return Ok(());
    };
    let readings = path_normalization::readings(&view.path);
    let policies = listener.policies(rule);
    if !readings.is_empty() && policies.is_some_and(|policies| policies.ir.need_paths()) {
        return Err(Error::BadRequest(
            "a policy decides by the path, which has several readings",
        ));
    }
    let is_same = |reading: &String| {
        let known = RequestPath::new(Some(reading.clone()), None);
        let path = known.canonical(reading);
        let found = listener.find(&RequestView { path, ..*view });
        found.is_some_and(|found| std::ptr::eq(&**found, &**rule))
    };
    match readings.iter().all(is_same) {
        true => Ok(()),
        false => Err(Error::BadRequest(
            "the path has readings that match different rules",
        )),
    }
}

/// Reports whether a backend that takes the beginning of the forwarded path for a host would serve the path `behind` it past a
/// decision: that is protected in another way than the rule, or no rule leads to it.
#[cold]
pub(super) fn opens(
    listener: &Listener,
    rule: &Rule,
    (view, behind): (&RequestView<'_>, &str),
) -> bool {
    let policies = listener.policies(rule);
    let by_path = policies.is_some_and(|it| it.ir.need_paths() || it.ir.ask_server());
    if by_path || rule.ir.asks_server() {
        return true;
    }
    let Ok(canonical) = path_normalization::normalize(behind) else {
        return true;
    };
    let known = RequestPath::new(Some(canonical.into_owned()), None);
    let path = known.canonical(behind);
    let found = listener.find(&RequestView { path, ..*view });
    found.is_none_or(|other| {
        let others = listener.policies(other);
        others.map(|it| &it.ir) != policies.map(|it| &it.ir) || other.ir.asks_server()
    })
}

/// Makes the path that decides the one to forward.
pub(super) fn forward_canonical(
    parts: &mut request::Parts,
    path: &RequestPath,
) -> Result<(), Error> {
    let canonical = path.canonical(parts.uri.path()).to_string();
    let target = with_query(canonical, parts.uri.query());
    let target = target.ok_or(Error::BadRequest("malformed request target"))?;
    parts.uri = target.into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_stays_on_the_host() {
        for (uri, expected) in [
            ("/a/b?c=%2f", "/a/b?c=%2f"),
            ("//host/a", "/.//host/a"),
            ("/\\host/a", "/./\\host/a"),
            ("/", "/"),
        ] {
            let uri: Uri = uri.parse().unwrap();
            assert_eq!(location(&uri).unwrap(), expected, "{uri}");
        }
    }
}
