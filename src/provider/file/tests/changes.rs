//! A change costs what it touches, and has the same result as reading everything.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use tempfile::TempDir;

use super::super::change::Extent;
use super::super::entry::Files;
use super::super::merge::Merged;
use super::super::{FileProvider, Load};

pub(super) struct Folder {
    root: TempDir,
    provider: FileProvider,
}

impl Folder {
    pub(super) fn new(files: &[(&str, String)]) -> (Self, Load) {
        let root = tempfile::tempdir().unwrap();
        let mut folder = Self {
            provider: FileProvider::new(root.path().to_owned()),
            root,
        };
        for (name, text) in files {
            folder.write(name, text);
        }
        let load = folder.provider.load().unwrap();
        (folder, load)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        let root = fs::canonicalize(self.root.path()).unwrap();
        root.join(name)
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Reads everything, as a process that starts.
    pub(super) fn restart(&mut self) -> Load {
        self.provider = FileProvider::new(self.root.path().to_owned());
        self.provider.load().unwrap()
    }

    /// Follows changes of these paths only.
    pub(super) fn follow(&mut self, names: &[&str]) -> Load {
        let paths: BTreeSet<_> = names.iter().map(|name| self.path(name)).collect();
        let draft = self
            .provider
            .draft(&Extent::Paths(&paths), &BTreeSet::new());
        let draft = draft.unwrap();
        assert!(!draft.is_whole);
        self.provider.accept(draft)
    }
}

fn config_map(name: &str, version: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{v: {version}}}}}\n"
    )
}

fn versions(load: &Load) -> Vec<String> {
    let maps = load.snapshot.config_maps.iter();
    maps.map(|map| format!("{} {}", map.metadata.name, map.data["v"]))
        .collect()
}

#[test]
fn reads_only_the_file_that_changes() {
    let (mut folder, before) = Folder::new(&[
        ("a.yaml", config_map("a", "one")),
        ("sub/b.yaml", config_map("b", "one")),
        ("sub/c.yaml", config_map("c", "one")),
    ]);
    let files = folder.provider.files.clone();
    for name in ["a.yaml", "sub/b.yaml", "sub/c.yaml"] {
        folder.write(name, &config_map(&name[name.len() - 6..][..1], "two"));
    }
    let after = folder.follow(&["sub/b.yaml"]);
    assert_eq!(versions(&after), ["a one", "b two", "c one"]);
    let changed = after.snapshot.names_changed_since(&before.snapshot);
    let changed: Vec<_> = changed.iter().map(|it| it.name.to_string()).collect();
    assert_eq!(changed, ["b"]);
    let now = &folder.provider.files;
    let same = files
        .iter()
        .filter(|(path, entry)| now.get(&***path) == Some(*entry));
    let same: Vec<_> = same.map(|(path, _)| path).collect();
    assert_eq!(same.len(), 2, "{same:?}");
    let again = folder.follow(&["sub/b.yaml"]);
    assert!(Arc::ptr_eq(&again.snapshot, &after.snapshot));
}

#[test]
fn follows_directories_that_come_and_go() {
    let (mut folder, _) = Folder::new(&[("a.yaml", config_map("a", "one"))]);
    folder.write("team/routes/b.yaml", &config_map("b", "one"));
    folder.write("team/c.yaml", &config_map("c", "one"));
    folder.write("team/.hidden.yaml", &config_map("hidden", "one"));
    let load = folder.follow(&["team"]);
    assert_eq!(versions(&load), ["a one", "b one", "c one"]);
    assert_eq!(folder.provider.scan.directories.len(), 3);
    fs::remove_dir_all(folder.path("team/routes")).unwrap();
    let load = folder.follow(&["team/routes", "team/.hidden.yaml"]);
    assert_eq!(versions(&load), ["a one", "c one"]);
    assert_eq!(folder.provider.scan.directories.len(), 2);
}

#[test]
fn symlinks_and_new_notes_need_the_whole_directory() {
    let (folder, _) = Folder::new(&[("a.yaml", config_map("a", "one"))]);
    std::os::unix::fs::symlink("a.yaml", folder.path("b.yaml")).unwrap();
    folder.write("c.txt", "");
    for name in ["b.yaml", "c.txt"] {
        let paths = BTreeSet::from([folder.path(name)]);
        let draft = folder
            .provider
            .draft(&Extent::Paths(&paths), &BTreeSet::new());
        assert!(draft.unwrap().is_whole, "{name}");
    }
}

