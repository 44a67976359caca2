//! URLRewrite: changes host and path of the forwarded request.

use http::header::HOST;
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Uri};

use super::facts::FilterError;
use super::path;
use crate::ir::filter::Rewrite;
use crate::ir::path_rewrite::PathRewrite;
use crate::ir::request_path::RequestPath;

/// Applies the rewrite.
pub(super) fn apply(
    rewrite: &Rewrite,
    parts: &mut Parts,
    path: &mut RequestPath,
) -> Result<(), FilterError> {
    let Rewrite {
        hostname,
        path: change,
    } = rewrite;
    if let Some(host) = hostname {
        set_host(host, parts)?;
    }
    if let Some(change) = change {
        let changed = path::change(change, &parts.uri, path)?;
        replace_path(changed, parts)?;
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

/// Applies a change by a regular expression. What it makes must be a path.
pub(super) fn apply_to_path(
    change: &PathRewrite,
    parts: &mut Parts,
    path: &mut RequestPath,
) -> Result<(), FilterError> {
    let changed = change.changed(&path.canonical(parts.uri.path()));
    let changed = changed.filter(|path| path::is_valid(path));
    let changed = path::take(changed.ok_or(FilterError::Path)?, &parts.uri, path)?;
    replace_path(changed, parts)
}

fn replace_path(path: Option<String>, parts: &mut Parts) -> Result<(), FilterError> {
    let Some(path) = path else {
        return Ok(());
    };
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
    use crate::ir::Pattern;
    use crate::ir::filter::PathChange;
    use crate::ir::path_normalization;

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
        apply(
            &rewrite(None, Some(change)),
            &mut parts,
            &mut RequestPath::default(),
        )
        .unwrap();
        assert_eq!(parts.uri, "/xyz/bar?x=/foo&y=%20");
        assert_eq!(parts.headers[HOST], "a.com:8080");

        apply(
            &rewrite(None, Some(PathChange::Full("/one".into()))),
            &mut parts,
            &mut RequestPath::default(),
        )
        .unwrap();
        assert_eq!(parts.uri, "/one?x=/foo&y=%20");
    }

    #[test]
    fn rewrites_the_host_with_its_port() {
        let mut origin = parts("/a");
        apply(
            &rewrite(Some("b.org"), None),
            &mut origin,
            &mut RequestPath::default(),
        )
        .unwrap();
        assert_eq!(
            (&*origin.uri.to_string(), &origin.headers[HOST]),
            ("/a", &HeaderValue::from_static("b.org"))
        );

        let mut absolute = parts("http://a.com:8080/a?b");
        apply(
            &rewrite(Some("b.org"), None),
            &mut absolute,
            &mut RequestPath::default(),
        )
        .unwrap();
        assert_eq!(absolute.uri, "http://b.org/a?b");
    }

    #[test]
    fn rewrites_a_request_without_path() {
        let mut parts = parts("*");
        let change = PathChange::Full("/all".into());
        apply(
            &rewrite(None, Some(change)),
            &mut parts,
            &mut RequestPath::default(),
        )
        .unwrap();
        assert_eq!(parts.uri, "/all");
    }

    fn path(text: &str) -> RequestPath {
        RequestPath::new(Some(text.to_owned()), None)
    }

    #[test]
    fn rewrites_the_canonical_path() {
        let change = PathChange::Prefix {
            prefix: "/admin".into(),
            replacement: "/x".into(),
        };
        let rewrite = rewrite(None, Some(change));
        let mut request = parts("/%61dmin//%62?c=%61");
        let mut known = path("/admin/b");
        apply(&rewrite, &mut request, &mut known).unwrap();
        assert_eq!(request.uri, "/x/b?c=%61");
        assert_eq!(known.canonical(request.uri.path()).as_str(), "/x/b");

        // What does not match is forwarded as the client sent it.
        let mut other = parts("/%62//c");
        apply(&rewrite, &mut other, &mut path("/b/c")).unwrap();
        assert_eq!(other.uri, "/%62//c");
    }

    #[test]
    fn refuses_what_a_client_would_be_refused_for() {
        let strip = PathRewrite::new(Pattern::new("^/api(.*)$").unwrap(), "/$1").unwrap();
        for (uri, expected) in [
            ("/api/x", Some("/x")),
            ("/apix//y", Some("/x/y")),
            ("/api%2fx", Some("/%2Fx")),
            ("/api../admin", None),
            ("/api./admin", None),
            ("/api..;/admin", None),
            ("/api%2e%2e/admin", None),
            ("/api..%2Fadmin", None),
            ("/api..\\admin", None),
        ] {
            let mut request = parts(uri);
            let canonical = path_normalization::normalize(uri).unwrap();
            let changed = apply_to_path(&strip, &mut request, &mut path(&canonical));
            match expected {
                Some(expected) => assert_eq!(request.uri, *expected, "{changed:?}"),
                None => {
                    let dots = FilterError::RefusedPath("the rewritten path has a dot segment");
                    assert_eq!(changed, Err(dots), "{uri}");
                }
            }
        }
    }
}
