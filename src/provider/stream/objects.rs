//! The objects of one Gateway, as updates make them up: what a stream says takes effect with its commits and not before.
//! Does no I/O, and knows nothing of connections.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::api::{Kind, ObjectRef, Severity};
use crate::provider::problem::unreadable;
use crate::provider::{Load, Problem};
use crate::snapshot::Snapshot;
use crate::stream::message::{Deleted, Position, Update};

/// A complete state of the objects. Copies share what is equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Which state it is; `None` before the first.
    pub(super) position: Option<Position>,
    /// What could be read. An object whose current version cannot be read is there as it was before.
    pub(super) snapshot: Snapshot,
    unreadable: BTreeMap<ObjectRef, Unreadable>,
}

/// An object that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unreadable {
    value: Arc<Value>,
    /// What is wrong with it; `None` when its kind is unknown, which is said once for all objects of the kind.
    problem: Option<Problem>,
}

impl State {
    /// What is published of it.
    pub(super) fn load(&self) -> Load {
        Load {
            snapshot: Arc::new(self.snapshot.clone()),
            problems: self.problems(),
            position: self.position.clone(),
        }
    }

    /// The lines that a controller would send for it to a pod that has nothing; none before the first state.
    pub(super) fn updates(&self) -> Option<impl Iterator<Item = Update>> {
        let Position { instance, revision } = self.position.clone()?;
        let begin = Update::Begin {
            instance,
            base: None,
        };
        // None of ours fails to be written.
        let readable = self
            .snapshot
            .objects()
            .filter_map(|object| object.to_value().ok());
        let unreadable = self.unreadable.values().map(|it| (*it.value).clone());
        let puts = readable.chain(unreadable).map(Update::Put);
        let commit = Update::Commit { revision };
        Some([begin].into_iter().chain(puts).chain([commit]))
    }

    /// The lines that lead from `before` to this state; `None` when another controller process has numbered it.
    pub(super) fn updates_since(&self, before: &Self) -> Option<Vec<Update>> {
        let (position, former) = (self.position.as_ref()?, before.position.as_ref()?);
        if position.instance != former.instance {
            return None;
        }
        let mut names: BTreeSet<ObjectRef> = self
            .snapshot
            .names_changed_since(&before.snapshot)
            .into_iter()
            .collect();
        let unreadable = self.unreadable.keys().chain(before.unreadable.keys());
        let is_changed =
            |name: &&ObjectRef| self.unreadable.get(*name) != before.unreadable.get(*name);
        names.extend(unreadable.filter(is_changed).cloned());
        let mut updates = Vec::new();
        for name in names {
            let count = updates.len();
            let object = self.snapshot.object(&name);
            let readable = object.and_then(|object| object.to_value().ok());
            let unreadable = self.unreadable.get(&name).map(|it| (*it.value).clone());
            updates.extend(readable.into_iter().chain(unreadable).map(Update::Put));
            if updates.len() == count {
                updates.push(Update::Delete(deleted(&name)));
            }
        }
        updates.push(Update::Commit {
            revision: position.revision,
        });
        Some(updates)
    }

    fn problems(&self) -> Vec<Problem> {
        let unknown: BTreeSet<(&str, &str)> = self
            .unreadable
            .iter()
            .filter(|(_, it)| it.problem.is_none())
            .map(|(name, it)| {
                (
                    it.value["apiVersion"].as_str().unwrap_or_default(),
                    &*name.kind,
                )
            })
            .collect();
        let unknown = unknown.into_iter().map(|(api_version, kind)| {
            let message = format!(
                "objects of kind {kind} of {api_version} are left out, which this version of Portcullis ({}) does not \
                 know: use an image of the controller's version",
                env!("CARGO_PKG_VERSION")
            );
            Problem::of_file(Severity::Warning, "", message)
        });
        let of_objects = self.unreadable.values();
        of_objects
            .filter_map(|it| it.problem.clone())
            .chain(unknown)
            .collect()
    }

    /// Puts an object in its place, and returns its name. One that cannot be read leaves the version before it there.
    fn put(&mut self, value: Value) -> Result<ObjectRef, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&value["apiVersion"]), text(&value["kind"]));
        let metadata = &value["metadata"];
        let (namespace, object) = (text(&metadata["namespace"]), text(&metadata["name"]));
        if api_version.is_empty() || kind.is_empty() || object.is_empty() {
            return Err("an object has no apiVersion, kind or metadata.name".to_owned());
        }
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let name = ObjectRef::new(group, &kind, &namespace, &object);
        let Some(known) = Kind::find(&api_version, &kind) else {
            let unknown = Unreadable {
                value: Arc::new(value),
                problem: None,
            };
            self.unreadable.insert(name.clone(), unknown);
            return Ok(name);
        };
        match known.decode(&value) {
            Ok(object) => {
                self.unreadable.remove(&name);
                self.snapshot.insert(object);
            }
            Err(error) => {
                let generation = metadata["generation"].as_i64().unwrap_or_default();
                let reason = unreadable(value.clone(), &error);
                let message =
                    format!("cannot be read: {reason}; its previous version, if any, stays");
                let problem = Problem::of_object(name.clone(), generation, message);
                let unreadable = Unreadable {
                    value: Arc::new(value),
                    problem: Some(problem),
                };
                self.unreadable.insert(name.clone(), unreadable);
            }
        }
        Ok(name)
    }

    fn delete(&mut self, name: &ObjectRef) {
        self.unreadable.remove(name);
        self.snapshot.remove(name);
    }

    /// Leaves only these objects.
    fn retain(&mut self, listed: &BTreeSet<ObjectRef>) {
        self.unreadable.retain(|name, _| listed.contains(name));
        for kind in Kind::all() {
            for key in self.snapshot.keys(kind) {
                let name = kind.object_ref(&key.namespace, &key.name);
                if !listed.contains(&name) {
                    self.snapshot.remove(&name);
                }
            }
        }
    }
}

