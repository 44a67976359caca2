//! A problem of the input: location, severity and message.

use std::fmt;
use std::path::Path;

use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::api::kind::StatusShape;
use crate::api::{Kind, Object, ObjectRef, UnknownFields, admit, protects, unknown_fields};
use crate::finding::{FileLocation, Finding, Severity, plain};
use crate::snapshot::Snapshot;

/// Maximum number of printed characters of a rule: some CEL rules are very long.
const RULE_SHOWN: usize = 160;
/// Maximum number of unknown fields in a message.
const FIELDS_SHOWN: usize = 4;

/// A problem of the input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Severity.
    pub severity: Severity,
    /// Where it is.
    pub location: FileLocation,
    /// The object, if its name is known.
    pub object: Option<ObjectRef>,
    /// Generation of the object; 0 if it has none.
    pub generation: i64,
    /// Field path, such as `spec.rules[0].matches[1].path.value`; empty for the whole object.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What that does to the objects and to requests now; empty if the message says it.
    pub effect: String,
    /// What to do; empty if the message says it.
    pub remedy: String,
    /// The violated rule, such as `maxLength: 253` or a CEL expression; empty if the message is
    /// sufficient.
    pub rule: String,
    /// Whether requests that the object protects are served without it, since nothing says which ones they are.
    pub leaves_open: bool,
    /// Whether the object is in service as far as it is known, so that its conditions are those of its known part.
    pub is_served: bool,
}

impl Problem {
    /// Creates a problem of a whole file.
    pub fn of_file(severity: Severity, file: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self {
            severity,
            location: FileLocation {
                file: file.as_ref().into(),
                document: 0,
                line: 0,
            },
            object: None,
            generation: 0,
            field: String::new(),
            message: message.into(),
            effect: String::new(),
            remedy: String::new(),
            rule: String::new(),
            leaves_open: false,
            is_served: false,
        }
    }

    /// Says what it does to the objects and to requests now.
    pub fn with_effect(self, effect: impl Into<String>) -> Self {
        let effect = effect.into();
        Self { effect, ..self }
    }

    /// Says what to do.
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        let remedy = remedy.into();
        Self { remedy, ..self }
    }

    /// Reports whether something has to change.
    pub fn is_fault(&self) -> bool {
        self.severity != Severity::Note
    }

    /// Returns the whole text without where it is: what is wrong, its effect and what to do.
    pub fn text(&self) -> String {
        self.finding().message()
    }

    /// Returns where it is; `None` for objects of a cluster.
    pub fn place(&self) -> Option<&FileLocation> {
        Some(&self.location).filter(|it| !it.file.as_os_str().is_empty())
    }

    /// Returns it as what the admin server shows.
    pub fn finding(&self) -> Finding {
        let object = self.object.as_ref().map(ToString::to_string);
        let object = object.unwrap_or_else(|| self.location.file.display().to_string());
        let location = self.place().cloned();
        let finding = Finding::of_file(self.severity, object, Cause(self).to_string(), location);
        let finding = finding.with_effect(&*self.effect);
        finding.with_remedy(&*self.remedy)
    }

    /// Returns the problem of an object with fields that this version does not know, besides those that its sender reports.
    pub(super) fn of_unknown_fields(
        name: &ObjectRef,
        object: &Object,
        of_sender: &UnknownFields,
    ) -> Option<Self> {
        let unknown = unknown_fields::effects(object);
        let is_own = |(field, _): &(&str, _)| of_sender.iter().all(|other| other != *field);
        let mut parts: Vec<String> = unknown
            .filter(is_own)
            .map(|(field, effect)| format!("{field}: unknown field; {effect}"))
            .collect();
        if parts.is_empty() {
            return None;
        }
        let more = parts.len().saturating_sub(FIELDS_SHOWN);
        if more > 0 {
            parts.truncate(FIELDS_SHOWN);
            parts.push(format!("and {more} more fields"));
        }
        let later = format!(
            "use a later version of Portcullis than {}",
            env!("CARGO_PKG_VERSION")
        );
        let problem = Self::of_object(name.clone(), object.meta().generation, parts.join("; "));
        Some(Self {
            // A section of a policy that cannot be used makes `Accepted` false.
            is_served: object.kind().status != Some(StatusShape::Policy),
            ..problem.with_remedy(later)
        })
    }

    /// Creates a problem of an object of a cluster.
    pub fn of_object(object: ObjectRef, generation: i64, message: impl Into<String>) -> Self {
        Self {
            object: Some(object),
            generation,
            ..Self::of_file(Severity::Error, "", message)
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.severity)?;
        if let Some(location) = self.place() {
            write!(f, ": {location}")?;
        }
        if let Some(object) = &self.object {
            write!(f, ": {}", plain(object))?;
        }
        write!(f, ": {}", self.text())
    }
}

/// As JSON, it has the fields of a [`Finding`], and more about the object.
impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let document = Document {
            finding: self.finding(),
            generation: self.generation,
            field: &self.field,
            rule: &self.rule,
        };
        document.serialize(serializer)
    }
}

