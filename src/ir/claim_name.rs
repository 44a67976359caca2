//! Names of claims, each the path of one claim: a name that has dots itself is never that of a claim in an object. Must not know
//! tokens.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// The path of a claim: the names of the objects that it is in, and its own one, with dots between them. A dot that belongs to a
/// name follows a backslash, as does a backslash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimName(Arc<str>);

impl ClaimName {
    /// Reads the name that a policy has. One with a colon, which makes it a URI (RFC 7519, 2), is the name of one claim, unless
    /// it has backslashes.
    pub fn parse(text: &str) -> Self {
        if text.contains(':') && !text.contains('\\') {
            return Self(within(None, text).into());
        }
        let mut path = String::with_capacity(text.len());
        let mut rest = text.chars().peekable();
        while let Some(char) = rest.next() {
            path.push(char);
            if char == '\\' {
                // A backslash before another character is one of the name.
                let escaped = rest.next_if(|next| matches!(next, '.' | '\\'));
                path.push(escaped.unwrap_or('\\'));
            }
        }
        Self(path.into())
    }

    /// Returns the path.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the path of a claim with this name in an object with this path; `None` is the token itself.
pub fn within(object: Option<&str>, name: &str) -> String {
    let mut path = object.map_or_else(String::new, |object| format!("{object}."));
    for char in name.chars() {
        if matches!(char, '.' | '\\') {
            path.push('\\');
        }
        path.push(char);
    }
    path
}

impl From<&str> for ClaimName {
    fn from(text: &str) -> Self {
        Self::parse(text)
    }
}

impl fmt::Display for ClaimName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for ClaimName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_separate_names_unless_they_belong_to_one() {
        for (text, path) in [
            ("sub", &["sub"][..]),
            ("realm_access.roles", &["realm_access", "roles"]),
            (r"realm_access\.roles", &["realm_access.roles"]),
            (r"kubernetes\.io.namespace", &["kubernetes.io", "namespace"]),
            ("https://example.com/team", &["https://example.com/team"]),
            (
                r"https://example\.com/app.team",
                &["https://example.com/app", "team"],
            ),
            (r"a\b", &[r"a\b"]),
            (r"a\\.b", &[r"a\", "b"]),
            (r"a\", &[r"a\"]),
            (".x", &["", "x"]),
        ] {
            let path = path.iter();
            let expected = path.fold(None, |path: Option<String>, name| {
                Some(within(path.as_deref(), name))
            });
            let expected = expected.unwrap_or_default();
            assert_eq!(ClaimName::parse(text).as_str(), expected, "{text}");
        }
    }
}
