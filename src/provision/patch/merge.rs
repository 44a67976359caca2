//! Merges a patch into an object, as `kubectl patch --type=strategic` does.

use serde_json::{Map, Value};

use super::patched::{DELETE, DIRECTIVE, Patched, REPLACE};

/// Merges a patch into an object. The caller has checked the patch.
pub fn merge(patched: Patched, object: &mut Value, patch: &Map<String, Value>) {
    if let Some(object) = object.as_object_mut() {
        merge_map(patched, object, patch);
    }
}

fn merge_map(patched: Patched, object: &mut Map<String, Value>, patch: &Map<String, Value>) {
    if directive(patch) == Some(REPLACE) {
        object.clear();
    }
    for (field, value) in patch.iter().filter(|(field, _)| *field != DIRECTIVE) {
        match value {
            Value::Null => drop(object.remove(field)),
            Value::Object(patch) if directive(patch) == Some(DELETE) => drop(object.remove(field)),
            Value::Object(patch) => {
                let inner = object.entry(field).or_insert(Value::Null);
                if !inner.is_object() {
                    *inner = Value::Object(Map::new());
                }
                merge(patched, inner, patch);
            }
            Value::Array(elements) => match patched.keys(field) {
                Some(keys) => {
                    let list = object.entry(field).or_insert(Value::Null);
                    merge_list(patched, list, keys, elements);
                }
                None => drop(object.insert(field.clone(), value.clone())),
            },
            _ => drop(object.insert(field.clone(), value.clone())),
        }
    }
}

fn merge_list(patched: Patched, list: &mut Value, keys: &[&str], patches: &[Value]) {
    let mut elements = match list.take() {
        Value::Array(elements) => elements,
        _ => Vec::new(),
    };
    let patches: Vec<_> = patches.iter().filter_map(Value::as_object).collect();
    let is_replaced = |patch: &&Map<_, _>| is_replacement(patch);
    if patches.iter().any(is_replaced) {
        elements.clear();
    }
    for patch in patches.into_iter().filter(|patch| !is_replacement(patch)) {
        let is_same = |element: &Value| {
            let mut keys = keys.iter();
            keys.all(|key| {
                patch
                    .get(*key)
                    .is_none_or(|value| element.get(*key) == Some(value))
            })
        };
        let at = elements.iter().position(is_same);
        match (at, directive(patch)) {
            (Some(at), Some(DELETE)) => drop(elements.remove(at)),
            (Some(at), _) => merge(patched, &mut elements[at], patch),
            (None, Some(DELETE)) => {}
            // The ports of Services are those of listeners.
            (None, _) if patched == Patched::Service => {}
            (None, _) => {
                let mut element = Value::Object(Map::new());
                merge(patched, &mut element, patch);
                elements.push(element);
            }
        }
    }
    *list = Value::Array(elements);
}

/// Reports whether an element stands for the replacement of its list, rather than for an element.
fn is_replacement(element: &Map<String, Value>) -> bool {
    element.len() == 1 && directive(element) == Some(REPLACE)
}

fn directive(patch: &Map<String, Value>) -> Option<&str> {
    patch.get(DIRECTIVE)?.as_str()
}
