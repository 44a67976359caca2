//! The definitions of objects in files, and which of several counts. Must not know which version of an object is served.

use std::path::Path;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::entry::{self, Entry, Files};
use super::location::Location;
use crate::api::{Admission, ObjectRef};

/// The definition of an object in a file.
#[derive(Clone, Copy)]
pub(super) struct Definition<'a> {
    pub(super) admission: &'a Admission,
    pub(super) location: Location<'a>,
    /// Number of the object in its file.
    pub(super) number: usize,
}

/// One definition of each object.
type ByObject<'a> = FxHashMap<&'a ObjectRef, Definition<'a>>;

/// The definitions that count, by file. Computed for the files that are looked at.
pub(super) struct Definitions<'a> {
    pub(super) files: &'a Files,
    /// By the address of the path, which costs less to compare than the path.
    known: FxHashMap<*const Path, ByObject<'a>>,
}

impl<'a> Definitions<'a> {
    pub(super) fn new(files: &'a Files) -> Self {
        Self {
            files,
            known: FxHashMap::default(),
        }
    }

    fn of_file(&mut self, path: &Path) -> Option<&ByObject<'a>> {
        let mut place: *const Path = path;
        if !self.known.contains_key(&place) {
            let (path, entry) = self.files.get_key_value(path)?;
            place = &**path;
            self.known.entry(place).or_insert_with(|| {
                let mut first = ByObject::default();
                // A file whose previous version stays in service defines nothing.
                if !entry.keeps_previous() {
                    add(path, entry, |_| true, &mut first);
                }
                first
            });
        }
        self.known.get(&place)
    }

    /// Returns the definition that counts: the first one in order of paths.
    pub(super) fn first_of<'p>(
        &mut self,
        mut files: impl Iterator<Item = &'p Path>,
        id: &ObjectRef,
    ) -> Option<Definition<'a>> {
        files.find_map(|path| self.of_file(path)?.get(id).copied())
    }
}

/// Returns the definition that counts of each of these objects. An object of which only files whose previous version stays in
/// service have a definition is found there.
pub(super) fn of_objects<'a>(files: &'a Files, wanted: &FxHashSet<&ObjectRef>) -> ByObject<'a> {
    let mut found = ByObject::default();
    let (kept, read): (Vec<_>, Vec<_>) =
        files.iter().partition(|(_, entry)| entry.keeps_previous());
    for (path, entry) in read.into_iter().chain(kept) {
        add(path, entry, |id| wanted.contains(id), &mut found);
    }
    found
}

/// Adds the first definition in a file of each object that is wanted, unless one is known.
fn add<'a>(
    path: &'a Arc<Path>,
    entry: &'a Entry,
    is_wanted: impl Fn(&ObjectRef) -> bool,
    known: &mut ByObject<'a>,
) {
    for (number, (place, admission)) in entry.admissions().enumerate() {
        if let Some(id) = entry::defined(admission).filter(|id| is_wanted(id)) {
            known.entry(id).or_insert_with(|| Definition {
                admission,
                location: Location::new(path, entry, place),
                number,
            });
        }
    }
}
