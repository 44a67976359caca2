//! What is streamed of an object is the whole object: reading what is written gives it again.

use std::fs;
use std::path::{Path, PathBuf};

use portcullis::api::Kind;
use serde::Deserialize;
use serde_json::Value;

/// All YAML files below a folder.
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
fn objects_are_read_as_they_are_written() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    files(&root.join("tests/golden"), &mut paths);
    files(&root.join("config"), &mut paths);
    let mut kinds: Vec<&str> = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        for document in serde_yaml::Deserializer::from_str(&text) {
            let value = Value::deserialize(document).unwrap();
            let text = |name: &str| value[name].as_str().unwrap_or_default();
            let Some(kind) = Kind::find(text("apiVersion"), text("kind")) else {
                continue;
            };
            let read = kind.decode(&value);
            let object = read.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let written = object.to_value().unwrap();
            assert_eq!(written["apiVersion"], kind.api_version());
            assert_eq!(kind.decode(&written).unwrap(), object, "{}", path.display());
            kinds.push(kind.kind);
        }
    }
    for kind in Kind::all() {
        assert!(kinds.contains(&kind.kind), "no {} is tried", kind.kind);
    }
}
