//! Where something is in a file.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// Maximum number of printed characters of a name or field. Valid ones are never longer.
const NAME_SHOWN: usize = 600;

/// A place in a file. Prints as `FILE:LINE (document NUMBER)`, or as `FILE` for the whole file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FileLocation {
    /// File or directory; empty for objects of a cluster.
    #[serde(serialize_with = "shown")]
    pub file: Arc<Path>,
    /// Number of the document in the file, from 1; 0 for the whole file.
    pub document: usize,
    /// Line of the field, of the document if the field is unknown, or of the syntax error, from 1; 0
    /// for the whole file.
    pub line: usize,
}

/// Serializes a path, also one that is not UTF-8.
fn shown<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl fmt::Display for FileLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&self.file.display()))?;
        match self.document {
            0 => Ok(()),
            document => write!(f, ":{} (document {document})", self.line),
        }
    }
}

/// Escapes and truncates external text, so that it stays on one line and cannot look like another
/// problem.
pub fn plain(text: &impl fmt::Display) -> String {
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
