//! Files are written one after the other, some of them with policies that are not valid, and are read together or anew:
//! nothing is open that is not open in the state that they say.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::Load;
use super::changes::Folder;
use crate::provider::fixtures::{Judge, World, Write, runner};
use crate::snapshot::Snapshot;

/// What happens after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// The next one.
    Nothing,
    Follow,
    Restart,
}

/// A choice of what is written, whether it is valid if it is a policy, and what happens then.
fn steps() -> impl Strategy<Value = Vec<(u32, bool, Then)>> {
    let then = prop_oneof![
        3 => Just(Then::Nothing), 6 => Just(Then::Follow), 1 => Just(Then::Restart),
    ];
    vec((0..100_000_u32, prop::bool::weighted(0.8), then), 1..80)
}

/// The name of the file of an object.
fn file(write: &Write) -> String {
    format!("{}-{}.yaml", write.kind.kind.to_lowercase(), write.name)
}

/// The text of a version of an object. JSON is YAML.
fn text(value: &Value, is_valid: bool) -> String {
    let mut value = value.clone();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("generation");
    }
    let wrong = json!(7);
    match value["kind"].as_str() {
        _ if is_valid => {}
        Some("AccessPolicy") => value["spec"]["ipRules"] = wrong,
        Some("RateLimitPolicy") => value["spec"]["rules"] = wrong,
        Some("BackendTLSPolicy" | "BackendTLSOverride") => value["spec"]["validation"] = wrong,
        _ => {}
    }
    value.to_string()
}

/// Returns the names of all objects.
fn names(objects: &Snapshot) -> BTreeSet<String> {
    let names = objects.objects().map(|it| {
        let kind = it.kind().kind;
        format!("{kind} {}", it.meta().name)
    });
    names.collect()
}

/// Writes the last version of an object, or removes its file.
fn store(folder: &Folder, write: &Write, is_valid: bool) {
    match &write.value {
        Some(value) => folder.write(&file(write), &text(value, is_valid)),
        // It may never have been written.
        None => drop(fs::remove_file(folder.path(&file(write)))),
    }
}

/// Returns the names of objects of which nothing is read, although they are written.
fn missing(load: &Load, world: &World) -> Vec<String> {
    let read = names(&load.snapshot);
    let written = names(world.state());
    written.difference(&read).cloned().collect()
}

#[test]
fn nothing_is_open_that_is_not_open_in_the_files() {
    let (protected, open) = (Cell::new(0), Cell::new(0));
    let result = runner(30).run(&steps(), |steps| {
        let (mut world, mut judge) = (World::new(), Judge::new());
        let first: Vec<_> = world
            .first
            .iter()
            .map(|it| (file(it), text(it.value.as_ref().unwrap(), true)))
            .collect();
        let first: Vec<_> = first
            .iter()
            .map(|(name, text)| (&**name, text.clone()))
            .collect();
        let (mut folder, load) = Folder::new(&first);
        prop_assert_eq!(missing(&load, &world), Vec::<String>::new());
        let mut changed = BTreeSet::new();
        for (choice, is_valid, then) in steps {
            world.write(choice);
            let write = &world.writes[world.last() - 1];
            store(&folder, write, is_valid);
            changed.insert(file(write));
            let load = match then {
                Then::Nothing => continue,
                Then::Follow => {
                    let names: Vec<_> = changed.iter().map(|it| &**it).collect();
                    folder.follow(&names)
                }
                Then::Restart => folder.restart(),
            };
            changed.clear();
            prop_assert_eq!(missing(&load, &world), Vec::<String>::new());
            let permitted = judge.open(world.state());
            let found = judge.open(&load.snapshot);
            prop_assert_eq!(found.difference(&permitted).next(), None, "{:?}", write);
            open.set(open.get() + found.len());
        }
        protected.set(protected.get() + judge.protected);
        Ok(())
    });
    result.unwrap();
    assert!(protected.get() > 0 && open.get() > 0);
}
