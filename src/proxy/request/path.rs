//! The path of a request, for matching and forwarding alike: normalized as its listener says, once that is known.

use std::borrow::Cow;

use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Uri, Version, request};

use super::target::{self, Normalized};
use crate::ir::client::PathSettings;
use crate::proxy::error::Error;
use crate::table::{Listener, RequestView};

/// What follows for a request from its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PathState {
    /// Whether its client has to ask for the normalized path.
    pub(super) is_decoded: bool,
    /// Whether a backend may take the path for another one.
    pub(super) is_ambiguous: bool,
}

/// Normalizes the path of a request. Without settings, dot segments are refused and duplicate slashes are merged.
pub(super) fn normalize(
    parts: &mut request::Parts,
    settings: Option<&PathSettings>,
) -> Result<PathState, Error> {
    let path = parts.uri.path();
    if path == "*" && parts.method == Method::OPTIONS {
        return Ok(PathState::default());
    }
    // RFC 9113, 8.3.1: only HTTP/1's absolute form may omit the path before a query.
    let misses_path = |target: &PathAndQuery| {
        parts.version == Version::HTTP_2 && target.as_str().starts_with('?')
    };
    if !path.starts_with('/') || parts.uri.path_and_query().is_none_or(misses_path) {
        return Err(Error::BadRequest("the request target is not a path"));
    }
    let (path, state) = match settings {
        None => {
            let path = target::normalize(path).map_err(Error::BadRequest)?;
            (path, PathState::default())
        }
        Some(settings) => {
            let Normalized {
                path,
                is_decoded,
                is_ambiguous,
            } = target::normalize_with(path, settings).map_err(Error::BadRequest)?;
            let state = PathState {
                is_decoded,
                is_ambiguous,
            };
            (path, state)
        }
    };
    let changed = match (path, parts.uri.query()) {
        (Cow::Borrowed(_), _) if parts.uri.authority().is_none() => return Ok(state),
        (path, Some(query)) => Uri::builder().path_and_query(format!("{path}?{query}")),
        (path, None) => Uri::builder().path_and_query(&*path),
    };
    parts.uri = changed
        .build()
        .map_err(|_| Error::BadRequest("malformed request target"))?;
    Ok(state)
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
    let readings = target::readings(view.path);
    let policies = listener.policies(rule);
    if !readings.is_empty() && policies.is_some_and(|policies| policies.ir.need_paths()) {
        return Err(Error::BadRequest(
            "a policy decides by the path, which has several readings",
        ));
    }
    let is_same = |path: &String| {
        let view = RequestView { path, ..*view };
        let found = listener.find(&view);
        found.is_some_and(|found| std::ptr::eq(&**found, &**rule))
    };
    match readings.iter().all(is_same) {
        true => Ok(()),
        false => Err(Error::BadRequest(
            "the path has readings that match different rules",
        )),
    }
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
