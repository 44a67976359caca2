//! The objects of one Gateway, built from stream updates. Updates take effect on commit. Does no
//! I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::de::Error as _;
use serde_json::Value;

use crate::api::key_set::KeySet;
use crate::api::{
    Kind, Object, ObjectRef, Protection, decode_whole, group_and_version, protection, protects,
    unknown_to_sender,
};
use crate::finding::Severity;
use crate::provider::problem::unreadable;
use crate::provider::{Load, Problem};
use crate::snapshot::Snapshot;
use crate::wire::{Deleted, Position, ReadyPods, SessionSecrets, Update};

/// A complete state of the objects. Clones share equal parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GatewayObjects {
    /// Position of the state in the stream; `None` before the first commit.
    pub(super) position: Option<Position>,
    /// The valid objects. An object whose current version is invalid keeps its previous version.
    pub(super) snapshot: Snapshot,
    /// Secrets of the Gateway's session tokens.
    pub(super) session_secret: Option<Arc<SessionSecrets>>,
    /// The ready pods of the Gateway, if the controller has named them. Not part of a revision.
    pub(super) pods: Option<Arc<ReadyPods>>,
    unreadable: BTreeMap<ObjectRef, Unreadable>,
}

/// An object that is invalid, or has fields that this version does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unreadable {
    value: Arc<Value>,
    /// What is wrong; `None` if its kind is unknown, which is reported once per kind.
    problem: Option<Problem>,
}

impl GatewayObjects {
    /// Returns the load to publish.
    pub(super) fn load(&self) -> Load {
        Load {
            snapshot: Arc::new(self.snapshot.clone()),
            problems: self.problems(),
            waiting: Vec::new(),
            position: self.position.clone(),
        }
    }

    /// Returns the lines that a controller would send for this state to an empty pod; `None` before
    /// the first commit.
    pub(super) fn updates(&self) -> Option<impl Iterator<Item = Update>> {
        let Position { instance, revision } = self.position.clone()?;
        let begin = Update::Begin {
            instance,
            base: None,
        };
        // Serialization of these types cannot fail.
        let readable = self
            .snapshot
            .objects()
            .filter_map(|object| object.to_value().ok());
        let unreadable = self.unreadable.values().map(|it| (*it.value).clone());
        let puts = readable.chain(unreadable).map(Update::Put);
        let commit = Update::Commit { revision };
        let secret = self.secret_update();
        let begin = [begin].into_iter().chain(secret).chain(self.pods_update());
        Some(begin.chain(puts).chain([commit]))
    }

    /// Returns the lines that change `previous` into this state; `None` if the states are from
    /// different controller processes.
    pub(super) fn updates_since(&self, previous: &Self) -> Option<Vec<Update>> {
        let (position, old) = (self.position.as_ref()?, previous.position.as_ref()?);
        if position.instance != old.instance {
            return None;
        }
        let mut names: BTreeSet<ObjectRef> = self
            .snapshot
            .names_changed_since(&previous.snapshot)
            .into_iter()
            .collect();
        let unreadable = self.unreadable.keys().chain(previous.unreadable.keys());
        let is_changed =
            |name: &&ObjectRef| self.unreadable.get(*name) != previous.unreadable.get(*name);
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
        if self.session_secret != previous.session_secret {
            updates.extend(self.secret_update());
        }
        if self.pods != previous.pods {
            updates.extend(self.pods_update());
        }
        updates.push(Update::Commit {
            revision: position.revision,
        });
        Some(updates)
    }

    /// Reports whether this state is older than one of another controller process, as far as that can be told: it has an earlier
    /// version of an object, or lacks one whose end may open something, since it protects requests or takes them from others.
    pub(super) fn is_behind(&self, other: &Self) -> bool {
        let version = |object: &Object| {
            let meta = object.meta();
            (meta.creation_timestamp, meta.generation)
        };
        let is_earlier = |of_other: Object| {
            let (kind, meta) = (of_other.kind(), of_other.meta());
            let name = kind.object_ref(&meta.namespace, &meta.name);
            match self.snapshot.object(&name) {
                Some(own) => version(&own) < version(&of_other),
                None => matches!(protection(kind), Protection::Protects | Protection::Takes),
            }
        };
        let of_instance = |state: &Self| state.position.as_ref().map(|it| it.instance.clone());
        of_instance(self) != of_instance(other) && other.snapshot.objects().any(is_earlier)
    }

