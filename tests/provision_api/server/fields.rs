//! Field ownership: apply removes fields that the manager does not set any more, unless another
//! manager owns them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

/// Paths of fields, as JSON pointers. A list is one field.
type Paths = BTreeSet<String>;

/// Records `manager` as the owner of all fields of a new object.
pub(super) fn created(object: &mut Value, manager: &str) {
    let paths = paths(object);
    set_entry(object, manager, "Update", &paths);
}

/// Records `manager` as the only owner of the changed fields.
pub(super) fn updated(previous: &Value, object: &mut Value, manager: &str) {
    let mut changed = paths(object);
    changed.retain(|path| previous.pointer(path) != object.pointer(path));
    if changed.is_empty() {
        return;
    }
    remove_from_owners(object, &changed);
    let mut own = entry(object, manager, "Update");
    own.extend(changed);
    set_entry(object, manager, "Update", &own);
}

/// Applies a configuration.
pub(super) fn apply(object: &mut Value, applied: &Value, manager: &str) {
    let new = paths(applied);
    let old = entry(object, manager, "Apply");
    for path in &new {
        set(object, path, applied.pointer(path).unwrap());
    }
    let mut changed = new.clone();
    changed.retain(|path| !old.contains(path));
    set_entry(object, manager, "Apply", &new);
    for path in old.difference(&new) {
        let others = entries(object);
        if !others.iter().any(|(_, _, paths)| paths.contains(path)) {
            remove(object, path);
        }
    }
}

fn entries(object: &Value) -> Vec<(String, String, Paths)> {
    let list = object["metadata"]["managedFields"].as_array();
    let of = |entry: &Value| {
        let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
        let mut paths = Paths::new();
        decode(&entry["fieldsV1"], "", &mut paths);
        (text("manager"), text("operation"), paths)
    };
    list.into_iter().flatten().map(of).collect()
}

fn entry(object: &Value, manager: &str, operation: &str) -> Paths {
    let mut entries = entries(object).into_iter();
    let found = entries.find(|(of, by, _)| of == manager && by == operation);
    found.map(|(_, _, paths)| paths).unwrap_or_default()
}

fn set_entry(object: &mut Value, manager: &str, operation: &str, paths: &Paths) {
    let mut all = entries(object);
    all.retain(|(of, by, paths)| !paths.is_empty() && (of != manager || by != operation));
    all.push((manager.to_owned(), operation.to_owned(), paths.clone()));
    // Ordered as by a real server.
    all.sort_by(|one, two| (&one.1, &one.0).cmp(&(&two.1, &two.0)));
    let all: Vec<_> = all
        .iter()
        .map(|(manager, operation, paths)| {
            json!({"manager": manager, "operation": operation, "fieldsV1": encode(paths)})
        })
        .collect();
    object["metadata"]["managedFields"] = json!(all);
}

/// Returns `fieldsV1` of these fields: a map with `.` for each of them.
fn encode(paths: &Paths) -> Value {
    let mut fields = json!({});
    for path in paths {
        let parts = path[1..].split('/');
        let names = parts.map(|part| format!("f:{}", part.replace("~1", "/").replace("~0", "~")));
        let of_path = names.fold(&mut fields, |parent, name| &mut parent[name]);
        of_path["."] = json!({});
    }
    fields
}

/// Collects the fields of `fieldsV1`.
fn decode(fields: &Value, path: &str, paths: &mut Paths) {
    for (name, inner) in fields.as_object().into_iter().flatten() {
        match name.strip_prefix("f:") {
            Some(name) => {
                let name = name.replace('~', "~0").replace('/', "~1");
                decode(inner, &format!("{path}/{name}"), paths);
            }
            None => {
                paths.insert(path.to_owned());
            }
        }
    }
}

/// Removes the fields from all owners.
fn remove_from_owners(object: &mut Value, paths: &Paths) {
    for (manager, operation, own) in entries(object) {
        let left = own.difference(paths).cloned().collect();
        set_entry(object, &manager, &operation, &left);
    }
}

/// Paths of all fields in an object.
fn paths(object: &Value) -> Paths {
    let mut paths = Paths::new();
    collect(object, "", &mut paths);
    let system = [
        "apiVersion",
        "kind",
        "metadata/name",
        "metadata/namespace",
        "metadata/uid",
        "metadata/resourceVersion",
        "metadata/generation",
        "metadata/managedFields",
        "metadata/creationTimestamp",
        "status",
    ];
    paths.retain(|path| {
        !system.iter().any(|system| path[1..].starts_with(system))
            || path.starts_with("/metadata/name/")
    });
    paths
}

fn collect(value: &Value, path: &str, paths: &mut Paths) {
    match value.as_object().filter(|fields| !fields.is_empty()) {
        Some(fields) => {
            for (name, value) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                collect(value, &format!("{path}/{name}"), paths);
            }
        }
        None => {
            paths.insert(path.to_owned());
        }
    }
}

fn split(path: &str) -> (&str, String) {
    let (parent, name) = path.rsplit_once('/').unwrap();
    (parent, name.replace("~1", "/").replace("~0", "~"))
}

fn set(object: &mut Value, path: &str, value: &Value) {
    let (parent, name) = split(path);
    if !parent.is_empty() && !object.pointer(parent).is_some_and(Value::is_object) {
        set(object, parent, &json!({}));
    }
    object.pointer_mut(parent).unwrap()[name] = value.clone();
}

fn remove(object: &mut Value, path: &str) {
    let (parent, name) = split(path);
    let Some(fields) = object.pointer_mut(parent).and_then(Value::as_object_mut) else {
        return;
    };
    fields.remove(&name);
    if fields.is_empty() && !parent.is_empty() {
        remove(object, parent);
    }
}
