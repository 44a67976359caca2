//! Where the objects of files are.

use std::fs;

use super::super::FileProvider;
use super::{config_map, directory, write};
use crate::ir::ObjectRef;

/// Returns the file name, document and line of a ConfigMap.
fn of(provider: &FileProvider, name: &str) -> Option<String> {
    let object = ObjectRef::core("ConfigMap", "default", name);
    let locations = provider.locations();
    let shown = locations.of(&object)?.to_string();
    let (_, file) = shown.rsplit_once('/').unwrap();
    Some(file.to_owned())
}

#[test]
fn object_is_at_its_definition_that_counts() {
    let [a, b, c] = ["a", "b", "c"].map(config_map);
    let invalid = "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: 1\n";
    let directory = directory(&[
        (
            "one.yaml",
            &format!("# a comment\n\n{a}---\n{b}---\n{invalid}"),
        ),
        ("two.yaml", &format!("{c}---\n{a}")),
    ]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    assert_eq!(of(&provider, "a"), None);
    provider.load().unwrap();
    let at = |provider: &FileProvider| ["a", "b", "c"].map(|name| of(provider, name).unwrap());
    let expected = [
        "one.yaml:3 (document 1)",
        "one.yaml:5 (document 2)",
        "two.yaml:1 (document 1)",
    ];
    assert_eq!(at(&provider), expected);
    let service = ObjectRef::core("Service", "default", "s");
    assert_eq!(provider.locations().of(&service).unwrap().line, 7);
    // The version of `a` in `two.yaml` is served, while `one.yaml` is broken or absent.
    write(directory.path(), "one.yaml", &format!("{a}---\n{b}---\n["));
    provider.load().unwrap();
    let expected = [
        "two.yaml:3 (document 2)",
        "one.yaml:3 (document 2)",
        "two.yaml:1 (document 1)",
    ];
    assert_eq!(at(&provider), expected);
    fs::remove_file(directory.path().join("one.yaml")).unwrap();
    provider.load().unwrap();
    assert_eq!(of(&provider, "a").unwrap(), "two.yaml:3 (document 2)");
    assert_eq!(of(&provider, "b"), None);
}