/// What one stream has said since its last commit.
#[derive(Debug, Default)]
pub(super) struct Intake(Option<Begun>);

/// A stream that has begun.
#[derive(Debug)]
struct Begun {
    /// The controller process.
    instance: String,
    /// The revision that it has said last.
    revision: Option<u64>,
    /// What has come since.
    staged: Option<Staged>,
}

/// A state that is not complete yet.
#[derive(Debug)]
struct Staged {
    state: State,
    /// When it makes up everything: the objects so far.
    listed: Option<BTreeSet<ObjectRef>>,
}

/// What follows from an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The stream has begun: with what is there already, or with nothing.
    Begun {
        /// Whether what is there is the stream's state already.
        is_caught_up: bool,
    },
    /// Nothing yet.
    Staged,
    /// There is a new state.
    Committed,
    /// The leader serves at this address, or this is the leader.
    Leader(Option<String>),
}

impl Intake {
    /// Takes an update, which changes `state` only when it is a commit.
    ///
    /// # Errors
    /// When it cannot follow what came before it: nothing of the stream is to be believed then.
    pub(super) fn take(&mut self, update: Update, state: &mut State) -> Result<Step, String> {
        match (update, &mut self.0) {
            (Update::Leader { address }, _) => Ok(Step::Leader(address)),
            // Also amid a stream: a pod that is too slow for differences gets everything.
            (Update::Begin { instance, base }, _) => self.begin(instance, base, state),
            (_, None) => Err("the stream does not begin with `begin`".to_owned()),
            (Update::Put(value), Some(begun)) => {
                let staged = begun.staged(state);
                let name = staged.state.put(value)?;
                if let Some(listed) = &mut staged.listed {
                    listed.insert(name);
                }
                Ok(Step::Staged)
            }
            (Update::Delete(deleted), Some(begun)) => {
                let staged = begun.staged(state);
                let name = object_ref(&deleted);
                staged.state.delete(&name);
                if let Some(listed) = &mut staged.listed {
                    listed.remove(&name);
                }
                Ok(Step::Staged)
            }
            (Update::Commit { revision }, Some(begun)) => {
                begun.commit(revision, state)?;
                Ok(Step::Committed)
            }
        }
    }

    fn begin(
        &mut self,
        instance: String,
        base: Option<u64>,
        state: &State,
    ) -> Result<Step, String> {
        let held = state.position.as_ref();
        let Some(revision) = base else {
            let listed = Some(BTreeSet::new());
            // Objects that are equal stay the same, so that nothing looks changed to who compares them.
            let state = state.clone();
            self.0 = Some(Begun {
                instance,
                revision: None,
                staged: Some(Staged { state, listed }),
            });
            return Ok(Step::Begun {
                is_caught_up: false,
            });
        };
        if !held.is_some_and(|held| held.instance == instance && held.revision == revision) {
            let held = held.map_or_else(|| "nothing".to_owned(), ToString::to_string);
            return Err(format!(
                "the stream changes {instance}/{revision}, and this pod has {held}"
            ));
        }
        self.0 = Some(Begun {
            instance,
            revision: base,
            staged: None,
        });
        Ok(Step::Begun { is_caught_up: true })
    }
}

impl Begun {
    /// What has come since the last commit, with more to come.
    fn staged(&mut self, state: &State) -> &mut Staged {
        self.staged.get_or_insert_with(|| Staged {
            state: state.clone(),
            listed: None,
        })
    }

    fn commit(&mut self, revision: u64, state: &mut State) -> Result<(), String> {
        if let Some(last) = self.revision.filter(|last| revision < *last) {
            return Err(format!("revision {revision} comes after revision {last}"));
        }
        self.revision = Some(revision);
        if let Some(staged) = self.staged.take() {
            *state = staged.state;
            if let Some(listed) = staged.listed {
                state.retain(&listed);
            }
        }
        state.position = Some(Position {
            instance: self.instance.clone(),
            revision,
        });
        Ok(())
    }
}

fn deleted(name: &ObjectRef) -> Deleted {
    Deleted {
        group: name.group.to_string(),
        kind: name.kind.to_string(),
        namespace: name.namespace.to_string(),
        name: name.name.to_string(),
    }
}

fn object_ref(deleted: &Deleted) -> ObjectRef {
    let Deleted {
        group,
        kind,
        namespace,
        name,
    } = deleted;
    ObjectRef::new(group, kind, namespace, name)
}

#[cfg(test)]
mod tests;
