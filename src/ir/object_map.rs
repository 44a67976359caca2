//! Values by object, of which there are thousands of maps with a few values each. Must not know what the values are.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;

use super::ObjectRef;

/// What an [`ObjectMap`] holds: a value that knows its object.
pub trait OfObject {
    /// Returns the object.
    fn object(&self) -> &ObjectRef;
}

/// Values in order of their objects, one for each. A clone is cheap, and an update costs only what it changes.
#[derive(Clone, Debug)]
pub struct ObjectMap<V>(Map<V>);

#[derive(Clone, Debug)]
enum Map<V> {
    /// At most [`FEW`]: a persistent map would take twice the memory.
    Few(Arc<[V]>),
    Many(Box<Persistent<V>>),
}

/// Behind a pointer, since few maps have many values.
#[derive(Clone, Debug)]
struct Persistent<V>(OrdMap<ObjectRef, V>);

/// Maximum number of values in a list.
const FEW: usize = 32;

/// A value before a change and after it, as far as they exist.
pub type Change<'a, V> = (Option<&'a V>, Option<&'a V>);

impl<V> Default for ObjectMap<V> {
    fn default() -> Self {
        Self(Map::Few([].into()))
    }
}

impl<V: OfObject + Clone> ObjectMap<V> {
    /// Adds a value. Replaces that of the same object.
    pub fn insert(&mut self, value: V) {
        let few = match &mut self.0 {
            Map::Many(many) => return drop(many.0.insert(value.object().clone(), value)),
            Map::Few(few) => few,
        };
        let place = place(few, value.object());
        if place.is_err() && few.len() == FEW {
            let all = few.iter().cloned().chain([value]);
            self.0 = Map::Many(Box::new(Persistent(by_object(all))));
            return;
        }
        let (before, after) = match place {
            Ok(at) => (&few[..at], &few[at + 1..]),
            Err(at) => few.split_at(at),
        };
        let all = before.iter().cloned().chain([value]);
        *few = all.chain(after.iter().cloned()).collect();
    }

    /// Removes the value of an object.
    pub fn remove(&mut self, object: &ObjectRef) {
        match &mut self.0 {
            Map::Many(many) => drop(many.0.remove(object)),
            Map::Few(few) => {
                if let Ok(at) = place(few, object) {
                    let (before, after) = (&few[..at], &few[at + 1..]);
                    *few = before.iter().chain(after).cloned().collect();
                }
            }
        }
    }

    /// Returns the value of an object.
    pub fn get(&self, object: &ObjectRef) -> Option<&V> {
        match &self.0 {
            Map::Few(few) => place(few, object).ok().map(|at| &few[at]),
            Map::Many(many) => many.0.get(object),
        }
    }
}

impl<V> ObjectMap<V> {
    /// Returns the values, in order of their objects.
    pub fn iter(&self) -> impl Iterator<Item = &V> {
        let (few, many) = match &self.0 {
            Map::Few(few) => (Some(few.iter()), None),
            Map::Many(many) => (None, Some(many.0.values())),
        };
        let few = few.into_iter().flatten();
        few.chain(many.into_iter().flatten())
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        match &self.0 {
            Map::Few(few) => few.len(),
            Map::Many(many) => many.0.len(),
        }
    }

    /// Reports whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<V: OfObject + PartialEq> ObjectMap<V> {
    /// Returns the values that differ from `previous`, in order of their objects.
    pub fn changes_since<'a>(&'a self, previous: &'a Self) -> Vec<Change<'a, V>> {
        match (&previous.0, &self.0) {
            (Map::Few(before), Map::Few(now)) if Arc::ptr_eq(before, now) => Vec::new(),
            (Map::Many(before), Map::Many(now)) => {
                let changes = before.0.diff(&now.0);
                let change = changes.map(|item| match item {
                    DiffItem::Add(_, now) => (None, Some(now)),
                    DiffItem::Update { old, new } => (Some(old.1), Some(new.1)),
                    DiffItem::Remove(_, before) => (Some(before), None),
                });
                change.collect()
            }
            (Map::Few(_), _) | (_, Map::Few(_)) => differences(previous.iter(), self.iter()),
        }
    }
}

