//! An explanation as labelled lines, printed as text or as JSON. Must not know what the lines mean.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::status::Note;

/// Width of the column of labels.
const LABELS: usize = 12;
/// Maximum number of alternatives that are listed one by one.
const MAX_ALTERNATIVES: usize = 10;

/// What is explained of a request, in sections: one for the request, then one per port.
#[derive(Debug, Default)]
pub(super) struct Explanation {
    pub(super) request: String,
    /// Whether a rule matches.
    pub(super) found: bool,
    sections: Vec<Vec<Line>>,
}

#[derive(Debug)]
struct Line {
    /// Empty for a further line of the previous label.
    label: &'static str,
    text: String,
}

impl Explanation {
    pub(super) fn new(request: String) -> Self {
        Self {
            request,
            ..Self::default()
        }
    }

    /// Starts the section of a port.
    pub(super) fn begin_port(&mut self) {
        self.sections.push(Vec::new());
    }

    /// Adds a line. An empty label continues the previous one.
    pub(super) fn line(&mut self, label: &'static str, text: impl Into<String>) {
        let text = text.into();
        if self.sections.is_empty() {
            self.begin_port();
        }
        if let Some(section) = self.sections.last_mut() {
            section.push(Line { label, text });
        }
    }

    /// Adds lines under the last label.
    pub(super) fn lines_after(&mut self, lines: impl IntoIterator<Item = String>) {
        lines.into_iter().for_each(|line| self.line("", line));
    }

    /// Adds lines under one label.
    pub(super) fn lines(&mut self, label: &'static str, lines: impl IntoIterator<Item = String>) {
        for (index, line) in lines.into_iter().enumerate() {
            self.line(if index == 0 { label } else { "" }, line);
        }
    }
}

impl Explanation {
    /// Adds the notes on objects that the explanation names, such as a route whose priority is ignored.
    pub(super) fn add_notes(&mut self, notes: &[Note]) {
        let shown = self.to_string();
        for Note { object, message } in notes {
            if shown.contains(&object.to_string()) {
                self.line("note", format!("{object}: {message}"));
            }
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.request)?;
        for section in &self.sections {
            writeln!(f)?;
            for Line { label, text } in section {
                writeln!(f, "{label:<LABELS$}{text}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for Explanation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            request: &'a str,
            found: bool,
            ports: Vec<Value>,
        }
        let shown = Shown {
            request: &self.request,
            found: self.found,
            ports: self.sections.iter().map(|lines| section(lines)).collect(),
        };
        shown.serialize(serializer)
    }
}

/// Returns the lines of a section by label.
fn section(lines: &[Line]) -> Value {
    let mut labels = Map::new();
    let mut last = String::new();
    for Line { label, text } in lines {
        if !label.is_empty() {
            last = camel_case(label);
        }
        let entry = labels.entry(last.clone());
        if let Value::Array(texts) = entry.or_insert_with(|| Value::Array(Vec::new())) {
            texts.push(Value::from(text.trim()));
        }
    }
    Value::Object(labels)
}

/// Converts a label such as `TLS policy` to the name of a field such as `tlsPolicy`.
fn camel_case(label: &str) -> String {
    let mut name = String::new();
    for word in label.split(' ') {
        let word = word.to_lowercase();
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if !name.is_empty() => name.extend(first.to_uppercase().chain(letters)),
            Some(first) => name.extend(std::iter::once(first).chain(letters)),
            None => {}
        }
    }
    name
}

/// Shortens a list of alternatives, the nearest first, to [`MAX_ALTERNATIVES`] and a line that counts the others.
/// `distance` is that of an alternative from what was requested. Short lists keep their order.
pub(super) fn nearest<T>(
    mut all: Vec<T>,
    distance: impl Fn(&T) -> usize,
    shown: impl Fn(&T) -> String,
    what: &str,
) -> Vec<String> {
    let more = all.len().saturating_sub(MAX_ALTERNATIVES);
    if more > 0 {
        all.sort_by_cached_key(distance);
        all.truncate(MAX_ALTERNATIVES);
    }
    let mut lines: Vec<_> = all.iter().map(shown).collect();
    lines.extend((more > 0).then(|| format!("and {more} more {what}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_sections_as_text_and_as_json() {
        let mut explanation = Explanation::new("GET http://a/".to_owned());
        explanation.begin_port();
        explanation.line("port", "*:80");
        explanation.lines("not chosen", ["one".to_owned(), "two".to_owned()]);
        assert_eq!(
            explanation.to_string(),
            "GET http://a/\n\nport        *:80\nnot chosen  one\n            two\n"
        );
        assert_eq!(
            serde_json::to_value(&explanation).unwrap(),
            serde_json::json!({
                "request": "GET http://a/",
                "found": false,
                "ports": [{"port": ["*:80"], "notChosen": ["one", "two"]}],
            })
        );
    }

    #[test]
    fn long_lists_are_shortened_to_the_nearest() {
        let lines = nearest(
            (0..10_000_usize).collect(),
            |it| it.abs_diff(50),
            ToString::to_string,
            "ports",
        );
        assert_eq!(lines.len(), MAX_ALTERNATIVES + 1);
        assert_eq!((&*lines[0], &*lines[10]), ("50", "and 9990 more ports"));
        let lines = nearest(vec![3, 1, 2], |it| *it, ToString::to_string, "ports");
        assert_eq!(lines, ["3", "1", "2"]);
    }
}
