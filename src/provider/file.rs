//! Objects from a directory of YAML and JSON files. Owns the state of the directory: its files, their content, and the
//! objects that are served of them. A change costs what it touches.

mod advice;
mod change;
mod definitions;
mod entry;
mod links;
mod locate;
mod location;
mod locations;
mod merge;
mod parse;
mod pending;
mod scan;
mod watch;
pub mod written;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Context;
use arc_swap::ArcSwap;

use self::change::Extent;
use self::entry::{Entry, Files, entry_of, read_entry};
pub use self::locations::Locations;
use self::merge::Merged;
use self::scan::{Scan, below_path};
use super::{Load, Problem, Progress};
use crate::finding::Severity;
use crate::ir::packed::packed;

/// Maximum number of reads that are discarded because a symlink changed meanwhile.
const RETRIES: usize = 5;
/// Number of files from which on all cores read them.
const MANY_FILES: usize = 16;

/// Reads a directory repeatedly and validates only changed documents.
#[derive(Debug)]
pub struct FileProvider {
    directory: PathBuf,
    scan: Scan,
    files: Files,
    merged: Merged,
    /// Files of a draft that was discarded. Those that are the same in the next one are not validated again.
    discarded: Files,
    progress: Arc<Progress>,
    /// The files as of the last read, for others.
    locations: Arc<ArcSwap<Locations>>,
}

/// Reads one file.
///
/// # Errors
/// When it cannot be read.
pub fn load_file(path: &Path) -> anyhow::Result<(Load, Arc<Locations>)> {
    let text = entry::read(path);
    let (text, _) = text.with_context(|| format!("the file {} cannot be read", path.display()))?;
    Ok(load_text(path, &text))
}

/// Reads a text as that of a file of this name.
pub fn load_text(path: &Path, text: &str) -> (Load, Arc<Locations>) {
    let entry = entry_of(path, (text, None), None);
    let mut scan = Scan::default();
    if entry.documents.is_empty() {
        let message = "it is empty, so nothing is served".to_owned();
        let problem = Problem::of_file(Severity::Note, path, message);
        scan.problems.push(problem);
    }
    let mut provider = FileProvider::new(path.to_owned());
    let load = provider.accept(Draft {
        scan,
        files: Files::unit(path.into(), entry),
        is_whole: true,
    });
    (load, provider.locations.load_full())
}

/// A load that has not been committed yet.
#[derive(Debug)]
struct Draft {
    scan: Scan,
    files: Files,
    /// Whether the whole directory was scanned.
    is_whole: bool,
}

impl Draft {
    /// Returns digests of the content: two drafts with equal digests have the same content.
    fn digests(&self) -> Vec<(Arc<Path>, u64)> {
        let files = self.files.iter();
        files
            .map(|(path, entry)| (path.clone(), entry.digest))
            .collect()
    }
}

