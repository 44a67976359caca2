//! Objects from a directory of YAML and JSON files. Owns which version of an object is served when
//! files conflict, break or disappear.

mod advice;
mod locate;
mod parse;
mod scan;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::locate::Lines;
use self::parse::SyntaxError;
use self::scan::Scan;
use super::{Load, Problem, Progress};
use crate::api::{self, Admission, Finding, Object, ObjectRef, Severity};
use crate::snapshot::Snapshot;
use anyhow::Context;

/// Maximum number of reads that are discarded because a symlink changed meanwhile.
const RETRIES: usize = 5;
/// Maximum number of documents in a file.
const MAX_DOCUMENTS: usize = 100_000;
/// Maximum number of problems that are reported individually for a file.
const MAX_PROBLEMS: usize = 1000;

/// Reads a directory repeatedly and validates only changed documents.
#[derive(Debug)]
pub struct FileProvider {
    directory: PathBuf,
    files: BTreeMap<PathBuf, Arc<Entry>>,
    served: BTreeMap<ObjectRef, Object>,
    progress: Arc<Progress>,
}

/// A load that has not been committed yet.
#[derive(Debug)]
struct Draft {
    files: BTreeMap<PathBuf, Arc<Entry>>,
    served: BTreeMap<ObjectRef, Object>,
    /// Real directories in which a change is relevant.
    directories: BTreeSet<PathBuf>,
    /// Real paths of the files.
    real_files: BTreeSet<PathBuf>,
    load: Load,
}

impl Draft {
    /// Returns digests of the content: two drafts with equal digests have the same content.
    fn digests(&self) -> Vec<(PathBuf, u64)> {
        self.files
            .iter()
            .map(|(path, entry)| (path.clone(), entry.digest))
            .collect()
    }
}

/// A file as of its last read.
#[derive(Clone, Debug, Default)]
struct Entry {
    digest: u64,
    documents: Vec<Document>,
    /// Why the last read failed. `documents` are then those of the previous read.
    failure: Option<String>,
    /// Objects of the file when it was last valid. They stay in service while the file is broken.
    objects: BTreeSet<ObjectRef>,
}

impl Entry {
    fn is_broken(&self) -> bool {
        self.failure.is_some()
            || self
                .documents
                .iter()
                .any(|document| document.outcome.is_err())
    }
}

/// A document of a file.
#[derive(Clone, Debug)]
struct Document {
    line: usize,
    digest: u64,
    outcome: Result<Arc<[Admission]>, SyntaxError>,
    /// Lines of the fields that have findings, from 1 at `line`.
    fields: Arc<Lines>,
}

/// Location of an object.
#[derive(Clone, Copy, Debug)]
struct Location<'a> {
    file: &'a Path,
    document: usize,
    /// First line of the document, or line of the syntax error.
    line: usize,
    fields: &'a Lines,
}

impl Location<'_> {
    fn problem(&self, object: Option<&ObjectRef>, finding: &Finding) -> Problem {
        Problem {
            severity: finding.severity,
            file: self.file.to_owned(),
            document: self.document,
            line: self.line + self.fields.get(&finding.field).map_or(0, |line| line - 1),
            generation: 0,
            object: object.cloned(),
            field: finding.field.clone(),
            message: finding.message.clone(),
            rule: finding.rule.clone(),
        }
    }
}

