//! Where the objects of files are, for others. Must not decide which of several definitions counts.

use rustc_hash::FxHashSet;

use super::definitions;
use super::entry::Files;
use crate::api::ObjectRef;
use crate::finding::Finding;

/// Some files, in which the definitions of objects can be found.
#[derive(Debug, Default)]
pub struct Locations(Files);

impl Locations {
    pub(super) fn new(files: Files) -> Self {
        Self(files)
    }

    /// Adds to findings where the objects are that need a change. Looks through all files once, and remembers nothing, so that a
    /// process needs no memory for the places of objects that nobody asks for.
    pub fn locate(&self, findings: &mut [Finding]) {
        let subjects = findings.iter().filter_map(|it| it.subject.as_ref());
        let wanted: FxHashSet<ObjectRef> = subjects.cloned().collect();
        if wanted.is_empty() {
            return;
        }
        let wanted: FxHashSet<&ObjectRef> = wanted.iter().collect();
        let found = definitions::of_objects(&self.0, &wanted);
        for finding in findings {
            let subject = finding.subject.as_ref();
            if let Some(definition) = subject.and_then(|it| found.get(it)) {
                finding.location = Some(definition.location.of_object());
            }
        }
    }
}
