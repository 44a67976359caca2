//! The immutable input of one translation: all objects by kind and key. Must not do I/O.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use crate::api::kind::kinds;
use crate::api::{Key, Kind, Object, Resource};
use crate::ir::ObjectRef;
use crate::ir::packed::packed;

/// The objects of one kind, in key order. Backed by a persistent map: a clone is cheap, and an update costs only what
/// it changes.
#[derive(Debug, PartialEq, Eq)]
pub struct Objects<T>(OrdMap<Key, Arc<T>>);

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self(OrdMap::new())
    }
}

impl<T> Clone for Objects<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Objects<T> {
    /// Gets an object. Cluster-scoped objects have an empty namespace.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<T>> {
        self.0.get(&Key::new(namespace, name))
    }

    /// Iterates over all objects, ordered by the text `namespace/name`.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.0.values()
    }

    /// Like [`Objects::iter`], but owns its objects, so that it outlives `self`.
    pub fn objects(&self) -> impl Iterator<Item = Arc<T>> + use<T> {
        let objects = self.clone();
        let mut next = Some(Key::new("", ""));
        std::iter::from_fn(move || {
            let mut rest = objects.0.range(next.take()?..);
            let (_, object) = rest.next()?;
            next = rest.next().map(|(key, _)| key.clone());
            Some(object.clone())
        })
    }

    /// Returns the objects of one namespace, ordered by name.
    pub fn in_namespace<'a, 'n>(
        &'a self,
        namespace: &'n str,
    ) -> impl Iterator<Item = &'a Arc<T>> + use<'a, 'n, T> {
        // The keys of a namespace are neighbours, since their text begins with it, and the empty name is the least.
        let objects = self.0.range(Key::new(namespace, "")..);
        let within = objects.take_while(move |(key, _)| key.namespace == namespace);
        within.map(|(_, object)| object)
    }

    /// Returns all keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.keys()
    }

    /// Removes an object. Returns whether it existed.
    pub fn remove(&mut self, key: &Key) -> bool {
        // `imbl` copies the shared nodes on the path to a key, even if the key is missing.
        self.0.contains_key(key) && self.0.remove(key).is_some()
    }

    /// Rebuilds the map, in less memory. Worth it once after the first objects, which come one by one.
    fn pack(&mut self) {
        self.0 = packed(&self.0);
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Eq> Objects<T> {
    /// Returns the differences from `previous`, in key order. `imbl` skips parts of the maps that both sides share, so
    /// the cost follows the number of changes when one side is derived from the other.
    pub fn changes_since<'a>(&'a self, previous: &'a Self) -> Vec<Change<'a, T>> {
        let changes = previous.0.diff(&self.0).map(|item| match item {
            DiffItem::Add(key, now) => Change {
                key,
                previous: None,
                now: Some(now),
            },
            DiffItem::Update { old, new } => Change {
                key: new.0,
                previous: Some(old.1),
                now: Some(new.1),
            },
            DiffItem::Remove(key, previous) => Change {
                key,
                previous: Some(previous),
                now: None,
            },
        });
        changes.collect()
    }
}

impl<T: Resource + Eq> Objects<T> {
    /// Returns the names of objects that differ from `previous`, in order.
    pub fn names_changed_since(&self, previous: &Self) -> impl Iterator<Item = ObjectRef> + use<T> {
        let changes = self.changes_since(previous).into_iter();
        let names = changes.map(|change| {
            let Key { namespace, name } = change.key;
            ObjectRef::new(T::GROUP, T::KIND, namespace, name)
        });
        names.collect::<Vec<_>>().into_iter()
    }
}

/// A kind whose objects have a map of their own in a snapshot.
pub trait Listed: Resource + Eq + Sized + 'static {
    /// Returns the objects of the kind.
    fn all(snapshot: &Snapshot) -> &Objects<Self>;
}

/// The name of an object that was added, changed or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedName {
    /// The object.
    pub object: ObjectRef,
    /// Whether it was added or removed.
    pub is_new_or_gone: bool,
}

/// One added, changed or removed object.
#[derive(Debug)]
pub struct Change<'a, T> {
    /// Key.
    pub key: &'a Key,
    /// The previous version; `None` if it was added.
    pub previous: Option<&'a Arc<T>>,
    /// The present version; `None` if it was removed.
    pub now: Option<&'a Arc<T>>,
}

impl<'a, T> Change<'a, T> {
    fn named(&self, object: ObjectRef) -> ChangedName {
        ChangedName {
            object,
            is_new_or_gone: self.previous.is_none() || self.now.is_none(),
        }
    }

    /// Returns the previous and the present version, as far as they exist.
    pub fn versions(&self) -> impl Iterator<Item = &'a Arc<T>> + use<'a, T> {
        self.previous.into_iter().chain(self.now)
    }
}

impl<T: PartialEq> Objects<T> {
    /// Inserts an object under a key. Returns whether the map changes.
    pub fn insert_at(&mut self, key: Key, object: Arc<T>) -> bool {
        let changes = self.0.get(&key) != Some(&object);
        if changes {
            self.0.insert(key, object);
        }
        changes
    }
}

impl<T: Resource + PartialEq> Objects<T> {
    /// Inserts an object under its own key. Returns whether the map changes.
    pub fn insert(&mut self, object: Arc<T>) -> bool {
        self.insert_at(object.key(), object)
    }
}

