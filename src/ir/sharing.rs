//! Values of which the process holds one copy each, such as the names of objects: what many parts of a configuration
//! refer to is allocated once. Must not know what the values are.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use arcstr::ArcStr;
use hashbrown::HashTable;
use serde::de::{Deserialize, Deserializer, Error, Visitor};
use serde::{Serialize, Serializer};

/// Number of parts that are locked separately. Files are parsed on all cores.
const PARTS: usize = 16;
/// Number of values of a part from which on it drops those that nothing refers to.
const MIN_SWEEP: usize = 256;

/// Names of objects and namespaces.
static TEXTS: LazyLock<Shared<ArcStr>> = LazyLock::new(Shared::default);

/// A text of an object, such as a name. Equal texts share their memory. As small as a pointer, since a process may hold
/// many in each of many thousands of objects.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Text(ArcStr);

impl Text {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reports whether both are the same memory. Equal texts mostly are.
    pub fn is_same(&self, other: &Self) -> bool {
        ArcStr::ptr_eq(&self.0, &other.0)
    }
}

impl Default for Text {
    fn default() -> Self {
        Self(ArcStr::new())
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
        if value.is_empty() {
            return Self::default();
        }
        Self(TEXTS.get(digest(value), |known| **known == *value, || value.into()))
    }
}

impl From<String> for Text {
    fn from(value: String) -> Self {
        value.as_str().into()
    }
}

impl From<&Self> for Text {
    fn from(text: &Self) -> Self {
        text.clone()
    }
}

impl From<&Text> for Arc<str> {
    fn from(text: &Text) -> Self {
        text.as_str().into()
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
static MAPS: LazyLock<Shared<Arc<BTreeMap<String, String>>>> = LazyLock::new(Shared::default);

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

/// The key of all digests of this process. An author who knows it can choose names that make look-ups slow for all namespaces.
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Returns the digest of a value, equal for equal values of this process and unpredictable.
pub fn digest(value: impl Hash) -> u64 {
    KEY.hash_one(value)
}

/// A pointer to a value that is counted.
pub trait Counted: Clone {
    /// Reports whether others refer to the value too.
    fn is_used_elsewhere(&self) -> bool;

    /// Returns the digest under which the value is shared.
    fn digest(&self) -> u64;
}

/// A value that is shared by its digest.
pub trait Digest {
    /// Returns the digest, equal for equal values.
    fn digest(&self) -> u64;
}

impl<T: Hash> Digest for T {
    fn digest(&self) -> u64 {
        digest(self)
    }
}

impl<T: Digest> Counted for triomphe::Arc<T> {
    fn is_used_elsewhere(&self) -> bool {
        !self.is_unique()
    }

    fn digest(&self) -> u64 {
        Digest::digest(&**self)
    }
}

impl<T: Digest> Counted for Arc<T> {
    fn is_used_elsewhere(&self) -> bool {
        Self::strong_count(self) > 1
    }

    fn digest(&self) -> u64 {
        T::digest(self)
    }
}

impl Counted for ArcStr {
    fn is_used_elsewhere(&self) -> bool {
        Self::strong_count(self).is_none_or(|count| count > 1)
    }

    fn digest(&self) -> u64 {
        digest(self.as_str())
    }
}

/// Values by their digests, which the table does not keep: it has a pointer for each value.
pub struct Shared<P>([Mutex<Part<P>>; PARTS]);

struct Part<P> {
    values: HashTable<P>,
    /// Number of values at which those that nothing else refers to are dropped. Grows with what remains, so that each
    /// value costs a constant share of all sweeps.
    sweep_at: usize,
}

impl<P> Default for Shared<P> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| {
            Mutex::new(Part {
                values: HashTable::new(),
                sweep_at: MIN_SWEEP,
            })
        }))
    }
}

impl<P: Counted> Shared<P> {
    /// Returns the shared value of a digest that is the same. Creates it if there is none.
    pub fn get(
        &self,
        digest: u64,
        is_same: impl FnMut(&P) -> bool,
        create: impl FnOnce() -> P,
    ) -> P {
        // Not the lowest bits, by which the maps of the parts distribute their entries.
        let part = &self.0[(digest >> 32) as usize % PARTS];
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        if part.values.len() >= part.sweep_at {
            part.sweep();
        }
        let entry = part.values.entry(digest, is_same, P::digest);
        entry.or_insert_with(create).get().clone()
    }
}

impl<T: Hash + Eq> Shared<Arc<Vec<T>>> {
    /// Returns the shared list of these values.
    pub fn list(&self, values: Vec<T>) -> Arc<Vec<T>> {
        let digest = digest(&values);
        let values = Arc::new(values);
        self.get(digest, |known| *known == values, || values.clone())
    }
}

impl<P: Counted> Part<P> {
    fn sweep(&mut self) {
        self.values.retain(|value| value.is_used_elsewhere());
        self.values.shrink_to(self.values.len() * 3 / 2, P::digest);
        self.sweep_at = MIN_SWEEP.max(2 * self.values.len());
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    use rustc_hash::FxBuildHasher;

    use super::*;

    #[test]
    fn equal_texts_are_one_allocation_while_in_use() {
        let one = Text::from("equal texts are shared");
        assert!(one.is_same(&"equal texts are shared".into()));
        assert!(!one.is_same(&"other texts are not".into()));
    }

    #[test]
    fn values_without_use_are_dropped_as_others_come() {
        let shared = Shared::<ArcStr>::default();
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
        assert!((0..100).all(|number| ArcStr::ptr_eq(&kept[number], &get(number))));
    }

    #[test]
    fn digests_depend_on_a_key() {
        let hashers = BuildHasherDefault::<DefaultHasher>::default();
        let digests: Vec<_> = (0..100).map(digest).collect();
        assert_eq!(digests, (0..100).map(digest).collect::<Vec<_>>());
        assert!((0..100).all(|value| digests[value] != hashers.hash_one(value)));
        assert!((0..100).all(|value| digests[value] != FxBuildHasher.hash_one(value)));
    }

    #[test]
    fn values_of_one_digest_are_not_mixed_up() {
        let shared = Shared::<ArcStr>::default();
        let get = |value: &str| shared.get(7, |it| **it == *value, || value.into());
        let (one, two) = (get("one"), get("two"));
        assert_eq!((&*one, &*two, &*get("two")), ("one", "two", "two"));
    }
}
