//! How bad a finding is.

use std::fmt;

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// The object cannot be used, or requests and connections get a wrong response or none.
    Error,
    /// The object is used nevertheless, and requests get their responses so far.
    Warning,
    /// Nothing has to change.
    Note,
}

impl Severity {
    /// Returns its name in texts, documents and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
