//! Objects as their authors wrote them, of any kind, from a folder, a file or a text: without the defaults and the
//! validation of an API server.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use serde_json::Value;

use super::scan::{self, Scan};
use super::{entry, parse};
use crate::finding::FileLocation;
use crate::finding::Severity;
use crate::provider::problem::Problem;

/// Maximum number of documents in a file.
const MAX_DOCUMENTS: usize = 100_000;

/// An object, and where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// File, which is `-` for standard input, and document.
    pub location: FileLocation,
    /// Path in the document, such as `items[2]` of a list.
    pub path: String,
    /// The object.
    pub value: Value,
}

impl Written {
    /// Creates a problem of a field of this object.
    pub fn problem(&self, field: &str, message: impl Into<String>) -> Problem {
        let dot = match self.path.is_empty() || field.is_empty() {
            true => "",
            false => ".",
        };
        Problem {
            location: self.location.clone(),
            field: format!("{}{dot}{field}", self.path),
            ..Problem::of_file(Severity::Error, "", message)
        }
    }
}

/// Objects, and what of their files cannot be read.
pub type WrittenObjects = (Vec<Written>, Vec<Problem>);

/// Reads a folder or a file.
///
/// # Errors
/// When the folder or the file cannot be read.
pub fn read(path: &Path) -> anyhow::Result<WrittenObjects> {
    let unreadable = || format!("{} cannot be read", path.display());
    if !path.is_dir() {
        let (text, _) = entry::read(path).with_context(unreadable)?;
        return of_text(path, &text);
    }
    let Scan {
        files, problems, ..
    } = scan::scan(path, &Scan::default()).with_context(unreadable)?;
    let (mut objects, mut problems): WrittenObjects = (Vec::new(), problems);
    for (shown, real) in &files {
        let (of_file, faults) = match entry::read(real) {
            Ok((text, _)) => of_text(shown, &text)?,
            Err(error) => {
                let message = format!("cannot be read: {error}");
                let problem = Problem::of_file(Severity::Error, shown, message);
                (Vec::new(), vec![problem])
            }
        };
        objects.extend(of_file);
        problems.extend(faults);
    }
    Ok((objects, problems))
}

/// Parses the text of a file, which is JSON if its name says so, or else YAML.
///
/// # Errors
/// When the text has too many documents.
pub fn of_text(file: &Path, text: &str) -> anyhow::Result<WrittenObjects> {
    let is_json = file.extension().is_some_and(|it| it == "json");
    let documents = match is_json {
        true => parse::json_document(text),
        false => parse::documents(text),
    };
    if documents.len() > MAX_DOCUMENTS {
        let file = file.display();
        bail!("{file} has more than {MAX_DOCUMENTS} documents");
    }
    let (mut objects, mut problems) = (Vec::new(), Vec::new());
    let file: Arc<Path> = file.into();
    for (index, document) in documents.into_iter().enumerate() {
        let location = |line| FileLocation {
            file: file.clone(),
            document: index + 1,
            line,
        };
        match parse::parse(document, is_json) {
            Ok(items) => objects.extend(items.into_iter().map(|item| Written {
                location: location(document.line),
                path: item.path,
                value: item.value,
            })),
            Err(error) => problems.push(Problem {
                location: location(document.line + error.line.saturating_sub(1)),
                ..Problem::of_file(Severity::Error, &file, error.message)
            }),
        }
    }
    Ok((objects, problems))
}
