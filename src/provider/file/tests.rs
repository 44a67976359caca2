//! Folders and documents as they should not be: each is told apart, bounded, and costs no other one.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use tempfile::TempDir;

use super::parse::{self, Source};
use super::{FileProvider, Load};
use crate::api::Severity;

const ROUTE: &str =
    "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r}\nspec: {}\n";

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for (name, text) in files {
        write(directory.path(), name, text);
    }
    directory
}

fn write(directory: &Path, name: &str, text: &str) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("created");
    fs::write(path, text).expect("written");
}

fn load(files: &[(&str, &str)]) -> Load {
    let directory = directory(files);
    FileProvider::new(directory.path().to_owned())
        .load()
        .expect("readable")
}

fn config_map(name: &str) -> String {
    format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}}}\n")
}

fn names(load: &Load) -> Vec<&str> {
    load.snapshot
        .config_maps
        .iter()
        .map(|object| object.metadata.name.as_str())
        .collect()
}

#[test]
fn files_are_found_by_extension_at_any_depth() {
    let load = load(&[
        ("a.yaml", &config_map("a")),
        ("sub/b.yml", &config_map("b")),
        (
            "sub/deep/c.json",
            "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {\"name\": \"c\"}}",
        ),
        (".hidden.yaml", &config_map("hidden")),
        ("..data/d.yaml", &config_map("d")),
        ("e.txt", &config_map("e")),
    ]);
    assert_eq!(names(&load), ["a", "b", "c"]);
    assert_eq!(load.problems, []);
}

#[test]
fn lists_are_flattened_and_documents_counted() {
    let list = format!(
        "# nothing\n---\n---\nkind: List\napiVersion: v1\nitems:\n- {}- {}---\nkind: Nonsense\n",
        config_map("a"),
        config_map("b")
    );
    let load = load(&[("a.yaml", &list)]);
    assert_eq!(names(&load), ["a", "b"]);
    let problem = &load.problems[0];
    assert_eq!(
        (problem.document, problem.line, problem.field.as_str()),
        (2, 10, "apiVersion")
    );
}

#[test]
fn an_unreadable_directory_is_an_error_and_nothing_else_is() {
    assert!(
        FileProvider::new("/nonexistent/portcullis".into())
            .load()
            .is_err()
    );
    let load = load(&[
        ("a.yaml", "\u{0}"),
        ("b.yaml", "]"),
        ("c.json", "{"),
        ("d.yaml", "- 1\n- a"),
        ("e.yaml", ""),
    ]);
    assert_eq!(load.snapshot.config_maps.len(), 0);
    assert!(
        load.problems
            .iter()
            .all(|problem| problem.severity == Severity::Error)
    );
    let told: Vec<_> = load
        .problems
        .iter()
        .map(|problem| problem.file.file_name().expect("a name").to_owned())
        .collect();
    assert_eq!(told, ["a.yaml", "b.yaml", "c.json", "d.yaml"]);
}

#[test]
fn a_syntax_error_names_its_line_and_costs_its_document_only() {
    let text = format!("{}---\nkind: ConfigMap\nmetadata: [\n", config_map("a"));
    let load = load(&[("a.yaml", &text)]);
    assert_eq!(names(&load), ["a"]);
    let problem = &load.problems[0];
    assert_eq!(problem.document, 2);
    assert!(problem.line >= 4, "{problem}");
    assert!(problem.to_string().contains("a.yaml:"), "{problem}");
}

#[test]
fn unsupported_kinds_are_warned_about() {
    let load = load(&[(
        "a.yaml",
        "{apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: n}}",
    )]);
    let [problem] = load.problems.as_slice() else {
        panic!("{:?}", load.problems)
    };
    assert_eq!(problem.severity, Severity::Warning);
    assert!(
        problem
            .to_string()
            .contains("Deployment n/d: kind: Deployment of apps/v1 is not a kind"),
        "{problem}"
    );
}

