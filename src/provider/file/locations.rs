//! Where the documents and the objects of files are.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::entry::{self, Admissions, Document, Files};
use super::locate::Lines;
use crate::api::{Finding, ObjectRef};
use crate::provider::problem::{FileLocation, Problem};

/// Location of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Location<'a> {
    pub(super) file: &'a Arc<Path>,
    pub(super) document: usize,
    /// First line of the document, or line of the syntax error.
    pub(super) line: usize,
    pub(super) fields: Option<&'a Lines>,
}

impl<'a> Location<'a> {
    pub(super) fn new(file: &'a Arc<Path>, index: usize, document: &'a Document) -> Self {
        Self {
            file,
            document: index + 1,
            line: document.line,
            fields: document.outcome.as_ref().ok().and_then(Admissions::fields),
        }
    }

    /// Returns the location of the whole object.
    pub(super) fn of_object(&self) -> FileLocation {
        FileLocation {
            file: self.file.clone(),
            document: self.document,
            line: self.line,
        }
    }

    /// Creates a problem of a field of the object.
    pub(super) fn problem(&self, object: Option<&ObjectRef>, finding: &Finding) -> Problem {
        let line = self.fields.and_then(|fields| fields.get(&finding.field));
        Problem {
            severity: finding.severity,
            location: FileLocation {
                line: self.line + line.map_or(0, |line| line - 1),
                ..self.of_object()
            },
            generation: 0,
            object: object.cloned(),
            field: finding.field.clone(),
            message: finding.message.clone(),
            rule: finding.rule.clone(),
            leaves_open: false,
            is_served: false,
        }
    }
}

/// Where the objects of some files are. Looks through the files when the first one is asked for.
#[derive(Debug, Default)]
pub struct Locations {
    files: Files,
    known: OnceLock<FxHashMap<ObjectRef, FileLocation>>,
}

impl Locations {
    pub(super) fn new(files: Files) -> Self {
        Self {
            files,
            known: OnceLock::new(),
        }
    }

    /// Returns the location of an object; `None` if no document defines it.
    pub fn of(&self, object: &ObjectRef) -> Option<&FileLocation> {
        self.known.get_or_init(|| search(&self.files)).get(object)
    }

    /// Returns what is wrong with an object, with the location of the object.
    pub fn locate<'a>(&'a self, object: Option<&'a ObjectRef>, message: &'a str) -> Located<'a> {
        Located {
            location: object.and_then(|object| self.of(object)),
            object,
            message,
        }
    }
}

/// What is wrong with an object. Begins with the location of the object, unless it is generated or from a cluster.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Located<'a> {
    #[serde(flatten)]
    location: Option<&'a FileLocation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<&'a ObjectRef>,
    message: &'a str,
}

impl fmt::Display for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = self.location {
            write!(f, "{location}: ")?;
        }
        if let Some(object) = self.object {
            write!(f, "{object}: ")?;
        }
        f.write_str(self.message)
    }
}

/// Returns where each object is defined: at the first definition in order of paths, unless its file keeps a previous version
/// in service.
fn search(files: &Files) -> FxHashMap<ObjectRef, FileLocation> {
    let mut files: Vec<_> = files.iter().collect();
    files.sort_by_key(|(_, entry)| entry.keeps_previous());
    let mut known = FxHashMap::default();
    for (path, entry) in files {
        for (index, admission) in entry.admissions() {
            if let Some(id) = entry::defined(admission) {
                let location = || Location::new(path, index, &entry.documents[index]).of_object();
                known.entry(id.clone()).or_insert_with(location);
            }
        }
    }
    known
}
