//! Cache of the statuses that the API server holds, from watches and from responses to writes.
//! Keeps the newer of two versions, announces changed objects, and removes deleted ones.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::core::GroupVersionKind;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::ir::{ObjectRef, fingerprint};

/// The stored status of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredStatus {
    /// `resourceVersion` of the object.
    pub resource_version: String,
    /// `status` as JSON; empty without a status.
    pub json: Box<str>,
    /// Whether this controller, and no other client, wrote its condition `Programmed`.
    pub is_ours: bool,
}

impl StoredStatus {
    /// Returns the status of an object at a `resourceVersion`.
    pub fn new(resource_version: &str, status: &Value) -> Self {
        let json = if status.is_null() {
            String::new()
        } else {
            status.to_string()
        };
        Self {
            resource_version: resource_version.to_owned(),
            json: json.into(),
            is_ours: false,
        }
    }

    /// Sets whether this controller wrote the status.
    #[must_use]
    pub fn with_owner(mut self, is_ours: bool) -> Self {
        self.is_ours = is_ours;
        self
    }

    /// Parses the status.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }
}

/// Cache entry of one object.
#[derive(Debug)]
struct Entry {
    status: StoredStatus,
    written: Option<Written>,
}

/// Hashes of the last written status and of what the API server stored for it. The API server
/// prunes fields that the installed CRD does not have; without this pair they would be written
/// again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    desired: u64,
    stored: u64,
}

/// Stored statuses of all objects whose status this controller writes.
#[derive(Debug)]
pub struct Stored {
    entries: Mutex<BTreeMap<ObjectRef, Entry>>,
    /// Kinds that the cluster serves under other names.
    renamed: Mutex<BTreeMap<&'static str, GroupVersionKind>>,
    changed: mpsc::UnboundedSender<ObjectRef>,
}

impl Stored {
    /// Creates an empty cache. The receiver gets every object whose stored status changes.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<ObjectRef>) {
        let (changed, changes) = mpsc::unbounded_channel();
        let stored = Self {
            entries: Mutex::default(),
            renamed: Mutex::default(),
            changed,
        };
        (stored, changes)
    }

    /// Records under which other name the cluster serves a kind; `None` if under its own.
    pub fn served(&self, kind: &'static str, name: Option<GroupVersionKind>) {
        let mut renamed = self.renamed.lock().unwrap_or_else(PoisonError::into_inner);
        match name {
            Some(name) => drop(renamed.insert(kind, name)),
            None => drop(renamed.remove(kind)),
        }
    }

    /// Returns the other name under which the cluster serves the kind of an object.
    pub(super) fn served_as(&self, object: &ObjectRef) -> Option<GroupVersionKind> {
        let renamed = self.renamed.lock().unwrap_or_else(PoisonError::into_inner);
        renamed.get(&*object.kind).cloned()
    }

    /// Records an observed status, unless a newer version is cached.
    pub fn observed(&self, object: &ObjectRef, status: StoredStatus) {
        let mut entries = self.lock();
        let is_changed = match entries.get_mut(object) {
            Some(entry) => entry.update(status),
            None => {
                let written = None;
                entries.insert(object.clone(), Entry { status, written });
                true
            }
        };
        if is_changed {
            self.announce(object);
        }
    }

    /// Records the status from the response to a write. An object that was deleted meanwhile stays
    /// removed: no watch would report its deletion again.
    pub(super) fn responded(&self, object: &ObjectRef, status: StoredStatus) {
        let mut entries = self.lock();
        if entries
            .get_mut(object)
            .is_some_and(|entry| entry.update(status))
        {
            self.announce(object);
        }
    }

    /// Records a written status, by its hash, and the stored result.
    pub(super) fn written(&self, object: &ObjectRef, desired: u64, status: StoredStatus) {
        let stored = fingerprint::of(&status.json);
        if let Some(entry) = self.lock().get_mut(object) {
            entry.written = Some(Written { desired, stored });
        }
        self.responded(object, status);
    }

    /// Reports whether the stored status is the result of writing the status with this hash.
    pub(super) fn is_written(&self, object: &ObjectRef, desired: u64) -> bool {
        self.lock().get(object).is_some_and(|entry| {
            let stored = fingerprint::of(&entry.status.json);
            entry.written == Some(Written { desired, stored })
        })
    }

    /// Removes a deleted object.
    pub fn deleted(&self, object: &ObjectRef) {
        self.lock().remove(object);
    }

    /// Returns the stored status of an object, if cached.
    pub fn get(&self, object: &ObjectRef) -> Option<StoredStatus> {
        self.lock().get(object).map(|entry| entry.status.clone())
    }

    /// Returns all cached objects.
    pub fn objects(&self) -> Vec<ObjectRef> {
        self.lock().keys().cloned().collect()
    }

    fn announce(&self, object: &ObjectRef) {
        // Without a receiver the announcement is dropped.
        let _ = self.changed.send(object.clone());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectRef, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Stores a status that is not older. Returns whether it differs.
    fn update(&mut self, status: StoredStatus) -> bool {
        if is_older(&status.resource_version, &self.status.resource_version) {
            return false;
        }
        let is_changed = self.status.json != status.json;
        self.status = status;
        is_changed
    }
}

