//! Normalizes the path for both matching and forwarding: merges duplicate slashes and rejects paths
//! that two implementations could read differently, unless a policy says otherwise.

use std::borrow::Cow;

use crate::ir::client::{DotSegments, EscapedSlashes, PathSettings};

/// Why a path is rejected.
pub type BadPath = &'static str;

/// Normalizes a path that begins with `/`, in one pass. Allocates only if slashes are merged.
///
/// # Errors
/// Paths with literal or encoded dot segments, NUL, overlong or invalid percent-encoding.
#[inline]
pub fn normalize(path: &str) -> Result<Cow<'_, str>, BadPath> {
    match is_ordinary(path) {
        true => Ok(Cow::Borrowed(path)),
        false => normalize_slow(path),
    }
}

/// Reports whether a path has neither escapes nor duplicate slashes, dot segments, or parameters.
#[inline]
fn is_ordinary(path: &str) -> bool {
    let mut previous = 0;
    for byte in path.bytes() {
        match byte {
            b'%' | b'\\' | b';' => return false,
            b'/' | b'.' if previous == b'/' => return false,
            _ => previous = byte,
        }
    }
    true
}

fn normalize_slow(path: &str) -> Result<Cow<'_, str>, BadPath> {
    if has_dot_segment(path)? {
        return Err(DOT_SEGMENT);
    }
    Ok(match path.contains("//") {
        true => Cow::Owned(merged(path)),
        false => Cow::Borrowed(path),
    })
}

const DOT_SEGMENT: BadPath = "the path has a dot segment";

/// A path as the policy of a listener wants it.
#[derive(Debug, PartialEq, Eq)]
pub struct Normalized<'a> {
    /// The path.
    pub path: Cow<'a, str>,
    /// Whether escaped slashes were decoded, so that the client has to ask for this path.
    pub is_decoded: bool,
    /// Whether a backend may take it for another path. [`readings`] returns which.
    pub is_ambiguous: bool,
}

/// Normalizes a path that begins with `/` as a policy says.
///
/// # Errors
/// Paths with NUL, overlong or invalid percent-encoding, and those that the policy rejects. A dot segment that cannot be
/// resolved, since a backend may or may not take it for one, is rejected unless it is kept.
pub fn normalize_with<'a>(
    path: &'a str,
    settings: &PathSettings,
) -> Result<Normalized<'a>, BadPath> {
    let PathSettings {
        escaped_slashes,
        merges_slashes,
        dot_segments,
        policy: _,
    } = settings;
    let mut normalized = Normalized {
        path: Cow::Borrowed(path),
        is_decoded: false,
        is_ambiguous: false,
    };
    if is_ordinary(path) {
        return Ok(normalized);
    }
    decode(path.as_bytes())?;
    let path = &mut normalized.path;
    if *escaped_slashes != EscapedSlashes::Keep && has_escaped_slash(path) {
        if *escaped_slashes == EscapedSlashes::Reject {
            return Err("the path has an escaped slash");
        }
        normalized.is_decoded = true;
        *path = Cow::Owned(without_escaped_slashes(path));
    }
    if *merges_slashes && path.contains("//") {
        *path = Cow::Owned(merged(path));
    }
    let mut has_dots = has_dot_segment(path)?;
    if has_dots && *dot_segments == DotSegments::Normalize {
        *path = Cow::Owned(resolved(path));
        has_dots = has_dot_segment(path)?;
    }
    if has_dots && *dot_segments != DotSegments::Keep {
        return Err(DOT_SEGMENT);
    }
    normalized.is_ambiguous = has_dots || path.contains("//");
    Ok(normalized)
}

/// Returns the other paths that a backend may read in an ambiguous one. It may or may not decode slashes, merge them, and
/// remove parameters of segments, before it resolves dot segments.
pub fn readings(path: &str) -> Vec<String> {
    let mut readings = Vec::new();
    for choices in 0..8_u8 {
        let chosen = |bit: u8| choices & bit != 0;
        let mut reading = path.to_owned();
        if chosen(1) {
            reading = without_escaped_slashes(&reading).replace('\\', "/");
        }
        if chosen(2) {
            reading = without_parameters(&reading);
        }
        if chosen(4) {
            reading = merged(&reading);
        }
        reading = resolved(&reading);
        if reading != path && !readings.contains(&reading) {
            readings.push(reading);
        }
    }
    readings
}

/// Reports whether a segment is `.` or `..` for some implementation: in any encoding, behind any slash, and with
/// parameters.
fn has_dot_segment(path: &str) -> Result<bool, BadPath> {
    let decoded = decode(path.as_bytes())?;
    let mut elements = decoded.split(|byte| matches!(byte, b'/' | b'\\'));
    Ok(elements.any(|element| {
        let mut parts = element.split(|byte| *byte == b';');
        matches!(parts.next(), Some(b"." | b".."))
    }))
}

fn merged(path: &str) -> String {
    let mut merged = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !merged.ends_with('/') {
            merged.push(character);
        }
    }
    merged
}

