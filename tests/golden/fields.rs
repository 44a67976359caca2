//! Compares docs/gateway-api.md and docs/policies.md with the schemas of the API: every field has a row, every row has a field,
//! and the goldens and tests that a row names exist.

use std::collections::{BTreeMap, BTreeSet};
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

/// Kinds that have a table in docs/policies.md, with the fields below `spec`.
const POLICIES: [&str; 4] = [
    "AccessPolicy",
    "ClientPolicy",
    "RateLimitPolicy",
    "RoutePolicy",
];
const HEADER_OF_POLICIES: &str = "| field | meaning | example | test |";

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

/// A row of a policy.
struct PolicyRow {
    paths: Vec<String>,
    /// Words of its texts in backquotes.
    words: BTreeSet<String>,
    /// The goldens and tests that cover it.
    proofs: Vec<String>,
}

impl PolicyRow {
    /// Reports whether it is about a field: it has its path, or one above it and the names below that.
    fn is_about(&self, field: &str) -> bool {
        let mut rests = self.paths.iter().filter_map(|path| {
            let rest = field.strip_prefix(path.as_str())?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
        });
        rests.any(|rest| {
            let mut names = rest.split(['.', '[', ']']).filter(|it| !it.is_empty());
            names.all(|name| self.words.contains(name))
        })
    }
}

/// Returns the rows of the tables of policies by kind.
fn policy_rows() -> BTreeMap<String, Vec<PolicyRow>> {
    let text = fs::read_to_string(root("docs/policies.md")).expect("the page");
    let mut rows: BTreeMap<String, Vec<_>> = BTreeMap::new();
    let (mut kind, mut is_table) = ("", false);
    for line in text.lines() {
        kind = line.strip_prefix("## ").unwrap_or(kind);
        is_table = line == HEADER_OF_POLICIES || (is_table && line.starts_with('|'));
        if !is_table || !line.starts_with("| `") {
            continue;
        }
        let cells: Vec<&str> = line.split(" | ").collect();
        assert_eq!(cells.len(), 4, "{line}");
        // Rows of one field say "with" or "without" what they are.
        let field = cells[0].split(" with").next().unwrap_or_default();
        let quoted_words = quoted(line);
        let words = quoted_words
            .iter()
            .flat_map(|it| it.split(|letter: char| !letter.is_alphanumeric()));
        rows.entry(kind.to_owned()).or_default().push(PolicyRow {
            paths: quoted(field),
            words: words.map(str::to_owned).collect(),
            proofs: quoted(cells[3]),
        });
    }
    rows
}

/// Returns the field that has a row: of the name and kind of another object, the reference.
fn documented(field: &str) -> &str {
    let Some((above, member)) = field.rsplit_once('.') else {
        return field;
    };
    let reference = above.trim_end_matches("[]");
    let is_member = ["group", "kind", "name", "namespace", "port"].contains(&member);
    match is_member && (reference.ends_with("Ref") || reference.ends_with("Refs")) {
        true => reference,
        false => field,
    }
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
fn page_of_policies_has_a_row_for_every_field() {
    let rows = policy_rows();
    let mut missing = Vec::new();
    for kind in POLICIES {
        let fields = fields(kind);
        let rows = &rows[kind];
        for (field, _) in fields.iter().filter(|(_, is_leaf)| **is_leaf) {
            // Targets are those of all kinds, which have a section of their own.
            let own = field.strip_prefix("spec.").map(documented);
            let own = own.filter(|field| !field.starts_with("targetRefs"));
            if own.is_some_and(|field| !rows.iter().any(|row| row.is_about(field))) {
                missing.push(format!("{kind} {field}: add a row, or name it in one"));
            }
        }
        let paths = rows.iter().flat_map(|row| &row.paths);
        let unknown = paths.filter(|path| !fields.contains_key(&format!("spec.{path}")));
        missing.extend(unknown.map(|path| format!("{kind} {path}: no such field, remove the row")));
    }
    assert!(
        missing.is_empty(),
        "docs/policies.md:\n{}",
        missing.join("\n")
    );
}

#[test]
fn pages_name_goldens_and_tests_that_exist() {
    let of_policies = policy_rows().into_values().flatten();
    let of_policies = of_policies.map(|row| (row.paths, row.proofs));
    for (paths, proofs) in rows().into_values().flatten().chain(of_policies) {
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
