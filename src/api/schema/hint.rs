//! What the author of a value probably meant: names of fields that resemble an unknown one, and corrections of values that
//! violate a pattern. Only adds advice to messages: decides nothing.

use serde_json::Value;

use super::node::{Properties, Type};
use crate::api::duration;

/// Advice on the source of a template in place of a value.
const TEMPLATE: &str = "this looks like an expression of a template that was not rendered";

/// Advice on a value that is not Base64.
pub(super) const NOT_BASE64: &str =
    "; write text that is not in Base64 in stringData of a Secret, or in data of a ConfigMap";

/// Reports whether text has an expression of a template, such as of Helm or envsubst.
fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("${")
}

/// Returns the one of `known` names that resembles `name` most, if any does.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    // A quarter of the name may differ, and one letter of a short name.
    let length = wanted.chars().count();
    let limit = 1 + length / 4;
    let distance = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        if wanted.len() >= 4 && candidate.starts_with(&wanted) {
            return usize::from(candidate != wanted);
        }
        // No distance is less than the difference of the lengths, and that of a long name costs much time and memory.
        match candidate.chars().count().abs_diff(length) {
            difference if difference > limit => difference,
            _ => strsim::damerau_levenshtein(&wanted, &candidate),
        }
    };
    known
        .into_iter()
        .map(|candidate| (distance(candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns the message on a field that the schema does not have.
pub(super) fn unknown_field(name: &str, properties: &Properties) -> String {
    match nearest(name, properties.iter().map(|(known, _)| known)) {
        Some(known) => format!("unknown field; did you mean {known}?"),
        None => "unknown field".to_owned(),
    }
}

/// Returns advice on text that does not match a pattern of the Gateway API, beginning with a separator; empty if there
/// is none.
pub(super) fn correction(pattern: &str, text: &str) -> String {
    let advice = if is_template(text) {
        Some(TEMPLATE.to_owned())
    } else if !text.chars().all(|c| c.is_ascii_graphic()) {
        // Advice repeats parts of the text.
        None
    } else if is_duration(pattern) {
        duration_advice(text)
    } else if is_hostname(pattern) {
        hostname_advice(text)
    } else {
        None
    };
    advice.map_or_else(String::new, |advice| format!("; {advice}"))
}

/// Returns advice on a value of another type than the expected one, beginning with a separator; empty if there is none.
pub(super) fn other_type(expected: Option<Type>, pattern: Option<&str>, value: &Value) -> String {
    let is_duration = pattern.is_some_and(is_duration);
    let unquoted = match (expected, value) {
        (Some(Type::Integer), Value::String(text)) => text.parse::<i64>().map(Value::from).ok(),
        (Some(Type::Boolean), Value::String(text)) => text.parse::<bool>().map(Value::from).ok(),
        _ => None,
    };
    match (expected, value) {
        (Some(_), Value::String(text)) if is_template(text) => format!("; {TEMPLATE}"),
        (Some(Type::String), Value::Number(number)) if is_duration => match number.is_u64() {
            true => format!("; a duration needs a unit: write {number}s"),
            false => String::new(),
        },
        (Some(Type::String), Value::Number(_) | Value::Bool(_)) if !is_duration => {
            "; write it with quotes".to_owned()
        }
        (Some(Type::Array), Value::String(_) | Value::Number(_) | Value::Object(_)) => {
            "; write a list, with `- ` before each item".to_owned()
        }
        _ => unquoted.map_or_else(String::new, |value| {
            format!("; write {value} without quotes")
        }),
    }
}

/// Reports whether a pattern is that of durations (GEP-2257).
fn is_duration(pattern: &str) -> bool {
    pattern.contains("(h|m|s|ms)")
}

/// Reports whether a pattern is that of DNS names.
fn is_hostname(pattern: &str) -> bool {
    pattern.contains(r"(\.[a-z0-9](")
}

fn duration_advice(text: &str) -> Option<String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(unit_at);
    let value: f64 = number.parse().ok()?;
    let days = [("d", 86_400_000)];
    let mut units = duration::UNITS.into_iter().chain(days);
    let Some((_, factor)) = units.find(|(name, _)| *name == unit) else {
        return Some("the units of durations are h, m, s and ms".to_owned());
    };
    let exact = value * factor as f64;
    let milliseconds = exact.round();
    // Decimal fractions are not exact in binary.
    if (exact - milliseconds).abs() > 1e-6 * exact {
        return Some("the smallest unit of a duration is ms".to_owned());
    }
    let why = match unit {
        "d" => "the units of durations are h, m, s and ms",
        _ if number.contains('.') => "durations have no fractions",
        _ => "a number in a duration has at most 5 digits",
    };
    let written = duration::written(milliseconds as u64);
    Some(written.map_or_else(
        || why.to_owned(),
        |written| format!("{why}: write {written}"),
    ))
}

fn hostname_advice(text: &str) -> Option<String> {
    let (part, rest) = match text.split_once("://") {
        Some((_, rest)) => ("scheme", rest),
        None if text.contains('/') => ("path", text),
        None if text.contains(':') => ("port", text),
        None if text.contains(|c: char| c.is_ascii_uppercase())
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-.*".contains(c)) =>
        {
            return Some(format!("write it in lower case: {}", text.to_lowercase()));
        }
        None => return None,
    };
    let host = rest.split(['/', ':', '?', '#']).next().unwrap_or(rest);
    Some(format!("a hostname has no {part}: write {host}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DURATION: &str = "^([0-9]{1,5}(h|m|s|ms)){1,4}$";
    const HOSTNAME: &str =
        r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

    #[test]
    fn finds_the_nearest_name() {
        let route = ["hostnames", "parentRefs", "rules", "useDefaultGateways"];
        let rule = ["name", "matches", "filters", "backendRefs", "timeouts"];
        assert_eq!(nearest("hostname", route), Some("hostnames"));
        assert_eq!(nearest("parent", route), Some("parentRefs"));
        assert_eq!(nearest("rule", route), Some("rules"));
        assert_eq!(nearest("match", rule), Some("matches"));
        assert_eq!(nearest("backendRef", rule), Some("backendRefs"));
        assert_eq!(nearest("backends", rule), Some("backendRefs"));
        assert_eq!(nearest("BackendRefs", rule), Some("backendRefs"));
        assert_eq!(nearest("tiemout", rule), Some("timeouts"));
        assert_eq!(nearest("selector", rule), None);
        let (long, longer) = ("a".repeat(1 << 20), "b".repeat(2 << 20));
        assert_eq!(
            nearest(&long, [&*longer]),
            None,
            "compares no more than lengths"
        );
    }

    #[test]
    fn corrects_durations() {
        for (text, expected) in [
            ("0.5s", "; durations have no fractions: write 500ms"),
            ("1.5h", "; durations have no fractions: write 1h30m"),
            ("1.1h", "; durations have no fractions: write 1h6m"),
            ("90.5s", "; durations have no fractions: write 1m30s500ms"),
            (
                "100000ms",
                "; a number in a duration has at most 5 digits: write 1m40s",
            ),
            ("100000h", "; a number in a duration has at most 5 digits"),
            (
                "1d",
                "; the units of durations are h, m, s and ms: write 24h",
            ),
            ("1us", "; the units of durations are h, m, s and ms"),
            ("0.1ms", "; the smallest unit of a duration is ms"),
            ("x", ""),
        ] {
            assert_eq!(correction(DURATION, text), expected, "{text}");
            let written = expected.split_once("write ").map(|(_, written)| written);
            assert!(written.is_none_or(|it| duration::parse(it).is_some()));
        }
    }

    #[test]
    fn corrects_types() {
        let unit = "; a duration needs a unit: write 30s";
        let list = "; write a list, with `- ` before each item";
        let template = "; this looks like an expression of a template that was not rendered";
        for (expected, pattern, value, advice) in [
            (Type::String, Some(DURATION), json!(30), unit),
            (Type::String, Some(DURATION), json!(true), ""),
            (
                Type::String,
                Some(HOSTNAME),
                json!(30),
                "; write it with quotes",
            ),
            (Type::String, None, json!(true), "; write it with quotes"),
            (Type::String, None, json!(["a"]), ""),
            (
                Type::Integer,
                None,
                json!("80"),
                "; write 80 without quotes",
            ),
            (Type::Integer, None, json!("http"), ""),
            (Type::Integer, None, json!("${PORT}"), template),
            (
                Type::Boolean,
                None,
                json!("true"),
                "; write true without quotes",
            ),
            (Type::Array, None, json!("a.test"), list),
            (Type::Object, None, json!("a"), ""),
        ] {
            assert_eq!(
                other_type(Some(expected), pattern, &value),
                advice,
                "{value}"
            );
        }
        assert_eq!(other_type(None, None, &json!("80")), "");
    }

    #[test]
    fn corrects_hostnames() {
        for (text, expected) in [
            (
                "http://a.test/x",
                "; a hostname has no scheme: write a.test",
            ),
            ("a.test:80", "; a hostname has no port: write a.test"),
            ("a.test/x", "; a hostname has no path: write a.test"),
            ("A.test", "; write it in lower case: a.test"),
            (
                "{{ .host }}",
                "; this looks like an expression of a template that was not rendered",
            ),
            ("a..test", ""),
            ("a\nb:80", ""),
        ] {
            assert_eq!(correction(HOSTNAME, text), expected, "{text}");
        }
    }
}
