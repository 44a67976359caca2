//! From the text of a file to plain values, one per object: documents of YAML or JSON, lists flattened, anchors and
//! merge keys resolved within bounds. Knows no kind and no file name.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The largest file that is read.
pub(super) const MAX_FILE: u64 = 16 << 20;
/// The largest document that is parsed; an API server's limit is 3 MiB.
const MAX_DOCUMENT: usize = 8 << 20;
/// Values of a document after its anchors are expanded.
const MAX_NODES: usize = 1_000_000;
/// Bytes of text of a document after its anchors are expanded.
const MAX_TEXT: usize = 16 << 20;

/// One document of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source<'a> {
    /// Line of its first content, from 1.
    pub(super) line: usize,
    /// Its text.
    pub(super) text: &'a str,
}

impl Source<'_> {
    /// A digest of the text, to tell whether a document has changed.
    pub(super) fn digest(&self) -> u64 {
        digest(self.text.as_bytes())
    }
}

/// A digest to tell whether content has changed.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Why a document cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    /// Line within the document, from 1; 0 when unknown.
    pub(super) line: usize,
    /// What is wrong.
    pub(super) message: String,
}

/// Splits a YAML stream at its document markers; documents without content are left out.
pub(super) fn documents(text: &str) -> Vec<Source<'_>> {
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

/// Whether a line is a document marker: three characters at the very start, then nothing or a blank.
fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn push<'a>(documents: &mut Vec<Source<'a>>, text: &'a str, first_line: usize) {
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
            // Directives and comments before the content are dropped, and with them what they say.
            let text = &text[offset..];
            let text = text.strip_prefix('\u{feff}').unwrap_or(text);
            return documents.push(Source {
                line: first_line + index,
                text,
            });
        }
        offset += line.len();
    }
}

/// Parses one document of YAML, of which JSON is a part, and flattens lists.
pub(super) fn parse(document: Source<'_>, json: bool) -> Result<Vec<Value>, SyntaxError> {
    if document.text.len() > MAX_DOCUMENT {
        let message = format!("the document is larger than {} MiB", MAX_DOCUMENT >> 20);
        return Err(SyntaxError { line: 0, message });
    }
    let mut budget = Budget {
        nodes: MAX_NODES,
        text: MAX_TEXT,
    };
    let seed = Node(&mut budget);
    let value = if json {
        let mut deserializer = serde_json::Deserializer::from_str(document.text);
        seed.deserialize(&mut deserializer)
            .and_then(|value| deserializer.end().map(|()| value))
            .map_err(|error| SyntaxError {
                line: error.line(),
                message: error.to_string(),
            })?
    } else {
        seed.deserialize(serde_yaml::Deserializer::from_str(document.text))
            .map_err(|error| SyntaxError {
                line: error.location().map_or(0, |location| location.line()),
                message: error.to_string(),
            })?
    };
    let mut objects = Vec::new();
    flatten(value, &mut objects);
    Ok(objects)
}

/// A `List` (or `GatewayList` …) stands for its items; everything else for itself.
fn flatten(value: Value, objects: &mut Vec<Value>) {
    match value {
        Value::Null => {}
        Value::Object(mut map) if is_list(&map) => {
            if let Some(Value::Array(items)) = map.remove("items") {
                items.into_iter().for_each(|item| flatten(item, objects));
            }
        }
        value => objects.push(value),
    }
}

fn is_list(map: &Map<String, Value>) -> bool {
    map.get("kind")
        .and_then(Value::as_str)
        .is_some_and(|kind| kind.ends_with("List"))
        && matches!(map.get("items"), Some(Value::Array(_)))
}

/// What expanding a document may still cost.
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

/// Reads any value as JSON, within the budget. Unlike `serde_json::Value` it refuses repeated keys.
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
        let mut merges = Vec::new();
        while let Some(key) = access.next_key_seed(Node(self.0))? {
            let key = key_text(key).map_err(de::Error::custom)?;
            let value = access.next_value_seed(Node(self.0))?;
            if key == "<<" && !matches!(value, Value::String(_)) {
                merges.push(value);
            } else if map.contains_key(&key) {
                return Err(de::Error::custom(format_args!(
                    "the key {key:?} appears twice"
                )));
            } else {
                map.insert(key, value);
            }
        }
        merges
            .into_iter()
            .try_for_each(|value| merge(&mut map, value))
            .map_err(de::Error::custom)?;
        Ok(Value::Object(map))
    }
}

/// The JSON key of a YAML key, as Kubernetes converts it.
fn key_text(key: Value) -> Result<String, &'static str> {
    match key {
        Value::String(key) => Ok(key),
        Value::Bool(key) => Ok(key.to_string()),
        Value::Number(key) => Ok(key.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => Err("a key must be text"),
    }
}

/// Resolves a YAML merge key: what is there already wins, and the earlier of several mappings.
fn merge(map: &mut Map<String, Value>, value: Value) -> Result<(), &'static str> {
    match value {
        Value::Object(other) => {
            for (key, value) in other {
                map.entry(key).or_insert(value);
            }
            Ok(())
        }
        Value::Array(items) => items.into_iter().try_for_each(|item| match item {
            Value::Object(_) => merge(map, item),
            _ => Err("a merge key needs a mapping"),
        }),
        _ => Err("a merge key needs a mapping"),
    }
}
