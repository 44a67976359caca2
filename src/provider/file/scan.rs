//! Finds the configuration files below a directory: filters names, follows symlinks, and collects
//! the directories to watch. Reads no file content.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::api::Severity;
use crate::provider::Problem;

/// Maximum depth of directories.
const MAX_DEPTH: usize = 32;
/// Maximum number of files.
const MAX_FILES: usize = 100_000;
/// Maximum number of unread files that are noted one by one.
const MAX_UNREAD: usize = 10;
/// Maximum length of a chain of symlinks.
const MAX_LINKS: usize = 16;

/// Result of a scan.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Files by user-visible path, with their real paths.
    pub(super) files: BTreeMap<PathBuf, PathBuf>,
    /// Real directories in which a change is relevant.
    pub(super) directories: BTreeSet<PathBuf>,
    /// Entries that could not be read.
    pub(super) problems: Vec<Problem>,
    /// Symlinks with the real paths of their targets.
    links: Vec<(PathBuf, PathBuf)>,
    visited: BTreeSet<PathBuf>,
    full: bool,
    /// Number of files that are not configuration.
    unread: usize,
}

/// Scans a directory. Returns an error only if the directory itself cannot be read.
pub(super) fn scan(directory: &Path) -> io::Result<Scan> {
    let real = fs::canonicalize(directory)?;
    let entries = fs::read_dir(directory)?;
    let mut scan = Scan::default();
    scan.directories.insert(real.clone());
    scan.visited.insert(real);
    scan.entries(directory, entries, 0);
    scan.note_files(directory);
    Ok(scan)
}

impl Scan {
    /// Reports whether every symlink still has the same target. If not, the content read since may
    /// mix two states.
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
                Err(error) => self.warn(directory, format!("cannot be listed completely: {error}")),
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
                return self.warn(&path, format!("the symlink is broken: {error}"));
            }
            // Deleted since the directory was listed.
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
            if metadata.is_file() {
                self.unread(&path);
            }
        } else if !metadata.is_file() {
            self.warn(&path, "neither a file nor a directory; ignored".to_owned());
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
                format!("more than {MAX_FILES} files; this one and the following are ignored"),
            );
        }
    }

    fn directory(&mut self, path: &Path, real: PathBuf, depth: usize) {
        if depth >= MAX_DEPTH {
            return self.warn(
                path,
                format!("nested deeper than {MAX_DEPTH} directories; ignored"),
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

    /// Adds the directory of every file in a chain of symlinks to the watched directories.
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

    /// Notes a file that is not read, so that its author sees why it has no effect. Files that editors leave are not
    /// worth a note.
    fn unread(&mut self, path: &Path) {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if name.ends_with(b"~") || name.starts_with(b"#") {
            return;
        }
        self.unread += 1;
        if self.unread <= MAX_UNREAD {
            let message = "not read: the names of configuration files end in .yaml, .yml or .json";
            self.note(path, message.to_owned());
        }
    }

    /// Notes that there are more files that are not read, or that there is none to read.
    fn note_files(&mut self, directory: &Path) {
        if self.unread > MAX_UNREAD {
            let more = self.unread - MAX_UNREAD;
            self.note(directory, format!("{more} more files are not read"));
        }
        if self.files.is_empty() {
            let message = "there is no .yaml, .yml or .json file, so nothing is served";
            self.note(directory, message.to_owned());
        }
    }

    fn note(&mut self, path: &Path, message: String) {
        self.problems
            .push(Problem::of_file(Severity::Note, path, message));
    }

    fn warn(&mut self, path: &Path, message: String) {
        self.problems
            .push(Problem::of_file(Severity::Warning, path, message));
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Reports whether the extension of a file marks configuration.
pub(super) fn has_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        ["yaml", "yml", "json"]
            .iter()
            .any(|known| extension == *known)
    })
}
