//! Paths of Ingresses as matches, with the meaning that they have in nginx.

use std::collections::BTreeSet;

use regex::Regex;
use serde_json::{Value, json};

use super::model::{PathKind, PathRule};
use crate::ir::Pattern;
use crate::ir::canonical_path::named;

/// Maximum length of the value of a match, of a pattern and of a replacement.
const MAX_VALUE: usize = 1024;

/// How the paths of a host are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HostMode {
    /// As prefixes of whole segments, and exact paths.
    Plain,
    /// As nginx does: `ImplementationSpecific` paths are prefixes of the text. For hosts where a path that does not match
    /// could evade a restriction.
    Strict,
    /// As regular expressions that match a prefix and ignore case: what `use-regex` and `rewrite-target` do to a host.
    Regex,
}

/// A path that cannot be a match.
pub(super) struct Unusable {
    /// A match for all requests that the path could be for.
    pub(super) closed: Value,
    pub(super) reason: String,
}

/// Returns the match of a path.
///
/// # Errors
/// When the path is no regular expression of RE2, or has characters that paths do not have.
pub(super) fn matching(rule: &PathRule, mode: HostMode) -> Result<Value, Unusable> {
    let path = rule.path.as_str();
    if path == "/" && (mode == HostMode::Regex || rule.kind != PathKind::Exact) {
        return Ok(of("PathPrefix", path));
    }
    // nginx compares paths without escapes.
    let canonical = named(&path.replace('%', "%25"));
    let matched = match mode {
        HostMode::Regex => pattern(path),
        _ if !is_normalized(path) => {
            let reason = format!("`{path}` is no normalized path");
            Err(unusable(path, reason))
        }
        HostMode::Strict if rule.kind != PathKind::Exact => {
            let escaped = regex::escape(&canonical);
            // The longest pattern is tried first. Of equal paths, that of type Prefix is more than any other in nginx.
            let suffix = match rule.kind {
                PathKind::Prefix if !path.ends_with('/') => "(/.*)?",
                PathKind::Prefix => "(?:.*)",
                PathKind::Exact | PathKind::ImplementationSpecific => "(.*)?",
            };
            Ok(of("RegularExpression", &format!("{escaped}{suffix}")))
        }
        HostMode::Plain | HostMode::Strict => {
            let kind = match rule.kind {
                PathKind::Exact => "Exact",
                PathKind::Prefix | PathKind::ImplementationSpecific => "PathPrefix",
            };
            Ok(of(kind, &canonical))
        }
    }?;
    match matched["value"]
        .as_str()
        .is_some_and(|it| it.len() <= MAX_VALUE)
    {
        true => Ok(matched),
        false => Err(unusable(
            path,
            format!("`{path}` has more than {MAX_VALUE} characters"),
        )),
    }
}

/// Returns a match for paths that spell a character in another way than the paths of a host: percent-encoded slashes, and
/// other reserved characters that its paths have. nginx decodes these before it compares; canonical paths keep them. The
/// match is tried before all other patterns.
pub(super) fn escaped<'a>(paths: impl Iterator<Item = &'a str>, mode: HostMode) -> Value {
    let (mut longest, mut escapes) = (0, BTreeSet::from([b'/']));
    for path in paths {
        longest = longest.max(path.len());
        escapes.extend(reserved(path, mode));
    }
    let escapes = escapes.into_iter().map(|byte| format!("{byte:02X}"));
    let escapes: Vec<String> = escapes.collect();
    let mut pattern = format!(".*%(?:{}).*", escapes.join("|"));
    // A byte that is escaped has three characters, and suffixes have less than 16.
    while pattern.len() < (3 * longest + 16).min(MAX_VALUE - 4) {
        pattern.push_str("(?:)");
    }
    of("RegularExpression", &pattern)
}

/// Returns the reserved characters of a path (RFC 3986, 2.2) that stand for themselves.
fn reserved(path: &str, mode: HostMode) -> impl Iterator<Item = u8> {
    let before = std::iter::once(b'/').chain(path.bytes());
    let pairs = before.zip(path.bytes());
    let own = pairs.filter(move |pair| match (mode, pair) {
        (HostMode::Regex, (before, b'$' | b'(' | b')' | b'*' | b'+')) => *before == b'\\',
        // `(?:` begins a group.
        (HostMode::Regex, (b'?', _)) => false,
        (_, (_, byte)) => b"!$&'()*+,;=:@".contains(byte),
    });
    own.map(|(_, byte)| byte)
}

fn of(kind: &str, value: &str) -> Value {
    json!({"type": kind, "value": value})
}

