//! Parses the text of a file to one JSON value per object: splits YAML or JSON documents, flattens
//! lists, and limits what anchors expand to.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{DefaultMessageFormatter, MessageFormatter};

use super::advice;
use crate::api::protecting_kind;

/// Maximum size of a file.
pub(super) const MAX_FILE: u64 = 16 << 20;
/// Maximum size of a document. The API server's limit is 3 MiB.
const MAX_DOCUMENT: usize = 8 << 20;
/// Maximum number of values in a document after anchor expansion.
const MAX_NODES: usize = 1_000_000;
/// Maximum bytes of text in a document after anchor expansion.
const MAX_TEXT: usize = 16 << 20;
/// Maximum nesting of values. The schema of the CRD HTTPRoute has 24 levels.
const MAX_DEPTH: usize = 64;

/// The text of one document of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DocumentText<'a> {
    /// Line of its first content, from 1.
    pub(super) line: usize,
    /// Its text.
    pub(super) text: &'a str,
}

impl DocumentText<'_> {
    /// Digest of the text for change detection.
    pub(super) fn digest(&self) -> u64 {
        digest(self.text.as_bytes())
    }
}

/// Digest of bytes for change detection.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Why a document cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    /// Line within the document, from 1; 0 if unknown.
    pub(super) line: usize,
    /// Error message.
    pub(super) message: String,
    /// A kind that protects requests and that the text names. Which requests an object of it would protect is unknown.
    pub(super) names: Option<&'static str>,
    /// The text, if it names such a kind.
    pub(super) text: Option<Arc<str>>,
}

impl SyntaxError {
    fn new(line: usize, message: String) -> Self {
        Self {
            line,
            message,
            names: None,
            text: None,
        }
    }
}

/// One object of a document.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    /// Path in the document, such as `items[2]` of a list; empty for the whole document.
    pub(super) path: String,
    /// The parsed object.
    pub(super) value: Value,
}

/// Returns the document of a JSON file.
pub(super) fn json_document(text: &str) -> Vec<DocumentText<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    vec![DocumentText { line: 1, text }]
}

/// Splits a YAML stream at its document markers. Skips documents without content.
pub(super) fn documents(text: &str) -> Vec<DocumentText<'_>> {
    let mut documents = Vec::new();
    let (mut start, mut start_line, mut offset) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if is_marker(line, "---") {
            push(&mut documents, &text[start..offset], start_line);
            (start, start_line) = (offset, index + 1);
        } else if is_marker(line, "...") {
            push(&mut documents, &text[start..offset], start_line);
            (start, start_line) = (offset + line.len(), index + 2);
        }
        offset += line.len();
    }
    push(&mut documents, &text[start..], start_line);
    documents
}

/// Reports whether a line is a document marker: three characters at the line start, followed by a
/// blank or the line end.
fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn push<'a>(documents: &mut Vec<DocumentText<'a>>, text: &'a str, first_line: usize) {
    let is_content = |line: &str| {
        let line = line
            .strip_prefix("---")
            .unwrap_or(line)
            .trim_start_matches('\u{feff}')
            .trim();
        !(line.is_empty() || line.starts_with('#') || line.starts_with('%'))
    };
    let mut offset = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if is_content(line) {
            // Drops directives and comments before the content. Directives have no effect.
            let text = &text[offset..];
            let text = text.strip_prefix('\u{feff}').unwrap_or(text);
            return documents.push(DocumentText {
                line: first_line + index,
                text,
            });
        }
        offset += line.len();
    }
}

/// Parses one YAML or JSON document and flattens lists.
pub(super) fn parse(document: DocumentText<'_>, json: bool) -> Result<Vec<Item>, SyntaxError> {
    let mut items = Vec::new();
    match value(document, json) {
        Ok(value) => flatten(value, "", &mut items),
        Err(error) => {
            let names = protecting_kind(document.text);
            let text = names.map(|_| Arc::from(document.text));
            return Err(SyntaxError {
                names,
                text,
                ..error
            });
        }
    }
    Ok(items)
}

fn value(document: DocumentText<'_>, json: bool) -> Result<Value, SyntaxError> {
    if document.text.len() > MAX_DOCUMENT {
        let message = format!("the document is larger than {} MiB", MAX_DOCUMENT >> 20);
        return Err(SyntaxError::new(0, message));
    }
    let mut budget = Budget {
        nodes: MAX_NODES,
        text: MAX_TEXT,
    };
    let seed = Node(&mut budget);
    if json {
        let mut deserializer = serde_json::Deserializer::from_str(document.text);
        seed.deserialize(&mut deserializer)
            .and_then(|value| deserializer.end().map(|()| value))
            .map_err(|error| SyntaxError::new(error.line(), error.to_string()))
    } else {
        let parsed = serde_saphyr::with_deserializer_from_str_with_options(
            document.text,
            options(),
            |deserializer| seed.deserialize(deserializer),
        );
        parsed.map_err(|error| not_yaml(document.text, &error))
    }
}