/// Whether bytes begin with `%2f` or `%5c`, a slash or backslash.
fn is_escaped_slash(bytes: &[u8]) -> bool {
    let escape = bytes.get(..3).unwrap_or_default();
    escape.eq_ignore_ascii_case(b"%2f") || escape.eq_ignore_ascii_case(b"%5c")
}

fn has_escaped_slash(path: &str) -> bool {
    path.as_bytes().windows(3).any(is_escaped_slash)
}

/// Decodes `%2f` and `%5c` once, to slashes both: browsers read a backslash as one.
fn without_escaped_slashes(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        let (before, escape) = rest.split_at(at);
        decoded.push_str(before);
        let is_slash = is_escaped_slash(escape.as_bytes());
        decoded.push(if is_slash { '/' } else { '%' });
        rest = &escape[if is_slash { 3 } else { 1 }..];
    }
    decoded.push_str(rest);
    decoded
}

/// Removes the parameters of all segments.
fn without_parameters(path: &str) -> String {
    let segments = path.split('/');
    let segments = segments.map(|segment| segment.split(';').next().unwrap_or_default());
    segments.collect::<Vec<_>>().join("/")
}

/// Resolves dot segments between slashes (RFC 3986, 5.2.4), of which dots may be escaped.
fn resolved(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    // Whether the last segment was a dot segment, which leaves a slash at the end.
    let mut ends_open = false;
    for segment in path.split('/').skip(1) {
        ends_open = true;
        match dots(segment) {
            Some(1) => {}
            Some(_) => drop(kept.pop()),
            None => {
                kept.push(segment);
                ends_open = false;
            }
        }
    }
    let mut resolved = String::with_capacity(path.len());
    for segment in &kept {
        resolved.push('/');
        resolved.push_str(segment);
    }
    if ends_open || resolved.is_empty() {
        resolved.push('/');
    }
    resolved
}

/// Returns the number of dots of a dot segment.
fn dots(segment: &str) -> Option<usize> {
    let mut rest = segment;
    let mut dots = 0;
    while !rest.is_empty() {
        let escape = rest.get(..3).unwrap_or_default();
        rest = match rest.strip_prefix('.') {
            Some(rest) => rest,
            None if escape.eq_ignore_ascii_case("%2e") => &rest[3..],
            None => return None,
        };
        dots += 1;
    }
    (1..=2).contains(&dots).then_some(dots)
}

