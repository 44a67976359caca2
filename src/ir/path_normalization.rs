//! Normalizes paths: what decides by them, what is forwarded, and which are refused, since two implementations could read them
//! differently. A policy may say otherwise.

use std::borrow::Cow;

use super::canonical_path::{is_path_byte, merged, spelled};
use super::client::{DotSegments, DuplicateSlashes, EscapedSlashes, PathSettings};

/// Why a path is rejected.
pub type BadPath = &'static str;

/// Returns the canonical form of a path that begins with `/`, without a policy. Allocates only if the path differs from it.
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

/// What a byte means to [`is_ordinary`]: never ordinary, or not after a slash. The bits of [`AFTER`] are those of the bytes
/// that follow it.
const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b'/' => SLASHED | SLASHED << AFTER,
            b'.' => SLASHED,
            other if is_path_byte(other) => 0,
            _ => NEVER,
        };
        byte += 1;
    }
    classes
};
const NEVER: u8 = 1;
const SLASHED: u8 = 2;
const AFTER: u8 = 4;

/// Reports whether a path is in canonical form and has neither escapes nor duplicate slashes, dot segments, or backslashes.
#[inline]
fn is_ordinary(path: &str) -> bool {
    let mut refused = NEVER;
    for byte in path.bytes() {
        let class = CLASSES[usize::from(byte)];
        if class & refused != 0 {
            return false;
        }
        refused = NEVER | class >> AFTER;
    }
    true
}

fn normalize_slow(path: &str) -> Result<Cow<'_, str>, BadPath> {
    if has_dot_segment(path)? {
        return Err(DOT_SEGMENT);
    }
    Ok(match path.contains("//") {
        true => Cow::Owned(spelled(&merged(path)).into_owned()),
        false => spelled(path),
    })
}

const DOT_SEGMENT: BadPath = "the path has a dot segment";

/// A path as the policy of a listener wants it.
#[derive(Debug, PartialEq, Eq)]
pub struct Normalized<'a> {
    /// The path to forward.
    pub path: Cow<'a, str>,
    /// The path that decides, in canonical form; `None` if it is the same.
    pub canonical: Option<String>,
    /// Whether escaped slashes were decoded, so that the client has to ask for this path.
    pub is_decoded: bool,
    /// Whether a backend may take it for another path. [`readings`] returns which.
    pub is_ambiguous: bool,
}

impl Normalized<'_> {
    /// Returns the path that decides.
    pub fn canonical(&self) -> &str {
        self.canonical.as_deref().unwrap_or(&self.path)
    }
}

/// Normalizes a path that begins with `/` as a policy says, or as without one.
///
/// # Errors
/// Paths with NUL, overlong or invalid percent-encoding, and those that the policy rejects. A dot segment that cannot be
/// resolved, since a backend may or may not take it for one, is rejected unless it is kept.
#[inline]
pub fn normalize_with<'a>(
    path: &'a str,
    settings: Option<&PathSettings>,
) -> Result<Normalized<'a>, BadPath> {
    let normalized = Normalized {
        path: Cow::Borrowed(path),
        canonical: None,
        is_decoded: false,
        is_ambiguous: false,
    };
    match is_ordinary(path) {
        true => Ok(normalized),
        false => normalize_slow_with(normalized, settings),
    }
}

/// What a listener does without a policy.
const DEFAULTS: (EscapedSlashes, DuplicateSlashes, DotSegments) = (
    EscapedSlashes::Keep,
    DuplicateSlashes::Forward,
    DotSegments::Reject,
);

fn normalize_slow_with<'a>(
    mut normalized: Normalized<'a>,
    settings: Option<&PathSettings>,
) -> Result<Normalized<'a>, BadPath> {
    let (escaped, duplicates, dots) = settings.map_or(DEFAULTS, |settings| {
        let PathSettings {
            escaped_slashes,
            duplicate_slashes,
            dot_segments,
            policy: _,
        } = settings;
        (*escaped_slashes, *duplicate_slashes, *dot_segments)
    });
    let path = &mut normalized.path;
    decode(path.as_bytes())?;
    if escaped != EscapedSlashes::Keep && has_escaped_slash(path) {
        if escaped == EscapedSlashes::Reject {
            return Err("the path has an escaped slash");
        }
        normalized.is_decoded = true;
        *path = Cow::Owned(without_escaped_slashes(path));
    }
    let mut decided = Cow::Borrowed(&**path);
    if duplicates != DuplicateSlashes::Keep && path.contains("//") {
        decided = Cow::Owned(merged(path));
    }
    let has_dots = has_dot_segment(&decided)?;
    if has_dots && dots == DotSegments::Normalize {
        decided = Cow::Owned(resolved(&decided));
    }
    let keeps_dots = has_dots && has_dot_segment(&decided)?;
    if keeps_dots && dots != DotSegments::Keep {
        return Err(DOT_SEGMENT);
    }
    normalized.is_ambiguous = keeps_dots || decided.contains("//");
    let canonical = spelled(&decided);
    let is_changed = normalized.is_decoded
        || duplicates == DuplicateSlashes::Merge
        || has_dots && dots == DotSegments::Normalize;
    if is_changed {
        let canonical = (canonical != decided).then(|| canonical.into_owned());
        let decided = decided.into_owned();
        normalized.canonical = canonical;
        normalized.path = Cow::Owned(decided);
    } else {
        normalized.canonical = (canonical != *path).then(|| canonical.into_owned());
    }
    Ok(normalized)
}

