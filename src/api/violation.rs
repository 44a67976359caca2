//! What is wrong with an object, or worth knowing about it.

use std::fmt;

use crate::finding::Severity;

/// A problem of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// How bad it is.
    pub severity: Severity,
    /// Path of the field, such as `spec.rules[0].matches[1].path.value`; empty for the whole object.
    pub field: String,
    /// Description, in the words of the API server where it has some.
    pub message: String,
    /// The violated rule, such as `maxLength: 253` or a CEL expression; empty if the message is sufficient.
    pub rule: String,
}

/// Prints field and message.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl Violation {
    /// Creates an error without a rule.
    pub fn error(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            field: field.into(),
            message: message.into(),
            rule: String::new(),
        }
    }

    /// Creates a warning without a rule.
    pub fn warning(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::error(field, message)
        }
    }
}
