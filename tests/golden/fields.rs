//! Compares docs/gateway-api.md with the schemas of the API: every field has a row, every row has a field, and the
//! goldens and tests that a row names exist.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Kinds that have a table.
const KINDS: [&str; 8] = [
    "GatewayClass",
    "Gateway",
    "ListenerSet",
    "HTTPRoute",
    "GRPCRoute",
    "BackendTLSPolicy",
    "XBackendTrafficPolicy",
    "ReferenceGrant",
];

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the paths of a kind's fields, each with whether it is a leaf.
fn fields(kind: &str) -> BTreeMap<String, bool> {
    let file = root("src/api/schema").join(format!("{}.json", kind.to_lowercase()));
    let text = fs::read_to_string(file).expect("a schema");
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    let mut fields = BTreeMap::new();
    collect(&schema, &schema, "", &mut fields);
    fields
}

/// Collects the fields below a node. Returns whether there are any.
fn collect(schema: &Value, node: &Value, path: &str, fields: &mut BTreeMap<String, bool>) -> bool {
    if let Some(shared) = node["ref"].as_u64() {
        let shared = usize::try_from(shared).expect("an index");
        return collect(schema, &schema["defs"][shared], path, fields);
    }
    if node["items"].is_object() {
        return collect(schema, &node["items"], &format!("{path}[]"), fields);
    }
    let Some(properties) = node["properties"].as_object() else {
        return false;
    };
    for (name, child) in properties {
        let below = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let is_leaf = !collect(schema, child, &below, fields);
        fields.insert(below, is_leaf);
    }
    true
}

/// A row of a table: the paths, and the goldens and tests that cover them.
type Row = (Vec<String>, Vec<String>);

/// Returns the rows of the tables by kind.
fn rows() -> BTreeMap<String, Vec<Row>> {
    let text = fs::read_to_string(root("docs/gateway-api.md")).expect("the page");
    let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
    let mut kind = String::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            kind = title.to_owned();
        }
        if !line.starts_with("| `") {
            continue;
        }
        let cells: Vec<&str> = line.split(" | ").collect();
        assert_eq!(cells.len(), 3, "{line}");
        let paths = quoted(cells[0])
            .iter()
            .flat_map(|it| expanded(it))
            .collect();
        let of_kind = rows.entry(kind.clone()).or_default();
        of_kind.push((paths, quoted(cells[2])));
    }
    rows
}

/// Returns the texts in backquotes.
fn quoted(cell: &str) -> Vec<String> {
    let parts = cell.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

/// Expands `a.{b,c}` to `a.b` and `a.c`.
fn expanded(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else {
        return vec![path.to_owned()];
    };
    let names = rest.strip_suffix('}').expect("braces at the end");
    let names = names.split(',');
    names.map(|name| format!("{before}{name}")).collect()
}

#[test]
fn page_has_a_row_for_every_field() {
    let rows = rows();
    let mut missing = Vec::new();
    for kind in KINDS {
        let fields = fields(kind);
        let paths: Vec<&String> = rows[kind].iter().flat_map(|(paths, _)| paths).collect();
        let has_row = |field: &str| {
            let covers = |path: &str| match path.strip_suffix(".*") {
                Some(above) => field
                    .strip_prefix(above)
                    .is_some_and(|it| it.starts_with(['.', '['])),
                None => path == field,
            };
            paths.iter().any(|path| covers(path))
        };
        let leaves = fields.iter().filter(|(_, is_leaf)| **is_leaf);
        let without_row = leaves.filter(|(field, _)| !has_row(field));
        missing.extend(without_row.map(|(field, _)| format!("{kind} {field}: add a row")));
        let is_field = |path: &str| fields.contains_key(path.strip_suffix(".*").unwrap_or(path));
        let unknown = paths.iter().filter(|path| !is_field(path));
        missing.extend(unknown.map(|path| format!("{kind} {path}: no such field, remove the row")));
    }
    assert!(
        missing.is_empty(),
        "docs/gateway-api.md:\n{}",
        missing.join("\n")
    );
}

#[test]
fn page_names_goldens_and_tests_that_exist() {
    for (paths, proofs) in rows().into_values().flatten() {
        for proof in proofs {
            let golden = root("tests/golden").join(format!("{proof}.yaml"));
            let test = root("tests").join(format!("{proof}.rs"));
            assert!(
                golden.exists() || test.exists(),
                "{paths:?}: {proof} does not exist"
            );
        }
    }
}
