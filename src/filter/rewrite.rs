//! URLRewrite: changes host and path of the forwarded request.

use http::header::HOST;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Uri};

use super::facts::FilterError;
use super::path;
use crate::ir::filter::{PathChange, Rewrite};
use crate::ir::path_rewrite::PathRewrite;

/// Applies the rewrite.
pub(super) fn apply(rewrite: &Rewrite, parts: &mut Parts) -> Result<(), FilterError> {
    let Rewrite {
        hostname,
        path: change,
    } = rewrite;
    if let Some(host) = hostname {
        set_host(host, parts)?;
    }
    if let Some(change) = change {
        set_path(change, parts)?;
    }
    Ok(())
}

fn set_host(host: &HeaderValue, parts: &mut Parts) -> Result<(), FilterError> {
    parts
        .headers
        .try_insert(HOST, host.clone())
        .map_err(|_| FilterError::TooManyHeaders)?;
    if parts.uri.authority().is_none() {
        return Ok(());
    }
    let authority = Authority::try_from(host.as_bytes()).map_err(|_| FilterError::Host)?;
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    uri.authority = Some(authority);
    parts.uri = Uri::from_parts(uri).map_err(|_| FilterError::Host)?;
    Ok(())
}

fn set_path(change: &PathChange, parts: &mut Parts) -> Result<(), FilterError> {
    let path = path::changed(Some(change), parts.uri.path()).into_owned();
    replace_path(path, parts)
}

/// Applies a change by a regular expression. What it makes must be a path.
pub(super) fn apply_to_path(change: &PathRewrite, parts: &mut Parts) -> Result<(), FilterError> {
    let changed = change.changed(parts.uri.path());
    let path = changed.filter(|path| path::is_valid(path));
    replace_path(path.ok_or(FilterError::Path)?, parts)
}

fn replace_path(path: String, parts: &mut Parts) -> Result<(), FilterError> {
    let target = match parts.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let target = PathAndQuery::try_from(target).map_err(|_| FilterError::Path)?;
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    uri.path_and_query = Some(target);
    parts.uri = Uri::from_parts(uri).map_err(|_| FilterError::Path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(uri: &str) -> Parts {
        let request = http::Request::get(uri).header(HOST, "a.com:8080");
        request.body(()).unwrap().into_parts().0
    }

    fn rewrite(hostname: Option<&'static str>, path: Option<PathChange>) -> Rewrite {
        Rewrite {
            hostname: hostname.map(HeaderValue::from_static),
            path,
        }
    }

    #[test]
    fn rewrites_the_path_and_keeps_the_query() {
        let mut parts = parts("/foo/bar?x=/foo&y=%20");
        let change = PathChange::Prefix {
            prefix: "/foo".into(),
            replacement: "/xyz".into(),
        };
        apply(&rewrite(None, Some(change)), &mut parts).unwrap();
        assert_eq!(parts.uri, "/xyz/bar?x=/foo&y=%20");
        assert_eq!(parts.headers[HOST], "a.com:8080");

        apply(
            &rewrite(None, Some(PathChange::Full("/one".into()))),
            &mut parts,
        )
        .unwrap();
        assert_eq!(parts.uri, "/one?x=/foo&y=%20");
    }

    #[test]
    fn rewrites_the_host_with_its_port() {
        let mut origin = parts("/a");
        apply(&rewrite(Some("b.org"), None), &mut origin).unwrap();
        assert_eq!(
            (&*origin.uri.to_string(), &origin.headers[HOST]),
            ("/a", &HeaderValue::from_static("b.org"))
        );

        let mut absolute = parts("http://a.com:8080/a?b");
        apply(&rewrite(Some("b.org"), None), &mut absolute).unwrap();
        assert_eq!(absolute.uri, "http://b.org/a?b");
    }

    #[test]
    fn rewrites_a_request_without_path() {
        let mut parts = parts("*");
        let change = PathChange::Full("/all".into());
        apply(&rewrite(None, Some(change)), &mut parts).unwrap();
        assert_eq!(parts.uri, "/all");
    }
}