#[test]
fn a_broken_file_does_not_hold_what_another_has_by_now() {
    let directory = directory(&[("a.yaml", &config_map("x")), ("b.yaml", ROUTE)]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    provider.load().expect("readable");
    write(directory.path(), "a.yaml", "[");
    write(
        directory.path(),
        "c.yaml",
        &config_map("x").replace("name: x", "name: x, labels: {new: 'yes'}"),
    );
    let load = provider.load().expect("readable");
    let object = load
        .snapshot
        .config_maps
        .get("default", "x")
        .expect("there");
    assert!(object.metadata.labels.contains_key("new"));
    assert_eq!(load.problems.len(), 1);
}

#[test]
fn a_file_that_is_too_large_keeps_its_objects() {
    let directory = directory(&[("a.yaml", &config_map("a"))]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    provider.load().expect("readable");
    let size = usize::try_from(parse::MAX_FILE).expect("fits") + 1;
    write(directory.path(), "a.yaml", &"#".repeat(size));
    let load = provider.load().expect("readable");
    assert_eq!(names(&load), ["a"]);
    assert!(
        load.problems[0].message.contains("larger than 16 MiB"),
        "{:?}",
        load.problems
    );
    write(directory.path(), "a.yaml", &config_map("b"));
    assert_eq!(names(&provider.load().expect("readable")), ["b"]);
}

#[test]
fn unchanged_documents_are_not_validated_again() {
    let directory = directory(&[(
        "a.yaml",
        &format!("{}---\n{}", config_map("a"), config_map("b")),
    )]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    let before = provider.load().expect("readable");
    write(
        directory.path(),
        "a.yaml",
        &format!("# moved\n---\n{}---\n{}", config_map("c"), config_map("b")),
    );
    let after = provider.load().expect("readable");
    let object = |load: &Load| {
        load.snapshot
            .config_maps
            .get("default", "b")
            .cloned()
            .expect("there")
    };
    assert!(std::sync::Arc::ptr_eq(&object(&before), &object(&after)));
    assert_eq!(names(&after), ["b", "c"]);
}

fn parsed(text: &str) -> Result<Vec<serde_json::Value>, String> {
    parse::parse(Source { line: 1, text }, false).map_err(|error| error.message)
}

#[test]
fn documents_start_at_their_first_content() {
    let lines = |text| {
        parse::documents(text)
            .iter()
            .map(|source| source.line)
            .collect::<Vec<_>>()
    };
    assert_eq!(lines("a: 1\n---\nb: 1\n"), [1, 3]);
    assert_eq!(
        lines("%YAML 1.2\n---\n# c\n\na: 1\n...\n---\n---\r\nb: |\n  ---\n  x\n"),
        [5, 9]
    );
    assert_eq!(lines("--- {a: 1}\n---x: 1\n"), [1]);
    assert_eq!(lines("\u{feff}# bom\n\u{feff}a: 1\n"), [2]);
    assert!(lines("# only\n---\n...\n").is_empty());
}

#[test]
fn anchors_and_merge_keys_are_resolved() {
    let value =
        parsed("base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\nlist: {<<: [*b, {z: 4}]}\n1: one\n")
            .expect("parses");
    let expected = serde_json::json!([{
        "base": {"x": 1, "y": 2}, "more": {"x": 1, "y": 3}, "list": {"x": 1, "y": 2, "z": 4}, "1": "one",
    }]);
    assert_eq!(serde_json::Value::Array(value), expected);
}

#[test]
fn repeated_keys_tags_and_strange_numbers_are_errors() {
    assert!(
        parsed("a: 1\na: 2\n")
            .expect_err("repeated")
            .contains("the key \"a\" appears twice")
    );
    for text in ["a: !tag b", "a: .nan", "? [a]\n: b", "<<: 1"] {
        assert!(parsed(text).is_err(), "{text}");
    }
}

#[test]
fn alias_bombs_and_deep_nesting_are_refused() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let before = level - 1;
        bomb.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            vec![format!("*a{before}"); 9].join(", ")
        ));
    }
    parsed(&bomb).expect_err("a bomb");
    let long = format!(
        "a: &a {}\nb: [{}]\n",
        "x".repeat(1 << 20),
        vec!["*a"; 40].join(", ")
    );
    assert!(
        parsed(&long)
            .expect_err("too much")
            .contains("too much text")
    );
    parsed(&"[".repeat(100_000)).expect_err("too deep");
    parsed(&format!("{}{}", "[".repeat(1000), "]".repeat(1000))).expect_err("too deep");
    assert!(
        parse::parse(
            Source {
                line: 1,
                text: &"[".repeat(100_000)
            },
            true
        )
        .is_err()
    );
    parsed(&"- ".repeat(100_000)).expect_err("too deep");
}

/// Pieces from which hostile documents are put together.
const PIECES: &[&str] = &[
    "apiVersion: gateway.networking.k8s.io/v1\n",
    "apiVersion: v1\n",
    "kind: HTTPRoute\n",
    "kind: Gateway\n",
    "kind: List\n",
    "kind: Secret\n",
    "metadata: {name: a}\n",
    "metadata:\n",
    "spec:\n",
    "  rules:\n",
    "  - matches:\n",
    "    - path:\n",
    "        value: /\n",
    "  forwardTo: [{serviceName: a}]\n",
    "items: [",
    "]",
    "{",
    "}",
    "- ",
    "&a ",
    "*a\n",
    "<<: ",
    "---\n",
    "...\n",
    "null",
    "!!binary x\n",
    "? ",
    ": ",
    "|\n",
    "\"",
    "'",
    "\t",
    "\u{feff}",
    "\u{0}",
    "é",
    "%YAML 9\n",
    "1e999",
    "~\n",
];

proptest! {
    #[test]
    fn no_text_makes_a_load_panic(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40), json: bool) {
        let text = pieces.concat();
        for source in parse::documents(&text) {
            if let Ok(values) = parse::parse(source, json) {
                values.into_iter().for_each(|value| drop(crate::api::admit(value)));
            }
        }
    }

    #[test]
    fn no_mutation_of_valid_objects_makes_a_load_panic(position: prop::sample::Index, replacement in "\\PC{0,4}", length in 0usize..8) {
        let whole = include_str!("../../api/schema/tests.yaml");
        let mut characters: Vec<char> = whole.chars().collect();
        let start = position.index(characters.len());
        let end = (start + length).min(characters.len());
        characters.splice(start..end, replacement.chars());
        let text: String = characters.into_iter().collect();
        for source in parse::documents(&text) {
            if let Ok(values) = parse::parse(source, false) {
                values.into_iter().for_each(|value| drop(crate::api::admit(value)));
            }
        }
    }

    #[test]
    fn no_value_in_a_place_makes_admission_panic(
        place in prop::sample::select(&["metadata", "spec", "kind", "rules", "listeners", "data", "ports", "parentRefs"][..]),
        value in prop::sample::select(&["null", "1", "-1.5", "a", "[]", "{}", "[[1]]", "{a: b}", "[null]", "18446744073709551615"][..]),
        kind in 0usize..15,
    ) {
        let kind = &crate::api::Kind::all()[kind];
        let value: serde_json::Value = serde_yaml::from_str(value).expect("a value");
        let mut object = serde_json::json!({
            "apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": "a"}, "spec": {},
        });
        if let Some(inner) = object["spec"].as_object_mut() {
            inner.insert(place.to_owned(), value.clone());
        }
        drop(crate::api::admit(object.clone()));
        object[place] = value;
        drop(crate::api::admit(object));
    }
}