/// How Kubernetes objects are read: the core schema of YAML 1.2, merge keys, and no tags. Expansion is limited by
/// [`Budget`], and before that by the library.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_events: 2 * MAX_NODES,
            max_nodes: MAX_NODES,
            max_merge_keys: MAX_NODES,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 2 * MAX_NODES },
        duplicate_keys: serde_saphyr::DuplicateKeyPolicy::PassThrough,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// Returns why text is not YAML, in a sentence for frequent mistakes.
fn not_yaml(text: &str, error: &serde_saphyr::Error) -> SyntaxError {
    let line = error.location().map_or(0, |location| location.line());
    let line = usize::try_from(line).unwrap_or(0);
    // Without the library's own position, which counts from the start of the document.
    let message = DefaultMessageFormatter.format_message(error);
    // Of the first error the library has only its debug representation. The text of the second has the tag, which may be a
    // password.
    let message = if message.starts_with("budget breached: ") {
        "the document has too many values, or its aliases expand to too many".to_owned()
    } else if message.starts_with("unsupported tag ") {
        "a value that begins with `!` needs quotes: objects have no tags".to_owned()
    } else {
        message.replace(char::is_control, "\u{fffd}")
    };
    if let Some((line, explained)) = advice::explain(text, line, &message) {
        return SyntaxError::new(line, explained);
    }
    // The library gives the line of the first key of a map.
    let line = advice::second_key(text, line, &message).unwrap_or(line);
    SyntaxError::new(line, advice::with_remedy(message))
}

/// Replaces a `List` (or a typed list such as `GatewayList`) with its items.
fn flatten(value: Value, path: &str, objects: &mut Vec<Item>) {
    match value {
        Value::Null => {}
        Value::Object(mut map) if is_list(&map) => {
            let Some(Value::Array(items)) = map.remove("items") else {
                return;
            };
            let prefix = if path.is_empty() { "" } else { "." };
            for (index, mut item) in items.into_iter().enumerate() {
                inherit_kind(&mut item, &map);
                flatten(item, &format!("{path}{prefix}items[{index}]"), objects);
            }
        }
        value => objects.push(Item {
            path: path.to_owned(),
            value,
        }),
    }
}

fn is_list(map: &Map<String, Value>) -> bool {
    list_kind(map).is_some() && matches!(map.get("items"), Some(Value::Array(_)))
}

/// Returns the item kind of a typed list; empty for a plain `List`.
fn list_kind(map: &Map<String, Value>) -> Option<&str> {
    map.get("kind")?.as_str()?.strip_suffix("List")
}

/// Copies `apiVersion` and `kind` of a typed list to an item.
fn inherit_kind(item: &mut Value, list: &Map<String, Value>) {
    let Some(kind) = list_kind(list).filter(|kind| !kind.is_empty()) else {
        return;
    };
    let Some(item) = item
        .as_object_mut()
        .filter(|item| !item.contains_key("kind"))
    else {
        return;
    };
    item.insert("kind".to_owned(), kind.into());
    if let (None, Some(version)) = (item.get("apiVersion"), list.get("apiVersion")) {
        item.insert("apiVersion".to_owned(), version.clone());
    }
}

/// Remaining budget for expanding a document.
struct Budget {
    nodes: usize,
    text: usize,
}

impl Budget {
    fn node<E: de::Error>(&mut self) -> Result<(), E> {
        self.nodes = self
            .nodes
            .checked_sub(1)
            .ok_or_else(|| E::custom("the document has too many values"))?;
        Ok(())
    }

    fn text<E: de::Error>(&mut self, length: usize) -> Result<(), E> {
        self.text = self
            .text
            .checked_sub(length)
            .ok_or_else(|| E::custom("the document expands to too much text"))?;
        Ok(())
    }
}

/// Deserializes any value to JSON within the budget. Unlike `serde_json::Value` it rejects
/// duplicate keys.
struct Node<'b>(&'b mut Budget);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.node()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without tags")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<Value, E> {
        Err(E::custom("a whole number must fit 64 bits"))
    }

    fn visit_u128<E: de::Error>(self, _: u128) -> Result<Value, E> {
        Err(E::custom("a whole number must fit 64 bits"))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.0.text(value.len())?;
        Ok(Value::from(value))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(Node(self.0))? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key_seed(Node(self.0))? {
            let key = key_text(key).map_err(de::Error::custom)?;
            let value = access.next_value_seed(Node(self.0))?;
            if map.contains_key(&key) {
                let message = advice::appears_twice(&key);
                return Err(de::Error::custom(message));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Converts a YAML key to a JSON key as Kubernetes does.
fn key_text(key: Value) -> Result<String, &'static str> {
    match key {
        Value::String(key) => Ok(key),
        Value::Bool(key) => Ok(key.to_string()),
        Value::Number(key) => Ok(key.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => Err("a key must be text"),
    }
}

#[cfg(test)]
mod tests;
