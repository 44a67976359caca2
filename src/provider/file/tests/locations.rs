//! Where the objects of files are.

use std::fs;

use super::super::{FileProvider, Locations};
use super::{ROUTE, config_map, directory, write};
use crate::finding::{FileLocation, Finding, Kind};
use crate::ir::ObjectRef;

fn location(locations: &Locations, object: &ObjectRef) -> Option<FileLocation> {
    let mut findings = [Finding::of_object(Kind::Object, object, String::new())];
    locations.locate(&mut findings);
    let [finding] = findings;
    finding.location
}

/// Returns the file name, document and line of a ConfigMap.
fn of(provider: &FileProvider, name: &str) -> Option<String> {
    let object = ObjectRef::core("ConfigMap", "default", name);
    let shown = location(&provider.locations().load(), &object)?.to_string();
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
    let found = location(&provider.locations().load(), &service);
    assert_eq!(found.unwrap().line, 7);
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

#[test]
fn object_of_a_list_is_at_its_item() {
    let item = |name: &str| format!("- {}", config_map(name));
    let invalid = ROUTE
        .replace("spec: {}\n", "spec: {rules: 1}\n")
        .replace('\n', "\n  ");
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n{}# a comment\n{}- {invalid}\n",
        item("a"),
        item("b")
    );
    let json = "{\"apiVersion\": \"v1\", \"kind\": \"ConfigMapList\", \"items\": [\n{\"metadata\": {\"name\": \"c\"}},\n\
                {\"metadata\": {\"name\": \"d\"}}\n]}";
    let files = [
        ("list.yaml", &*format!("# a comment\n{list}")),
        ("list.json", json),
        ("twice.yaml", &*config_map("b")),
    ];
    let directory = directory(&files);
    let mut provider = FileProvider::new(directory.path().to_owned());
    let load = provider.load().unwrap();
    let expected = [
        "list.yaml:5 (document 1)",
        "list.yaml:7 (document 1)",
        "list.json:2 (document 1)",
        "list.json:3 (document 1)",
    ];
    let found = ["a", "b", "c", "d"].map(|name| of(&provider, name).unwrap());
    assert_eq!(found, expected);
    let problems: Vec<_> = load.problems.iter().map(ToString::to_string).collect();
    let [field, twice] = problems.as_slice() else {
        panic!("{problems:?}")
    };
    let rules = "list.yaml:11 (document 1): HTTPRoute default/r: items[2].spec.rules: ";
    assert!(field.contains(rules), "{field}");
    let first = "is already defined in ";
    assert!(
        twice.contains(first)
            && twice.contains("/list.yaml:7 (document 1): this definition is ignored; "),
        "{twice}"
    );
}

#[test]
fn locations_follow_what_is_read() {
    let directory = directory(&[("a.yaml", &config_map("a"))]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    let first = provider.load().unwrap();
    let (locations, object) = (
        provider.locations(),
        ObjectRef::core("ConfigMap", "default", "a"),
    );
    let line = || location(&locations.load(), &object).unwrap().line;
    assert_eq!(line(), 1);
    // The objects are the same, and at another place.
    let moved = format!("# a comment\n{}", config_map("a"));
    write(directory.path(), "a.yaml", &moved);
    let second = provider.load().unwrap();
    assert_eq!(first.snapshot, second.snapshot);
    assert_eq!(line(), 2);
}
