//! The new path of a redirect or a rewrite (Gateway API, HTTPPathModifier).

use std::borrow::Cow;
use std::fmt::Write;

use http::Uri;

use super::facts::FilterError;
use crate::ir::canonical_path;
use crate::ir::filter::PathChange;
use crate::ir::request_path::RequestPath;

/// Returns the path after the change, if that is another one. Like a path of a client, it is normalized or refused.
pub(super) fn change(
    change: &PathChange,
    uri: &Uri,
    path: &mut RequestPath,
) -> Result<Option<String>, FilterError> {
    let canonical = path.canonical(uri.path()).as_str();
    let changed = changed(Some(change), canonical).into_owned();
    take(changed, uri, path)
}

/// Takes what a filter has made of the canonical form of a path. A filter that changes nothing keeps the path of the client.
pub(super) fn take(
    changed: String,
    uri: &Uri,
    path: &mut RequestPath,
) -> Result<Option<String>, FilterError> {
    if changed == path.canonical(uri.path()).as_str() {
        return Ok(None);
    }
    let rewritten = path.rewrite(changed);
    rewritten.map(Some).map_err(FilterError::RefusedPath)
}

/// Returns the path after the change, which always begins with `/`. Percent-encodes the parts of `change` that need it.
pub(super) fn changed<'a>(change: Option<&'a PathChange>, path: &'a str) -> Cow<'a, str> {
    let changed = match change {
        None => Cow::Borrowed(path),
        Some(PathChange::Full(path)) => encoded(path),
        Some(PathChange::Prefix {
            prefix,
            replacement,
        }) => match path.strip_prefix(&**prefix) {
            // The path ends here: the replacement stays as it is written, with or without `/` at its end.
            Some("") => encoded(replacement),
            Some(rest) => {
                Cow::Owned(encoded(replacement.trim_end_matches('/')).into_owned() + rest)
            }
            None => Cow::Borrowed(path),
        },
    };
    if changed.starts_with('/') {
        changed
    } else if matches!(&*changed, "" | "*") {
        Cow::Borrowed("/")
    } else {
        Cow::Owned(format!("/{changed}"))
    }
}

/// Reports whether a text is a path from the root (RFC 3986, 3.3), in which `%` begins an encoded byte.
pub(super) fn is_valid(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(is_path_byte)
}

/// Percent-encodes bytes that are not valid in a path (RFC 3986, 3.3). Takes `%` as the start of an encoded byte.
fn encoded(path: &str) -> Cow<'_, str> {
    if path.bytes().all(is_path_byte) {
        return Cow::Borrowed(path);
    }
    let mut out = String::with_capacity(path.len() + 8);
    for byte in path.bytes() {
        if is_path_byte(byte) {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    Cow::Owned(out)
}

fn is_path_byte(byte: u8) -> bool {
    byte == b'%' || canonical_path::is_path_byte(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_prefix(path: &str, prefix: &str, replacement: &str) -> String {
        // The IR holds prefixes without `/` at the end.
        let change = PathChange::Prefix {
            prefix: prefix.trim_end_matches('/').into(),
            replacement: replacement.into(),
        };
        changed(Some(&change), path).into_owned()
    }

    #[test]
    fn replaces_prefixes_as_in_the_table_of_the_api() {
        let rows = [
            ("/foo/bar", "/foo", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo", "/xyz/", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz", "/xyz/bar"),
            ("/foo/bar", "/foo/", "/xyz/", "/xyz/bar"),
            ("/foo", "/foo", "/xyz", "/xyz"),
            ("/foo/", "/foo", "/xyz", "/xyz/"),
            ("/foo/bar", "/foo", "", "/bar"),
            ("/foo/bar", "/foo", "/", "/bar"),
            ("/foo/", "/foo", "", "/"),
            ("/foo", "/foo", "", "/"),
            ("/foo/", "/foo", "/", "/"),
            ("/foo", "/foo", "/", "/"),
        ];
        for (path, prefix, replacement, result) in rows {
            assert_eq!(
                with_prefix(path, prefix, replacement),
                result,
                "{path}: {prefix} to {replacement}"
            );
        }
    }

    #[test]
    fn replaces_the_root_prefix() {
        assert_eq!(with_prefix("/a", "/", "/xyz"), "/xyz/a");
        assert_eq!(with_prefix("/", "/", "/xyz"), "/xyz/");
        assert_eq!(with_prefix("/a", "/", "/"), "/a");
        assert_eq!(with_prefix("/foo", "/foo", "/xyz/"), "/xyz/");
    }

    #[test]
    fn encodes_bytes_that_are_not_valid_in_a_path() {
        assert_eq!(with_prefix("/a/b", "/a", "x y?#"), "/x%20y%3F%23/b");
        let full = PathChange::Full("/é%20".into());
        assert_eq!(changed(Some(&full), "/a"), "/%C3%A9%20");
    }

    #[test]
    fn keeps_the_path_without_a_matching_change() {
        assert_eq!(changed(None, "/a%2Fb//c"), "/a%2Fb//c");
        assert_eq!(changed(None, ""), "/");
        assert_eq!(changed(None, "*"), "/");
        assert_eq!(with_prefix("/other", "/foo", "/xyz"), "/other");
    }
}