/// The text of a document: a valid object, an invalid one, or no YAML.
fn document((name, kind): &(u8, u8)) -> String {
    let name = ["x", "y", "z"][usize::from(*name)];
    match kind {
        0 | 1 => config_map(name, &format!("v{kind}")),
        2 => config_map(name, "[]"),
        _ => "[\n".to_owned(),
    }
}

/// The text of a policy of a file, valid or not, or no YAML.
fn policy(file: usize, (name, kind): &(u8, u8)) -> String {
    let rules = ["{deny: [192.0.2.1]}", "{deny: [192.0.2.2]}", "{deny: 7}"];
    let Some(rules) = rules.get(usize::from(*kind)) else {
        return "[\n".to_owned();
    };
    format!(
        "apiVersion: portcullis.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {{name: p{file}{name}}}\n\
         spec: {{targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: r}}], ipRules: {rules}}}\n"
    )
}

/// Returns the names of the policies of a file.
fn names(file: usize, policies: &[(u8, u8)]) -> BTreeSet<String> {
    let readable = policies.iter().filter(|(_, kind)| *kind < 3);
    readable.map(|(name, _)| format!("p{file}{name}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The policies of a file protect: by a valid version, or because requests to their targets are refused. While a file is no
    /// YAML, those of before protect that were valid, or that it still names. A restart knows what files name now.
    #[test]
    fn policies_protect_after_every_change_and_restart(
        steps in proptest::collection::vec(
            (0..3_usize, proptest::collection::vec((0..3_u8, 0..4_u8), 0..4), 0..10_u8),
            1..12,
        ),
    ) {
        let (mut folder, _) = Folder::new(&[("keep.yaml", config_map("keep", "one"))]);
        let (mut written, mut protecting) = ([(); 3].map(|()| BTreeSet::new()), [(); 3].map(|()| BTreeSet::new()));
        let mut valid = BTreeSet::new();
        for (file, policies, what) in steps {
            let path = ["a.yaml", "b.yaml", "c.yaml"][file];
            let is_broken = policies.iter().any(|(_, kind)| *kind == 3);
            written[file] = names(file, &policies);
            match is_broken {
                true => protecting[file].retain(|it| written[file].contains(it) || valid.contains(it)),
                false => protecting[file].clone_from(&written[file]),
            }
            let texts: Vec<_> = policies.iter().map(|it| policy(file, it)).collect();
            folder.write(path, &texts.join("---\n"));
            let load = match what {
                0 => {
                    protecting = written.clone();
                    folder.restart()
                }
                _ => folder.follow(&[path]),
            };
            let policies = load.snapshot.access_policies.iter();
            valid = policies.filter(|it| it.unreadable.is_none()).map(|it| it.metadata.name.to_string()).collect();
            for name in protecting.iter().flatten() {
                prop_assert!(load.snapshot.access_policies.get("default", name).is_some(), "{}", name);
            }
        }
    }

    /// What follows from a change is what follows from all files and the objects in service.
    #[test]
    fn merging_a_change_is_merging_everything(
        steps in proptest::collection::vec(
            (0..3_usize, proptest::option::weighted(0.9, proptest::collection::vec((0..3_u8, 0..4_u8), 0..4))),
            1..12,
        ),
    ) {
        let (mut folder, _) = Folder::new(&[("keep.yaml", config_map("keep", "one"))]);
        for (file, documents) in steps {
            let name = ["a.yaml", "b.yaml", "c.yaml"][file];
            match documents {
                Some(documents) => {
                    let texts: Vec<_> = documents.iter().map(document).collect();
                    folder.write(name, &texts.join("---\n"));
                }
                None => drop(fs::remove_file(folder.path(name))),
            }
            let served = folder.provider.merged.snapshot().clone();
            let load = folder.follow(&[name]);
            let mut all = Merged::serving(served, &folder.provider.files);
            all.update(&Files::new(), &folder.provider.files);
            prop_assert_eq!(&**all.snapshot(), &*load.snapshot);
            let problems: Vec<_> = all.problems().cloned().collect();
            prop_assert_eq!(problems, load.problems);
        }
    }
}
