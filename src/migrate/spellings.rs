//! Spellings of paths that nginx decodes before it compares them, and that canonical paths keep: escaped characters. Requests
//! with one are refused where it could evade a restriction.

use std::collections::BTreeSet;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};
use serde_json::Value;

use super::model::PathKind;
use super::paths::{self, HostMode, MAX_VALUE};

/// A pattern for paths with any escape.
const ANY: &str = ".*%.*";

/// Returns a match for paths with escapes that nginx and the patterns of a host may read differently. It is longer than `longest`
/// and than all patterns of the paths, so that it is tried first.
pub(super) fn refused<'a>(
    paths: impl Iterator<Item = &'a str>,
    mode: HostMode,
    longest: usize,
) -> Value {
    let (mut longest, mut escapes) = (longest, Escapes::default());
    escapes.bytes.insert(b'/');
    if mode == HostMode::Regex {
        // `.` and `$` of nginx read a newline in a way of their own.
        escapes.bytes.insert(b'\n');
    }
    for path in paths {
        // A byte that is escaped has three characters, and suffixes have less than 16.
        longest = longest.max(3 * path.len() + 15);
        match mode {
            HostMode::Regex => escapes.add_pattern(path),
            HostMode::Plain | HostMode::Strict => escapes.add_text(path),
        }
    }
    let refused = paths::of("RegularExpression", &escapes.pattern());
    paths::padded(refused, (longest + 1).min(MAX_VALUE - 4))
}

/// Reports whether such a match is for all escapes.
pub(super) fn is_any(refused: &Value) -> bool {
    let value = refused["value"].as_str();
    value.is_some_and(|value| value.starts_with(ANY))
}

/// The bytes whose escapes are refused.
#[derive(Default)]
struct Escapes {
    bytes: BTreeSet<u8>,
    /// Whether all are.
    all: bool,
}

impl Escapes {
    fn pattern(&self) -> String {
        if self.all {
            return ANY.to_owned();
        }
        let escapes = self.bytes.iter().map(|byte| format!("{byte:02X}"));
        format!(".*%(?:{}).*", escapes.collect::<Vec<_>>().join("|"))
    }

    /// Adds the reserved characters of a path (RFC 3986, 2.2).
    fn add_text(&mut self, path: &str) {
        let reserved = |byte: &u8| b"!$&'()*+,;=:@".contains(byte);
        self.bytes.extend(path.bytes().filter(reserved));
    }

    /// Adds what a pattern reads. One that is not converted opens nothing.
    fn add_pattern(&mut self, path: &str) {
        if paths::matching(path, PathKind::ImplementationSpecific, HostMode::Regex).is_err() {
            return;
        }
        let alternatives = paths::alternatives(path);
        let mut alternatives = alternatives.iter();
        // Other alternatives could begin within an escape.
        self.all |= !alternatives.all(|text| text.starts_with(['/', '^']));
        // Expressions of nginx are for bytes.
        let mut parser = ParserBuilder::new();
        let mut parser = parser.unicode(false).utf8(false).build();
        match parser.parse(&format!("(?i){path}")) {
            Ok(syntax) => self.add(&syntax, true),
            Err(_) => self.all = true,
        }
    }

    /// Adds what a part of a pattern reads. `ends` says that what follows it does not begin within an escape.
    fn add(&mut self, syntax: &Hir, ends: bool) {
        match syntax.kind() {
            HirKind::Empty => {}
            HirKind::Literal(literal) => literal.0.iter().for_each(|byte| self.add_byte(*byte)),
            HirKind::Class(class) => self.add_class(class),
            // Digits of an escape are characters of a word.
            HirKind::Look(look) => self.all |= !matches!(look, Look::Start | Look::End),
            HirKind::Repetition(repetition) => {
                let is_many = repetition.max.is_none() && repetition.min <= 1;
                match class(&repetition.sub) {
                    Some(class) if is_many && has_all(class) => self.all |= !ends,
                    _ => self.add(&repetition.sub, false),
                }
            }
            HirKind::Capture(capture) => self.add(&capture.sub, ends),
            HirKind::Concat(parts) => {
                for (index, part) in parts.iter().enumerate() {
                    self.add(part, parts.get(index + 1).map_or(ends, begins));
                }
            }
            HirKind::Alternation(parts) => parts.iter().for_each(|part| self.add(part, ends)),
        }
    }

    fn add_class(&mut self, class: &Class) {
        self.all |= has(class, b'%');
        let members = (0..=u8::MAX).filter(|byte| has(class, *byte));
        members.for_each(|byte| self.add_byte(byte));
    }