/// Decodes percent-encoding once and rejects malicious encodings.
fn decode(path: &[u8]) -> Result<Vec<u8>, BadPath> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut bytes = path.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            decoded.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err("the path has a bad percent-encoding");
        };
        match (high * 16 + low) as u8 {
            0 => return Err("the path has a NUL"),
            0xc0 | 0xc1 => return Err("the path has an overlong encoding"),
            byte => decoded.push(byte),
        }
    }
    Ok(decoded)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keeps_ordinary_paths() {
        for path in [
            "/",
            "/a/b.html",
            "/a.b/..c/...",
            "/a%2Fb",
            "/a;v=1/b",
            "/caf%c3%a9",
            "/a\\b",
            "/%252e%252e/x",
        ] {
            assert!(
                matches!(normalize(path), Ok(Cow::Borrowed(same)) if same == path),
                "{path}"
            );
        }
    }

    fn settings(
        escaped_slashes: EscapedSlashes,
        merges_slashes: bool,
        dot_segments: DotSegments,
    ) -> PathSettings {
        PathSettings {
            escaped_slashes,
            merges_slashes,
            dot_segments,
            policy: crate::ir::ObjectRef::core("Policy", "ns", "name"),
        }
    }

    /// The path and whether it is ambiguous.
    fn with(settings: &PathSettings, path: &str) -> Result<(String, bool), BadPath> {
        let normalized = normalize_with(path, settings)?;
        Ok((normalized.path.into_owned(), normalized.is_ambiguous))
    }

    fn all_settings() -> impl Iterator<Item = PathSettings> {
        EscapedSlashes::ALL.into_iter().flat_map(|escaped| {
            let each = move |dots| [true, false].map(|merges| settings(escaped, merges, dots));
            DotSegments::ALL.into_iter().flat_map(each)
        })
    }

    proptest! {
        #[test]
        fn normalized_paths_are_as_the_policy_says(
            parts in proptest::collection::vec(
                proptest::sample::select(&["/", ".", "..", "%2f", "%2E", "%5C", "\\", ";", "a", "%252f"]),
                0..10,
            )
        ) {
            let path = format!("/{}", parts.concat());
            for settings in all_settings() {
                let Ok(normalized) = normalize_with(&path, &settings) else {
                    continue;
                };
                let Normalized { path, is_ambiguous, .. } = normalized;
                prop_assert!(path.starts_with('/'));
                let has_dots = has_dot_segment(&path).unwrap();
                prop_assert!(!has_dots || settings.dot_segments == DotSegments::Keep);
                prop_assert!(!settings.merges_slashes || !path.contains("//"));
                let keeps = settings.escaped_slashes == EscapedSlashes::Keep;
                prop_assert!(keeps || !has_escaped_slash(&path));
                prop_assert_eq!(is_ambiguous, has_dots || path.contains("//"));
                // The client of a redirect gets what it asks for.
                let again = normalize_with(&path, &settings).unwrap();
                prop_assert_eq!(&again.path, &path);
                prop_assert!(!again.is_decoded);
            }
        }
    }

    #[test]
    fn policy_of_the_defaults_is_the_default() {
        let usual = settings(EscapedSlashes::Keep, true, DotSegments::Reject);
        for path in [
            "/",
            "/a",
            "/a%2Fb",
            "/a;b",
            "//a",
            "/a/../b",
            "/a%2f..",
            "/%zz",
            "/%00",
            "/a\\..",
            "/.a",
            "/a/..;b/c",
            "/a//",
            "/%252e%252e",
        ] {
            let expected = normalize(path).map(|path| (path.into_owned(), false));
            assert_eq!(with(&usual, path), expected, "{path}");
        }
    }

    #[test]
    fn resolves_dot_segments() {
        let normalizing = settings(EscapedSlashes::Keep, true, DotSegments::Normalize);
        for (path, expected) in [
            ("/a/b", "/a/b"),
            ("/x/../admin", "/admin"),
            ("/x//../admin", "/admin"),
            ("/../../admin", "/admin"),
            ("/a/./b/.", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/..", "/"),
            ("/x/%2e%2E/admin", "/admin"),
            ("/x/.%2e/./admin/", "/admin/"),
            ("/a/...", "/a/..."),
            ("/a%2fb/../c", "/c"),
            ("/a;v=1/../c", "/c"),
        ] {
            assert_eq!(
                with(&normalizing, path),
                Ok((expected.to_owned(), false)),
                "{path}"
            );
        }
        // What some read as a dot segment and others do not.
        for path in [
            "/admin%2f..",
            "/x/..%2fadmin",
            "/x\\..\\admin",
            "/x/..;a/admin",
            "/x%5c..%5cadmin",
        ] {
            assert_eq!(with(&normalizing, path), Err(DOT_SEGMENT), "{path}");
        }
        assert!(with(&normalizing, "/a/../%00").is_err());
    }

    #[test]
    fn decodes_or_rejects_escaped_slashes() {
        let rejecting = settings(EscapedSlashes::Reject, true, DotSegments::Reject);
        let decoding = settings(EscapedSlashes::Decode, true, DotSegments::Normalize);
        for (path, decoded) in [
            ("/a%2fb%2Fc", "/a/b/c"),
            ("/a%5cb", "/a/b"),
            ("/x%2f..%2fadmin", "/admin"),
            ("/%2f%2fhost", "/host"),
        ] {
            assert!(with(&rejecting, path).is_err(), "{path}");
            let normalized = normalize_with(path, &decoding).unwrap();
            assert!(normalized.is_decoded, "{path}");
            assert_eq!(normalized.path, decoded, "{path}");
        }
        for path in ["/a%252fb", "/a%20b", "/%41"] {
            assert_eq!(with(&rejecting, path), Ok((path.to_owned(), false)));
            assert!(!normalize_with(path, &decoding).unwrap().is_decoded);
        }
    }

    #[test]
    fn kept_paths_may_be_read_in_several_ways() {
        let keeping = settings(EscapedSlashes::Keep, false, DotSegments::Keep);
        for (path, others) in [
            ("//admin", &["/admin"][..]),
            ("/x/../admin", &["/admin"]),
            ("/x//../admin", &["/x/admin", "/admin"]),
            ("/a%2fb/../admin", &["/admin", "/a/admin"]),
            ("/x%2f..%2fadmin", &["/admin"]),
            ("/x/..;p/admin", &["/admin"]),
            ("/admin%2f..", &["/"]),
            ("/x\\..\\admin", &["/admin"]),
        ] {
            assert_eq!(with(&keeping, path), Ok((path.to_owned(), true)), "{path}");
            assert_eq!(readings(path), others, "{path}");
        }
        for path in ["/a", "/a%2fb", "/a;b", "/%61dmin"] {
            assert_eq!(with(&keeping, path), Ok((path.to_owned(), false)), "{path}");
        }
    }

    #[test]
    fn merges_duplicate_slashes() {
        assert_eq!(normalize("//admin").unwrap(), "/admin");
        assert_eq!(normalize("/a///b//").unwrap(), "/a/b/");
    }

    #[test]
    fn rejects_disguised_dot_segments() {
        for path in [
            "/a/../admin",
            "/a/..",
            "/./admin",
            "/.",
            "/a/%2e%2e/admin",
            "/a/.%2E",
            "/a/..;/admin",
            "/a/..;x=1/admin",
            "/a%2f..%2fadmin",
            "/a%5c..",
            "/a\\..\\admin",
            "/a/..%2fadmin",
            "/%00",
            "/%zz",
            "/%c0%ae",
            "/a%",
            "/a%2",
        ] {
            assert!(normalize(path).is_err(), "{path}");
        }
    }
}
