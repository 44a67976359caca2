//! Merges the objects of all files into a snapshot: which version of an object is served when files conflict, break or
//! disappear. Looks only at files that changed, and at those that define the same objects. Must not read files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use rustc_hash::{FxHashMap, FxHashSet};

use super::entry::{Document, Entry, Files};
use super::locate::Lines;
use super::parse::SyntaxError;
use crate::api::{Admission, Finding, ObjectRef, Severity};
use crate::provider::Problem;
use crate::snapshot::Snapshot;

/// Maximum number of problems that are reported individually for a file.
const MAX_PROBLEMS: usize = 1000;

/// The objects and problems of all files.
#[derive(Debug, Default)]
pub(super) struct Merged {
    snapshot: Arc<Snapshot>,
    /// The files that define each object, or keep it in service.
    homes: FxHashMap<ObjectRef, Homes>,
    problems: BTreeMap<Arc<Path>, Vec<Problem>>,
}

/// The files of an object, in order of their paths.
#[derive(Debug)]
enum Homes {
    One(Arc<Path>),
    Many(Box<Several>),
}

/// Several files of an object. Behind a pointer, since few objects have them.
#[derive(Debug)]
struct Several(BTreeSet<Arc<Path>>);

impl Homes {
    fn add(&mut self, path: &Arc<Path>) {
        match self {
            Self::One(known) if known == path => {}
            Self::One(known) => {
                let both = BTreeSet::from([known.clone(), path.clone()]);
                *self = Self::Many(Box::new(Several(both)));
            }
            Self::Many(all) => drop(all.0.insert(path.clone())),
        }
    }