fn pattern(path: &str) -> Result<Value, Unusable> {
    let path = path.strip_prefix('^').unwrap_or(path);
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = format!("`{path}` has characters that paths of requests escape");
        return Err(unusable(path, reason));
    }
    let source = format!("(?i){}.*", grouped(path));
    match Pattern::new(&source) {
        Ok(_) => Ok(of("RegularExpression", &source)),
        Err(error) => {
            let reason = format!("`{path}` is no regular expression of RE2: {error}");
            Err(unusable(path, reason))
        }
    }
}

fn unusable(path: &str, reason: String) -> Unusable {
    let literal: String = path
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || "/-_".contains(*c))
        .collect();
    // The last character may be optional, as in `/files?`.
    let literal = match literal.len() < path.len() {
        true => literal.get(..literal.len().saturating_sub(1)),
        false => Some(literal.as_str()),
    };
    let literal = literal.filter(|it| !it.is_empty()).unwrap_or("/");
    // Empty groups make it as long as the path, so that it takes the place of the path in the order.
    let length = path.len().saturating_sub(literal.len());
    let padding = "(?:)".repeat(length / 4);
    Unusable {
        closed: of("RegularExpression", &format!("(?i){literal}{padding}.*")),
        reason,
    }
}

/// Groups alternatives of a pattern, to which something is appended.
fn grouped(path: &str) -> String {
    let (mut depth, mut escaped, mut in_class) = (0_i32, false, false);
    for character in path.chars() {
        if escaped {
            escaped = false;
            continue;
        }
        match character {
            '\\' => escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth -= 1,
            '|' if !in_class && depth == 0 => return format!("(?:{path})"),
            _ => {}
        }
    }
    path.to_owned()
}

/// Reports whether a text is a path that matches of the Gateway API may have.
pub(super) fn is_path(path: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-/._~!$&'()*+,;=:@".contains(&byte);
    path.starts_with('/') && path.bytes().all(fits) && is_normalized(path)
}

/// Reports whether a path has neither dot segments nor empty ones.
fn is_normalized(path: &str) -> bool {
    !["//", "/./", "/../"].iter().any(|it| path.contains(it))
        && !path.ends_with("/..")
        && !path.ends_with("/.")
}

/// A rewrite of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rewrite {
    pub(super) pattern: String,
    pub(super) replacement: String,
}