impl FileProvider {
    /// Creates a provider for a directory. Reads nothing yet.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            scan: Scan::default(),
            files: Files::new(),
            merged: Merged::default(),
            discarded: Files::new(),
            progress: Arc::default(),
            locations: Arc::default(),
        }
    }

    /// Reports how far a read is.
    #[must_use]
    pub fn reporting(self, progress: Arc<Progress>) -> Self {
        Self { progress, ..self }
    }

    /// Reads the directory. Fails only if the directory itself cannot be read. Any other failure is
    /// a problem of the load.
    pub fn load(&mut self) -> anyhow::Result<Load> {
        let draft = self.draft(&Extent::Everything, &BTreeSet::new())?;
        Ok(self.accept(draft))
    }

    /// Returns where the objects are that were read last. Follows every read.
    pub fn locations(&self) -> Arc<ArcSwap<Locations>> {
        self.locations.clone()
    }

    /// Reads what has changed. Treats `unfinished` files (real paths), which are being written, as
    /// unchanged.
    fn draft(&self, extent: &Extent<'_>, unfinished: &BTreeSet<PathBuf>) -> anyhow::Result<Draft> {
        let trusts_stamps = match extent {
            Extent::Everything => false,
            Extent::Changed => true,
            Extent::Paths(paths) => match self.draft_of(paths, unfinished) {
                Some(draft) => return Ok(draft),
                None => true,
            },
        };
        // A symlink that changes during the read, such as that of a mounted ConfigMap, mixes two
        // states.
        let mut draft = self.draft_of_all(trusts_stamps, unfinished)?;
        for _ in 0..RETRIES {
            if draft.scan.is_current() {
                break;
            }
            draft = self.draft_of_all(trusts_stamps, unfinished)?;
        }
        Ok(draft)
    }

    /// Reads these paths; `None` if the whole directory has to be scanned.
    fn draft_of(&self, paths: &BTreeSet<PathBuf>, unfinished: &BTreeSet<PathBuf>) -> Option<Draft> {
        let mut scan = self.scan.clone();
        let mut files = self.files.clone();
        for real in paths {
            let path = scan.update(real)?;
            let gone = below_path(&self.files, &path);
            for file in gone.filter(|file| !scan.files.contains_key(*file)) {
                files.remove(file);
            }
            let found = below_path(&scan.files, &path);
            let found: Vec<_> = found.map(|file| (file, &scan.files[file])).collect();
            self.read(&mut files, &found, false, unfinished);
        }
        Some(Draft {
            scan,
            files,
            is_whole: false,
        })
    }

    fn draft_of_all(
        &self,
        trusts_stamps: bool,
        unfinished: &BTreeSet<PathBuf>,
    ) -> anyhow::Result<Draft> {
        let scan = scan::scan(&self.directory, &self.scan).with_context(|| {
            format!(
                "the configuration directory {} cannot be read",
                self.directory.display()
            )
        })?;
        let mut files = self.files.clone();
        for file in self.files.keys() {
            if !scan.files.contains_key(file) {
                files.remove(file);
            }
        }
        self.progress.reading(scan.files.len());
        let all: Vec<_> = scan.files.iter().collect();
        self.read(&mut files, &all, trusts_stamps, unfinished);
        Ok(Draft {
            scan,
            files,
            is_whole: true,
        })
    }

    /// Reads files, given by user-visible and real path. Unfinished ones retain their previous content.
    fn read(
        &self,
        files: &mut Files,
        found: &[(&Arc<Path>, &Arc<Path>)],
        trusts_stamps: bool,
        unfinished: &BTreeSet<PathBuf>,
    ) {
        let read = |(path, real): &(&Arc<Path>, &Arc<Path>)| {
            let previous = self.files.get(&***path);
            let is_known = |known: &&Arc<Entry>| {
                unfinished.contains(&***real) || trusts_stamps && known.is_unchanged(real)
            };
            let entry = match previous.filter(is_known) {
                Some(known) => Some(known.clone()),
                None if unfinished.contains(&***real) => None,
                None => self.read_file(path, real, previous),
            };
            self.progress.has_read();
            entry
        };
        for ((path, _), entry) in found.iter().zip(on_all_cores(found, &read)) {
            match entry {
                Some(entry) if files.get(&***path) != Some(&entry) => {
                    files.insert((*path).clone(), entry);
                }
                Some(_) => {}
                None => drop(files.remove(&***path)),
            }
        }
    }

    fn read_file(
        &self,
        path: &Arc<Path>,
        real: &Path,
        previous: Option<&Arc<Entry>>,
    ) -> Option<Arc<Entry>> {
        let discarded = || self.discarded.get(&**path).filter(|it| !it.is_broken());
        let known = previous.or_else(discarded);
        let entry = read_entry(path, real, known)?;
        // Objects of a discarded draft were never in service, so that a broken file does not retain them.
        match previous.is_none() && known.is_some() && entry.is_broken() {
            true => read_entry(path, real, None),
            false => Some(entry),
        }
    }

    fn accept(&mut self, draft: Draft) -> Load {
        self.discarded = Files::new();
        self.merged.update(&self.files, &draft.files);
        self.scan = draft.scan;
        self.files = match self.files.is_empty() {
            true => packed(&draft.files),
            false => draft.files,
        };
        let locations = Locations::new(self.files.clone());
        self.locations.store(Arc::new(locations));
        let problems = self.scan.problems.iter().chain(self.merged.problems());
        let mut problems: Vec<Problem> = problems.cloned().collect();
        problems.sort_by(|Problem { location: a, .. }, Problem { location: b, .. }| {
            (&a.file, a.document).cmp(&(&b.file, b.document))
        });
        Load {
            position: None,
            snapshot: self.merged.snapshot().clone(),
            problems,
            waiting: Vec::new(),
        }
    }
}

/// Returns the results of `work` on each item, in order.
fn on_all_cores<T: Sync, R: Send>(items: &[T], work: &(impl Fn(&T) -> R + Sync)) -> Vec<R> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    if items.len() < MANY_FILES || cores == 1 {
        return items.iter().map(work).collect();
    }
    let (next, done) = (
        AtomicUsize::new(0),
        Mutex::new(Vec::with_capacity(items.len())),
    );
    let run = || {
        let mut own = Vec::new();
        loop {
            let first = next.fetch_add(MANY_FILES, Relaxed);
            let Some(rest) = items.get(first..).filter(|rest| !rest.is_empty()) else {
                break;
            };
            let chunk = rest.iter().take(MANY_FILES).enumerate();
            own.extend(chunk.map(|(at, item)| (first + at, work(item))));
        }
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        done.append(&mut own);
    };
    thread::scope(|scope| {
        for _ in 1..cores {
            let reader = thread::Builder::new().name("reader".to_owned());
            // Without another thread, this one reads all files.
            drop(reader.spawn_scoped(scope, run));
        }
        run();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests;