/// A problem as JSON.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    finding: Finding,
    generation: i64,
    field: &'a str,
    rule: &'a str,
}

/// What is wrong with a file or an object: the field, the message and the rule.
struct Cause<'a>(&'a Problem);

impl fmt::Display for Cause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(problem) = self;
        if !problem.field.is_empty() {
            write!(f, "{}: ", plain(&problem.field))?;
        }
        f.write_str(&problem.message)?;
        let rule = &problem.rule;
        let is_shown = match rule.strip_prefix("pattern: ") {
            // The message quotes the pattern.
            Some(pattern) => !problem.message.contains(pattern),
            None => !rule.is_empty(),
        };
        match rule.char_indices().nth(RULE_SHOWN) {
            _ if !is_shown => Ok(()),
            Some((end, _)) => write!(f, " [{}…]", &rule[..end]),
            None => write!(f, " [{rule}]"),
        }
    }
}

/// An object of a known kind that another program has admitted and that cannot be parsed.
#[derive(Debug)]
pub(super) struct Unparsed {
    /// Why not.
    pub(super) reason: String,
    /// What takes its place if it protects requests.
    stand_in: Option<Object>,
    /// The fields that this version reads. They have an effect if no request is refused for the others.
    known: Option<Object>,
    /// Whether nothing says what it protects.
    leaves_open: bool,
}

impl Unparsed {
    /// Puts what takes the place of the object into service. A version that says what it protects replaces the previous one,
    /// which may permit more. Returns whether the objects change, and the problem.
    pub(super) fn serve(
        self,
        name: &ObjectRef,
        generation: i64,
        snapshot: &mut Snapshot,
    ) -> (bool, Problem) {
        let Self {
            reason,
            stand_in,
            known,
            leaves_open,
        } = self;
        let previous = snapshot.object(name);
        let leaves_open = leaves_open && previous.is_none_or(|it| it.is_without_targets());
        let (replacement, outcome) = match (stand_in, known) {
            (Some(object), _) if !object.is_without_targets() => {
                let outcome = format!("{} until it can be read", object.refused());
                (Some(object), outcome)
            }
            (Some(object), _) if leaves_open => {
                let outcome = "no target of it can be read, and the requests that it protects are served without it";
                (Some(object), outcome.to_owned())
            }
            (None, Some(known)) => (Some(known), "the rest of it has an effect".to_owned()),
            (Some(_) | None, _) => {
                let outcome = "its previous version, if any, stays in service";
                (None, outcome.to_owned())
            }
        };
        let message = format!("cannot be read: {reason}");
        let problem = Problem::of_object(name.clone(), generation, message);
        let problem = Problem {
            leaves_open,
            ..problem.with_effect(outcome)
        };
        let changes = replacement.is_some_and(|object| snapshot.insert(object));
        (changes, problem)
    }
}

/// Explains why an object of a known kind cannot be parsed. Adds the field path from the schema,
/// which the serde error lacks.
pub(super) fn unreadable(value: Value, error: &serde_json::Error) -> Unparsed {
    if value["kind"] == "Secret" {
        // The serde error and the schema violation would quote secret values.
        return Unparsed {
            reason: "a field has the wrong type for a Secret".to_owned(),
            stand_in: None,
            known: None,
            leaves_open: false,
        };
    }
    let known = known(&value);
    let admission = admit(value);
    let mut findings = admission.findings.iter();
    let fault = findings.find(|finding| finding.severity == Severity::Error);
    let reason = fault.map_or_else(|| error.to_string(), ToString::to_string);
    Unparsed {
        reason,
        stand_in: admission.stand_in.map(|object| *object),
        known,
        leaves_open: admission.leaves_open,
    }
}

/// Decodes the fields of a policy that protects requests, if nothing is wrong with them.
fn known(value: &Value) -> Option<Object> {
    let text = |field: &str| value[field].as_str();
    let kind = Kind::find_streamed(text("apiVersion")?, text("kind")?)?;
    protects(kind).then(|| kind.decode(value).ok())?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_have_the_fields_of_findings() {
        let problem = Problem::of_file(Severity::Error, "a.yaml", "is wrong");
        let problem = Problem {
            field: "spec.a".to_owned(),
            rule: "maxLength: 2".to_owned(),
            ..problem.with_effect("it is ignored").with_remedy("mend it")
        };
        let text = "spec.a: is wrong [maxLength: 2]: it is ignored; mend it";
        assert_eq!(problem.to_string(), format!("error: a.yaml: {text}"));
        let expected = json!({
            "in": "configuration", "severity": "error", "kind": "file", "object": "a.yaml", "message": text,
            "cause": "spec.a: is wrong [maxLength: 2]", "effect": "it is ignored", "remedy": "mend it", "since": null,
            "file": "a.yaml", "document": 0, "line": 0, "generation": 0, "field": "spec.a", "rule": "maxLength: 2",
        });
        assert_eq!(serde_json::to_value(&problem).unwrap(), expected);
    }
}
