//! The pages: links and anchors resolve, names of metrics and files exist, and tables whose source is in the repository
//! are equal to it. `UPDATE_DOCS=1` rewrites what is generated.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod alerts;
mod conditions;
mod errors;
mod faults;
#[path = "../harness/generated.rs"]
mod generated;
#[path = "../golden/healthy.rs"]
mod healthy;
mod installed;
mod kept;
mod links;
mod names;
mod pinned;
mod places;
mod security;
mod versions;

use std::fs;
use std::path::{Path, PathBuf};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(root(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Names of the files with an extension in a folder, as paths below the repository.
fn files(folder: &str, extension: &str) -> Vec<String> {
    let entries = fs::read_dir(root(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = names
        .filter(|name| name.ends_with(&format!(".{extension}")))
        .map(|name| format!("{folder}/{name}"))
        .collect();
    files.sort();
    files
}

/// All files with an extension below a folder.
fn files_below(folder: &str, extension: &str) -> Vec<String> {
    let mut found = files(folder, extension);
    for entry in fs::read_dir(root(folder)).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            let name = entry.file_name().into_string().unwrap();
            found.extend(files_below(&format!("{folder}/{name}"), extension));
        }
    }
    found.sort();
    found
}

/// The variants of an enum, from the source.
fn variants(path: &str, name: &str) -> Vec<String> {
    let code = read(path);
    let (_, rest) = code.split_once(&format!("pub enum {name} {{\n")).unwrap();
    let (body, _) = rest.split_once("\n}").unwrap();
    let names = body.lines().map(|line| line.trim().trim_end_matches(','));
    let names = names.filter(|line| line.chars().all(char::is_alphanumeric));
    names.map(str::to_owned).collect()
}

/// All pages, as paths below the repository.
fn pages() -> Vec<String> {
    let mut pages = files("docs", "md");
    let others = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benches/README.md",
        "tests/fuzz/README.md",
        "tests/cluster/README.md",
    ];
    pages.extend(others.map(str::to_owned));
    pages
}