    /// Removes a file. Returns whether no other one remains.
    fn remove(&mut self, path: &Path) -> bool {
        match self {
            Self::One(known) => **known == *path,
            Self::Many(all) => {
                all.0.remove(path);
                all.0.is_empty()
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Path>> {
        let (one, many) = match self {
            Self::One(path) => (Some(path), None),
            Self::Many(all) => (None, Some(all.0.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

/// Location of an object.
#[derive(Clone, Copy, Debug)]
struct Location<'a> {
    file: &'a Path,
    document: usize,
    /// First line of the document, or line of the syntax error.
    line: usize,
    fields: Option<&'a Lines>,
}

impl<'a> Location<'a> {
    fn new(file: &'a Path, index: usize, document: &'a Document) -> Self {
        Self {
            file,
            document: index + 1,
            line: document.line,
            fields: document.fields.as_deref(),
        }
    }

    fn problem(&self, object: Option<&ObjectRef>, finding: &Finding) -> Problem {
        let line = self.fields.and_then(|fields| fields.get(&finding.field));
        Problem {
            severity: finding.severity,
            file: self.file.to_owned(),
            document: self.document,
            line: self.line + line.map_or(0, |line| line - 1),
            generation: 0,
            object: object.cloned(),
            field: finding.field.clone(),
            message: finding.message.clone(),
            rule: finding.rule.clone(),
        }
    }
}

/// The definition of an object in a file.
#[derive(Clone, Copy)]
struct Definition<'a> {
    admission: &'a Admission,
    location: Location<'a>,
    /// Number of the object in its file.
    number: usize,
}

/// The first definition of each object, by file. Computed for the files that are looked at.
struct Definitions<'a> {
    files: &'a Files,
    known: FxHashMap<&'a Path, FxHashMap<&'a ObjectRef, Definition<'a>>>,
}

impl<'a> Definitions<'a> {
    fn of_file(&mut self, path: &Path) -> Option<&FxHashMap<&'a ObjectRef, Definition<'a>>> {
        let (path, entry) = self.files.get_key_value(path)?;
        let path: &'a Path = path;
        Some(self.known.entry(path).or_insert_with(|| first(path, entry)))
    }

    /// Returns the definition that counts: the first one in order of paths.
    fn first_of(&mut self, homes: &Homes, id: &ObjectRef) -> Option<Definition<'a>> {
        let mut paths = homes.iter();
        paths.find_map(|path| self.of_file(path)?.get(id).copied())
    }
}

/// Returns the first definition of each object in a file.
fn first<'a>(path: &'a Path, entry: &'a Entry) -> FxHashMap<&'a ObjectRef, Definition<'a>> {
    let mut all = FxHashMap::default();
    if entry.keeps_previous() {
        return all;
    }
    for (number, (index, admission)) in entry.admissions().enumerate() {
        let is_defined = admission.object.is_some() || admission.has_errors();
        if let Some(id) = admission.id.as_ref().filter(|_| is_defined) {
            all.entry(id).or_insert_with(|| Definition {
                admission,
                location: Location::new(path, index, &entry.documents[index]),
                number,
            });
        }
    }
    all
}

impl Merged {
    /// Follows the files from `previous` to `now`.
    pub(super) fn update(&mut self, previous: &Files, now: &Files) {
        let (mut files, mut objects) = (BTreeSet::new(), FxHashSet::default());
        for item in previous.diff(now) {
            let (path, old, new) = match item {
                DiffItem::Add(path, new) => (path, None, Some(new)),
                DiffItem::Update { old, new } => (new.0, Some(old.1), Some(new.1)),
                DiffItem::Remove(path, old) => (path, Some(old), None),
            };
            objects.extend(old.into_iter().chain(new).flat_map(|entry| entry.objects()));
            self.move_objects(path, old, new);
            match new {
                Some(_) => drop(files.insert(path.clone())),
                None => drop(self.problems.remove(path)),
            }
        }
        let mut definitions = Definitions {
            files: now,
            known: FxHashMap::default(),
        };
        for id in objects {
            if let Some(Homes::Many(homes)) = self.homes.get(id) {
                files.extend(homes.0.iter().cloned());
            }
            self.choose(id, &mut definitions);
        }
        for path in files {
            let problems = now.get(&path).map(|entry| {
                let mut problems = FileProblems {
                    merged: self,
                    definitions: &mut definitions,
                    problems: Vec::new(),
                };
                problems.all(&path, entry);
                problems.problems
            });
            match problems.filter(|problems| !problems.is_empty()) {
                Some(problems) => drop(self.problems.insert(path, problems)),
                None => drop(self.problems.remove(&path)),
            }
        }
    }

    /// Returns the merged objects. The same `Arc` as before, unless one of them changed.
    pub(super) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Returns the problems of all files, in order.
    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.values().flatten()
    }

    fn move_objects(
        &mut self,
        path: &Arc<Path>,
        old: Option<&Arc<Entry>>,
        new: Option<&Arc<Entry>>,
    ) {
        for id in old.into_iter().flat_map(|entry| entry.objects()) {
            if let Some(homes) = self.homes.get_mut(id)
                && homes.remove(path)
            {
                self.homes.remove(id);
            }
        }
        for id in new.into_iter().flat_map(|entry| entry.objects()) {
            match self.homes.get_mut(id) {
                Some(homes) => homes.add(path),
                None => drop(self.homes.insert(id.clone(), Homes::One(path.clone()))),
            }
        }
    }

    /// Decides which version of an object is served.
    fn choose(&mut self, id: &ObjectRef, definitions: &mut Definitions<'_>) {
        let homes = self.homes.get(id);
        let first = homes.and_then(|homes| definitions.first_of(homes, id));
        let mut is_invalid = false;
        match first.map(|first| &first.admission.object) {
            Some(Some(object)) => {
                if self.snapshot.object(id).as_ref() != Some(object) {
                    Arc::make_mut(&mut self.snapshot).insert(object.clone());
                }
            }
            // The previous valid version stays in service.
            Some(None) => is_invalid = self.snapshot.object(id).is_none(),
            None => {
                let mut homes = homes.into_iter().flat_map(Homes::iter);
                let keeps = |path: &Arc<Path>| {
                    let entry = definitions.files.get(&**path);
                    entry.is_some_and(|entry| entry.is_broken() && entry.retained.contains(id))
                };
                if !homes.any(keeps) && self.snapshot.object(id).is_some() {
                    Arc::make_mut(&mut self.snapshot).remove(id);
                }
            }
        }
        if self.snapshot.invalid.contains(id) != is_invalid {
            let snapshot = Arc::make_mut(&mut self.snapshot);
            let invalid = Arc::make_mut(&mut snapshot.invalid);
            match is_invalid {
                true => invalid.insert(id.clone()),
                false => invalid.remove(id),
            };
        }
    }
}

/// The problems of one file.
struct FileProblems<'m, 'd, 'a> {
    merged: &'m Merged,
    definitions: &'d mut Definitions<'a>,
    problems: Vec<Problem>,
}

impl FileProblems<'_, '_, '_> {
    fn all(&mut self, path: &Path, entry: &Entry) {
        if let Some(failure) = &entry.failure {
            self.problems
                .push(Problem::of_file(Severity::Error, path, failure.clone()));
        }
        let keeps_previous = entry.keeps_previous();
        let mut number = 0;
        for (index, document) in entry.documents.iter().enumerate() {
            let location = Location::new(path, index, document);
            match &document.outcome {
                Err(error) => self.broken(location, error, keeps_previous),
                Ok(admissions) => {
                    for admission in admissions.iter().filter(|_| !keeps_previous) {
                        self.object(location, number, admission);
                        number += 1;
                    }
                }
            }
        }
        self.limit(path);
    }

