//! The table of fuzz targets, `targets.txt`, and the seeds that it names.

use std::fs;
use std::path::{Path, PathBuf};

const FUZZ: &str = env!("CARGO_MANIFEST_DIR");

/// A target, and where its seeds are.
pub(crate) struct Row {
    pub(crate) name: String,
    /// How the name of a seed ends.
    ending: String,
    folders: Vec<PathBuf>,
}

pub(crate) fn rows() -> Vec<Row> {
    let text = fs::read_to_string(Path::new(FUZZ).join("targets.txt")).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(row).collect()
}

fn row(line: &str) -> Row {
    let mut words = line.split_whitespace();
    let mut next = || words.next().unwrap_or_else(|| panic!("{line:?} is short"));
    let (name, pattern) = (next().to_owned(), next());
    let ending = pattern.strip_prefix('*').expect("a pattern begins with *");
    Row {
        name,
        ending: ending.to_owned(),
        folders: words
            .map(|it| Path::new(FUZZ).join("../..").join(it))
            .collect(),
    }
}

impl Row {
    /// The files of the seeds, in the same order on every machine.
    pub(crate) fn seeds(&self) -> Vec<PathBuf> {
        let mut seeds = Vec::new();
        for folder in &self.folders {
            files(folder, &self.ending, &mut seeds);
        }
        seeds.sort();
        assert!(!seeds.is_empty(), "{} has no seeds", self.name);
        seeds
    }
}

fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.to_str().unwrap().ends_with(ending) {
            found.push(path);
        }
    }
}

/// The names of the Rust files in a folder of this package, without their extension.
pub(crate) fn modules(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    files(&Path::new(FUZZ).join(folder), ".rs", &mut found);
    let names = found.iter().map(|path| path.file_stem().unwrap());
    let mut names: Vec<_> = names
        .map(|name| name.to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}