impl FileProvider {
    /// Creates a provider for a directory. Reads nothing yet.
    pub fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            files: BTreeMap::new(),
            served: BTreeMap::new(),
            progress: Arc::default(),
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
        let draft = self.draft(&BTreeSet::new())?;
        Ok(self.accept(draft))
    }

    /// Reads the directory. Treats `unfinished` files (real paths), which are being written, as
    /// unchanged.
    fn draft(&self, unfinished: &BTreeSet<PathBuf>) -> anyhow::Result<Draft> {
        // A symlink that changes during the read, such as that of a mounted ConfigMap, mixes two
        // states.
        let (mut scan, mut files) = self.read(unfinished)?;
        for _ in 0..RETRIES {
            if scan.is_current() {
                break;
            }
            (scan, files) = self.read(unfinished)?;
        }
        let real_files = scan.files.into_values().collect();
        let mut merge = Merge {
            served: &self.served,
            locations: HashMap::new(),
            objects: BTreeMap::new(),
            invalid: BTreeSet::new(),
            problems: scan.problems,
        };
        files
            .iter()
            .for_each(|(path, entry)| merge.file(path, entry));
        files
            .values()
            .filter(|entry| entry.is_broken())
            .for_each(|entry| merge.retain(entry));
        let Merge {
            objects: served,
            invalid,
            mut problems,
            ..
        } = merge;
        problems.sort_by(|a, b| (&a.file, a.document).cmp(&(&b.file, b.document)));
        let mut snapshot = Snapshot {
            invalid: Arc::new(invalid),
            ..Snapshot::default()
        };
        for object in served.values() {
            snapshot.insert(object.clone());
        }
        let load = Load {
            position: None,
            snapshot: Arc::new(snapshot),
            problems,
        };
        Ok(Draft {
            files,
            served,
            directories: scan.directories,
            real_files,
            load,
        })
    }

    /// Reads every readable file. The other files retain their previous content.
    fn read(
        &self,
        unfinished: &BTreeSet<PathBuf>,
    ) -> anyhow::Result<(Scan, BTreeMap<PathBuf, Arc<Entry>>)> {
        let scan = scan::scan(&self.directory).with_context(|| {
            format!(
                "the configuration directory {} cannot be read",
                self.directory.display()
            )
        })?;
        let mut files = BTreeMap::new();
        self.progress.reading(scan.files.len());
        for (path, real) in &scan.files {
            let previous = self.files.get(path);
            let entry = if unfinished.contains(real) {
                previous.cloned()
            } else {
                read_entry(path, real, previous)
            };
            files.extend(entry.map(|entry| (path.clone(), entry)));
            self.progress.has_read();
        }
        Ok((scan, files))
    }

    fn accept(&mut self, draft: Draft) -> Load {
        self.files = draft.files;
        self.served = draft.served;
        draft.load
    }
}

/// Merges the objects of all files.
struct Merge<'a> {
    served: &'a BTreeMap<ObjectRef, Object>,
    locations: HashMap<&'a ObjectRef, Location<'a>>,
    objects: BTreeMap<ObjectRef, Object>,
    /// Objects without a valid version.
    invalid: BTreeSet<ObjectRef>,
    problems: Vec<Problem>,
}

impl<'a> Merge<'a> {
    fn file(&mut self, path: &'a Path, entry: &'a Entry) {
        let first = self.problems.len();
        if let Some(failure) = &entry.failure {
            self.problems
                .push(Problem::of_file(Severity::Error, path, failure.clone()));
        }
        let keeps_previous = entry.is_broken() && !entry.objects.is_empty();
        for (index, document) in entry.documents.iter().enumerate() {
            let location = Location {
                file: path,
                document: index + 1,
                line: document.line,
                fields: &document.fields,
            };
            match &document.outcome {
                Err(error) => self.broken(location, error, keeps_previous),
                Ok(admissions) if !keeps_previous => admissions
                    .iter()
                    .for_each(|admission| self.object(location, admission)),
                Ok(_) => {}
            }
        }
        self.limit_problems(path, first);
    }

    /// Reduces the problems of a file, which begin at index `first`, to [`MAX_PROBLEMS`]. Drops
    /// warnings first.
    fn limit_problems(&mut self, path: &Path, first: usize) {
        let of_file = &mut self.problems[first..];
        if of_file.len() <= MAX_PROBLEMS {
            return;
        }
        of_file.sort_by_key(|problem| problem.severity);
        let (worst, more) = (of_file[MAX_PROBLEMS].severity, of_file.len() - MAX_PROBLEMS);
        self.problems.truncate(first + MAX_PROBLEMS);
        self.problems
            .push(Problem::of_file(worst, path, format!("and {more} more")));
    }

    fn broken(&mut self, location: Location<'a>, error: &SyntaxError, keeps_previous: bool) {
        let consequence = if keeps_previous {
            "the objects of this file retain their previous version"
        } else {
            "the document is ignored"
        };
        let line = location.line + error.line.saturating_sub(1);
        let message = format!("{}; {consequence}", error.message);
        self.problems
            .push(Location { line, ..location }.problem(None, &Finding::error("", message)));
    }