/// Reports whether a numeric version is older than another. Versions that are not numbers cannot be
/// compared.
fn is_older(version: &str, than: &str) -> bool {
    let number = |version: &str| version.parse::<u64>().ok();
    number(version)
        .zip(number(than))
        .is_some_and(|(version, than)| version < than)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(version: &str, reason: &str) -> StoredStatus {
        StoredStatus::new(version, &json!({"reason": reason}))
    }

    #[test]
    fn keeps_the_newer_version_in_any_order() {
        let route = ObjectRef::gateway_api("HTTPRoute", "default", "a");
        let (stored, mut changes) = Stored::new();
        stored.observed(&route, status("11", "b"));
        stored.observed(&route, status("9", "a"));
        assert_eq!(stored.get(&route), Some(status("11", "b")));
        assert_eq!(changes.try_recv().unwrap(), route);
        assert!(changes.try_recv().is_err());
    }

    #[test]
    fn announces_only_changed_statuses() {
        let route = ObjectRef::gateway_api("HTTPRoute", "default", "a");
        let (stored, mut changes) = Stored::new();
        stored.observed(&route, status("1", "a"));
        stored.observed(&route, status("2", "a"));
        assert_eq!(stored.get(&route).unwrap().resource_version, "2");
        assert!(changes.try_recv().is_ok() && changes.try_recv().is_err());
        stored.deleted(&route);
        assert_eq!(stored.get(&route), None);
        assert!(stored.objects().is_empty());
    }

    #[test]
    fn removes_deleted_objects() {
        let route = ObjectRef::gateway_api("HTTPRoute", "default", "a");
        let (stored, mut changes) = Stored::new();
        stored.observed(&route, status("1", "a"));
        stored.written(&route, 7, status("2", "b"));
        assert!(stored.is_written(&route, 7) && !stored.is_written(&route, 8));
        stored.deleted(&route);
        // The response to a write that raced with the deletion.
        stored.written(&route, 7, status("2", "b"));
        stored.responded(&route, status("2", "b"));
        assert_eq!(stored.get(&route), None);
        while changes.try_recv().is_ok() {}
        // A new object of the same name with the same status.
        stored.observed(&route, status("4", "b"));
        assert!(!stored.is_written(&route, 7));
        assert_eq!(changes.try_recv().unwrap(), route);
    }

    #[test]
    fn later_change_invalidates_the_written_status() {
        let route = ObjectRef::gateway_api("HTTPRoute", "default", "a");
        let (stored, _changes) = Stored::new();
        stored.observed(&route, status("1", "a"));
        stored.written(&route, 7, status("2", "b"));
        stored.observed(&route, status("3", "c"));
        assert!(!stored.is_written(&route, 7));
    }
}