/// Returns the rewrite of nginx, which replaces the whole path.
///
/// # Errors
/// When the target is no path, or the path no regular expression of RE2.
pub(super) fn rewrite(path: &str, target: &str) -> Result<Rewrite, String> {
    let path = path.strip_prefix('^').unwrap_or(path);
    let pattern = format!("(?i)^{}.*$", grouped(path));
    let compiled = Regex::new(&pattern).map_err(|_| {
        format!("`{path}` is no regular expression of RE2, so that the path cannot be rewritten")
    })?;
    let groups = compiled.captures_len() - 1;
    let mut replacement = String::new();
    let mut rest = target.chars().peekable();
    while let Some(character) = rest.next() {
        if character != '$' {
            replacement.push(character);
            continue;
        }
        match rest.next() {
            Some(digit @ '1'..='9') => {
                // A group that the path does not have is empty in nginx.
                if digit.to_digit(10).is_some_and(|it| it as usize <= groups) {
                    replacement.push('$');
                    replacement.push(digit);
                }
            }
            _ => return Err(format!("`{target}` has a variable of nginx")),
        }
    }
    if !replacement.starts_with(['/', '$']) {
        replacement.insert(0, '/');
    }
    if target.contains("://") || replacement.contains(['?', '#', ' ']) {
        return Err(format!("`{target}` is more than a path"));
    }
    if pattern.len() > MAX_VALUE || replacement.len() > MAX_VALUE {
        return Err(format!(
            "path and target have more than {MAX_VALUE} characters"
        ));
    }
    Ok(Rewrite {
        pattern,
        replacement,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(path: &str, kind: PathKind) -> PathRule {
        let backend = super::super::model::Backend::Resource(String::new());
        PathRule {
            path: path.to_owned(),
            kind,
            backend,
        }
    }

    #[test]
    fn paths_match_as_in_nginx() {
        let (exact, prefix) = (PathKind::Exact, PathKind::Prefix);
        let specific = PathKind::ImplementationSpecific;
        for (path, kind, mode, expected) in [
            ("/a", prefix, HostMode::Plain, "PathPrefix /a"),
            ("/a", exact, HostMode::Plain, "Exact /a"),
            ("/a", specific, HostMode::Plain, "PathPrefix /a"),
            ("/", exact, HostMode::Plain, "Exact /"),
            (
                "/a.b",
                prefix,
                HostMode::Strict,
                r"RegularExpression /a\.b(/.*)?",
            ),
            (
                "/a/",
                prefix,
                HostMode::Strict,
                "RegularExpression /a/(?:.*)",
            ),
            (
                "/a",
                specific,
                HostMode::Strict,
                "RegularExpression /a(.*)?",
            ),
            ("/a", exact, HostMode::Strict, "Exact /a"),
            (
                "/é b",
                prefix,
                HostMode::Strict,
                "RegularExpression /%C3%A9%20b(/.*)?",
            ),
            ("/é b", prefix, HostMode::Plain, "PathPrefix /%C3%A9%20b"),
            ("/é", exact, HostMode::Strict, "Exact /%C3%A9"),
            ("/%20", exact, HostMode::Plain, "Exact /%2520"),
            ("/a", exact, HostMode::Regex, "RegularExpression (?i)/a.*"),
            (
                "/a(/|$)(.*)",
                specific,
                HostMode::Regex,
                "RegularExpression (?i)/a(/|$)(.*).*",
            ),
            (
                "/a|/b",
                specific,
                HostMode::Regex,
                "RegularExpression (?i)(?:/a|/b).*",
            ),
            ("/", specific, HostMode::Regex, "PathPrefix /"),
        ] {
            let found = matching(&rule(path, kind), mode).ok();
            let found = found.unwrap();
            let (kind, value) = (&found["type"], &found["value"]);
            let found = format!("{} {}", kind.as_str().unwrap(), value.as_str().unwrap());
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn other_spellings_of_characters_are_recognized() {
        let long = format!("/{}", "é".repeat(50));
        for (path, mode, expected) in [
            ("/a.b/-_~", HostMode::Strict, "/"),
            ("/@a:b/c+d", HostMode::Strict, "+/:@"),
            ("/a(/|$)(.*)", HostMode::Strict, "$()*/"),
            ("/a(?:/|$)(.*)", HostMode::Regex, "/"),
            ("/@a/c\\+d", HostMode::Regex, "+/@"),
        ] {
            let found = escaped([path, long.as_str()].into_iter(), mode);
            let pattern = found["value"].as_str().unwrap();
            let suffix = regex::escape(&named(&long)).len() + 6;
            assert!(pattern.len() > suffix, "{path}");
            let pattern = Pattern::new(pattern).unwrap();
            for byte in 0..=127_u8 {
                let request = format!("/x%{byte:02X}y");
                let is_refused = expected.as_bytes().contains(&byte);
                assert_eq!(pattern.matches(&request), is_refused, "{path} {request}");
            }
        }
    }

    #[test]
    fn prefix_of_segments_is_longer_than_that_of_text() {
        let length = |path: &str, kind: PathKind| {
            let found = matching(&rule(path, kind), HostMode::Strict).ok();
            found.unwrap()["value"].as_str().unwrap().len()
        };
        let (prefix, specific) = (PathKind::Prefix, PathKind::ImplementationSpecific);
        assert!(length("/a", prefix) > length("/a", specific));
        assert!(length("/a/", prefix) > length("/a", prefix));
        assert!(length("/a/b", specific) > length("/a", prefix));
    }

    #[test]
    fn pattern_that_re2_lacks_closes_all_that_it_could_match() {
        let specific = PathKind::ImplementationSpecific;
        for (path, matched) in [
            ("/((?!admin).*)", "/x"),
            ("/files?(?=/)", "/FILE/"),
            ("/caf\u{e9}/(.*)", "/caf%C3%A9/x"),
        ] {
            let Err(unusable) = matching(&rule(path, specific), HostMode::Regex) else {
                panic!("{path} is usable");
            };
            let closed = Pattern::new(unusable.closed["value"].as_str().unwrap()).unwrap();
            assert!(closed.matches(matched), "{}", closed.source());
        }
    }

    #[test]
    fn rewrite_replaces_the_whole_path() {
        let result = |path: &str, target: &str, request: &str| {
            let Rewrite {
                pattern,
                replacement,
            } = rewrite(path, target).unwrap();
            let regex = Regex::new(&pattern).unwrap();
            regex.replace(request, replacement.as_str()).into_owned()
        };
        assert_eq!(result("/api(/|$)(.*)", "/$2", "/API/users"), "/users");
        assert_eq!(result("/api(/|$)(.*)", "/$2", "/api"), "/");
        assert_eq!(result("/app", "/", "/app/a/b"), "/");
        assert_eq!(result("/a/(.*)", "/$2", "/a/b"), "/");
        for target in ["https://a.com/$1", "/a?b=$1", "/$host", "/$"] {
            assert!(rewrite("/(.*)", target).is_err(), "{target}");
        }
    }
}
