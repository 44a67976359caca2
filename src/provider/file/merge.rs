//! Merges the objects of all files into a snapshot: which version of an object is served when files conflict, break or
//! disappear. Looks only at files that changed, and at those that define the same objects. Must not read files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use rustc_hash::{FxHashMap, FxHashSet};

use super::definitions::{Definition, Definitions};
use super::entry::{Entry, Files, ItemPosition};
use super::location::Location;
use super::parse::SyntaxError;
use super::scan::{REPAIR, UNREADY};
use crate::api::{Admission, Kind, Object, ObjectRef, Violation, protects};
use crate::finding::Severity;
use crate::provider::Problem;
use crate::snapshot::Snapshot;

/// Maximum number of problems that are reported individually for a file.
const MAX_PROBLEMS: usize = 1000;
/// What follows from a file that cannot be read, or is invalid, and was valid before.
const PREVIOUS: &str = "the objects of this file retain their previous version";

/// The objects and problems of all files.
#[derive(Debug, Default)]
pub(super) struct Merged {
    snapshot: Arc<Snapshot>,
    shared: SharedObjects,
    problems: BTreeMap<Arc<Path>, Vec<Problem>>,
    /// Policies in force that no file defines, and that one may have in a part that cannot be read, each with the problem.
    unread: BTreeMap<ObjectRef, Problem>,
}

/// The files of each object that several files define, or that a broken file keeps in service. Few objects are here.
#[derive(Debug, Default)]
struct SharedObjects(BTreeMap<ObjectRef, BTreeSet<Arc<Path>>>);

/// The objects of files that changed, each with one of these files that has it now.
type Touched<'a> = FxHashMap<&'a ObjectRef, Option<&'a Arc<Path>>>;

impl SharedObjects {
    /// Follows a file, and adds its objects to `touched`. Returns the objects that another file may have, too, and that
    /// are not known to be shared.
    fn follow<'a>(
        &mut self,
        path: &'a Arc<Path>,
        (old, new): (Option<&'a Arc<Entry>>, Option<&'a Arc<Entry>>),
        touched: &mut Touched<'a>,
        is_served: impl Fn(&ObjectRef) -> bool,
    ) -> Vec<&'a ObjectRef> {
        let before = old.into_iter().flat_map(|entry| entry.objects());
        let before: FxHashSet<_> = before.collect();
        for id in &before {
            touched.entry(id).or_default();
            if let Some(files) = self.0.get_mut(id) {
                files.remove(path);
            }
        }
        let mut suspects = Vec::new();
        for id in new.into_iter().flat_map(|entry| entry.objects()) {
            let other = touched.entry(id).or_default().replace(path);
            if let Some(files) = self.0.get_mut(id) {
                files.insert(path.clone());
                continue;
            }
            if new.is_some_and(|entry| entry.retained().contains(id)) {
                self.0.insert(id.clone(), BTreeSet::from([path.clone()]));
            }
            if other.is_some_and(|other| other != path) || (!before.contains(id) && is_served(id)) {
                suspects.push(id);
            }
        }
        suspects
    }

    /// Looks for these objects in all files.
    fn find(&mut self, suspects: &FxHashSet<&ObjectRef>, files: &Files) {
        if suspects.is_empty() {
            return;
        }
        for (path, entry) in files {
            for id in entry.objects().filter(|id| suspects.contains(id)) {
                self.0.entry(id.clone()).or_default().insert(path.clone());
            }
        }
    }

    /// Forgets an object that only one file has, unless a broken file keeps it.
    fn forget_single(&mut self, id: &ObjectRef, files: &Files) {
        let keeps = |path: &Arc<Path>| files.get(path).is_some_and(|it| it.retained().contains(id));
        let known = self.0.get(id);
        if known.is_some_and(|known| known.len() < 2 && !known.iter().any(keeps)) {
            self.0.remove(id);
        }
    }

    /// Returns the files of an object, in order. `own` is one of them, if there is any.
    fn files<'a>(
        &'a self,
        id: &ObjectRef,
        own: Option<&'a Path>,
    ) -> impl Iterator<Item = &'a Path> + use<'a> {
        let all = self.0.get(id);
        let own = own.filter(|_| all.is_none());
        own.into_iter()
            .chain(all.into_iter().flatten().map(|path| &**path))
    }
}