    /// Reports whether `other` has key material that this state does not have.
    pub(super) fn lacks_keys_of(&self, other: &Self) -> bool {
        let secrets = self.snapshot.secrets.changes_since(&other.snapshot.secrets);
        let is_secret = |name: &&ObjectRef| name.is_core("Secret");
        let mut unreadable = other.unreadable.keys().filter(is_secret);
        secrets.iter().any(|change| change.previous.is_some())
            || unreadable.any(|name| self.unreadable.get(name) != other.unreadable.get(name))
            || other.session_secret.is_some() && self.session_secret != other.session_secret
    }

    fn secret_update(&self) -> Option<Update> {
        let secrets = self.session_secret.as_deref()?;
        Some(Update::SessionSecret(secrets.clone()))
    }

    /// Returns the line of the ready pods for a copy. Where all of them serve HTTP/3 may have changed when the copy is read.
    fn pods_update(&self) -> Option<Update> {
        let ReadyPods {
            own,
            ready,
            http3: _,
        } = self.pods.as_deref()?.clone();
        Some(Update::Pods(ReadyPods {
            own,
            ready,
            http3: BTreeSet::new(),
        }))
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

    /// Stores an object and returns its name. An invalid one leaves its previous version in
    /// service.
    fn put(&mut self, value: Value) -> Result<ObjectRef, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (api_version, kind) = (text(&value["apiVersion"]), text(&value["kind"]));
        let metadata = &value["metadata"];
        let (namespace, object) = (text(&metadata["namespace"]), text(&metadata["name"]));
        if api_version.is_empty() || kind.is_empty() || object.is_empty() {
            return Err("an object has no apiVersion, kind or metadata.name".to_owned());
        }
        let (group, _) = group_and_version(&api_version);
        let name = ObjectRef::new(group, &kind, &namespace, &object);
        let decoded = match Kind::find_streamed(&api_version, &kind) {
            Some(known) => decode_whole(known, &value),
            None if Kind::of(&name).is_some_and(protects) => {
                Err(serde_json::Error::custom("apiVersion: unknown version"))
            }
            None => {
                let unknown = Unreadable {
                    value: Arc::new(value),
                    problem: None,
                };
                self.unreadable.insert(name.clone(), unknown);
                return Ok(name);
            }
        };
        match decoded {
            Ok(object) => {
                self.report_unknown_fields(&name, &object, value);
                let object = self.with_known_keys(object);
                self.snapshot.insert(object);
            }
            Err(error) => {
                let generation = metadata["generation"].as_i64().unwrap_or_default();
                let unparsed = unreadable(value.clone(), &error);
                let (_, problem) = unparsed.serve(&name, generation, &mut self.snapshot);
                let unreadable = Unreadable {
                    value: Arc::new(value),
                    problem: Some(problem),
                };
                self.unreadable.insert(name.clone(), unreadable);
            }
        }
        Ok(name)
    }

    /// Keeps the object of a later version as it was sent, beside what is known of it: the next version may know all of it.
    fn report_unknown_fields(&mut self, name: &ObjectRef, object: &Object, value: Value) {
        match Problem::of_unknown_fields(name, object, &unknown_to_sender(&value)) {
            None => drop(self.unreadable.remove(name)),
            Some(problem) => {
                let unreadable = Unreadable {
                    value: Arc::new(value),
                    problem: Some(problem),
                };
                self.unreadable.insert(name.clone(), unreadable);
            }
        }
    }

    /// Adds the keys of a KeySet without any, if they are known: a controller that has just started did not fetch them yet.
    fn with_known_keys(&self, object: Object) -> Object {
        match object {
            Object::KeySet(set) if set.keys.is_none() => {
                let (namespace, name) = (&set.metadata.namespace, &set.metadata.name);
                let known = self.snapshot.key_sets.get(namespace, name);
                Object::KeySet(Arc::new(KeySet {
                    keys: known.and_then(|known| known.keys.clone()),
                    discovery: known.and_then(|known| known.discovery.clone()),
                    ..KeySet::clone(&set)
                }))
            }
            other => other,
        }
    }

