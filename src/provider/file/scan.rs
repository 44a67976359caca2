//! Finds the configuration files below a directory: filters names, follows symlinks, and collects
//! the directories to watch. Reads no file content.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io, mem};

use imbl::{OrdMap, OrdSet};

use super::links;
use crate::finding::Severity;
use crate::ir::packed::packed;
use crate::provider::Problem;

/// Maximum depth of directories.
pub(super) const MAX_DEPTH: usize = 32;
/// Maximum number of files.
const MAX_FILES: usize = 100_000;
/// Maximum number of unread files that are noted one by one.
const MAX_UNREAD: usize = 10;

/// What to do about a path that cannot be read.
pub(super) const REPAIR: &str = "repair it, or what this process may read";
/// What follows at a start if nothing says what protects requests.
pub(super) const UNREADY: &str = "and a process that starts does not become ready";
/// What follows for a path that is not configuration.
const IGNORED: &str = "it is ignored";

/// Result of a scan. A clone shares what does not change.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    /// Files by user-visible path, with their real paths.
    pub(super) files: OrdMap<Arc<Path>, Arc<Path>>,
    /// Real directories in which a change is relevant.
    pub(super) directories: OrdSet<Arc<Path>>,
    /// Names whose change makes a symlink lead elsewhere, with real directories.
    pub(super) on_the_way: BTreeSet<PathBuf>,
    /// Entries that could not be read.
    pub(super) problems: Vec<Problem>,
    /// Those of which nothing says what they have, with the index of the problem.
    unreadable: Vec<(PathBuf, usize)>,
    /// Symlinks with the real paths of their targets.
    links: Vec<(PathBuf, PathBuf)>,
    /// User-visible and real path of the directory.
    root: (PathBuf, PathBuf),
    /// Real paths that this scan has found.
    visited: BTreeSet<PathBuf>,
    full: bool,
    /// Number of files that are not configuration.
    unread: usize,
}

