//! docs/conditions.md lists every condition with its reasons: those that goldens show are generated from them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use portcullis::status::ConditionType;
use serde_json::{Map, Value};

use crate::healthy::HEALTHY;
use crate::{files_below, generated, read, variants};

/// Type, status and reason.
type Outcome = (String, String, String);

/// The number of unusual outcomes that a golden shows, that of all, and its name.
type Example = (usize, usize, String);

/// Collects the conditions in a golden's status, each with the kind of its object.
fn collect(status: &Value, found: &mut BTreeSet<(Outcome, String)>) {
    for (name, value) in status.as_object().into_iter().flatten() {
        match name.split_once(' ') {
            Some((kind, _)) => collect_below(value, kind, found),
            None => collect(value, found),
        }
    }
}

fn collect_below(node: &Value, kind: &str, found: &mut BTreeSet<(Outcome, String)>) {
    match node {
        Value::Object(fields) => {
            for (name, value) in fields {
                let kind = if name == "listeners" {
                    "listener"
                } else {
                    kind
                };
                collect_below(value, kind, found);
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect_below(item, kind, found)),
        Value::String(text) if text == "healthy" => {
            let mut kinds = HEALTHY.as_object().into_iter().flat_map(Map::values);
            let healthy = kinds.find_map(|kinds| kinds[kind]["conditions"].as_array());
            let types = healthy.unwrap_or_else(|| panic!("no healthy {kind} is defined"));
            let types = types.iter().filter_map(Value::as_str);
            let outcomes = types.map(|it| (it.to_owned(), "True".to_owned(), it.to_owned()));
            found.extend(outcomes.map(|outcome| (outcome, kind.to_owned())));
        }
        Value::String(text) => found.extend(outcome(text).map(|it| (it, kind.to_owned()))),
        _ => {}
    }
}

/// Reads `Accepted False Invalid @2: message`.
fn outcome(condition: &str) -> Option<Outcome> {
    let mut words = condition.split([' ', ':']).map(str::to_owned);
    let (kind, status, reason) = (words.next()?, words.next()?, words.next()?);
    let is_status = ["True", "False", "Unknown"].contains(&status.as_str());
    is_status.then_some((kind, status, reason))
}

#[test]
fn page_lists_conditions_of_goldens() {
    // Each outcome with the kinds of objects that have it, and the golden with the fewest unusual ones.
    let mut shown: BTreeMap<Outcome, (BTreeSet<String>, Example)> = BTreeMap::new();
    for path in files_below("tests/golden", "yaml") {
        let text = read(&path);
        let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let last = documents.last().unwrap();
        let name = path.trim_start_matches("tests/golden/");
        let name = name.trim_end_matches(".yaml");
        let mut found = BTreeSet::new();
        collect(&last["status"], &mut found);
        let is_unusual = |((kind, _, reason), _): &&(Outcome, String)| kind != reason;
        let unusual = found.iter().filter(is_unusual).count();
        let example = (unusual, found.len(), name.to_owned());
        for (outcome, kind) in found {
            let best = || (BTreeSet::new(), example.clone());
            let (kinds, golden) = shown.entry(outcome).or_insert_with(best);
            kinds.insert(kind);
            *golden = golden.clone().min(example.clone());
        }
    }
    let mut table =
        "| condition | status | reason | of | shown by |\n|---|---|---|---|---|\n".to_owned();
    for ((kind, status, reason), (kinds, (.., golden))) in shown {
        let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
        writeln!(
            table,
            "| `{kind}` | {status} | `{reason}` | {kinds} | `{golden}` |"
        )
        .unwrap();
    }
    generated::check("docs/conditions.md", "reasons", &table);
}

#[test]
fn page_names_every_condition_and_reason() {
    let page = read("docs/conditions.md");
    let words: BTreeSet<&str> = page.split(|c: char| !c.is_alphanumeric()).collect();
    let mut names = variants("src/status/condition.rs", "Reason");
    names.extend(ConditionType::ALL.map(|kind| format!("{kind:?}")));
    assert!(names.len() > 50, "{names:?}");
    for name in names {
        assert!(
            words.contains(name.as_str()),
            "docs/conditions.md lacks {name}"
        );
    }
}
