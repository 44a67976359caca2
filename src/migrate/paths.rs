//! Paths of Ingresses as matches, with the meaning that they have in nginx.

use regex::Regex;
use regex_syntax::ast::Ast;
use regex_syntax::ast::parse::Parser;
use serde_json::{Value, json};

use super::model::PathKind;
use crate::ir::Pattern;
use crate::ir::canonical_path::named;

/// Maximum length of the value of a match, of a pattern and of a replacement.
pub(super) const MAX_VALUE: usize = 1024;
/// Maximum length of the text in a match for what a path could be for.
const MAX_LITERAL: usize = 900;
/// A group that makes a pattern longer, and matches nothing.
const PADDING: &str = "(?:)";

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
pub(super) fn matching(path: &str, kind: PathKind, mode: HostMode) -> Result<Value, Unusable> {
    if path == "/" && (mode == HostMode::Regex || kind != PathKind::Exact) {
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
        HostMode::Strict if kind != PathKind::Exact => {
            let escaped = regex::escape(&canonical);
            // The longest pattern is tried first. Of equal paths, that of type Prefix is more than any other in nginx.
            let suffix = match kind {
                PathKind::Prefix if !path.ends_with('/') => "(/.*)?",
                PathKind::Prefix => "(?:.*)",
                PathKind::Exact | PathKind::ImplementationSpecific => "(.*)?",
            };
            Ok(of("RegularExpression", &format!("{escaped}{suffix}")))
        }
        HostMode::Plain | HostMode::Strict => {
            let kind = match kind {
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

/// Returns the length of the pattern that a path becomes; `None` if it becomes another match.
pub(super) fn length(path: &str, kind: PathKind, mode: HostMode) -> Option<usize> {
    let matched = matching(path, kind, mode).unwrap_or_else(|unusable| unusable.closed);
    let is_pattern = matched["type"] == "RegularExpression";
    let value = matched["value"].as_str().filter(|_| is_pattern);
    value.map(str::len)
}

/// Makes a pattern at least so long, so that it is tried before shorter ones. Leaves other matches as they are.
pub(super) fn padded(mut matched: Value, length: usize) -> Value {
    let is_pattern = matched["type"] == "RegularExpression";
    if let Some(value) = matched["value"].as_str().filter(|_| is_pattern) {
        let count = padding(value.len(), length) / PADDING.len();
        let padded = format!("{value}{}", PADDING.repeat(count));
        matched["value"] = json!(padded);
    }
    matched
}

/// Returns how much longer [`padded`] makes a pattern.
pub(super) fn padding(own: usize, length: usize) -> usize {
    length.saturating_sub(own).next_multiple_of(PADDING.len())
}

pub(super) fn of(kind: &str, value: &str) -> Value {
    json!({"type": kind, "value": value})
}

fn pattern(path: &str) -> Result<Value, Unusable> {
    let path = path.strip_prefix('^').unwrap_or(path);
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = format!("`{path}` has characters that paths of requests escape");
        return Err(unusable(path, reason));
    }
    let source = format!("(?i){}.*", found(path));
    match Pattern::new(&source) {
        Ok(_) => Ok(of("RegularExpression", &source)),
        Err(error) => {
            let reason = format!("`{path}` is no regular expression of RE2: {error}");
            Err(unusable(path, reason))
        }
    }
}

/// Returns what becomes of a path that cannot be a match.
pub(super) fn unusable(path: &str, reason: String) -> Unusable {
    let literal = literal(path);
    let literal = literal.get(..MAX_LITERAL).unwrap_or(literal);
    Unusable {
        closed: of("RegularExpression", &format!("(?i){literal}.*")),
        reason,
    }
}

/// Returns a text with which all paths begin that a pattern finds.
pub(super) fn literal(path: &str) -> &str {
    if may_have_alternatives(path) {
        return "/";
    }
    let is_other = |c: char| !c.is_ascii_alphanumeric() && !"/-_".contains(c);
    let (literal, rest) = path.split_at(path.find(is_other).unwrap_or(path.len()));
    let literal = match rest.starts_with(['?', '*', '{']) {
        // The last character may be absent, as in `/files?`.
        true => literal.get(..literal.len().saturating_sub(1)),
        false => Some(literal),
    };
    literal.filter(|it| !it.is_empty()).unwrap_or("/")
}

/// Reports whether a pattern may have alternatives outside of groups, whether RE2 has its syntax or not.
fn may_have_alternatives(path: &str) -> bool {
    let is_quoted = path.contains(['[', '\\']);
    let mut depth = 0_i32;
    path.chars().any(|character| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == '|' && (is_quoted || depth <= 0)
    })
}

/// Returns the alternatives of a pattern outside of groups; the pattern itself if it has none.
pub(super) fn alternatives(path: &str) -> Vec<&str> {
    match &Parser::new().parse(path) {
        Ok(Ast::Alternation(all)) => {
            let spans = all.asts.iter().map(Ast::span);
            let texts = spans.filter_map(|it| path.get(it.start.offset..it.end.offset));
            texts.collect()
        }
        _ => vec![path],
    }
}

/// Returns a pattern to which something can be appended, for what nginx finds in a path: its `^` is for the first alternative
/// only.
fn found(path: &str) -> String {
    let alternatives = alternatives(path);
    if alternatives.len() == 1 {
        return path.to_owned();
    }
    let anchored = alternatives.iter().enumerate().map(|(index, text)| {
        let anywhere = if index == 0 { "" } else { ".*" };
        match text.strip_prefix('^') {
            Some(text) => text.to_owned(),
            None => format!("{anywhere}{text}"),
        }
    });
    format!("(?:{})", anchored.collect::<Vec<_>>().join("|"))
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
    let found = match alternatives(path).len() {
        1 => path.to_owned(),
        _ => format!(".*?(?:{path})"),
    };
    let pattern = format!("(?i)^{found}.*$");
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
                "RegularExpression (?i)(?:/a|.*/b).*",
            ),
            (
                "/a|^/b|[|]c",
                specific,
                HostMode::Regex,
                "RegularExpression (?i)(?:/a|/b|.*[|]c).*",
            ),
            ("/", specific, HostMode::Regex, "PathPrefix /"),
        ] {
            let found = matching(path, kind, mode).ok();
            let found = found.unwrap();
            let (kind, value) = (&found["type"], &found["value"]);
            let found = format!("{} {}", kind.as_str().unwrap(), value.as_str().unwrap());
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn prefix_of_segments_is_longer_than_that_of_text() {
        let length =
            |path: &str, kind: PathKind| super::length(path, kind, HostMode::Strict).unwrap();
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
            ("/ab|/c(?=x)", "/y/cx"),
            ("/ab[(]|/c(?=x)", "/y/cx"),
        ] {
            let Err(unusable) = matching(path, specific, HostMode::Regex) else {
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
        assert_eq!(result("/a|/b/(.*)", "/$1", "/x/b/c"), "/c");
        for target in ["https://a.com/$1", "/a?b=$1", "/$host", "/$"] {
            assert!(rewrite("/(.*)", target).is_err(), "{target}");
        }
    }
}
