//! The objects of a cluster, as the watches of its kinds tell of them. Owns which version of an object is served when a
//! new one cannot be read, and that nothing is published before every kind is known. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::observer::{Observed, Observer, is_observed};
use crate::api::{Key, Kind, Object, ObjectRef};
use crate::provider::{Load, Problem};
use crate::snapshot::Snapshot;

/// What a watch tells of its kind.
#[derive(Debug)]
pub(super) enum Change {
    /// The kind is listed from the beginning.
    Listing,
    /// One object of the list.
    Listed(Reading),
    /// The list is complete: what it did not have is gone.
    Complete,
    /// An object is new or has changed.
    Applied(Reading),
    /// An object is gone.
    Deleted(Key),
    /// The cluster does not know the kind.
    Absent,
}

/// An object that was read, or why it could not be.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) key: Key,
    pub(super) object: Result<Object, String>,
    /// What an observer is told, if there is one and it is told of the kind.
    pub(super) observed: Option<Observed>,
}

/// All objects of all kinds.
pub(super) struct Store {
    snapshot: Snapshot,
    problems: BTreeMap<ObjectRef, Problem>,
    /// Lists that are not complete yet, by kind.
    staged: BTreeMap<usize, BTreeMap<Key, Reading>>,
    /// Kinds that have never been listed.
    awaited: BTreeSet<usize>,
    observer: Option<Arc<dyn Observer>>,
}

impl Store {
    /// A store that waits for every kind.
    pub(super) fn new(observer: Option<Arc<dyn Observer>>) -> Self {
        Self {
            snapshot: Snapshot::default(),
            problems: BTreeMap::new(),
            staged: BTreeMap::new(),
            awaited: (0..Kind::all().len()).collect(),
            observer,
        }
    }

    /// Takes note of a change of the kind `index` of [`Kind::all`], and tells whether there is something new to serve.
    pub(super) fn apply(&mut self, index: usize, change: Change) -> bool {
        let kind = &Kind::all()[index];
        match change {
            Change::Listing => {
                self.staged.insert(index, BTreeMap::new());
                false
            }
            Change::Listed(reading) => {
                let staged = self.staged.entry(index).or_default();
                staged.insert(reading.key.clone(), reading);
                false
            }
            Change::Complete => {
                let staged = self.staged.remove(&index).unwrap_or_default();
                self.replace(kind, staged) | self.awaited.remove(&index)
            }
            Change::Applied(reading) => self.put(kind, reading),
            Change::Deleted(key) => self.remove(kind, &key),
            Change::Absent => {
                self.staged.remove(&index);
                self.replace(kind, BTreeMap::new()) | self.awaited.remove(&index)
            }
        }
    }