    /// Reduces the problems to [`MAX_PROBLEMS`]. Drops warnings first.
    fn limit(&mut self, path: &Path) {
        if self.problems.len() > MAX_PROBLEMS {
            self.problems.sort_by_key(|problem| problem.severity);
            let (worst, more) = (
                self.problems[MAX_PROBLEMS].severity,
                self.problems.len() - MAX_PROBLEMS,
            );
            self.problems.truncate(MAX_PROBLEMS);
            self.problems
                .push(Problem::of_file(worst, path, format!("and {more} more")));
        }
        self.problems.sort_by_key(|problem| problem.document);
    }

    fn broken(&mut self, location: Location<'_>, error: &SyntaxError, keeps_previous: bool) {
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

    fn object(&mut self, location: Location<'_>, number: usize, admission: &Admission) {
        let id = admission.id.as_ref();
        let first = id.and_then(|id| {
            let first = self.definitions.first_of(self.merged.homes.get(id)?, id)?;
            Some((id, first))
        });
        let place = |first: &Definition<'_>| {
            let own = (location.file, number);
            (first.location.file, first.number).cmp(&own)
        };
        if let Some((id, first)) = &first
            && place(first).is_lt()
        {
            let message = format!(
                "is already defined in {}:{} (document {}); this definition is ignored",
                first.location.file.display(),
                first.location.line,
                first.location.document
            );
            return self
                .problems
                .push(location.problem(Some(id), &Finding::error("", message)));
        }
        let findings = admission.findings.iter();
        self.problems
            .extend(findings.map(|finding| location.problem(id, finding)));
        let counts = first.filter(|(_, first)| place(first).is_eq());
        if let Some((id, _)) = counts
            && admission.object.is_none()
            && self.merged.snapshot.object(id).is_some()
        {
            let message = "is invalid; its previous valid version stays in service";
            self.problems
                .push(location.problem(Some(id), &Finding::warning("", message)));
        }
    }
}

#[cfg(test)]
impl Merged {
    /// Returns what has merged nothing yet, while objects of these files are in service.
    pub(super) fn serving(mut snapshot: Arc<Snapshot>, files: &Files) -> Self {
        let objects: FxHashSet<_> = files.values().flat_map(|entry| entry.objects()).collect();
        let all: Vec<_> = snapshot.objects().collect();
        let serving = Arc::make_mut(&mut snapshot);
        serving.invalid = Arc::default();
        for object in all {
            let meta = object.meta();
            let id = object.kind().object_ref(&meta.namespace, &meta.name);
            if !objects.contains(&id) {
                serving.remove(&id);
            }
        }
        Self {
            snapshot,
            ..Self::default()
        }
    }
}
