//! The place of an object in a file, and the lines of its fields. Must not know other files.

use std::path::Path;
use std::sync::Arc;

use super::entry::{Admissions, Entry, ItemPosition};
use super::locate::Lines;
use crate::api::{ObjectRef, Violation};
use crate::finding::FileLocation;
use crate::provider::problem::Problem;

/// Location of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Location<'a> {
    pub(super) file: &'a Arc<Path>,
    document: usize,
    /// First line of the document, or line of the syntax error.
    pub(super) line: usize,
    /// First line of the object, from 1 at the line of the document.
    item: usize,
    fields: Option<&'a Lines>,
}

impl<'a> Location<'a> {
    pub(super) fn new(file: &'a Arc<Path>, entry: &'a Entry, place: ItemPosition) -> Self {
        let document = &entry.documents[place.document];
        let admissions = document.outcome.as_ref().ok();
        Self {
            file,
            document: place.document + 1,
            line: document.line,
            item: admissions.map_or(1, |all| all.line(place.item)),
            fields: admissions.and_then(Admissions::fields),
        }
    }

    /// Returns the location of the whole object.
    pub(super) fn of_object(&self) -> FileLocation {
        self.at(self.item)
    }

    /// Returns the location of a line of the document, from 1.
    fn at(&self, line: usize) -> FileLocation {
        FileLocation {
            file: self.file.clone(),
            document: self.document,
            line: self.line + line - 1,
        }
    }

    /// Creates a problem of a field of the object.
    pub(super) fn problem(&self, object: Option<&ObjectRef>, finding: &Violation) -> Problem {
        let line = self.fields.and_then(|fields| fields.get(&finding.field));
        Problem {
            severity: finding.severity,
            location: self.at(line.copied().unwrap_or(self.item)),
            generation: 0,
            object: object.cloned(),
            field: finding.field.clone(),
            message: finding.message.clone(),
            effect: String::new(),
            remedy: String::new(),
            rule: finding.rule.clone(),
            leaves_open: false,
            is_served: false,
        }
    }
}
