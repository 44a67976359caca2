//! Writes values as YAML: small ones on one line, others in blocks.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Value, json};

thread_local! {
    /// Texts as they are written. Most are in many documents.
    static SCALARS: RefCell<BTreeMap<String, String>> = const { RefCell::new(BTreeMap::new()) };
}

const MAX_WIDTH: usize = 110;
/// More levels on one line are hard to read.
const MAX_LEVELS: usize = 3;

/// Returns a document. Its fields and those of the objects in them have lines of their own.
pub(crate) fn yaml(document: &Value) -> String {
    let parts = document.as_object().into_iter().flatten();
    let lines = parts.flat_map(|(name, part)| match part {
        Value::Object(fields) if !fields.is_empty() => below(name, block(part, MAX_WIDTH - 2)),
        _ => field(name, part, MAX_WIDTH),
    });
    lines.map(|line| line + "\n").collect()
}

fn block(value: &Value, width: usize) -> Vec<String> {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let fields = fields.iter();
            fields
                .flat_map(|(name, value)| field(name, value, width))
                .collect()
        }
        Value::Array(items) if !items.is_empty() => {
            let item = |item| match inline(item).filter(|line| line.len() + 2 <= width) {
                Some(line) => vec![line],
                None => block(item, width - 2),
            };
            let mark = |(index, line): (usize, String)| match index {
                0 => format!("- {line}"),
                _ => format!("  {line}"),
            };
            let items = items.iter().map(item);
            items
                .flat_map(|lines| lines.into_iter().enumerate().map(mark))
                .collect()
        }
        leaf => vec![flow(leaf)],
    }
}

fn field(name: &str, value: &Value, width: usize) -> Vec<String> {
    let line = inline(value).map(|line| format!("{}: {line}", scalar(name)));
    match (line, value) {
        (Some(line), _) if line.len() <= width => vec![line],
        (_, Value::Object(fields)) if !fields.is_empty() => below(name, block(value, width - 2)),
        (_, Value::Array(items)) if !items.is_empty() => {
            let name = format!("{}:", scalar(name));
            std::iter::once(name).chain(block(value, width)).collect()
        }
        (_, leaf) => vec![format!("{}: {}", scalar(name), flow(leaf))],
    }
}

fn below(name: &str, lines: Vec<String>) -> Vec<String> {
    let name = format!("{}:", scalar(name));
    let lines = lines.into_iter().map(|line| format!("  {line}"));
    std::iter::once(name).chain(lines).collect()
}

/// Returns a value on one line, unless it has too many levels.
fn inline(value: &Value) -> Option<String> {
    (levels(value) <= MAX_LEVELS).then(|| flow(value))
}

fn levels(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(levels).max().unwrap_or_default(),
        Value::Object(fields) => 1 + fields.values().map(levels).max().unwrap_or_default(),
        _ => 0,
    }
}

fn flow(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(fields) => {
            let fields = fields.iter();
            let fields: Vec<_> = fields
                .map(|(name, value)| format!("{}: {}", scalar(name), flow(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::String(text) => scalar(text),
        leaf => leaf.to_string(),
    }
}

fn scalar(text: &str) -> String {
    SCALARS.with_borrow_mut(|known| {
        let known = known.entry(text.to_owned());
        known.or_insert_with(|| quoted(text)).clone()
    })
}

/// Returns a text with quotes only where a reader of YAML would take it for something else.
fn quoted(text: &str) -> String {
    let plain = serde_saphyr::from_str::<Value>(&format!("{{{text}: [{text}]}}"));
    if plain.is_ok_and(|read| read == json!({text: [text]})) {
        text.to_owned()
    } else if text.contains(char::is_control) {
        json!(text).to_string()
    } else {
        format!("'{}'", text.replace('\'', "''"))
    }
}
