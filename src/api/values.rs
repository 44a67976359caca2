//! The values of an object such as a Secret. Must not know what they mean.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ir::sharing::Text;

/// Values by key, in order of the keys. Takes little memory for few values, as most objects have.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Values(Box<[(Text, Box<str>)]>);

impl Values {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self
            .0
            .binary_search_by(|(known, _)| known.as_str().cmp(key));
        Some(&*self.0.get(at.ok()?)?.1)
    }

    /// Returns all keys and values, in order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), &**value))
    }

    /// Returns all keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }
}

impl From<BTreeMap<String, Box<str>>> for Values {
    fn from(values: BTreeMap<String, Box<str>>) -> Self {
        let values = values.into_iter();
        Self(values.map(|(key, value)| (key.into(), value)).collect())
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Values {
    /// Of several values of a key, the last one counts.
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(values: I) -> Self {
        let values = values.into_iter();
        let values: BTreeMap<_, _> = values
            .map(|(key, it)| (key.to_owned(), it.into()))
            .collect();
        values.into()
    }
}

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_keys_and_keep_their_order() {
        let read: Values = serde_json::from_str(r#"{"b": "2", "a": "1", "c": ""}"#).unwrap();
        assert_eq!(read.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(
            ["a", "b", "c", "d"].map(|key| read.get(key)),
            [Some("1"), Some("2"), Some(""), None]
        );
        assert_eq!(
            serde_json::to_string(&read).unwrap(),
            r#"{"a":"1","b":"2","c":""}"#
        );
        assert!(
            read == [("c", ""), ("b", "0"), ("a", "1"), ("b", "2")]
                .into_iter()
                .collect()
        );
    }
}
