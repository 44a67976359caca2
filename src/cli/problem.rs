//! A problem of the admin server as text, on one line or with a line for each field.

use std::path::Path;

use serde_json::Value;

use super::visible;
use crate::finding::FileLocation;

/// Returns a problem as a line: how bad it is, where it is, if that is in a file, its object, what is wrong, and since when.
pub(super) fn line(problem: &Value) -> String {
    let text = described(problem);
    match field(problem, "since") {
        Some(since) => format!("{text} (since {since})"),
        None => text,
    }
}

/// Returns a problem as a line without its time.
pub(super) fn described(problem: &Value) -> String {
    let message = field(problem, "message").unwrap_or_default();
    let parts = [
        field(problem, "severity"),
        location(problem),
        object(problem),
        Some(message),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// Returns a problem as lines: how bad it is, its object and kind, and each field that it has. The first line alone is not
/// indented.
pub(super) fn lines(problem: &Value) -> String {
    let text = detailed(problem);
    match field(problem, "since") {
        Some(since) => format!("{text}\n  since: {since}"),
        None => text,
    }
}

/// Returns a problem as lines without its time.
pub(super) fn detailed(problem: &Value) -> String {
    let of = |name: &str| field(problem, name);
    let place = location(problem);
    let head = [of("severity"), object(problem).or(place.clone())];
    let mut text = head.into_iter().flatten().collect::<Vec<_>>().join(": ");
    if let Some(kind) = of("kind") {
        text.push_str(&format!(" ({kind})"));
    }
    // A former version names only the whole.
    let cause = of("cause").or_else(|| of("message"));
    let fields = [
        ("cause", cause),
        ("location", place),
        ("effect", of("effect")),
        ("remedy", of("remedy")),
    ];
    for (name, value) in fields {
        if let Some(value) = value {
            text.push_str(&format!("\n  {name}: {value}"));
        }
    }
    text
}

/// Returns where a problem is, if that is in a file.
fn location(problem: &Value) -> Option<String> {
    let number = |name: &str| problem[name].as_u64().unwrap_or_default() as usize;
    let location = FileLocation {
        file: Path::new(problem["file"].as_str()?).into(),
        document: number("document"),
        line: number("line"),
    };
    Some(location.to_string())
}

/// Returns the object of a problem. Of a file without a readable object, the object is the file, which the location names.
fn object(problem: &Value) -> Option<String> {
    let is_file = problem["object"] == problem["file"];
    field(problem, "object").filter(|_| !is_file)
}

/// Returns a text on one line, so that it cannot look like another problem.
fn field(problem: &Value, name: &str) -> Option<String> {
    problem[name].as_str().map(visible::line)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_of_tenants_stay_on_their_line() {
        let problem = json!({
            "severity": "warning", "object": "HTTPRoute a/b", "message": "no \u{1b}[2J\n  error: x", "cause": "no\n  remedy: x",
        });
        let expected = "warning: HTTPRoute a/b: no \\u001b[2J\\u000a  error: x";
        assert_eq!(line(&problem), expected);
        let expected = "warning: HTTPRoute a/b\n  cause: no\\u000a  remedy: x";
        assert_eq!(lines(&problem), expected);
    }

    #[test]
    fn each_field_has_a_line() {
        let problem = json!({
            "severity": "error", "kind": "object", "object": "HTTPRoute a/b", "message": "is wrong: status 500; mend it",
            "cause": "is wrong", "effect": "status 500", "remedy": "mend it", "since": "2026-01-02T00:00:00Z",
            "file": "/c.yaml", "document": 2, "line": 7,
        });
        let expected = "error: HTTPRoute a/b (object)\n  cause: is wrong\n  location: /c.yaml:7 (document 2)\n  \
            effect: status 500\n  remedy: mend it\n  since: 2026-01-02T00:00:00Z";
        assert_eq!(lines(&problem), expected);
        let file = json!({
            "severity": "error", "kind": "file", "object": "/d.yaml", "message": "is broken", "cause": "is broken",
            "effect": null, "remedy": null, "since": null, "file": "/d.yaml", "document": 0, "line": 0,
        });
        let expected = "error: /d.yaml (file)\n  cause: is broken\n  location: /d.yaml";
        assert_eq!(lines(&file), expected);
    }
}
