//! A finding: what is wrong, with which object, what that does now, and what to do.

use std::fmt;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::kind::Kind;
use super::location::FileLocation;
use super::severity::Severity;
use crate::ir::ObjectRef;

/// Something that has to change. In the order of severity, then of the effect on requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    /// How bad it is: an error or a warning.
    pub severity: Severity,
    /// What it is about.
    pub kind: Kind,
    /// How it is known.
    pub source: Source,
    /// The object that needs a change, if it may be in a file.
    pub subject: Option<ObjectRef>,
    /// The object as it is shown, as far as its name is known, or else the file.
    pub object: String,
    /// What is wrong.
    pub cause: String,
    /// What that does to requests or connections now; empty if the cause says it.
    pub effect: String,
    /// What to do; empty if the cause says it.
    pub remedy: String,
    /// Where it is in a file, or else its object.
    pub location: Option<FileLocation>,
    /// Since when it is known, in whole seconds; `None` before that is looked up.
    pub since: Option<Timestamp>,
    /// Whether another finding may be its cause.
    pub symptom: Option<Symptom>,
}

/// How a finding is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Source {
    /// From what happens now.
    Service,
    /// From the objects.
    Configuration,
}

/// What is known about failures that may have their cause in another finding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symptom {
    /// The objects in which the cause may be.
    pub objects: Vec<ObjectRef>,
    /// Texts that name the object in which the cause may be.
    pub faults: Vec<String>,
    /// Whether most of the failed responses are those of the backends themselves.
    pub is_of_backend: bool,
    /// What to do if no other finding is the cause.
    pub remedy: &'static str,
}

impl Finding {
    /// Creates a finding about what happens now.
    pub fn of_service(kind: Kind, object: String, cause: String) -> Self {
        Self {
            severity: kind.severity(),
            kind,
            source: Source::Service,
            subject: None,
            object,
            cause,
            effect: String::new(),
            remedy: String::new(),
            location: None,
            since: None,
            symptom: None,
        }
    }

    /// Creates a finding about a file, or about an object that cannot be read.
    pub fn of_file(
        severity: Severity,
        object: String,
        cause: String,
        location: Option<FileLocation>,
    ) -> Self {
        Self {
            source: Source::Configuration,
            severity,
            location,
            ..Self::of_service(Kind::File, object, cause)
        }
    }

    /// Creates a finding about an object.
    pub fn of_object(kind: Kind, object: &ObjectRef, cause: String) -> Self {
        Self {
            source: Source::Configuration,
            subject: Some(object.clone()),
            ..Self::of_service(kind, object.to_string(), cause)
        }
    }

    /// Says how bad it is.
    pub fn of_severity(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }

    /// Says which object may need a change.
    pub fn about(self, subject: &ObjectRef) -> Self {
        let subject = Some(subject.clone());
        Self { subject, ..self }
    }

    /// Says what it does to requests or connections now.
    pub fn with_effect(self, effect: impl Into<String>) -> Self {
        let effect = effect.into();
        Self { effect, ..self }
    }

    /// Says what to do.
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        let remedy = remedy.into();
        Self { remedy, ..self }
    }

    /// Says which names the author of a reference may have meant, before what else to do; `None` says nothing.
    pub fn with_advice(self, advice: Option<String>) -> Self {
        let Some(mut remedy) = advice else {
            return self;
        };
        if !self.remedy.is_empty() {
            remedy.push_str("; ");
            remedy.push_str(&self.remedy);
        }
        Self { remedy, ..self }
    }

    /// Returns the whole text: cause, effect and remedy.
    pub fn message(&self) -> String {
        let mut text = self.cause.clone();
        // The effect is that of the whole cause, not of its last part.
        let before_effect = match text.contains("; ") {
            true => "; ",
            false => ": ",
        };
        for (separator, part) in [(before_effect, &self.effect), ("; ", &self.remedy)] {
            if !part.is_empty() {
                text.push_str(separator);
                text.push_str(part);
            }
        }
        text
    }
}

/// Prints the location of the object, unless it is generated or from a cluster, the object and the whole text.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        write!(f, "{}: {}", self.object, self.message())
    }
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let document = Document {
            source: self.source,
            severity: self.severity,
            kind: self.kind,
            object: &self.object,
            message: self.message(),
            cause: &self.cause,
            effect: given(&self.effect),
            remedy: given(&self.remedy),
            since: self.since,
            location: self.location.as_ref(),
        };
        document.serialize(serializer)
    }
}

/// A finding as JSON.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(rename = "in")]
    source: Source,
    severity: Severity,
    kind: Kind,
    object: &'a str,
    message: String,
    cause: &'a str,
    effect: Option<&'a str>,
    remedy: Option<&'a str>,
    since: Option<Timestamp>,
    #[serde(flatten)]
    location: Option<&'a FileLocation>,
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|it| !it.is_empty())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn documents_have_the_parts_of_the_message() {
        let object = ObjectRef::gateway_api("HTTPRoute", "shop", "web");
        let finding = Finding::of_object(Kind::Route, &object, "all weights are 0".to_owned());
        let whole = Finding {
            location: Some(FileLocation {
                file: Path::new("a.yaml").into(),
                document: 1,
                line: 2,
            }),
            ..finding
                .clone()
                .with_effect("status 500")
                .with_remedy("raise one")
        };
        let text = "all weights are 0: status 500; raise one";
        let shown = format!("a.yaml:2 (document 1): HTTPRoute shop/web: {text}");
        assert_eq!(whole.to_string(), shown);
        let expected = json!({
            "in": "configuration", "severity": "error", "kind": "route", "object": "HTTPRoute shop/web", "message": text,
            "cause": "all weights are 0", "effect": "status 500", "remedy": "raise one", "since": null,
            "file": "a.yaml", "document": 1, "line": 2,
        });
        assert_eq!(serde_json::to_value(&whole).unwrap(), expected);
        let bare = serde_json::to_value(&finding).unwrap();
        assert_eq!(bare["message"], bare["cause"]);
        let advised = whole
            .clone()
            .with_advice(Some("did you mean b?".to_owned()));
        assert_eq!(advised.remedy, "did you mean b?; raise one");
        assert_eq!(whole.clone().with_advice(None), whole);
        let long = Finding::of_object(Kind::Object, &object, "is wrong; see b".to_owned());
        let long = long.with_effect("status 500").message();
        assert_eq!(long, "is wrong; see b; status 500");
        assert_eq!(
            (&bare["effect"], &bare["remedy"]),
            (&json!(null), &json!(null))
        );
    }
}