    fn object(&mut self, location: Location<'a>, admission: &'a Admission) {
        let is_defined = admission.object.is_some() || admission.has_errors();
        let id = admission.id.as_ref();
        if let Some(first) = id.and_then(|id| self.locations.get(id)) {
            let message = format!(
                "is already defined in {}:{} (document {}); this definition is ignored",
                first.file.display(),
                first.line,
                first.document
            );
            return self
                .problems
                .push(location.problem(id, &Finding::error("", message)));
        }
        self.problems.extend(
            admission
                .findings
                .iter()
                .map(|finding| location.problem(id, finding)),
        );
        let Some(id) = id.filter(|_| is_defined) else {
            return;
        };
        self.locations.insert(id, location);
        if let Some(object) = &admission.object {
            self.objects.insert(id.clone(), object.clone());
        } else if let Some(object) = self.served.get(id) {
            self.objects.insert(id.clone(), object.clone());
            let finding = Finding::warning(
                "",
                "is invalid; its previous valid version stays in service",
            );
            self.problems.push(location.problem(Some(id), &finding));
        } else {
            self.invalid.insert(id.clone());
        }
    }

    /// Retains the objects of a broken file, unless another file defines them.
    fn retain(&mut self, entry: &'a Entry) {
        for id in &entry.objects {
            if let (false, Some(object)) = (self.locations.contains_key(id), self.served.get(id)) {
                self.objects
                    .entry(id.clone())
                    .or_insert_with(|| object.clone());
            }
        }
    }
}

/// Reads a file and reuses unchanged documents. `None` if the file was deleted.
fn read_entry(path: &Path, real: &Path, previous: Option<&Arc<Entry>>) -> Option<Arc<Entry>> {
    let failed = |failure: String| {
        let previous = previous.map(|previous| Entry::clone(previous));
        Some(Arc::new(Entry {
            digest: 0,
            failure: Some(failure),
            ..previous.unwrap_or_default()
        }))
    };
    let text = match read(real) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return failed(format!("cannot be read: {error}")),
    };
    let digest = parse::digest(text.as_bytes());
    if let Some(previous) =
        previous.filter(|previous| previous.failure.is_none() && previous.digest == digest)
    {
        return Some(Arc::clone(previous));
    }
    let is_json = path
        .extension()
        .is_some_and(|extension| extension == "json");
    let known = previous
        .into_iter()
        .flat_map(|previous| &previous.documents);
    let known: HashMap<u64, &Document> =
        known.map(|document| (document.digest, document)).collect();
    let sources = if is_json {
        vec![parse::DocumentText {
            line: 1,
            text: text.strip_prefix('\u{feff}').unwrap_or(&text),
        }]
    } else {
        parse::documents(&text)
    };
    if sources.len() > MAX_DOCUMENTS {
        return failed(format!("it has more than {MAX_DOCUMENTS} documents"));
    }
    let documents = sources
        .into_iter()
        .map(|source| read_document(source, is_json, &known))
        .collect();
    let objects = previous
        .map(|previous| previous.objects.clone())
        .unwrap_or_default();
    let mut entry = Entry {
        digest,
        documents,
        failure: None,
        objects,
    };
    if !entry.is_broken() {
        let admissions = entry
            .documents
            .iter()
            .flat_map(|document| document.outcome.iter().flat_map(|all| all.iter()));
        entry.objects = admissions
            .filter_map(|admission| admission.id.clone())
            .collect();
    }
    Some(Arc::new(entry))
}

fn read_document(
    source: parse::DocumentText<'_>,
    is_json: bool,
    known: &HashMap<u64, &Document>,
) -> Document {
    let digest = source.digest();
    if let Some(document) = known.get(&digest) {
        return Document {
            line: source.line,
            ..Document::clone(document)
        };
    }
    let admit = |item: parse::Item| api::admit_at(&item.path, item.value);
    let outcome: Result<Arc<[Admission]>, _> =
        parse::parse(source, is_json).map(|items| items.into_iter().map(admit).collect());
    let admissions = outcome.iter().flat_map(|all| all.iter());
    let findings = admissions.flat_map(|admission| &admission.findings);
    let fields: BTreeSet<&str> = findings
        .map(|finding| &*finding.field)
        .filter(|field| !field.is_empty())
        .collect();
    let fields = match fields.is_empty() {
        true => Arc::default(),
        false => Arc::new(locate::lines(source.text, &fields)),
    };
    Document {
        line: source.line,
        digest,
        outcome,
        fields,
    }
}

fn read(path: &Path) -> io::Result<String> {
    // The file may have been replaced since the scan, and opening a pipe would block.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no longer a regular file"));
    }
    let file = File::open(path)?;
    let limit = parse::MAX_FILE;
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {} MiB", limit >> 20),
        ));
    }
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests;
