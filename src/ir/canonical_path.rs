//! The one form of a path by which everything decides: matches, policies, limits and `explain`. What is forwarded is the path
//! that a client sent, unless a filter rewrites it. Must not know which paths are refused.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Deref;

/// A path in canonical form (RFC 3986, 6.2.2): unreserved characters are not escaped, hexadecimal digits are in upper case,
/// and what a path cannot have is escaped. Escaped reserved characters, such as `%2F`, differ from the characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CanonicalPath<'a>(&'a str);

impl CanonicalPath<'static> {
    /// The path `/`.
    pub const ROOT: Self = Self("/");
}

impl<'a> CanonicalPath<'a> {
    /// Returns a path that is in canonical form already.
    pub fn new(path: &'a str) -> Option<Self> {
        matches!(spelled(path), Cow::Borrowed(_)).then_some(Self(path))
    }

    /// Returns a path that was brought into canonical form.
    #[inline]
    pub(super) fn of_canonical(path: &'a str) -> Self {
        Self(path)
    }

    /// Returns the text.
    #[inline]
    pub fn as_str(self) -> &'a str {
        self.0
    }
}

impl Deref for CanonicalPath<'_> {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.0
    }
}

/// Returns the canonical form of a path that a route or a policy names.
pub fn named(path: &str) -> String {
    spelled(&merged(path)).into_owned()
}

/// Makes one slash of several in a row.
pub(super) fn merged(path: &str) -> String {
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    merged
}

/// Reports whether a byte never needs an escape (RFC 3986, 2.3).
const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Reports whether a byte may be in a path without an escape (RFC 3986, 3.3).
pub const fn is_path_byte(byte: u8) -> bool {
    let is_delimiter = matches!(
        byte,
        b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@'
    );
    is_unreserved(byte) || is_delimiter || byte == b'/'
}

/// Spells a path canonically. A `%` that begins no escape is one itself; requests with one are refused.
pub(super) fn spelled(path: &str) -> Cow<'_, str> {
    let bytes = path.as_bytes();
    let mut spelled = String::new();
    // What is before it was copied.
    let mut copied = 0;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let (length, value) = match escape(&bytes[at..]) {
            Some(value) => (3, value),
            None => (1, byte),
        };
        let is_kept = match length {
            1 => is_path_byte(byte),
            _ => !is_unreserved(value) && is_upper(&bytes[at..at + length]),
        };
        if !is_kept {
            // A character beyond ASCII is escaped as a whole: within it, there is nothing to copy.
            spelled.push_str(path.get(copied..at).unwrap_or_default());
            match is_unreserved(value) {
                true => spelled.push(char::from(value)),
                // Writing to a string cannot fail.
                false => drop(write!(spelled, "%{value:02X}")),
            }
            copied = at + length;
        }
        at += length;
    }
    match copied {
        0 => Cow::Borrowed(path),
        _ => {
            spelled.push_str(path.get(copied..).unwrap_or_default());
            Cow::Owned(spelled)
        }
    }
}

/// Returns the byte of an escape at the beginning.
fn escape(bytes: &[u8]) -> Option<u8> {
    let [b'%', high, low, ..] = *bytes else {
        return None;
    };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

fn is_upper(escape: &[u8]) -> bool {
    !escape.iter().any(u8::is_ascii_lowercase)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equivalent_paths_have_one_spelling() {
        for (path, expected) in [
            ("/", "/"),
            ("*", "*"),
            ("/%61dmin", "/admin"),
            ("/%41%5a%61%7A%30%39%2d%2E%5f%7e", "/AZaz09-._~"),
            ("/a%2fb%5c%3b", "/a%2Fb%5C%3B"),
            ("/a;b=c,d/e@f:g", "/a;b=c,d/e@f:g"),
            ("/%40%3A%21", "/%40%3A%21"),
            ("/caf\u{e9}/%c3%a9", "/caf%C3%A9/%C3%A9"),
            ("/\u{e9}%61\u{65e5}x", "/%C3%A9a%E6%97%A5x"),
            ("/a\\b{c}|\"", "/a%5Cb%7Bc%7D%7C%22"),
            // Nothing is decoded twice.
            ("/%2561", "/%2561"),
            ("/%25%36%31", "/%2561"),
            // Requests with these are refused.
            ("/%", "/%25"),
            ("/%4%31", "/%2541"),
            ("/%zz%61", "/%25zza"),
        ] {
            assert_eq!(spelled(path), expected, "{path}");
            let is_same = CanonicalPath::new(path).is_some();
            assert_eq!(is_same, path == expected, "{path}");
        }
    }

    #[test]
    fn values_of_objects_are_compared_in_canonical_form() {
        assert_eq!(named("/%61dmin//x"), "/admin/x");
        assert_eq!(named("/a%2fb"), "/a%2Fb");
    }

    /// Spells a byte in one of the ways that are equivalent.
    fn disguised(byte: u8, choice: u8) -> String {
        let escapes = [format!("%{byte:02x}"), format!("%{byte:02X}")];
        match choice % 3 {
            0 if is_path_byte(byte) => char::from(byte).to_string(),
            1 if is_unreserved(byte) || !is_path_byte(byte) => escapes[0].clone(),
            _ if is_unreserved(byte) || !is_path_byte(byte) => escapes[1].clone(),
            _ => char::from(byte).to_string(),
        }
    }

    proptest! {
        #[test]
        fn every_equivalent_spelling_is_the_same_path(
            bytes in proptest::collection::vec((1_u8.., any::<u8>(), any::<u8>()), 0..24)
        ) {
            let spelling = |choices: fn(&(u8, u8, u8)) -> u8| -> String {
                bytes.iter().map(|it| disguised(it.0, choices(it))).collect()
            };
            let (one, two) = (spelling(|it| it.1), spelling(|it| it.2));
            let canonical = spelled(&one);
            prop_assert_eq!(&canonical, &spelled(&two));
            prop_assert!(CanonicalPath::new(&canonical).is_some());
        }

        #[test]
        fn canonical_form_is_canonical(path in "/[%0-9a-fA-F/.;\u{e9}\\\\ ]{0,20}") {
            let once = spelled(&path);
            prop_assert_eq!(spelled(&once), once.clone());
        }
    }
}
