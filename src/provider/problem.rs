//! What a provider has to say about its input: where it is wrong, how badly and why. Knows not who prints it.

use std::fmt;
use std::path::PathBuf;

use serde_json::Value;

use crate::api::{ObjectRef, Severity, admit};

/// Characters of a rule that are printed: some CEL rules fill a page.
const RULE_SHOWN: usize = 160;
/// Characters of a name or a field that are printed. No valid ones are longer.
const NAME_SHOWN: usize = 600;

/// Something wrong with the input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// The file, or the directory; empty for objects of a cluster.
    pub file: PathBuf,
    /// Number of the document in the file, from 1; 0 when the whole file is meant.
    pub document: usize,
    /// Line the document starts on, or of the syntax error, from 1; 0 when the whole file is meant.
    pub line: usize,
    /// The object, as far as its name is known.
    pub object: Option<ObjectRef>,
    /// Generation of the object; 0 where nothing counts it.
    pub generation: i64,
    /// Where in the object, such as `spec.rules[0].matches[1].path.value`; empty for the whole.
    pub field: String,
    /// What is wrong, and what comes of it.
    pub message: String,
    /// The rule that is broken, such as `maxLength: 253` or a CEL expression; empty where the message says it all.
    pub rule: String,
}

impl Problem {
    /// A problem of a whole file.
    pub fn of_file(
        severity: Severity,
        file: impl Into<PathBuf>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            file: file.into(),
            document: 0,
            line: 0,
            object: None,
            generation: 0,
            field: String::new(),
            message: message.into(),
            rule: String::new(),
        }
    }

    /// A problem of an object of a cluster.
    pub fn of_object(object: ObjectRef, generation: i64, message: impl Into<String>) -> Self {
        Self {
            object: Some(object),
            generation,
            ..Self::of_file(Severity::Error, PathBuf::new(), message)
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.severity)?;
        if self.file != PathBuf::new() {
            write!(f, ": {}", plain(&self.file.display()))?;
        }
        if self.document > 0 {
            write!(f, ":{} (document {})", self.line, self.document)?;
        }
        if let Some(object) = &self.object {
            write!(f, ": {}", plain(object))?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", plain(&self.field))?;
        }
        write!(f, ": {}", self.message)?;
        if !self.rule.is_empty() {
            match self.rule.char_indices().nth(RULE_SHOWN) {
                Some((end, _)) => write!(f, " [{}…]", &self.rule[..end])?,
                None => write!(f, " [{}]", self.rule)?,
            }
        }
        Ok(())
    }
}

/// Why an object of a known kind cannot be read, with the field: its schema knows that better than the error does.
pub(super) fn unreadable(value: Value, error: &serde_json::Error) -> String {
    if value["kind"] == "Secret" {
        // Both would quote what is in it.
        return "its fields do not have the types of those of a Secret".to_owned();
    }
    let findings = admit(value).findings;
    let fault = findings
        .iter()
        .find(|finding| finding.severity == Severity::Error);
    fault.map_or_else(
        || error.to_string(),
        |fault| format!("{}: {}", fault.field, fault.message),
    )
}

/// Text from outside on one line and in bounds, so that it cannot pass for another problem.
fn plain(text: &impl fmt::Display) -> String {
    let text = text.to_string();
    let mut shown = String::with_capacity(text.len().min(NAME_SHOWN));
    for (count, character) in text.chars().enumerate() {
        if count == NAME_SHOWN {
            shown.push('…');
            break;
        }
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}
