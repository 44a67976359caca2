//! An explanation as labelled lines, printed as text or as JSON. Must not know what the lines mean.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::ir::RuleId;
use crate::proxy::preview::ResponseStatus;
use crate::status::Note;

/// Width of the column of labels.
const LABELS: usize = 12;
/// Maximum number of alternatives that are listed one by one.
const MAX_ALTERNATIVES: usize = 10;

/// What is explained of a request, in sections: one for the request, then one per port.
#[derive(Debug, Default)]
pub struct Explanation {
    pub(super) request: String,
    in_service: Option<InService>,
    sections: Vec<Section>,
}

/// The configuration that a process serves.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct InService {
    /// Counts the configurations of the process.
    pub(super) generation: u64,
    /// The last revision from the controller, if there is one.
    pub(super) revision: Option<u64>,
}

/// What the proxy does with a request on a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The route whose rule handles the request, such as `HTTPRoute default/demo`; `None` if no rule does.
    pub route: Option<String>,
    /// Index of the rule in the route.
    pub rule: Option<usize>,
    /// Status of the response, with the error page of a policy if that replaces it, if no rule forwards the request: none matches, or
    /// the one that does has a filter that responds, or needs something that is broken. `None` if there is no response of HTTP.
    pub status: Option<u16>,
    /// Name of the gRPC status in that response; `None` if the request is not gRPC.
    #[serde(rename = "grpcStatus", skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<&'static str>,
    /// The server of the error page of a policy: if it gives the page, the response has its status instead of `status`.
    #[serde(rename = "pageServer", skip_serializing_if = "Option::is_none")]
    pub page_server: Option<String>,
    /// Why the request gets that response, unless it is that of a filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The lines about a port.
#[derive(Debug, Default)]
struct Section {
    lines: Vec<Line>,
    outcome: Option<Outcome>,
}

#[derive(Debug)]
struct Line {
    /// Empty for a further line of the previous label.
    label: &'static str,
    text: String,
}

impl Explanation {
    pub(super) fn new(request: String, in_service: Option<InService>) -> Self {
        Self {
            request,
            in_service,
            sections: Vec::new(),
        }
    }

    /// Reports whether a rule handles the request.
    pub fn is_found(&self) -> bool {
        self.outcomes().any(|outcome| outcome.route.is_some())
    }

    /// Returns the outcomes by port.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        let sections = self.sections.iter();
        sections.filter_map(|section| section.outcome.as_ref())
    }

    /// Returns the lines of all sections by label.
    pub(super) fn into_labels(self) -> Map<String, Value> {
        let sections = self.sections.into_iter();
        by_label(&sections.flat_map(|it| it.lines).collect::<Vec<_>>())
    }

    /// Adds the notes on objects that the explanation names, such as a route whose priority is ignored, unless they are in it.
    pub(super) fn add_notes(&mut self, notes: &[Note]) {
        let shown = self.to_string();
        for Note { object, message } in notes {
            if shown.contains(&object.to_string()) && !shown.contains(message) {
                self.line("note", format!("{object}: {message}"));
            }
        }
    }

    /// Starts the section of a port.
    pub(super) fn begin_port(&mut self) {
        self.sections.push(Section::default());
    }

    /// Sets what the proxy does on the port.
    pub(super) fn conclude(&mut self, outcome: Outcome) {
        self.section().outcome = Some(outcome);
    }

    /// Adds a line. An empty label continues the previous one.
    pub(super) fn line(&mut self, label: &'static str, text: impl Into<String>) {
        let text = text.into();
        self.section().lines.push(Line { label, text });
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

    /// Returns the section of the current port.
    fn section(&mut self) -> &mut Section {
        if self.sections.is_empty() {
            self.begin_port();
        }
        let last = self.sections.len() - 1;
        &mut self.sections[last]
    }
}

impl Outcome {
    /// No rule handles the request.
    pub(super) fn refused(status: Option<u16>) -> Self {
        Self {
            route: None,
            rule: None,
            status,
            grpc_status: None,
            page_server: None,
            reason: None,
        }
    }

    /// The client gets this response.
    pub(super) fn with_status(self, response: ResponseStatus) -> Self {
        let ResponseStatus {
            status,
            grpc_status,
            page_server,
        } = response;
        Self {
            status: Some(status),
            grpc_status,
            page_server: page_server.map(|server| server.to_string()),
            ..self
        }
    }

    /// A rule handles the request.
    pub(super) fn rule(id: &RuleId) -> Self {
        Self {
            route: Some(id.route.to_string()),
            rule: Some(id.index),
            ..Self::refused(None)
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.request)?;
        if let Some(in_service) = &self.in_service {
            writeln!(f, "in service: {in_service}")?;
        }
        for section in &self.sections {
            writeln!(f)?;
            for Line { label, text } in &section.lines {
                writeln!(f, "{label:<LABELS$}{text}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for InService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            generation,
            revision,
        } = self;
        match generation {
            0 => f.write_str("no configuration")?,
            _ => write!(f, "generation {generation}")?,
        }
        match revision {
            Some(revision) => write!(f, ", revision {revision} of the controller"),
            None => Ok(()),
        }
    }
}

impl Serialize for Explanation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            request: &'a str,
            found: bool,
            #[serde(rename = "inService", skip_serializing_if = "Option::is_none")]
            in_service: Option<InService>,
            ports: &'a [Section],
        }
        let shown = Shown {
            request: &self.request,
            found: self.is_found(),
            in_service: self.in_service,
            ports: &self.sections,
        };
        shown.serialize(serializer)
    }
}

impl Serialize for Section {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            #[serde(flatten)]
            lines: Map<String, Value>,
            outcome: Option<&'a Outcome>,
        }
        let shown = Shown {
            lines: by_label(&self.lines),
            outcome: self.outcome.as_ref(),
        };
        shown.serialize(serializer)
    }
}

/// Returns the lines of a section by label.
fn by_label(lines: &[Line]) -> Map<String, Value> {
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
    labels
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
    use crate::ir::ObjectRef;

    #[test]
    fn prints_sections_as_text_and_as_json() {
        let mut explanation = Explanation::new("GET http://a/".to_owned(), None);
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
                "ports": [{"port": ["*:80"], "notChosen": ["one", "two"], "outcome": null}],
            })
        );
    }

    #[test]
    fn shows_the_configuration_in_service_and_the_outcome() {
        let in_service = InService {
            generation: 3,
            revision: Some(7),
        };
        let mut explanation = Explanation::new("GET http://a/".to_owned(), Some(in_service));
        explanation.begin_port();
        explanation.conclude(Outcome::refused(Some(404)));
        let text = explanation.to_string();
        assert!(
            text.contains("\nin service: generation 3, revision 7 of the controller\n"),
            "{text}"
        );
        let route = ObjectRef::gateway_api("HTTPRoute", "ns", "r");
        let id = RuleId {
            route,
            index: 2,
            name: None,
        };
        explanation.begin_port();
        explanation.conclude(Outcome::rule(&id));
        assert_eq!(
            serde_json::to_value(&explanation).unwrap(),
            serde_json::json!({
                "request": "GET http://a/",
                "found": true,
                "inService": {"generation": 3, "revision": 7},
                "ports": [
                    {"outcome": {"route": null, "rule": null, "status": 404}},
                    {"outcome": {"route": "HTTPRoute ns/r", "rule": 2, "status": null}},
                ],
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