    fn add_byte(&mut self, byte: u8) {
        self.all |= byte == b'%';
        if !byte.is_ascii_alphanumeric() && !b"-._~".contains(&byte) {
            self.bytes.insert(byte);
        }
    }
}

/// Returns the class that a part consists of.
fn class(syntax: &Hir) -> Option<&Class> {
    match syntax.kind() {
        HirKind::Class(found) => Some(found),
        HirKind::Capture(capture) => class(&capture.sub),
        _ => None,
    }
}

fn has(class: &Class, byte: u8) -> bool {
    match class {
        Class::Unicode(class) => {
            let mut ranges = class.ranges().iter();
            ranges.any(|range| (range.start()..=range.end()).contains(&char::from(byte)))
        }
        Class::Bytes(class) => {
            let mut ranges = class.ranges().iter();
            ranges.any(|range| (range.start()..=range.end()).contains(&byte))
        }
    }
}

/// Reports whether a class has every character that a path may escape. Slashes and newlines are refused, and NUL is.
fn has_all(class: &Class) -> bool {
    (0..=u8::MAX).all(|byte| matches!(byte, 0 | b'/' | b'\n') || has(class, byte))
}

/// Reports whether a part begins with a character that no escape has.
fn begins(syntax: &Hir) -> bool {
    let is_of_escape = |byte: u8| byte == b'%' || byte.is_ascii_hexdigit();
    match syntax.kind() {
        HirKind::Literal(literal) => literal.0.first().is_some_and(|byte| !is_of_escape(*byte)),
        HirKind::Class(class) => !(0..=u8::MAX).any(|byte| is_of_escape(byte) && has(class, byte)),
        HirKind::Look(look) => *look == Look::End,
        HirKind::Repetition(repetition) => repetition.min > 0 && begins(&repetition.sub),
        HirKind::Capture(capture) => begins(&capture.sub),
        HirKind::Concat(parts) => parts.first().is_some_and(begins),
        HirKind::Alternation(parts) => parts.iter().all(begins),
        HirKind::Empty => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::Pattern;

    /// Returns the ASCII characters whose escapes are refused.
    fn characters(paths: &[&str], mode: HostMode) -> String {
        let found = refused(paths.iter().copied(), mode, 0);
        let pattern = Pattern::new(found["value"].as_str().unwrap()).unwrap();
        let bytes = (0..=127_u8).filter(|byte| pattern.matches(&format!("/x%{byte:02X}y")));
        bytes.map(char::from).collect()
    }

    #[test]
    fn other_spellings_of_characters_are_refused() {
        for (path, mode, expected) in [
            ("/a.b/-_~", HostMode::Strict, "/"),
            ("/@a:b/c+d", HostMode::Strict, "+/:@"),
            ("/a(/|$)(.*)", HostMode::Strict, "$()*/"),
            ("/a(?:/|$)(.*)", HostMode::Regex, "\n/"),
            ("/a/[^/]+/b", HostMode::Regex, "\n/"),
            ("/@a/c\\+d", HostMode::Regex, "\n+/@"),
            ("/a[@:]b\\\\", HostMode::Regex, "\n/:@\\"),
            ("/\\w+/[0-9]{3}", HostMode::Regex, "\n/"),
            ("/a|/@b", HostMode::Regex, "\n/@"),
            // It is not converted.
            ("/((?!a@).*)", HostMode::Regex, "\n/"),
        ] {
            assert_eq!(characters(&[path], mode), expected, "{path}");
        }
    }

    #[test]
    fn all_escapes_are_refused_where_patterns_tell_characters_apart() {
        for path in [
            "/a.b",
            "/a/.{2,}",
            "/a/[^@]+",
            "/a/.*admin",
            "/a/\\S+/",
            "/100%/x",
            "/a\\b",
            "/a|b",
        ] {
            let found = refused([path].into_iter(), HostMode::Regex, 0);
            assert!(is_any(&found), "{path}: {found}");
        }
    }

    #[test]
    fn what_is_refused_is_longer_than_all_patterns() {
        let long = format!("/{}", "é".repeat(50));
        let kind = PathKind::ImplementationSpecific;
        let found = refused([long.as_str()].into_iter(), HostMode::Strict, 0);
        let refused_length = found["value"].as_str().unwrap().len();
        assert!(refused_length > paths::length(&long, kind, HostMode::Strict).unwrap());
        let found = refused(["/a"].into_iter(), HostMode::Strict, 500);
        assert!(found["value"].as_str().unwrap().len() > 500);
    }
}
