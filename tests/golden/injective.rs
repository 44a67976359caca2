//! Goldens lose nothing: each change of a result changes what is shown of it.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Map, Value, json};

use crate::case::Golden;
use crate::shown::{full, short, yaml};
use crate::{files, run};

/// How many values of a form are changed at each place.
const TRIES: usize = 3;

/// Returns changed versions of a value, each with a word for the change.
fn changes(value: &Value) -> Vec<(&'static str, Value)> {
    let mut changes = match value {
        Value::Null => vec![("text", json!("x")), ("list", json!([]))],
        Value::Bool(bool) => vec![("inverse", json!(!bool))],
        Value::Number(number) => vec![("more", json!(number.as_f64().map(|it| it + 1.0)))],
        Value::String(text) => vec![("longer", json!(format!("{text}x"))), ("none", json!(""))],
        Value::Array(items) => {
            let changed = |change: fn(&mut Vec<Value>)| {
                let mut items = items.clone();
                change(&mut items);
                Value::Array(items)
            };
            vec![
                (
                    "first missing",
                    changed(|items| drop(items.drain(..1.min(items.len())))),
                ),
                (
                    "first twice",
                    changed(|items| items.extend(items.first().cloned())),
                ),
                ("reversed", changed(|items| items.reverse())),
                ("null added", changed(|items| items.push(Value::Null))),
                ("none", json!([])),
            ]
        }
        Value::Object(fields) => {
            let mut added = fields.clone();
            added.insert("another".to_owned(), json!("x"));
            let mut renamed = fields.clone();
            if let Some((name, value)) = fields.iter().find(|(_, value)| !value.is_null()) {
                renamed.remove(name);
                renamed.insert(format!("{name}x"), value.clone());
            }
            let objects = [
                ("field added", added),
                ("renamed", renamed),
                ("none", Map::new()),
            ];
            objects
                .map(|(change, fields)| (change, Value::Object(fields)))
                .into()
        }
    };
    changes.push(("null", Value::Null));
    let meaning = without_nulls(value);
    changes.retain(|(_, changed)| without_nulls(changed) != meaning);
    changes
}

/// Removes fields that are null: a missing one is the same.
fn without_nulls(value: &Value) -> Value {
    let Value::Object(fields) = value else {
        return value.clone();
    };
    let fields = fields.iter().filter(|(_, value)| !value.is_null());
    fields
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Values of one form have the same kinds of changes.
fn form(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(items) if items.len() > 1 => "list of several",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

/// Collects the paths of all values below a node, each with its place: the path without indices and names of objects.
fn collect(node: &Value, path: &str, place: &str, found: &mut Vec<(String, String)>) {
    found.push((path.to_owned(), place.to_owned()));
    let step = |name: &str| name.replace('~', "~0").replace('/', "~1");
    match node {
        Value::Object(fields) => {
            for (name, value) in fields {
                let kind = name.split(' ').next().unwrap_or_default();
                let (path, place) = (format!("{path}/{}", step(name)), format!("{place}/{kind}"));
                collect(value, &path, &place, found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                collect(
                    value,
                    &format!("{path}/{index}"),
                    &format!("{place}[]"),
                    found,
                );
            }
        }
        _ => {}
    }
}

#[test]
fn every_change_of_a_result_changes_what_is_shown() {
    let mut tried: BTreeMap<(String, &str), usize> = BTreeMap::new();
    let mut unseen = Vec::new();
    for file in files() {
        let text = fs::read_to_string(&file).expect("a golden is readable");
        let golden = Golden::parse(&text).expect("a golden parses");
        let objects = golden.objects().expect("the objects are clean");
        let before = full(&run(&objects, None, &golden.options), &golden.binds);
        let shown = short(&before);
        let read: Value = serde_saphyr::from_str(&yaml(&shown)).expect("YAML");
        assert_eq!(read, shown, "{}: another value is read", file.display());
        let mut places = Vec::new();
        collect(&before, "", "", &mut places);
        // The whole result has always the same fields.
        for (path, place) in places.into_iter().filter(|(path, _)| !path.is_empty()) {
            let value = before.pointer(&path).expect("a collected path");
            let tries = tried.entry((place, form(value))).or_default();
            *tries += 1;
            if *tries > TRIES || path.ends_with("/sha256") {
                continue;
            }
            for (change, value) in changes(value) {
                let mut after = before.clone();
                *after.pointer_mut(&path).expect("a collected path") = value;
                if short(&after) == shown {
                    unseen.push(format!("{}: {path}: {change}", file.display()));
                }
            }
        }
    }
    assert!(unseen.is_empty(), "not shown:\n{}", unseen.join("\n"));
    assert!(tried.len() > 500, "only {} places", tried.len());
}
