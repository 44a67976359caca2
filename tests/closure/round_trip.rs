//! Streaming keeps the whole object: decoding the encoded form gives an equal object.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use portcullis::api::{Kind, admit};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::Value;

use crate::decode;
use crate::objects::object;

/// Collects all YAML files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|end| end == "yaml") {
            found.push(path);
        }
    }
}

#[test]
fn objects_of_goldens_survive_a_round_trip() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    files(&root.join("tests/golden"), &mut paths);
    files(&root.join("config"), &mut paths);
    let mut tried = 0;
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        for value in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
            let text = |name: &str| value[name].as_str().unwrap_or_default();
            let Some(kind) = Kind::find(text("apiVersion"), text("kind")) else {
                continue;
            };
            // What takes the place of an invalid policy is streamed, too.
            let stand_in = || admit(value.clone()).stand_in.map(|object| *object);
            let read = kind.decode(&value);
            let object = read.ok().or_else(stand_in);
            let object = object.unwrap_or_else(|| panic!("{}: {value}", path.display()));
            let written = object.to_value().unwrap();
            assert_eq!(written["apiVersion"], kind.api_version());
            assert_eq!(kind.decode(&written).unwrap(), object, "{}", path.display());
            tried += 1;
        }
    }
    assert!(tried > 300, "only {tried} objects");
}

#[test]
fn random_objects_survive_a_round_trip() {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let tried = RefCell::new(BTreeSet::new());
    let result = runner.run(&object(), |value| {
        let object = decode(&value);
        tried.borrow_mut().insert(object.kind().kind);
        let written = object.to_value().unwrap();
        prop_assert_eq!(decode(&written), object);
        Ok(())
    });
    result.unwrap();
    let all = Kind::all().iter().map(|kind| kind.kind);
    assert_eq!(tried.into_inner(), all.collect());
}
