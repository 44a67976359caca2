//! The report while the steps update it: statuses by object, and notes. Must not know who finds what.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ir::ObjectRef;
use crate::status::{Note, StatusMap, StatusReport};

/// The report of a translator.
#[derive(Default)]
pub(super) struct Report {
    pub(super) statuses: StatusReport,
    pub(super) notes: Notes,
}

impl Report {
    /// Returns the report as it is now.
    pub(super) fn current(&mut self) -> StatusReport {
        self.statuses.notes = self.notes.list();
        self.statuses.clone()
    }
}

/// Replaces the status of an object; `None` removes it. An equal status stays the same `Arc`, so that later comparisons
/// see the same pointer.
pub(super) fn put<T: Eq + ?Sized>(
    statuses: &mut StatusMap<T>,
    object: &ObjectRef,
    status: Option<Arc<T>>,
) {
    let known = statuses.get(object);
    match status {
        Some(status) if known.is_none_or(|known| **known != *status) => {
            statuses.insert(object.clone(), status);
        }
        None if known.is_some() => drop(statuses.remove(object)),
        Some(_) | None => {}
    }
}

/// The notes of all steps. Each object has notes of one step.
#[derive(Default)]
pub(super) struct Notes {
    by_object: BTreeMap<ObjectRef, Vec<Note>>,
    /// All notes in order; `None` after a change.
    listed: Option<Arc<[Note]>>,
}

impl Notes {
    /// Replaces the notes on an object.
    pub(super) fn replace(&mut self, object: &ObjectRef, mut notes: Vec<Note>) {
        notes.sort();
        let previous = match notes.is_empty() {
            true => self.by_object.remove(object),
            false => self.by_object.insert(object.clone(), notes),
        };
        if previous.as_ref() != self.by_object.get(object) {
            self.listed = None;
        }
    }

    /// Reports whether an object has notes.
    pub(super) fn are_on(&self, object: &ObjectRef) -> bool {
        self.by_object.contains_key(object)
    }

    /// Returns all notes, in order.
    fn list(&mut self) -> Arc<[Note]> {
        let all = || self.by_object.values().flatten().cloned().collect();
        self.listed.get_or_insert_with(all).clone()
    }
}