/// Compares two lists of values, each in order of their objects.
fn differences<'a, V: OfObject + PartialEq>(
    before: impl Iterator<Item = &'a V>,
    now: impl Iterator<Item = &'a V>,
) -> Vec<Change<'a, V>> {
    let (mut before, mut now) = (before.peekable(), now.peekable());
    let mut changes = Vec::new();
    loop {
        let order = match (before.peek(), now.peek()) {
            (None, None) => return changes,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(before), Some(now)) => before.object().cmp(now.object()),
        };
        let change = match order {
            Ordering::Less => (before.next(), None),
            Ordering::Greater => (None, now.next()),
            Ordering::Equal => (before.next(), now.next()),
        };
        if change.0 != change.1 {
            changes.push(change);
        }
    }
}

fn place<V: OfObject>(few: &[V], object: &ObjectRef) -> Result<usize, usize> {
    few.binary_search_by(|value| value.object().cmp(object))
}

fn by_object<V: OfObject + Clone>(values: impl Iterator<Item = V>) -> OrdMap<ObjectRef, V> {
    values
        .map(|value| (value.object().clone(), value))
        .collect()
}

impl<V: OfObject + Clone> FromIterator<V> for ObjectMap<V> {
    /// Of several values of an object, the last one counts.
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Self {
        let all = by_object(values.into_iter());
        Self(match all.len() > FEW {
            true => Map::Many(Box::new(Persistent(all))),
            false => Map::Few(all.values().cloned().collect()),
        })
    }
}

impl<V: OfObject + PartialEq> PartialEq for ObjectMap<V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.changes_since(other).is_empty()
    }
}

impl<V: OfObject + Eq> Eq for ObjectMap<V> {}

impl<V: Hash> Hash for ObjectMap<V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        self.iter().for_each(|value| value.hash(state));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Value(ObjectRef, u8);

    impl OfObject for Value {
        fn object(&self) -> &ObjectRef {
            &self.0
        }
    }

    fn value((name, value): (u8, u8)) -> Value {
        Value(ObjectRef::core("Service", "ns", &name.to_string()), value)
    }

    type Model = BTreeMap<ObjectRef, Value>;

    fn changes(before: &Model, now: &Model) -> Vec<(Option<Value>, Option<Value>)> {
        let names: std::collections::BTreeSet<_> = before.keys().chain(now.keys()).collect();
        let both = names.into_iter();
        both.map(|name| (before.get(name).cloned(), now.get(name).cloned()))
            .filter(|(before, now)| before != now)
            .collect()
    }

    proptest! {
        #[test]
        fn is_a_map_by_object(
            all in prop::collection::vec((any::<bool>(), 0_u8..60, 0_u8..3), 0..200),
            start in prop::collection::vec((0_u8..60, 0_u8..3), 0..60),
        ) {
            let mut map: ObjectMap<Value> = start.iter().copied().map(value).collect();
            let model = start.iter().copied().map(value);
            let mut model: Model = model.map(|it| (it.0.clone(), it)).collect();
            let (first, first_model) = (map.clone(), model.clone());
            for (is_added, name, number) in all {
                let value = value((name, number));
                if is_added {
                    map.insert(value.clone());
                    model.insert(value.0.clone(), value);
                } else {
                    map.remove(&value.0);
                    model.remove(&value.0);
                }
            }
            prop_assert!(map.iter().eq(model.values()));
            prop_assert_eq!(map.len(), model.len());
            for name in 0..60 {
                let object = value((name, 0)).0;
                prop_assert_eq!(map.get(&object), model.get(&object));
            }
            let again: ObjectMap<Value> = model.values().cloned().collect();
            prop_assert_eq!(&map, &again);
            let found = map.changes_since(&first);
            let found: Vec<_> = found.into_iter().map(|(a, b)| (a.cloned(), b.cloned())).collect();
            prop_assert_eq!(found, changes(&first_model, &model));
        }
    }
}
