//! File system events, what is known to have changed because of them, and how much of a directory has to be read again.
//! Must not know when files are read.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, ModifyKind, RenameMode};

/// Number of paths from which on all files that have changed are read.
const MAX_PATHS: usize = 16 * 1024;

/// What has to be read.
#[derive(Debug)]
pub(super) enum Extent<'a> {
    /// The content of every file.
    Everything,
    /// The files that have changed, in the whole directory.
    Changed,
    /// These real paths.
    Paths(&'a BTreeSet<PathBuf>),
}

/// What has changed since the last draft.
#[derive(Debug)]
pub(super) enum Dirty {
    /// These real paths.
    Paths(BTreeSet<PathBuf>),
    /// Unknown files.
    Somewhere,
    /// Files whose time of change may be the same.
    Everything,
}

impl Default for Dirty {
    fn default() -> Self {
        Self::Paths(BTreeSet::new())
    }
}

impl Dirty {
    pub(super) fn extent(&self) -> Extent<'_> {
        match self {
            Self::Paths(paths) => Extent::Paths(paths),
            Self::Somewhere => Extent::Changed,
            Self::Everything => Extent::Everything,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Paths(paths) if paths.is_empty())
    }

    pub(super) fn add_path(&mut self, path: &Path) {
        if let Self::Paths(paths) = self {
            paths.insert(path.to_owned());
        }
        self.bound();
    }

    pub(super) fn add(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Paths(paths), Self::Paths(others)) => paths.extend(others),
            (Self::Everything, _) | (Self::Somewhere, Self::Paths(_)) => {}
            (_, other) => *self = other,
        }
        self.bound();
    }

    /// Unknown files take the place of too many paths.
    fn bound(&mut self) {
        if matches!(self, Self::Paths(paths) if paths.len() > MAX_PATHS) {
            *self = Self::Somewhere;
        }
    }
}

/// A file system change.
#[derive(Debug)]
pub(super) enum Change {
    Created(PathBuf),
    Written(PathBuf),
    Closed(PathBuf),
    /// Deleted, or replaced by another file of the same name.
    Removed(PathBuf),
    Other(Vec<PathBuf>),
    /// Events may have been lost.
    Unknown,
}

/// Effect of a change on the current draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    Nothing,
    /// A write has begun: the file must not be read until it ends.
    WriteStarted,
    /// There is new content.
    Changed,
}

impl Change {
    pub(super) fn of(event: notify::Event) -> Option<Self> {
        let is_lossy = event.need_rescan();
        let mut paths = event.paths;
        match event.kind {
            _ if is_lossy => Some(Self::Unknown),
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                Some(Self::Closed(paths.pop()?))
            }
            EventKind::Access(_) => None,
            EventKind::Create(CreateKind::File) => Some(Self::Created(paths.pop()?)),
            EventKind::Modify(ModifyKind::Data(_)) => Some(Self::Written(paths.pop()?)),
            EventKind::Modify(ModifyKind::Name(RenameMode::From | RenameMode::To))
            | EventKind::Remove(_) => Some(Self::Removed(paths.pop()?)),
            _ => Some(Self::Other(paths)),
        }
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        match self {
            Self::Created(path)
            | Self::Written(path)
            | Self::Closed(path)
            | Self::Removed(path) => std::slice::from_ref(path),
            Self::Other(paths) => paths,
            Self::Unknown => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what has changed when these files have.
    fn dirty(files: std::ops::Range<usize>) -> Dirty {
        let mut dirty = Dirty::default();
        files.for_each(|file| dirty.add_path(Path::new(&file.to_string())));
        dirty
    }

    #[test]
    fn unknown_files_take_the_place_of_too_many_paths() {
        let is_known = |dirty: &Dirty| matches!(dirty.extent(), Extent::Paths(_));
        let is_somewhere = |dirty: &Dirty| matches!(dirty.extent(), Extent::Changed);
        assert!(is_known(&dirty(0..MAX_PATHS)));
        assert!(is_somewhere(&dirty(0..MAX_PATHS + 1)));
        let mut half = dirty(0..MAX_PATHS / 2);
        half.add(dirty(MAX_PATHS / 2..MAX_PATHS));
        assert!(is_known(&half));
        half.add(dirty(MAX_PATHS..MAX_PATHS + 1));
        assert!(is_somewhere(&half));
    }
}
