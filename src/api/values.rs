//! The values of an object such as a Secret. Must not know what they mean.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ir::sharing::Text;

/// Values by key, in order of the keys. Takes little memory for few values, as most objects have.
#[derive(Clone, PartialEq, Eq)]
pub struct Values<V>(Box<[(Text, V)]>);

impl<V> Default for Values<V> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<V> Values<V> {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&V> {
        let at = self
            .0
            .binary_search_by(|(known, _)| known.as_str().cmp(key));
        Some(&self.0.get(at.ok()?)?.1)
    }

    /// Returns all keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(key, _)| key)
    }

    /// Returns all keys with their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl<V: Clone> Values<V> {
    /// Returns the values of those keys for which `is_kept` holds.
    pub fn only(&self, is_kept: impl Fn(&str) -> bool) -> Self {
        let kept = self.0.iter().filter(|(key, _)| is_kept(key));
        Self(kept.cloned().collect())
    }
}

impl<V: Serialize> Serialize for Values<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Values<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values: BTreeMap<String, V> = Deserialize::deserialize(deserializer)?;
        let values = values.into_iter();
        Ok(Self(
            values.map(|(key, value)| (key.into(), value)).collect(),
        ))
    }
}

/// A value that objects have in base64. Holds what it stands for, which takes a quarter less. Two values are equal if they
/// stand for the same bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Base64(Decoded);

#[derive(Clone, PartialEq, Eq)]
enum Decoded {
    Bytes(Box<[u8]>),
    /// A text that is not base64.
    Invalid(Box<str>),
}

impl Base64 {
    /// Returns the bytes; `None` if the text is not base64.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Decoded::Bytes(bytes) => Some(bytes),
            Decoded::Invalid(_) => None,
        }
    }

    /// Returns the number of bytes, or that of a text that is not base64.
    pub fn size(&self) -> usize {
        match &self.0 {
            Decoded::Bytes(bytes) => bytes.len(),
            Decoded::Invalid(text) => text.len(),
        }
    }
}

impl From<Box<str>> for Base64 {
    fn from(text: Box<str>) -> Self {
        Self(match decode(&text) {
            Some(bytes) => Decoded::Bytes(bytes.into()),
            None => Decoded::Invalid(text),
        })
    }
}

/// Decodes base64 as Kubernetes does: padded, and line breaks are allowed.
fn decode(text: &str) -> Option<Vec<u8>> {
    let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
    if !text.as_bytes().iter().any(is_break) {
        return STANDARD.decode(text).ok();
    }
    let symbols: Vec<u8> = text.bytes().filter(|byte| !is_break(byte)).collect();
    STANDARD.decode(symbols).ok()
}

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Decoded::Bytes(bytes) => serializer.serialize_str(&STANDARD.encode(bytes)),
            Decoded::Invalid(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Box::<str>::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_keys_and_keep_their_order() {
        let read = |text| serde_json::from_str::<Values<Box<str>>>(text).unwrap();
        let values = read(r#"{"b": "2", "a": "1", "c": ""}"#);
        assert_eq!(values.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(
            ["a", "b", "c", "d"].map(|key| values.get(key).map(|it| &**it)),
            [Some("1"), Some("2"), Some(""), None]
        );
        assert_eq!(
            serde_json::to_string(&values).unwrap(),
            r#"{"a":"1","b":"2","c":""}"#
        );
        assert!(values.only(|key| key != "b") == read(r#"{"c": "", "a": "1"}"#));
    }

    #[test]
    fn base64_stands_for_its_bytes_and_is_kept_as_it_is_if_it_is_none() {
        let cases = [
            ("", Some("")),
            ("Zg==", Some("f")),
            ("Zm8=", Some("fo")),
            ("Zm9v", Some("foo")),
            ("Zm9v\nYmFy\r\n", Some("foobar")),
            ("Zm9", None),
            ("Zh==", None),
            ("Z===", None),
            ("Zm9_", None),
            ("Zg==Zg==", None),
        ];
        for (text, bytes) in cases {
            let value: Base64 = serde_json::from_value(text.into()).unwrap();
            assert_eq!(value.bytes(), bytes.map(str::as_bytes), "{text:?}");
            let written = serde_json::to_value(&value).unwrap();
            assert_eq!(written, text.replace(['\n', '\r'], ""), "{text:?}");
        }
    }
}
