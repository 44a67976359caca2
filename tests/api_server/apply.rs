//! Server-side apply of a spec, with managed fields in the format of a real API server: conflicts, `force`, and removal
//! of fields that a manager does not apply any more. Lists whose items all have a `value` are maps by `value`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::http::{ParsedRequest, failure};
use super::{Api, State, text};

/// Elements of `fieldsV1`: `f:NAME`, `k:{"value":"NAME"}` and `.`.
type Path = Vec<String>;
type Paths = BTreeSet<Path>;

/// An entry of `managedFields`.
struct Entry {
    manager: String,
    operation: String,
    /// The fields of the entry besides `fieldsV1`.
    rest: Value,
    paths: Paths,
}

impl Api {
    pub(super) fn apply_patch(&self, request: &ParsedRequest<'_>, body: &[u8]) -> (u16, Value) {
        let applied: Value = serde_json::from_slice(body).unwrap();
        self.change(|state| state.apply(request, &applied))
    }
}

impl State {
    fn apply(&mut self, request: &ParsedRequest<'_>, applied: &Value) -> (u16, Value) {
        let Some(mut object) = self.objects.get(&request.key()).cloned() else {
            return (404, failure(404));
        };
        let uid = &applied["metadata"]["uid"];
        if !uid.is_null() && *uid != object["metadata"]["uid"] {
            return (409, failure(409));
        }
        let has = |name: &str| {
            request
                .parameter(name)
                .is_some_and(|value| value == "true" || value == "All")
        };
        let manager = request.parameter("fieldManager").unwrap();
        if !has("dryRun") && self.refused_managers.contains(manager) {
            return (403, failure(403));
        }
        let mut entries = entries(&object);
        let new = leaves(&applied["spec"], &["f:spec".to_owned()]);
        let conflicts = conflicts(&entries, manager, &new, &object, applied);
        if !conflicts.is_empty() && !has("force") {
            return (409, conflict_status(&entries, &conflicts));
        }
        for (at, path) in conflicts {
            entries[at].paths.remove(&path);
        }
        let own = entries.iter().position(|entry| entry.is(manager));
        let old = own.map(|at| entries.remove(at).paths).unwrap_or_default();
        for path in &new {
            set(&mut object, path, find(applied, path).unwrap());
        }
        for path in old.difference(&new) {
            if !entries.iter().any(|entry| entry.paths.contains(path)) {
                remove(&mut object, path);
            }
        }
        entries.push(Entry {
            manager: manager.to_owned(),
            operation: "Apply".to_owned(),
            rest: json!({"apiVersion": applied["apiVersion"], "fieldsType": "FieldsV1"}),
            paths: new,
        });
        entries.retain(|entry| !entry.paths.is_empty());
        object["metadata"]["managedFields"] = entries.iter().map(Entry::to_json).collect();
        if has("dryRun") {
            return (200, object);
        }
        self.put(object);
        (200, self.objects[&request.key()].clone())
    }
}

impl Entry {
    fn is(&self, manager: &str) -> bool {
        self.manager == manager && self.operation == "Apply"
    }

    fn to_json(&self) -> Value {
        let mut entry = self.rest.clone();
        entry["manager"] = self.manager.clone().into();
        entry["operation"] = self.operation.clone().into();
        let mut fields = json!({});
        for path in &self.paths {
            let mut at = &mut fields;
            for element in path {
                at = &mut at[element];
            }
            *at = json!({});
        }
        entry["fieldsV1"] = fields;
        entry
    }
}

fn entries(object: &Value) -> Vec<Entry> {
    let list = object["metadata"]["managedFields"].as_array();
    let entry = |entry: &Value| {
        let mut paths = Paths::new();
        owned(&entry["fieldsV1"], &[], &mut paths);
        Entry {
            manager: text(&entry["manager"]),
            operation: text(&entry["operation"]),
            rest: entry.clone(),
            paths,
        }
    };
    list.into_iter().flatten().map(entry).collect()
}

fn owned(fields: &Value, at: &[String], paths: &mut Paths) {
    match fields.as_object().filter(|fields| !fields.is_empty()) {
        Some(fields) => {
            for (name, below) in fields {
                owned(below, &[at, std::slice::from_ref(name)].concat(), paths);
            }
        }
        None => {
            paths.insert(at.to_vec());
        }
    }
}