/// Declares [`Snapshot`] from the table of kinds.
macro_rules! snapshot {
    ($($objects:ident: $module:ident::$kind:ident $facts:tt,)+) => {
        $(use crate::api::$module::$kind;)+

        /// All objects that a translation can read.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[expect(missing_docs, reason = "each map is named after its kind")]
        pub struct Snapshot {
            $(pub $objects: Objects<$kind>,)+
            /// Objects that the source has, and that never had a valid version.
            pub invalid: Arc<BTreeSet<ObjectRef>>,
        }

        $(
            impl Listed for $kind {
                fn all(snapshot: &Snapshot) -> &Objects<Self> {
                    &snapshot.$objects
                }
            }
        )+

        impl Snapshot {
            /// Inserts an object and replaces the one of the same kind and key. Returns whether the
            /// snapshot changes.
            pub fn insert(&mut self, object: Object) -> bool {
                match object {
                    $(Object::$kind(object) => self.$objects.insert(object),)+
                }
            }

            /// Rebuilds the maps, in less memory. Worth it once after the first objects, which come one by one: a
            /// comparison with an earlier version looks at all of them.
            pub fn pack(&mut self) {
                $(self.$objects.pack();)+
            }

            /// Returns all objects, grouped by kind.
            pub fn objects(&self) -> impl Iterator<Item = Object> + use<> {
                let objects = std::iter::empty();
                $(let objects = objects.chain(self.$objects.objects().map(Object::$kind));)+
                objects
            }

            /// Gets an object by reference.
            pub fn object(&self, name: &ObjectRef) -> Option<Object> {
                match (&*name.group, &*name.kind) {
                    $(($kind::GROUP, $kind::KIND) => {
                        let object = self.$objects.get(&name.namespace, &name.name);
                        object.cloned().map(Object::$kind)
                    })+
                    _ => None,
                }
            }

            /// Removes an object by reference. Returns whether it existed.
            pub fn remove(&mut self, name: &ObjectRef) -> bool {
                let key = name.key();
                match (&*name.group, &*name.kind) {
                    $(($kind::GROUP, $kind::KIND) => self.$objects.remove(&key),)+
                    _ => false,
                }
            }

            /// Returns the names of all objects that were added, changed or removed since `previous`, grouped by kind.
            pub fn changes_since(&self, previous: &Self) -> Vec<ChangedName> {
                let mut names = Vec::new();
                $(
                    let changes = self.$objects.changes_since(&previous.$objects).into_iter();
                    names.extend(changes.map(|change| {
                        let Key { namespace, name } = change.key;
                        change.named(ObjectRef::new($kind::GROUP, $kind::KIND, namespace, name))
                    }));
                )+
                names
            }

            /// Returns the names of all objects that were added, changed or removed since `previous`.
            pub fn names_changed_since(&self, previous: &Self) -> Vec<ObjectRef> {
                let changes = self.changes_since(previous).into_iter();
                changes.map(|change| change.object).collect()
            }

            /// Returns the keys of all objects of a kind.
            pub fn keys(&self, kind: &Kind) -> Vec<Key> {
                match (kind.group, kind.kind) {
                    $(($kind::GROUP, $kind::KIND) => self.$objects.keys().cloned().collect(),)+
                    _ => Vec::new(),
                }
            }
        }
    };
}

kinds!(snapshot);

impl Snapshot {
    /// Reports whether there is a valid version of an object, and not a stand-in or nothing.
    pub fn has_valid(&self, name: &ObjectRef) -> bool {
        let object = self.object(name);
        object.is_some_and(|object| object.unreadable().is_none())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::api::ObjectMeta;

    /// Returns the ConfigMap of this number with a content.
    fn map(number: u16, content: u8) -> Arc<ConfigMap> {
        Arc::new(ConfigMap {
            metadata: ObjectMeta {
                namespace: format!("namespace-{}", number % 7).into(),
                name: number.to_string().into(),
                ..ObjectMeta::default()
            },
            data: [("ca.crt".to_owned(), content.to_string())].into(),
        })
    }

    fn change(objects: &mut Objects<ConfigMap>, (number, content): (u16, Option<u8>)) {
        match content {
            Some(content) => drop(objects.insert(map(number, content))),
            None => drop(objects.remove(&map(number, 0).key())),
        }
    }

    /// Returns the same as `changes_since`, computed from all keys.
    fn naive(
        before: &Objects<ConfigMap>,
        now: &Objects<ConfigMap>,
    ) -> Vec<(Key, [Option<Arc<ConfigMap>>; 2])> {
        let mut all: BTreeMap<Key, [Option<Arc<ConfigMap>>; 2]> = BTreeMap::new();
        for (index, objects) in [before, now].into_iter().enumerate() {
            for object in objects.iter() {
                all.entry(object.key()).or_default()[index] = Some(object.clone());
            }
        }
        all.retain(|_, [before, now]| before != now);
        all.into_iter().collect()
    }

    proptest! {
        #[test]
        fn changes_are_all_differences_in_key_order(
            first in proptest::collection::vec((0..400_u16, proptest::option::weighted(0.9, 0..3_u8)), 0..600),
            then in proptest::collection::vec((0..400_u16, proptest::option::of(0..3_u8)), 0..60),
            is_related: bool,
        ) {
            let mut before = Objects::default();
            first.into_iter().for_each(|step| change(&mut before, step));
            let mut now = if is_related { before.clone() } else { Objects::default() };
            then.into_iter().for_each(|step| change(&mut now, step));
            for (before, now) in [(&before, &now), (&now, &before)] {
                let changes = now.changes_since(before).into_iter();
                let changes = changes.map(|it| (it.key.clone(), [it.previous.cloned(), it.now.cloned()]));
                prop_assert_eq!(changes.collect::<Vec<_>>(), naive(before, now));
            }
        }
    }
}
