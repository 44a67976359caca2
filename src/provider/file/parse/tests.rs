//! Malformed documents: bounded, reported, and never a panic.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{DocumentText, documents, parse};

fn parsed(text: &str) -> Result<Vec<serde_json::Value>, String> {
    let items = parse(DocumentText { line: 1, text }, false).map_err(|error| error.message)?;
    Ok(items.into_iter().map(|item| item.value).collect())
}

#[test]
fn document_starts_at_its_first_content() {
    let lines = |text| {
        documents(text)
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
fn resolves_anchors_and_merge_keys() {
    let value =
        parsed("base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\nlist: {<<: [*b, {z: 4}]}\n1: one\n")
            .expect("parses");
    let expected = serde_json::json!([{
        "base": {"x": 1, "y": 2}, "more": {"x": 1, "y": 3}, "list": {"x": 1, "y": 2, "z": 4}, "1": "one",
    }]);
    assert_eq!(serde_json::Value::Array(value), expected);
}

#[test]
fn rejects_duplicate_keys_tags_and_invalid_numbers() {
    assert!(
        parsed("a: 1\na: 2\n")
            .expect_err("repeated")
            .contains("the key \"a\" appears twice")
    );
    for text in ["a: !tag b", "a: .nan", "? [a]\n: b", "<<: 1"] {
        assert!(parsed(text).is_err(), "{text}");
    }
    let password = parsed("password: !hunter2\n").expect_err("a tag");
    assert!(!password.contains("hunter2"), "{password}");
    assert!(password.contains("needs quotes"), "{password}");
}

#[test]
fn names_the_line_of_a_key_that_appears_twice() {
    let rejected = |text| parse(DocumentText { line: 1, text }, false).unwrap_err();
    let twice = rejected("kind: A\nspec:\n  a: 1\n  b: 2\n  b: 3\n");
    assert_eq!(
        (twice.line, &*twice.message),
        (5, "the key \"b\" appears twice")
    );
}

#[test]
fn rejects_alias_bombs_and_deep_nesting() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..20 {
        let before = level - 1;
        bomb.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            vec![format!("*a{before}"); 9].join(", ")
        ));
    }
    assert_eq!(
        parsed(&bomb).expect_err("a bomb"),
        "the document has too many values, or its aliases expand to too many"
    );
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
        parse(
            DocumentText {
                line: 1,
                text: &"[".repeat(100_000)
            },
            true
        )
        .is_err()
    );
    parsed(&"- ".repeat(100_000)).expect_err("too deep");
}

#[test]
fn rejects_deep_nesting_before_parsing() {
    let start = Instant::now();
    for piece in ["[", "{a: ", "[\n", "- ", "? ", "- ? ", "- [{a: "] {
        let text = piece.repeat((4 << 20) / piece.len());
        parsed(&text).expect_err(piece);
    }
    // Parsing one of them would take minutes. On a busy machine this takes a tenth of it.
    assert!(
        start.elapsed() < Duration::from_secs(120),
        "{:?}",
        start.elapsed()
    );
    let text = format!(
        "text: |\n  {}\n{}list: {}{}\n",
        "-".repeat(1000),
        "  - [ ] a\n  {{x}} [[ y ]] \"[\" a[ ${{z}}\n".repeat(1000),
        "[".repeat(50),
        "]".repeat(50),
    );
    assert_eq!(parsed(&text).map(|values| values.len()), Ok(1));
}

/// Fragments for generated hostile documents.
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
        for source in documents(&text) {
            if let Ok(items) = parse(source, json) {
                items.into_iter().for_each(|item| drop(crate::api::admit_at(&item.path, item.value)));
            }
        }
    }

    #[test]
    fn no_mutation_of_valid_objects_makes_a_load_panic(position: prop::sample::Index, replacement in "\\PC{0,4}", length in 0usize..8) {
        let whole = include_str!("../../../api/schema/tests.yaml");
        let mut characters: Vec<char> = whole.chars().collect();
        let start = position.index(characters.len());
        let end = (start + length).min(characters.len());
        characters.splice(start..end, replacement.chars());
        let text: String = characters.into_iter().collect();
        let valid: BTreeSet<&str> = documents(whole).iter().map(|source| source.text).collect();
        for source in documents(&text) {
            // Those that did not change parse as they did.
            if valid.contains(source.text) {
                continue;
            }
            if let Ok(items) = parse(source, false) {
                items.into_iter().for_each(|item| drop(crate::api::admit(item.value)));
            }
        }
    }

    #[test]
    fn no_value_of_a_field_makes_admission_panic(
        place in prop::sample::select(&["metadata", "spec", "kind", "rules", "listeners", "data", "ports", "parentRefs"][..]),
        value in prop::sample::select(&["null", "1", "-1.5", "a", "[]", "{}", "[[1]]", "{a: b}", "[null]", "18446744073709551615"][..]),
        kind in 0usize..15,
    ) {
        let kind = &crate::api::Kind::all()[kind];
        let value: serde_json::Value = serde_saphyr::from_str(value).expect("a value");
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
