//! The statuses that the API server holds, from its watches and from its responses to our writes. Keeps the newer of two
//! versions, announces which objects have changed, and forgets those that are gone.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::mpsc;

use crate::ir::{ObjectRef, fingerprint};

/// The status of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredStatus {
    /// Version of the object that had it.
    pub resource_version: String,
    /// `status`, as JSON; empty when it has none.
    pub json: Box<str>,
}

impl StoredStatus {
    /// The status of an object's `resourceVersion`.
    pub fn new(resource_version: &str, status: &Value) -> Self {
        let json = if status.is_null() {
            String::new()
        } else {
            status.to_string()
        };
        Self {
            resource_version: resource_version.to_owned(),
            json: json.into(),
        }
    }

    /// The status, as a value.
    pub fn value(&self) -> Value {
        serde_json::from_str(&self.json).unwrap_or_default()
    }
}

/// What is known of one object.
#[derive(Debug)]
struct Entry {
    status: StoredStatus,
    written: Option<Written>,
}

/// Hashes of the last status that was written for an object and of what the API server made of it. Fields that its CRD
/// does not know are dropped there, and must not be written again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    wanted: u64,
    stored: u64,
}

/// The statuses of all objects that get one from us.
#[derive(Debug)]
pub struct Stored {
    entries: Mutex<BTreeMap<ObjectRef, Entry>>,
    changed: mpsc::UnboundedSender<ObjectRef>,
}

impl Stored {
    /// Starts without objects. The receiver gets every object whose status has changed.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<ObjectRef>) {
        let (changed, changes) = mpsc::unbounded_channel();
        let entries = Mutex::default();
        (Self { entries, changed }, changes)
    }

    /// Takes note of an object, unless a newer version of it is known.
    pub fn seen(&self, object: &ObjectRef, status: StoredStatus) {
        let mut entries = self.lock();
        let is_news = match entries.get_mut(object) {
            Some(entry) => entry.update(status),
            None => {
                let written = None;
                entries.insert(object.clone(), Entry { status, written });
                true
            }
        };
        if is_news {
            self.announce(object);
        }
    }

    /// Takes note of what the API server holds now, as its response to a write says. An object that has gone meanwhile stays
    /// unknown: no watch would ever tell that it is gone.
    pub(super) fn responded(&self, object: &ObjectRef, status: StoredStatus) {
        let mut entries = self.lock();
        if entries
            .get_mut(object)
            .is_some_and(|entry| entry.update(status))
        {
            self.announce(object);
        }
    }

    /// Takes note of a status that was written, by its hash, and of what the API server made of it.
    pub(super) fn written(&self, object: &ObjectRef, wanted: u64, status: StoredStatus) {
        let stored = fingerprint::of(&status.json);
        if let Some(entry) = self.lock().get_mut(object) {
            entry.written = Some(Written { wanted, stored });
        }
        self.responded(object, status);
    }

    /// Whether the stored status is what the API server makes of the wanted one, by its hash.
    pub(super) fn is_written(&self, object: &ObjectRef, wanted: u64) -> bool {
        self.lock().get(object).is_some_and(|entry| {
            let stored = fingerprint::of(&entry.status.json);
            entry.written == Some(Written { wanted, stored })
        })
    }

    /// Forgets an object that is gone.
    pub fn gone(&self, object: &ObjectRef) {
        self.lock().remove(object);
    }

    /// What is known of an object.
    pub fn get(&self, object: &ObjectRef) -> Option<StoredStatus> {
        self.lock().get(object).map(|entry| entry.status.clone())
    }

    /// All objects that are known.
    pub fn objects(&self) -> Vec<ObjectRef> {
        self.lock().keys().cloned().collect()
    }

    fn announce(&self, object: &ObjectRef) {
        // Nobody may listen yet, or any more.
        let _ = self.changed.send(object.clone());
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectRef, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    /// Takes a status that is not older; true when it differs.
    fn update(&mut self, status: StoredStatus) -> bool {
        if is_older(&status.resource_version, &self.status.resource_version) {
            return false;
        }
        let is_news = self.status.json != status.json;
        self.status = status;
        is_news
    }
}

/// Whether a version is older than another, where versions are numbers; others cannot be compared.
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
    fn the_newer_of_two_versions_counts_whichever_comes_first() {
        let route = ObjectRef::gateway_api("HTTPRoute", "default", "a");
        let (stored, mut changes) = Stored::new();
        stored.seen(&route, status("11", "b"));
        stored.seen(&route, status("9", "a"));
        assert_eq!(stored.get(&route), Some(status("11", "b")));
        assert_eq!(changes.try_recv().unwrap(), route);
        assert!(changes.try_recv().is_err());
    }

    #[test]
    fn only_a_status_that_differs_is_news() {
        let route = ObjectRef::gateway_api("HTTPRoute", "default", "a");
        let (stored, mut changes) = Stored::new();
        stored.seen(&route, status("1", "a"));
        stored.seen(&route, status("2", "a"));
        assert_eq!(stored.get(&route).unwrap().resource_version, "2");
        assert!(changes.try_recv().is_ok() && changes.try_recv().is_err());
        stored.gone(&route);
        assert_eq!(stored.get(&route), None);
        assert!(stored.objects().is_empty());
    }

    #[test]
    fn forgets_everything_of_an_object_that_is_gone() {
        let route = ObjectRef::gateway_api("HTTPRoute", "default", "a");
        let (stored, mut changes) = Stored::new();
        stored.seen(&route, status("1", "a"));
        stored.written(&route, 7, status("2", "b"));
        assert!(stored.is_written(&route, 7) && !stored.is_written(&route, 8));
        stored.gone(&route);
        // The response to a write that the deletion has overtaken.
        stored.written(&route, 7, status("2", "b"));
        stored.responded(&route, status("2", "b"));
        assert_eq!(stored.get(&route), None);
        while changes.try_recv().is_ok() {}
        // A new object of the name, with the same status.
        stored.seen(&route, status("4", "b"));
        assert!(!stored.is_written(&route, 7));
        assert_eq!(changes.try_recv().unwrap(), route);
    }

    #[test]
    fn a_status_that_changes_after_the_write_is_not_what_was_written() {
        let route = ObjectRef::gateway_api("HTTPRoute", "default", "a");
        let (stored, _changes) = Stored::new();
        stored.seen(&route, status("1", "a"));
        stored.written(&route, 7, status("2", "b"));
        stored.seen(&route, status("3", "c"));
        assert!(!stored.is_written(&route, 7));
    }
}
