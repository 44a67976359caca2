//! Properties of every input: the order of objects does not matter, and no object causes a panic.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use portcullis::api::object::Kind;
use portcullis::api::{self, Object};
use portcullis::translate::{Options, Translation};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::case::Golden;
use crate::scale::scaled;
use crate::{files, run};

/// Returns the parsed inputs of all goldens.
pub(crate) fn corpus() -> Vec<Vec<Value>> {
    files().iter().map(|path| parse(path)).collect()
}

/// The parsed inputs of the goldens of an area.
pub(crate) fn corpus_of(area: &str) -> Vec<Vec<Value>> {
    let files = files().into_iter();
    let of_area = files.filter(|path| path.parent().is_some_and(|it| it.ends_with(area)));
    of_area.map(|path| parse(&path)).collect()
}

fn parse(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("a golden is readable");
    Golden::parse(&text).expect("a golden parses").values
}

fn bytes(translation: &Translation) -> String {
    let ir = serde_json::to_string(&translation.ir).expect("an IR is serializable");
    let report = serde_json::to_string(&translation.report).expect("a report is serializable");
    format!("{ir}\n{report}\n{:?}", translation.data_planes)
}

/// Returns the objects of all goldens together. Each golden gets its own namespaces where it names none. The first of
/// equal names counts. Classes are omitted, so that the class `portcullis` stays ours.
fn everything(corpus: &[Vec<Value>]) -> Vec<Object> {
    let mut objects = BTreeMap::new();
    for (index, values) in corpus.iter().enumerate() {
        for value in values
            .iter()
            .filter(|value| value["kind"] != "GatewayClass")
        {
            let mut value = value.clone();
            if value["kind"] != "Namespace" && value["metadata"].get("namespace").is_none() {
                value["metadata"]["namespace"] = json!(format!("area{index}"));
            }
            let admission = api::admit(value);
            if let (Some(id), Some(object)) = (admission.id, admission.object) {
                objects.entry(id).or_insert(object);
            }
        }
    }
    objects.into_values().collect()
}

/// Replaces the value at a path.
fn mutate(value: &mut Value, path: &[usize], replacement: &Value) {
    let step = path.first().copied().unwrap_or_default();
    let deeper = path.get(1..).unwrap_or_default();
    match value {
        Value::Object(fields) if !fields.is_empty() && !path.is_empty() => {
            let name = fields
                .keys()
                .nth(step % fields.len())
                .cloned()
                .unwrap_or_default();
            if matches!(name.as_str(), "apiVersion" | "kind") && deeper.is_empty() {
                return;
            }
            if deeper.is_empty() && replacement.is_null() {
                fields.remove(&name);
            } else if let Some(field) = fields.get_mut(&name) {
                mutate(field, deeper, replacement);
            }
        }
        Value::Array(items) if !items.is_empty() && !path.is_empty() => {
            let index = step % items.len();
            if deeper.is_empty() {
                items.push(items[index].clone());
            } else {
                mutate(&mut items[index], deeper, replacement);
            }
        }
        leaf => *leaf = replacement.clone(),
    }
}

/// Decodes an object without validation: translation must accept objects that no API server would store.
pub(crate) fn decode(value: &Value) -> Option<Object> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let kind = Kind::find(text("apiVersion")?, text("kind")?)?;
    kind.decode(value).ok()
}

fn replacement() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!("")),
        Just(json!("*.")),
        Just(json!("/")),
        Just(json!("${")),
        Just(json!("portcullis")),
        Just(json!("RegularExpression")),
        Just(json!("(?P<")),
        any::<u16>().prop_map(|number| json!(number)),
        any::<String>().prop_map(|text| json!(text)),
        "[a-zA-Z/.*:%-]{0,12}".prop_map(|text| json!(text)),
    ]
}

#[test]
fn result_does_not_depend_on_the_order_of_objects() {
    let objects = everything(&corpus());
    let options = Options::default();
    let expected = bytes(&run(&objects, None, &options));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: scaled(4),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let orders = Just((0..objects.len()).collect::<Vec<_>>()).prop_shuffle();
    let result = runner.run(&orders, |order| {
        let shuffled: Vec<Object> = order.iter().map(|index| objects[*index].clone()).collect();
        let same = bytes(&run(&shuffled, None, &options)) == expected;
        prop_assert!(same, "another order gives other bytes");
        Ok(())
    });
    result.expect("every order gives the same bytes");
}

#[test]
fn no_object_makes_the_translation_panic() {
    let corpus = corpus();
    let options = Options::default();
    let change = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        prop::collection::vec(any::<prop::sample::Index>(), 1..9),
        replacement(),
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let changes = (
        any::<prop::sample::Index>(),
        prop::collection::vec(change, 1..6),
    );
    let result = runner.run(&changes, |(golden, changes)| {
        let mut values = golden.get(&corpus).clone();
        let before: Vec<Object> = values.iter().filter_map(decode).collect();
        let previous = run(&before, None, &options).ir;
        for (object, _, path, replacement) in changes {
            let path: Vec<usize> = path.iter().map(|step| step.index(64)).collect();
            let index = object.index(values.len());
            mutate(&mut values[index], &path, &replacement);
        }
        let objects: Vec<Object> = values.iter().filter_map(decode).collect();
        let first = bytes(&run(&objects, Some(&previous), &options));
        let again = bytes(&run(&objects, Some(&previous), &options));
        prop_assert_eq!(first, again);
        Ok(())
    });
    result.expect("no panic");
}