/// Normalizes a path that a filter has made, and that begins with `/`, into canonical form.
///
/// # Errors
/// Paths that would be rejected from a client, and all with dot segments: what the filter does not name could be reached
/// through them.
pub fn rewritten(path: String, settings: Option<&PathSettings>) -> Result<String, BadPath> {
    if is_ordinary(&path) {
        return Ok(path);
    }
    let has_dots = has_dot_segment(&path);
    if has_dots.map_err(|_| "the rewritten path has a bad percent-encoding")? {
        return Err("the rewritten path has a dot segment");
    }
    let keeps = |settings: &PathSettings| settings.escaped_slashes == EscapedSlashes::Keep;
    if !settings.is_none_or(keeps) && has_escaped_slash(&path) {
        return Err("the rewritten path has an escaped slash");
    }
    let keeps = |settings: &PathSettings| settings.duplicate_slashes == DuplicateSlashes::Keep;
    let path = match settings.is_some_and(keeps) {
        // Several slashes at the beginning would make the path one of another host.
        true => format!("/{}", path.trim_start_matches('/')),
        false => merged(&path),
    };
    Ok(spelled(&path).into_owned())
}

/// Returns the other paths that a backend may read in an ambiguous one. It may or may not take the beginning for a host, decode
/// slashes, merge them, and remove parameters of segments, before it resolves dot segments.
pub fn readings(path: &str) -> Vec<String> {
    let mut readings = Vec::new();
    let behind = behind_host(path);
    for start in std::iter::once(path).chain(behind.as_deref()) {
        for choices in 0..8_u8 {
            let reading = reading(start, choices);
            if reading != path && !readings.contains(&reading) {
                readings.push(reading);
            }
        }
    }
    readings
}

/// Returns what a backend reads in a path that has made these choices, one bit for each.
fn reading(path: &str, choices: u8) -> String {
    let chosen = |bit: u8| choices & bit != 0;
    let mut reading = path.to_owned();
    if chosen(1) {
        reading = without_escaped_slashes(&reading);
    }
    if chosen(2) {
        reading = without_parameters(&reading);
    }
    if chosen(4) {
        reading = merged(&reading);
    }
    resolved(&reading)
}

/// Returns the path that a backend reads in a path with several slashes at its beginning, if it resolves that against a URL: what
/// follows them is a host then (RFC 3986, 4.2). `None` for other paths. Backslashes are slashes for browsers and for servers in
/// JavaScript.
#[inline]
pub fn behind_host(path: &str) -> Option<String> {
    match path.as_bytes() {
        [b'/', b'/' | b'\\', ..] => Some(behind_slashes(path)),
        _ => None,
    }
}

fn behind_slashes(path: &str) -> String {
    let path = path.replace('\\', "/");
    let host = path.trim_start_matches('/');
    host.find('/').map_or("/", |end| &host[end..]).to_owned()
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

/// Whether bytes begin with `%2f` or `%5c`, a slash or backslash.
fn is_escaped_slash(bytes: &[u8]) -> bool {
    let escape = bytes.get(..3).unwrap_or_default();
    escape.eq_ignore_ascii_case(b"%2f") || escape.eq_ignore_ascii_case(b"%5c")
}

fn has_escaped_slash(path: &str) -> bool {
    // A backslash is `%5C` in canonical form.
    path.contains('\\') || path.as_bytes().windows(3).any(is_escaped_slash)
}

/// Decodes `%2f` and `%5c` once, to slashes both: browsers read a backslash as one. So it becomes one, too.
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
    decoded.replace('\\', "/")
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
mod tests;