impl Merged {
    /// Follows the files from `previous` to `now`.
    pub(super) fn update(&mut self, previous: &Files, now: &Files) {
        let unread: Vec<_> = std::mem::take(&mut self.unread).into_keys().collect();
        let (mut files, mut touched) = (BTreeSet::new(), Touched::default());
        let mut suspects = FxHashSet::default();
        for item in previous.diff(now) {
            let (path, old, new) = match item {
                DiffItem::Add(path, new) => (path, None, Some(new)),
                DiffItem::Update { old, new } => (new.0, Some(old.1), Some(new.1)),
                DiffItem::Remove(path, old) => (path, Some(old), None),
            };
            let snapshot = &self.snapshot;
            let is_served =
                |id: &ObjectRef| snapshot.object(id).is_some() || snapshot.invalid.contains(id);
            let versions = (old, new);
            suspects.extend((self.shared).follow(path, versions, &mut touched, is_served));
            match new {
                Some(_) => drop(files.insert(path.clone())),
                None => drop(self.problems.remove(path)),
            }
        }
        for id in &unread {
            touched.entry(id).or_default();
        }
        self.shared.find(&suspects, now);
        let mut definitions = Definitions::new(now);
        for (id, own) in touched {
            if let Some(shared) = self.shared.0.get(id) {
                files.extend(shared.iter().cloned());
            }
            self.choose(id, own, &mut definitions);
            self.shared.forget_single(id, now);
        }
        if previous.is_empty() {
            Arc::make_mut(&mut self.snapshot).pack();
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

    /// Returns the problems of all files.
    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        let of_files = self.problems.values().flatten();
        of_files.chain(self.unread.values())
    }

    /// Serves this version of an object, or none.
    fn serve(&mut self, id: &ObjectRef, version: Option<&Object>) {
        let served = self.snapshot.object(id);
        if served.as_ref() == version {
            return;
        }
        let snapshot = Arc::make_mut(&mut self.snapshot);
        match version {
            Some(version) => snapshot.insert(version.clone()),
            None => snapshot.remove(id),
        };
    }

    /// Leaves a policy in force that protects requests and that no file defines any more, if one may have it in a part that cannot
    /// be read: its author may have moved it there. Returns whether one may.
    fn keep_unread(&mut self, id: &ObjectRef, files: &Files) -> bool {
        if !Kind::of(id).is_some_and(protects) || self.snapshot.object(id).is_none() {
            return false;
        }
        let Some((path, _)) = files.iter().find(|(_, entry)| entry.may_define(id)) else {
            return false;
        };
        let message = format!("it may have {id}, which no other file has any more");
        let problem = Problem::of_file(Severity::Warning, path, message).with_remedy(REPAIR);
        let problem = problem.with_effect("the policy stays in force until this file can be read");
        self.unread.insert(id.clone(), problem);
        true
    }

    /// Decides which version of an object is served. `own` is one of its files, if there is any.
    fn choose(
        &mut self,
        id: &ObjectRef,
        own: Option<&Arc<Path>>,
        definitions: &mut Definitions<'_>,
    ) {
        let own = own.map(|own| &**own);
        let first = definitions.first_of(self.shared.files(id, own), id);
        let mut is_invalid = false;
        match first.map(|first| first.admission) {
            Some(Admission {
                object: Some(object),
                ..
            }) => self.serve(id, Some(object)),
            // A previous valid version stays in service.
            Some(Admission { stand_in, .. }) => {
                is_invalid = !self.snapshot.has_valid(id);
                match stand_in.as_deref() {
                    stand_in if is_invalid => self.serve(id, stand_in),
                    Some(stand_in) => {
                        let valid = self.snapshot.object(id);
                        let valid = valid.map(|valid| valid.with_pending(stand_in));
                        self.serve(id, valid.as_ref());
                    }
                    None => {}
                }
            }
            None => {
                let keeps = |path: &Path| {
                    let entry = definitions.files.get(path);
                    entry.is_some_and(|entry| entry.is_broken() && entry.retained().contains(id))
                };
                let is_kept = self.shared.files(id, own).any(keeps);
                if !is_kept {
                    match self.keep_unread(id, definitions.files) {
                        true => is_invalid = self.snapshot.invalid.contains(id),
                        false => self.serve(id, None),
                    }
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

/// What follows for requests from a policy that protects, of which nothing says which ones they are.
const WITHOUT_TARGETS: &str = "no target of it can be read, the requests that it protects are served without it, and a process \
    that starts does not become ready";

/// What follows for requests from an invalid object, of which this version is in service.
fn consequence(served: &Object) -> String {
    match (served.unreadable(), served.is_without_targets()) {
        (None, _) => {
            let stays = "its previous valid version stays in service";
            match served.pending_outcome() {
                None => stays.to_owned(),
                Some(pending) => format!("{stays}; {pending} until it is valid"),
            }
        }
        (Some(_), false) => format!("{} until it is valid", served.refused()),
        (Some(_), true) => WITHOUT_TARGETS.to_owned(),
    }
}

/// The problems of one file.
struct FileProblems<'m, 'd, 'a> {
    merged: &'m Merged,
    definitions: &'d mut Definitions<'a>,
    problems: Vec<Problem>,
}

impl FileProblems<'_, '_, '_> {
    fn all(&mut self, path: &Arc<Path>, entry: &Entry) {
        let keeps_previous = entry.keeps_previous();
        if let Some(failure) = entry.failure() {
            let problem = Problem::of_file(Severity::Error, path, failure).with_remedy(REPAIR);
            let effect = match keeps_previous {
                true => PREVIOUS.to_owned(),
                false => format!("what it has is not served, {UNREADY}"),
            };
            self.problems.push(Problem {
                leaves_open: !keeps_previous,
                ..problem.with_effect(effect)
            });
        }
        let mut number = 0;
        for (index, document) in entry.documents.iter().enumerate() {
            let location = |item| {
                let place = ItemPosition {
                    document: index,
                    item,
                };
                Location::new(path, entry, place)
            };
            match &document.outcome {
                Err(error) => self.broken(location(0), error, keeps_previous),
                Ok(admissions) => {
                    let all = admissions.iter().enumerate();
                    for (item, admission) in all.filter(|_| !keeps_previous) {
                        self.object(location(item), number, admission);
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
            let rank = |problem: &Problem| (!problem.leaves_open, problem.severity);
            self.problems.sort_by_key(rank);
            let (worst, more) = (
                self.problems[MAX_PROBLEMS].severity,
                self.problems.len() - MAX_PROBLEMS,
            );
            self.problems.truncate(MAX_PROBLEMS);
            self.problems
                .push(Problem::of_file(worst, path, format!("and {more} more")));
        }
        self.problems
            .sort_by_key(|problem| problem.location.document);
    }

    fn broken(&mut self, mut location: Location<'_>, error: &SyntaxError, keeps_previous: bool) {
        let effect = match (keeps_previous, error.names) {
            (true, _) => PREVIOUS.to_owned(),
            (false, None) => "the document is ignored".to_owned(),
            (false, Some(kind)) => format!(
                "the document is ignored; it names {kind}: if it has such a policy, the requests of the policy are served \
                 without it, since nothing says which ones these are, {UNREADY}"
            ),
        };
        let leaves_open = !keeps_previous && error.names.is_some();
        location.line += error.line.saturating_sub(1);
        let problem = location.problem(None, &Violation::error("", &error.message));
        self.problems.push(Problem {
            leaves_open,
            ..problem.with_effect(effect)
        });
    }

    fn object(&mut self, location: Location<'_>, number: usize, admission: &Admission) {
        let id = admission.id.as_ref();
        let first = id.and_then(|id| {
            let files = self.merged.shared.files(id, Some(&**location.file));
            let first = self.definitions.first_of(files, id)?;
            Some((id, first))
        });
        let place = |first: &Definition<'_>| {
            let own = (location.file, number);
            (first.location.file, first.number).cmp(&own)
        };
        if let Some((id, first)) = &first
            && place(first).is_lt()
        {
            let message = format!("is already defined in {}", first.location.of_object());
            let problem = location.problem(Some(id), &Violation::error("", message));
            let problem = problem.with_effect("this definition is ignored");
            return self
                .problems
                .push(problem.with_remedy("remove one of them"));
        }
        let known = self.problems.len();
        let findings = admission.findings.iter();
        self.problems
            .extend(findings.map(|finding| location.problem(id, finding)));
        if admission.object.is_some() {
            return;
        }
        let served = first.and_then(|(id, _)| self.merged.snapshot.object(id));
        let is_valid = |served: &Object| served.unreadable().is_none();
        let leaves_open = admission.leaves_open && !served.as_ref().is_some_and(is_valid);
        let effect = match &served {
            Some(served) => consequence(served),
            None if leaves_open => WITHOUT_TARGETS.to_owned(),
            None => "it is treated as absent".to_owned(),
        };
        let own = self.problems[known..].iter_mut();
        let errors = own.filter(|problem| problem.severity == Severity::Error);
        for (index, problem) in errors.enumerate() {
            problem.leaves_open = leaves_open && index == 0;
            problem.effect.clone_from(&effect);
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
