//! Values of which the process holds one copy each, such as the names of objects: what many parts of a configuration
//! refer to is allocated once. Must not know what the values are.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use rustc_hash::{FxBuildHasher, FxHashMap, FxHasher};
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};

/// Number of parts that are locked separately. Files are parsed on all cores.
const PARTS: usize = 16;
/// Number of values of a part from which on it drops those that nothing refers to.
const MIN_SWEEP: usize = 256;

/// Names of objects and namespaces.
static TEXTS: LazyLock<Shared<str>> = LazyLock::new(Shared::default);

/// Returns the shared copy of a text.
pub fn text(text: &str) -> Arc<str> {
    TEXTS.get(digest(text), |known| **known == *text, || text.into())
}

/// A text of an object, such as a name. Equal texts share their memory.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(Arc<str>);

impl Text {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Text {
    fn default() -> Self {
        Self(text(""))
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Text {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Text {
    fn from(value: &str) -> Self {
        Self(text(value))
    }
}

impl From<String> for Text {
    fn from(value: String) -> Self {
        Self(text(&value))
    }
}

impl From<&Arc<str>> for Text {
    fn from(shared: &Arc<str>) -> Self {
        Self(shared.clone())
    }
}

impl From<&Text> for Arc<str> {
    fn from(text: &Text) -> Self {
        text.0.clone()
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        *self.0 == **other
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&*self.0, f)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(AnyText)
    }
}

/// Shares a text without a copy of its own.
struct AnyText;

impl Visitor<'_> for AnyText {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Text, E> {
        Ok(value.into())
    }
}

/// Labels or annotations of an object. Equal ones share their memory: objects of one application often have the same.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct TextMap(Arc<BTreeMap<String, String>>);

/// All labels and annotations.
static MAPS: LazyLock<Shared<BTreeMap<String, String>>> = LazyLock::new(Shared::default);

impl From<BTreeMap<String, String>> for TextMap {
    fn from(map: BTreeMap<String, String>) -> Self {
        Self(MAPS.get(
            digest(&map),
            |known| **known == map,
            || Arc::new(map.clone()),
        ))
    }
}

impl Default for TextMap {
    fn default() -> Self {
        BTreeMap::new().into()
    }
}

impl Deref for TextMap {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl fmt::Debug for TextMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl<'de> Deserialize<'de> for TextMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(Self::from)
    }
}

/// Returns the digest of a value, equal for equal values of this process.
pub fn digest(value: impl Hash) -> u64 {
    let mut hasher = FxHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Values by their digests. Of several values with one digest, which is improbable, the first one is shared.
pub struct Shared<T: ?Sized>([Mutex<Part<T>>; PARTS]);

struct Part<T: ?Sized> {
    values: FxHashMap<u64, Arc<T>>,
    /// Number of values at which those that nothing else refers to are dropped. Grows with what remains, so that each
    /// value costs a constant share of all sweeps.
    sweep_at: usize,
}

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| {
            Mutex::new(Part {
                values: FxHashMap::with_hasher(FxBuildHasher),
                sweep_at: MIN_SWEEP,
            })
        }))
    }
}

impl<T: ?Sized> Shared<T> {
    /// Returns the shared value of a digest. Creates it if there is none, and does not share it if that of the digest
    /// is another one.
    pub fn get(
        &self,
        digest: u64,
        is_same: impl FnOnce(&Arc<T>) -> bool,
        create: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        // Not the lowest bits, by which the maps of the parts distribute their entries.
        let part = &self.0[(digest >> 32) as usize % PARTS];
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        if part.values.len() >= part.sweep_at {
            part.sweep();
        }
        match part.values.entry(digest) {
            Entry::Occupied(known) if is_same(known.get()) => known.get().clone(),
            Entry::Occupied(_) => create(),
            Entry::Vacant(place) => place.insert(create()).clone(),
        }
    }
}

impl<T: ?Sized> Part<T> {
    fn sweep(&mut self) {
        self.values.retain(|_, value| Arc::strong_count(value) > 1);
        self.values.shrink_to(self.values.len() * 3 / 2);
        self.sweep_at = MIN_SWEEP.max(2 * self.values.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one_allocation_while_in_use() {
        let one = text("equal texts are shared");
        assert!(Arc::ptr_eq(&one, &text("equal texts are shared")));
        assert!(!Arc::ptr_eq(&one, &text("other texts are not")));
    }

    #[test]
    fn values_without_use_are_dropped_as_others_come() {
        let shared = Shared::<str>::default();
        let get = |number: usize| {
            let value = format!("value {number}");
            shared.get(digest(&*value), |it| **it == *value, || (*value).into())
        };
        let kept: Vec<_> = (0..100).map(get).collect();
        (100..100_000).for_each(|number| drop(get(number)));
        let values = shared
            .0
            .iter()
            .map(|part| part.lock().unwrap().values.len());
        assert!(values.sum::<usize>() <= PARTS * 2 * MIN_SWEEP);
        assert!((0..100).all(|number| Arc::ptr_eq(&kept[number], &get(number))));
    }

    #[test]
    fn values_of_one_digest_are_not_mixed_up() {
        let shared = Shared::<str>::default();
        let get = |value: &str| shared.get(7, |it| **it == *value, || value.into());
        let (one, two) = (get("one"), get("two"));
        assert_eq!((&*one, &*two, &*get("two")), ("one", "two", "two"));
    }
}
