//! Rules by example: every `<area>/<rule>.yaml` beside this file contains Kubernetes objects and, in its last document,
//! how the expected IR and status differ from those of healthy objects. `UPDATE_GOLDEN=1` rewrites that document. Also
//! contains the properties that hold for every such input: the order of objects does not matter, and no object causes a
//! panic.

mod case;
mod certificates;
mod configuration;
mod differing;
mod fields;
mod healthy;
mod injective;
mod properties;
#[path = "../harness/scale.rs"]
mod scale;
mod sequence;
mod shown;
mod status;
mod yaml;

use std::fs;
use std::path::{Path, PathBuf};

use portcullis::api::Object;
use portcullis::ir::Ir;
use portcullis::snapshot::Snapshot;
use portcullis::translate::{Options, Translation, translate};

use crate::case::Golden;
use crate::shown::{difference, shown, yaml};

/// Longer files cover more than one rule.
const MAX_LINES: usize = 100;
/// Fewer files mean that some are missing.
const MIN_FILES: usize = 60;

#[test]
fn goldens() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut failures = Vec::new();
    for path in files() {
        if let Err(failure) = check(&path, update) {
            failures.push(format!("{}: {failure}", path.display()));
        }
    }
    let count = failures.len();
    assert!(
        failures.is_empty(),
        "{count} goldens fail; after review, UPDATE_GOLDEN=1 rewrites them\n\n{}",
        failures.join("\n\n")
    );
}

/// Returns all goldens. Other files in the folder are an error, except for the sources of this test.
fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files = Vec::new();
    for area in children(&root).into_iter().filter(|path| !is_source(path)) {
        assert!(
            area.is_dir(),
            "{}: expected a folder for an area",
            area.display()
        );
        let rules = children(&area);
        assert!(!rules.is_empty(), "{}: holds no golden", area.display());
        for rule in rules {
            let is_golden = rule.is_file() && rule.extension().is_some_and(|end| end == "yaml");
            assert!(is_golden, "{}: expected <area>/<rule>.yaml", rule.display());
            files.push(rule);
        }
    }
    assert!(files.len() >= MIN_FILES, "only {} goldens", files.len());
    files
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "rs")
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is readable");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    paths
}

fn check(path: &Path, update: bool) -> Result<(), String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let golden = Golden::parse(&text)?;
    let objects = golden.objects()?;
    let translation = run(&objects, None, &golden.options);
    let shown = yaml(&shown(&translation, &golden.binds));
    if update && shown != golden.expected {
        let text = format!("{}---\n{shown}", golden.input);
        fs::write(path, text).map_err(|error| error.to_string())?;
    } else if shown != golden.expected {
        return Err(difference(golden.expected, &shown));
    }
    let lines = fs::read_to_string(path)
        .map_err(|error| error.to_string())?
        .lines()
        .count();
    if lines > MAX_LINES {
        return Err(format!(
            "{lines} lines are too many for one rule; at most {MAX_LINES}"
        ));
    }
    Ok(())
}

fn run(objects: &[Object], previous: Option<&Ir>, options: &Options) -> Translation {
    let mut snapshot = Snapshot::default();
    for object in objects {
        snapshot.insert(object.clone());
    }
    translate(&snapshot, previous, options)
}
