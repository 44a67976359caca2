//! The statuses that the API server holds, from its watches and from its responses to our writes. Keeps the newer of two
//! versions, and announces which objects have changed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::mpsc;

use crate::ir::ObjectRef;

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

/// The statuses of all objects that get one from us.
#[derive(Debug)]
pub struct Stored {
    statuses: Mutex<BTreeMap<ObjectRef, StoredStatus>>,
    changed: mpsc::UnboundedSender<ObjectRef>,
}

impl Stored {
    /// Starts without objects. The receiver gets every object whose status has changed.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<ObjectRef>) {
        let (changed, changes) = mpsc::unbounded_channel();
        let statuses = Mutex::default();
        (Self { statuses, changed }, changes)
    }

    /// Takes note of an object, unless a newer version of it is known.
    pub fn seen(&self, object: &ObjectRef, status: StoredStatus) {
        let mut statuses = self.lock();
        let old = statuses.get(object);
        if old.is_some_and(|old| is_older(&status.resource_version, &old.resource_version)) {
            return;
        }
        let is_news = old.is_none_or(|old| old.json != status.json);
        statuses.insert(object.clone(), status);
        if is_news {
            // Nobody may listen yet, or any more.
            let _ = self.changed.send(object.clone());
        }
    }

    /// Forgets an object that is gone.
    pub fn gone(&self, object: &ObjectRef) {
        self.lock().remove(object);
    }

    /// What is known of an object.
    pub fn get(&self, object: &ObjectRef) -> Option<StoredStatus> {
        self.lock().get(object).cloned()
    }

    /// All objects that are known.
    pub fn objects(&self) -> Vec<ObjectRef> {
        self.lock().keys().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectRef, StoredStatus>> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner)
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
}