    /// Kinds that have never been listed.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &'static Kind> {
        self.awaited.iter().map(|index| &Kind::all()[*index])
    }

    /// Everything, once every kind has been listed.
    pub(super) fn load(&self) -> Option<Load> {
        self.awaited.is_empty().then(|| Load {
            snapshot: Arc::new(self.snapshot.clone()),
            problems: self.problems.values().cloned().collect(),
        })
    }

    fn replace(&mut self, kind: &Kind, listed: BTreeMap<Key, Reading>) -> bool {
        let mut changed = false;
        for key in self.known(kind) {
            if !listed.contains_key(&key) {
                changed |= self.remove(kind, &key);
            }
        }
        for reading in listed.into_values() {
            changed |= self.put(kind, reading);
        }
        changed
    }

    /// The objects of a kind. What never could be read is in no snapshot.
    fn known(&self, kind: &Kind) -> BTreeSet<Key> {
        let unreadable = self
            .problems
            .keys()
            .filter(|object| (&*object.group, &*object.kind) == (kind.group, kind.kind))
            .map(|object| Key::new(&object.namespace, &object.name));
        let readable = self.snapshot.keys(kind);
        readable.into_iter().chain(unreadable).collect()
    }

    /// Puts an object in its place. One that cannot be read leaves the version before it there.
    fn put(&mut self, kind: &Kind, reading: Reading) -> bool {
        let name = kind.object_ref(&reading.key.namespace, &reading.key.name);
        if let (Some(observer), Some(observed)) = (&self.observer, reading.observed) {
            observer.seen(&name, observed);
        }
        match reading.object {
            Ok(object) => {
                let was_unreadable = self.problems.remove(&name).is_some();
                self.snapshot.insert(object) | was_unreadable
            }
            Err(error) => {
                let message =
                    format!("cannot be read: {error}; its previous version, if any, stays");
                let problem = Problem::of_object(name.clone(), message);
                let former = self.problems.insert(name, problem.clone());
                former.as_ref() != Some(&problem)
            }
        }
    }

    fn remove(&mut self, kind: &Kind, key: &Key) -> bool {
        let name = kind.object_ref(&key.namespace, &key.name);
        if let Some(observer) = self.observer.as_ref().filter(|_| is_observed(kind)) {
            observer.gone(&name);
        }
        let was_unreadable = self.problems.remove(&name).is_some();
        self.snapshot.remove(kind, key) | was_unreadable
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;

    fn index(kind: &str) -> usize {
        let mut kinds = Kind::all().iter();
        kinds.position(|known| known.kind == kind).unwrap()
    }

    fn reading(kind: &str, name: &str, spec: &serde_json::Value) -> Reading {
        let value =
            json!({"kind": kind, "metadata": {"namespace": "default", "name": name}, "spec": spec});
        let object = Kind::all()[index(kind)].decode(&value);
        Reading {
            key: Key::new("default", name),
            object: object.map_err(|error| error.to_string()),
            observed: None,
        }
    }

    fn route(name: &str, hostname: &str) -> Reading {
        reading("HTTPRoute", name, &json!({"hostnames": [hostname]}))
    }

    fn broken(name: &str) -> Reading {
        reading("HTTPRoute", name, &json!({"hostnames": 7}))
    }

    /// A store in which every kind has been listed.
    fn listed() -> Store {
        listed_for(None)
    }

    fn listed_for(observer: Option<Arc<dyn Observer>>) -> Store {
        let mut store = Store::new(observer);
        for kind in 0..Kind::all().len() {
            assert!(store.load().is_none());
            store.apply(kind, Change::Listing);
            assert!(store.apply(kind, Change::Complete));
        }
        store
    }

    fn hostname(store: &Store, name: &str) -> Option<String> {
        let load = store.load().unwrap();
        let route = load.snapshot.http_routes.get("default", name)?;
        route.spec.hostnames.first().cloned()
    }

    #[test]
    fn nothing_is_published_before_every_kind_is_known() {
        let mut store = Store::new(None);
        let routes = index("HTTPRoute");
        for kind in 0..Kind::all().len() {
            if kind != routes {
                store.apply(kind, Change::Absent);
            }
        }
        store.apply(routes, Change::Listing);
        store.apply(routes, Change::Listed(route("a", "a.example")));
        assert!(store.load().is_none());
        assert_eq!(store.awaited().count(), 1);
        assert!(store.apply(routes, Change::Complete));
        assert_eq!(hostname(&store, "a").as_deref(), Some("a.example"));
    }

    #[test]
    fn a_list_takes_effect_at_its_end_and_takes_missed_deletions_along() {
        let (mut store, routes) = (listed(), index("HTTPRoute"));
        assert!(store.apply(routes, Change::Applied(route("a", "a.example"))));
        assert!(store.apply(routes, Change::Applied(broken("c"))));
        store.apply(routes, Change::Listing);
        store.apply(routes, Change::Listed(route("b", "b.example")));
        assert!(hostname(&store, "a").is_some() && hostname(&store, "b").is_none());
        assert!(store.apply(routes, Change::Complete));
        assert!(hostname(&store, "a").is_none() && hostname(&store, "b").is_some());
        assert!(store.load().unwrap().problems.is_empty());
    }

    #[test]
    fn what_changes_nothing_is_not_news() {
        let (mut store, routes) = (listed(), index("HTTPRoute"));
        assert!(store.apply(routes, Change::Applied(route("a", "a.example"))));
        assert!(!store.apply(routes, Change::Applied(route("a", "a.example"))));
        store.apply(routes, Change::Listing);
        store.apply(routes, Change::Listed(route("a", "a.example")));
        assert!(!store.apply(routes, Change::Complete));
        assert!(!store.apply(routes, Change::Deleted(Key::new("default", "b"))));
    }

    #[test]
    fn an_object_that_cannot_be_read_keeps_its_last_version_and_costs_no_other() {
        let (mut store, routes) = (listed(), index("HTTPRoute"));
        store.apply(routes, Change::Applied(route("a", "a.example")));
        assert!(store.apply(routes, Change::Applied(broken("a"))));
        assert!(!store.apply(routes, Change::Applied(broken("a"))));
        assert_eq!(hostname(&store, "a").as_deref(), Some("a.example"));
        let problems = store.load().unwrap().problems;
        assert!(
            problems[0]
                .to_string()
                .starts_with("error: HTTPRoute default/a: cannot be read: ")
        );
        assert!(store.apply(routes, Change::Applied(route("a", "a.example"))));
        assert!(store.load().unwrap().problems.is_empty());
    }

    #[test]
    fn kinds_that_share_a_map_do_not_touch_each_other() {
        let (mut store, grpc) = (listed(), index("GRPCRoute"));
        let tcp = index("TCPRoute");
        store.apply(grpc, Change::Applied(reading("GRPCRoute", "a", &json!({}))));
        store.apply(tcp, Change::Applied(reading("TCPRoute", "a", &json!({}))));
        assert!(store.apply(tcp, Change::Absent));
        assert_eq!(store.load().unwrap().snapshot.unserved_routes.len(), 1);
        assert!(store.apply(grpc, Change::Deleted(Key::new("default", "a"))));
        assert!(store.load().unwrap().snapshot.unserved_routes.is_empty());
    }
    /// Writes down what it is told.
    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl Observer for Log {
        fn seen(&self, object: &ObjectRef, observed: Observed) {
            let version = observed.resource_version;
            self.0.lock().unwrap().push(format!("{object} {version}"));
        }

        fn gone(&self, object: &ObjectRef) {
            self.0.lock().unwrap().push(format!("{object} gone"));
        }
    }

    fn versioned(reading: Reading, version: u64) -> Reading {
        let object = json!({"metadata": {"resourceVersion": version.to_string()}});
        Reading {
            observed: Some(Observed::of(&serde_json::from_value(object).unwrap())),
            ..reading
        }
    }

    #[test]
    fn an_observer_is_told_of_all_that_happens() {
        let log = Arc::new(Log::default());
        let (mut store, routes) = (listed_for(Some(log.clone())), index("HTTPRoute"));
        let told = || log.0.lock().unwrap().join(", ");
        store.apply(
            routes,
            Change::Applied(versioned(route("a", "a.example"), 1)),
        );
        let only_status = Change::Applied(versioned(route("a", "a.example"), 2));
        assert!(!store.apply(routes, only_status));
        store.apply(routes, Change::Applied(versioned(broken("b"), 3)));
        let mut expected =
            "HTTPRoute default/a 1, HTTPRoute default/a 2, HTTPRoute default/b 3".to_owned();
        assert_eq!(told(), expected);
        store.apply(routes, Change::Listing);
        store.apply(routes, Change::Listed(versioned(broken("c"), 4)));
        assert_eq!(told(), expected);
        store.apply(routes, Change::Complete);
        store.apply(routes, Change::Deleted(Key::new("default", "c")));
        expected += ", HTTPRoute default/a gone, HTTPRoute default/b gone, HTTPRoute default/c 4";
        expected += ", HTTPRoute default/c gone";
        assert_eq!(told(), expected);
        store.apply(
            index("Service"),
            Change::Deleted(Key::new("default", "other")),
        );
        assert_eq!(told(), expected);
    }
}
