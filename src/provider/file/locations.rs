//! Where the objects of files are, for others. Must not decide which of several definitions counts.

use std::fmt;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use super::definitions;
use super::entry::Files;
use crate::api::ObjectRef;
use crate::provider::FileLocation;

/// Some files, in which the definitions of objects can be found.
#[derive(Debug, Default)]
pub struct Locations(Files);

impl Locations {
    pub(super) fn new(files: Files) -> Self {
        Self(files)
    }

    /// Finds these objects. Looks through all files once, and remembers nothing, so that a process needs no memory for the
    /// places of objects that nobody asks for.
    pub fn find<'o>(&self, objects: impl IntoIterator<Item = &'o ObjectRef>) -> FoundObjects {
        let wanted: FxHashSet<_> = objects.into_iter().collect();
        if wanted.is_empty() {
            return FoundObjects::default();
        }
        let found = definitions::of_objects(&self.0, &wanted).into_iter();
        FoundObjects(
            found
                .map(|(id, definition)| (id.clone(), definition.location.of_object()))
                .collect(),
        )
    }
}

/// Where some objects are.
#[derive(Debug, Default)]
pub struct FoundObjects(FxHashMap<ObjectRef, FileLocation>);

impl FoundObjects {
    /// Returns the location of an object; `None` if no document defines it.
    pub fn of(&self, object: &ObjectRef) -> Option<&FileLocation> {
        self.0.get(object)
    }

    /// Returns what is wrong with an object, with the location of the object.
    pub fn locate<'a>(&self, object: &'a ObjectRef, message: &'a str) -> Located<'a> {
        Located {
            location: self.of(object).cloned(),
            object,
            message,
        }
    }
}

/// What is wrong with an object. Begins with the location of the object, unless it is generated or from a cluster.
#[derive(Clone, Debug, Serialize)]
pub struct Located<'a> {
    #[serde(flatten)]
    location: Option<FileLocation>,
    object: &'a ObjectRef,
    message: &'a str,
}

impl fmt::Display for Located<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "{location}: ")?;
        }
        write!(f, "{}: {}", self.object, self.message)
    }
}
