//! Finds the configuration files below a directory: which names count, how symlinks are followed, and which
//! directories must be watched to hear of every change. Reads no file's content.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::api::Severity;
use crate::provider::Problem;

/// Directories nested deeper than this are left out.
const MAX_DEPTH: usize = 32;
/// Files beyond this number are left out.
const MAX_FILES: usize = 100_000;
/// Symlinks followed from one file to the next.
const MAX_LINKS: usize = 16;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The files, by the path that a user knows, with their real paths.
    pub(super) files: BTreeMap<PathBuf, PathBuf>,
    /// Real directories in which a change may matter.
    pub(super) directories: BTreeSet<PathBuf>,
    /// What could not be followed.
    pub(super) problems: Vec<Problem>,
    /// Symlinks among the entries, with the real paths they led to.
    links: Vec<(PathBuf, PathBuf)>,
    visited: BTreeSet<PathBuf>,
    full: bool,
}

/// Scans a directory. Fails only when the directory itself cannot be read.
pub(super) fn scan(directory: &Path) -> io::Result<Scan> {
    let real = fs::canonicalize(directory)?;
    let entries = fs::read_dir(directory)?;
    let mut scan = Scan::default();
    scan.directories.insert(real.clone());
    scan.visited.insert(real);
    scan.entries(directory, entries, 0);
    Ok(scan)
}

impl Scan {
    /// Whether every symlink still leads where it led: otherwise what was read since may be of two states at once.
    pub(super) fn is_current(&self) -> bool {
        self.links
            .iter()
            .all(|(link, real)| fs::canonicalize(link).is_ok_and(|now| now == *real))
    }

    fn entries(&mut self, directory: &Path, entries: fs::ReadDir, depth: usize) {
        let mut paths = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) if is_hidden(&entry.file_name()) => {}
                Ok(entry) => paths.push(entry.path()),
                Err(error) => self.warn(directory, format!("cannot be listed whole: {error}")),
            }
        }
        paths.sort();
        for path in paths {
            self.entry(path, depth);
        }
    }

    fn entry(&mut self, path: PathBuf, depth: usize) {
        let is_link = fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink());
        if is_link {
            self.follow(&path);
        }
        let real = match fs::canonicalize(&path) {
            Ok(real) => real,
            Err(error) if is_link => {
                return self.warn(&path, format!("the symlink leads nowhere: {error}"));
            }
            // Gone since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.warn(&path, format!("cannot be read: {error}")),
        };
        if is_link {
            self.links.push((path.clone(), real.clone()));
        }
        let Ok(metadata) = fs::metadata(&real) else {
            return;
        };
        if metadata.is_dir() {
            self.directory(&path, real, depth);
        } else if !has_extension(&path) {
            // Not meant to be read.
        } else if !metadata.is_file() {
            self.warn(&path, "neither a file nor a directory; left out".to_owned());
        } else if self.visited.insert(real.clone()) {
            self.file(path, real);
        }
    }

    fn file(&mut self, path: PathBuf, real: PathBuf) {
        if self.files.len() < MAX_FILES {
            self.files.insert(path, real);
        } else if !self.full {
            self.full = true;
            self.warn(
                &path,
                format!("more than {MAX_FILES} files; this one and what follows is left out"),
            );
        }
    }

    fn directory(&mut self, path: &Path, real: PathBuf, depth: usize) {
        if depth >= MAX_DEPTH {
            return self.warn(
                path,
                format!("nested deeper than {MAX_DEPTH} directories; left out"),
            );
        }
        if !self.visited.insert(real.clone()) {
            return;
        }
        self.directories.insert(real);
        match fs::read_dir(path) {
            Ok(entries) => self.entries(path, entries, depth + 1),
            Err(error) => self.warn(path, format!("cannot be read: {error}")),
        }
    }

    /// Watches the directory of every file that a chain of symlinks passes through.
    fn follow(&mut self, link: &Path) {
        let mut at = link.to_owned();
        for _ in 0..MAX_LINKS {
            let Ok(target) = fs::read_link(&at) else {
                break;
            };
            at = at.parent().unwrap_or(Path::new("/")).join(target);
            let Some(Ok(parent)) = at.parent().map(fs::canonicalize) else {
                break;
            };
            if fs::metadata(&at).is_ok_and(|metadata| metadata.is_file()) {
                self.directories.insert(parent);
            }
        }
    }

    fn warn(&mut self, path: &Path, message: String) {
        self.problems
            .push(Problem::of_file(Severity::Warning, path, message));
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Whether a file's name says that it holds configuration.
pub(super) fn has_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        ["yaml", "yml", "json"]
            .iter()
            .any(|known| extension == *known)
    })
}