    fn delete(&mut self, name: &ObjectRef) {
        self.unreadable.remove(name);
        self.snapshot.remove(name);
    }

    /// Removes all other objects.
    fn retain(&mut self, listed: &BTreeSet<ObjectRef>) {
        self.unreadable.retain(|name, _| listed.contains(name));
        for kind in Kind::streamed() {
            for key in self.snapshot.keys(kind) {
                let name = kind.object_ref(&key.namespace, &key.name);
                if !listed.contains(&name) {
                    self.snapshot.remove(&name);
                }
            }
        }
    }
}

/// Uncommitted updates of one stream.
#[derive(Debug, Default)]
pub(super) struct UpdateDecoder(Option<ActiveStream>);

/// A stream after its `begin` line.
#[derive(Debug)]
struct ActiveStream {
    /// Identity of the controller process.
    instance: String,
    /// Last committed revision.
    revision: Option<u64>,
    /// Updates since the last commit.
    staged: Option<Staged>,
}

/// An uncommitted state.
#[derive(Debug)]
struct Staged {
    state: GatewayObjects,
    /// For a full state: the objects received so far.
    listed: Option<BTreeSet<ObjectRef>>,
}

/// Effect of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The stream has begun, incrementally or from an empty state.
    Begun {
        /// Whether the current state already equals the stream's state.
        is_caught_up: bool,
    },
    /// No effect before the commit.
    Staged,
    /// There is a new state.
    Committed,
    /// Address of the leader; `None` if this controller is the leader.
    Leader(Option<String>),
    /// The ready pods are known.
    Pods,
}

impl UpdateDecoder {
    /// Applies an update. `state` changes only on a commit.
    ///
    /// # Errors
    /// When the update violates the protocol. Nothing of the stream may be used then.
    pub(super) fn take(
        &mut self,
        update: Update,
        state: &mut GatewayObjects,
    ) -> Result<Step, String> {
        match (update, &mut self.0) {
            (Update::Leader { address }, _) => Ok(Step::Leader(address)),
            (Update::Pods(pods), begun) => {
                let pods = Some(Arc::new(pods));
                state.pods.clone_from(&pods);
                if let Some(staged) = begun.as_mut().and_then(|begun| begun.staged.as_mut()) {
                    staged.state.pods = pods;
                }
                Ok(Step::Pods)
            }
            // `begin` may also come in the middle of a stream: a pod that is too slow for
            // increments gets the full state.
            (Update::Begin { instance, base }, _) => self.begin(instance, base, state),
            (_, None) => Err("the stream does not begin with `begin`".to_owned()),
            (Update::SessionSecret(secrets), Some(begun)) => {
                // Most streams resume with the secrets that the pod already has.
                if state.session_secret.as_deref() != Some(&secrets) {
                    begun.staged(state).state.session_secret = Some(Arc::new(secrets));
                }
                Ok(Step::Staged)
            }
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
        state: &GatewayObjects,
    ) -> Result<Step, String> {
        let held = state.position.as_ref();
        let Some(revision) = base else {
            let listed = Some(BTreeSet::new());
            // Unchanged objects stay shared, so that comparisons with the previous state remain
            // cheap.
            let state = state.clone();
            self.0 = Some(ActiveStream {
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
                "the stream continues {instance}/{revision}, but this pod has {held}"
            ));
        }
        self.0 = Some(ActiveStream {
            instance,
            revision: base,
            staged: None,
        });
        Ok(Step::Begun { is_caught_up: true })
    }
}

impl ActiveStream {
    /// Returns the updates since the last commit.
    fn staged(&mut self, state: &GatewayObjects) -> &mut Staged {
        self.staged.get_or_insert_with(|| Staged {
            state: state.clone(),
            listed: None,
        })
    }

    fn commit(&mut self, revision: u64, state: &mut GatewayObjects) -> Result<(), String> {
        if let Some(last) = self.revision.filter(|last| revision < *last) {
            return Err(format!("revision {revision} follows revision {last}"));
        }
        self.revision = Some(revision);
        if let Some(staged) = self.staged.take() {
            let is_first = state.position.is_none();
            *state = staged.state;
            if is_first {
                state.snapshot.pack();
            }
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