/// Returns the paths of all fields of a value.
fn leaves(value: &Value, at: &[String]) -> Paths {
    let below = |element: String, value: &Value| leaves(value, &[at, &[element]].concat());
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| below(format!("f:{name}"), value))
            .collect(),
        Value::Array(items) if items.iter().all(|item| item["value"].is_string()) => items
            .iter()
            .flat_map(|item| {
                let key = format!("k:{}", json!({"value": item["value"]}));
                let mut paths = below(key.clone(), item);
                paths.insert([at, &[key, ".".to_owned()]].concat());
                paths
            })
            .collect(),
        _ => [at.to_vec()].into(),
    }
}

/// Returns entries of other managers, by index, with the fields to which the manager gives another value.
fn conflicts(
    entries: &[Entry],
    manager: &str,
    new: &Paths,
    object: &Value,
    applied: &Value,
) -> Vec<(usize, Path)> {
    let changed = new
        .iter()
        .filter(|path| path.last().unwrap() != "." && find(object, path) != find(applied, path));
    let conflicts = changed.flat_map(|path| {
        let owners = entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| !entry.is(manager));
        let owners = owners.filter(|(_, entry)| entry.paths.contains(path));
        owners.map(|(at, _)| (at, path.clone()))
    });
    conflicts.collect()
}

fn conflict_status(entries: &[Entry], conflicts: &[(usize, Path)]) -> Value {
    let cause = |(at, path): &(usize, Path)| {
        let Entry {
            manager,
            operation,
            rest,
            ..
        } = &entries[*at];
        let mut message = format!("conflict with {manager:?}");
        if operation == "Update" {
            message = format!(
                "{message} using {} at {}",
                text(&rest["apiVersion"]),
                text(&rest["time"])
            );
        }
        json!({"reason": "FieldManagerConflict", "message": message, "field": formatted(path)})
    };
    let causes: Vec<_> = conflicts.iter().map(cause).collect();
    let mut status = failure(409);
    status["message"] = format!("Apply failed with {} conflicts", causes.len()).into();
    status["details"] = json!({"causes": causes});
    status
}

/// Formats a path as messages show it, such as `.spec.releases[value="v2"].weight`.
fn formatted(path: &[String]) -> String {
    let element = |element: &String| match element.split_once(':') {
        Some(("k", key)) => {
            let key: Value = serde_json::from_str(key).unwrap();
            format!("[value={}]", key["value"])
        }
        Some((_, name)) => format!(".{name}"),
        None => String::new(),
    };
    path.iter().map(element).collect()
}

/// Returns the object at a path.
fn find<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter()
        .try_fold(object, |at, element| match element.split_once(':') {
            Some(("f", name)) => at.get(name),
            Some(("k", key)) => {
                let key: Value = serde_json::from_str(key).unwrap();
                at.as_array()?
                    .iter()
                    .find(|item| item["value"] == key["value"])
            }
            _ => Some(at),
        })
}

fn set(object: &mut Value, path: &[String], value: &Value) {
    let mut at = object;
    for element in path {
        at = match element.split_once(':') {
            Some(("f", name)) => &mut at[name],
            Some(("k", key)) => {
                let key: Value = serde_json::from_str(key).unwrap();
                if at.is_null() {
                    *at = json!([]);
                }
                let items = at.as_array_mut().unwrap();
                let known = items.iter().position(|item| item["value"] == key["value"]);
                let known = known.unwrap_or_else(|| {
                    items.push(key);
                    items.len() - 1
                });
                &mut items[known]
            }
            _ => return,
        };
    }
    *at = value.clone();
}

fn remove(object: &mut Value, path: &[String]) {
    let (last, parents) = path.split_last().unwrap();
    if last == "." {
        let (key, list) = parents.split_last().unwrap();
        let key: Value = serde_json::from_str(&key[2..]).unwrap();
        let items = find(object, list).and_then(Value::as_array).cloned();
        let items = items
            .into_iter()
            .flatten()
            .filter(|item| item["value"] != key["value"]);
        let items = items.collect();
        set(object, list, &items);
    } else if let Some(name) = last.strip_prefix("f:")
        && find(object, parents).is_some()
    {
        let mut parent = find(object, parents).cloned().unwrap();
        parent.as_object_mut().unwrap().remove(name);
        set(object, parents, &parent);
    }
}