/// Scans a directory. Shares the paths of a previous scan, and has its files where nothing says whether they are there still.
/// Returns an error only if the directory itself cannot be read.
pub(super) fn scan(directory: &Path, previous: &Scan) -> io::Result<Scan> {
    let real = fs::canonicalize(directory)?;
    let entries = fs::read_dir(directory)?;
    let mut scan = Scan {
        root: (directory.to_owned(), real.clone()),
        ..Scan::default()
    };
    scan.directories.insert(real.as_path().into());
    scan.visited.insert(real.clone());
    scan.entries((directory, &real), entries, 0);
    scan.retain(previous);
    scan.note_files(directory);
    scan.visited = BTreeSet::new();
    scan.share(previous);
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

    /// Reports whether paths can be scanned one by one: there are no symlinks, some files, and nothing failed.
    pub(super) fn is_plain(&self) -> bool {
        let mut problems = self.problems.iter();
        self.links.is_empty()
            && !self.files.is_empty()
            && self.unread <= MAX_UNREAD
            && problems.all(|problem| problem.severity == Severity::Note)
    }

    /// Returns the real path of the directory.
    pub(super) fn real_root(&self) -> &Path {
        &self.root.1
    }

    /// Scans a real path again, with all that is below it. Returns its user-visible path, or `None` if the whole
    /// directory has to be scanned again. A path that is not read changes nothing.
    pub(super) fn update(&mut self, real: &Path) -> Option<PathBuf> {
        let below = real.strip_prefix(&self.root.1).ok()?;
        let path = self.root.0.join(below);
        let is_noted = |problem: &Problem| problem.location.file.starts_with(&path);
        if below.components().next().is_none()
            || !self.is_plain()
            || self.problems.iter().any(is_noted)
        {
            return None;
        }
        let noted = self.problems.len();
        if is_hidden_below(below) {
            return Some(path);
        }
        let gone: Vec<_> = below_path(&self.files, &path).cloned().collect();
        gone.iter().for_each(|file| drop(self.files.remove(file)));
        let directories = self.directories.range::<_, Path>(from(real));
        let directories = directories.take_while(|directory| directory.starts_with(real));
        let gone: Vec<_> = directories.cloned().collect();
        gone.iter()
            .for_each(|directory| drop(self.directories.remove(directory)));
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => return None,
            Ok(metadata) => {
                let depth = below.components().count() - 1;
                self.entry(path.clone(), real.to_owned(), metadata.file_type(), depth);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => return None,
        }
        self.visited = BTreeSet::new();
        (self.is_plain() && self.problems.len() == noted).then_some(path)
    }

    /// Takes the paths of a previous scan where they are equal: the files that were read have them as keys.
    fn share(&mut self, previous: &Self) {
        let files = std::mem::take(&mut self.files);
        let shared = |(path, real): (Arc<Path>, Arc<Path>)| match previous
            .files
            .get_key_value(&path)
        {
            Some((known, known_real)) if *known_real == real => (known.clone(), known_real.clone()),
            _ => (path, real),
        };
        self.files = packed(&files.into_iter().map(shared).collect());
    }

    /// Keeps the files of a previous scan that are where this one could not read. Where there are none, nobody knows what would
    /// protect requests.
    fn retain(&mut self, previous: &Self) {
        for (path, problem) in mem::take(&mut self.unreadable) {
            let mut is_known = false;
            for file in below_path(&previous.files, &path) {
                is_known = true;
                let real = &previous.files[file];
                if !self.files.contains_key(file) {
                    self.files.insert(file.clone(), real.clone());
                }
                if let Some(directory) = real.parent() {
                    self.directories.insert(directory.into());
                }
            }
            let problem = &mut self.problems[problem];
            problem.leaves_open = !is_known;
            problem.effect = match is_known {
                true => "what it had stays in service".to_owned(),
                false => format!("what it has is not served, {UNREADY}"),
            };
        }
    }

    fn entries(&mut self, (directory, real): (&Path, &Path), entries: fs::ReadDir, depth: usize) {
        let mut found = Vec::new();
        for entry in entries {
            match entry {
                Ok(entry) if is_hidden(&entry.file_name()) => {}
                Ok(entry) => found.push((entry.path(), entry.file_name(), entry.file_type())),
                Err(error) => {
                    self.fail(directory, format!("cannot be listed completely: {error}"));
                }
            }
        }
        found.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        for (path, name, kind) in found {
            match kind {
                Ok(kind) if kind.is_symlink() => self.link(path, &real.join(name), depth),
                Ok(kind) => self.entry(path, real.join(name), kind, depth),
                // Deleted since the directory was listed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => self.fail(&path, format!("cannot be read: {error}")),
            }
        }
    }

    fn link(&mut self, path: PathBuf, entry: &Path, depth: usize) {
        self.on_the_way.extend(links::on_the_way(entry));
        let real = match fs::canonicalize(&path) {
            Ok(real) => real,
            Err(error) => {
                let message = format!("the symlink is broken: {error}");
                return match error.kind() {
                    // Its target is deleted.
                    io::ErrorKind::NotFound => self.warn(&path, message, IGNORED),
                    _ => self.fail(&path, message),
                };
            }
        };
        self.links.push((path.clone(), real.clone()));
        match fs::metadata(&real) {
            Ok(metadata) => self.entry(path, real, metadata.file_type(), depth),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.fail(&path, format!("cannot be read: {error}")),
        }
    }

    fn entry(&mut self, path: PathBuf, real: PathBuf, kind: fs::FileType, depth: usize) {
        if kind.is_dir() {
            self.directory(&path, &real, depth);
        } else if !has_extension(&path) {
            if kind.is_file() {
                self.unread(&path);
            }
        } else if !kind.is_file() {
            let message = "neither a file nor a directory".to_owned();
            self.warn(&path, message, IGNORED);
        } else if self.visited.insert(real.clone()) {
            self.file(path, real);
        }
    }

    fn file(&mut self, path: PathBuf, real: PathBuf) {
        if self.files.len() < MAX_FILES {
            let path: Arc<Path> = path.into();
            let real = match *path == *real {
                true => path.clone(),
                false => real.into(),
            };
            self.files.insert(path, real);
        } else if !self.full {
            self.full = true;
            let message = format!("more than {MAX_FILES} files");
            self.warn(&path, message, "this one and the following are ignored");
        }
    }

    fn directory(&mut self, path: &Path, real: &Path, depth: usize) {
        if depth >= MAX_DEPTH {
            let message = format!("nested deeper than {MAX_DEPTH} directories");
            return self.warn(path, message, IGNORED);
        }
        if !self.visited.insert(real.to_owned()) {
            return;
        }
        self.directories.insert(real.into());
        match fs::read_dir(path) {
            Ok(entries) => self.entries((path, real), entries, depth + 1),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.fail(path, format!("cannot be read: {error}")),
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

    /// Reports what cannot be read, so that nothing says which files are there.
    fn fail(&mut self, path: &Path, message: String) {
        self.unreadable.push((path.to_owned(), self.problems.len()));
        let problem = Problem::of_file(Severity::Error, path, message);
        self.problems.push(problem.with_remedy(REPAIR));
    }

    fn warn(&mut self, path: &Path, message: String, effect: &str) {
        let problem = Problem::of_file(Severity::Warning, path, message);
        self.problems.push(problem.with_effect(effect));
    }
}

/// Returns the keys that are a path or below it.
pub(super) fn below_path<'a, T>(
    files: &'a OrdMap<Arc<Path>, T>,
    path: &'a Path,
) -> impl Iterator<Item = &'a Arc<Path>> {
    let paths = files.range::<_, Path>(from(path)).map(|(path, _)| path);
    paths.take_while(move |file| file.starts_with(path))
}

/// Returns the range that begins with a path.
fn from(path: &Path) -> (Bound<&Path>, Bound<&Path>) {
    (Bound::Included(path), Bound::Unbounded)
}

/// Reports whether a path below the directory is hidden, or in a hidden directory.
pub(super) fn is_hidden_below(below: &Path) -> bool {
    let mut components = below.components();
    components.any(|component| is_hidden(component.as_os_str()))
}

/// Reports whether nothing of an entry is read: its name begins with a dot, or it is a directory of the file system, which only
/// root reads.
fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".") || name == "lost+found"
}

/// Reports whether the extension of a file marks configuration.
pub(super) fn has_extension(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        ["yaml", "yml", "json"]
            .iter()
            .any(|known| extension == *known)
    })
}
