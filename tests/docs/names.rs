//! Names of metrics, kinds and versions in pages. docs/metrics.md itself is compared with the program.

use std::collections::BTreeSet;

use portcullis::api::Kind;

use crate::{pages, read};

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
}

#[test]
fn pages_name_metrics_that_exist() {
    let metrics = read("docs/metrics.md");
    let rows = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("| `portcullis_"));
    let known: BTreeSet<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    assert!(known.len() > 40, "only {} metrics", known.len());
    let without_prefix: BTreeSet<&str> = known
        .iter()
        .copied()
        .filter(|name| name.contains('_') && name.ends_with("_total"))
        .collect();
    let mut unknown = Vec::new();
    // The changelog names metrics that were renamed.
    for page in pages().into_iter().filter(|page| page != "CHANGELOG.md") {
        let text = read(&page);
        for word in words(&text) {
            let is_known = match word.strip_prefix("portcullis_") {
                Some(name) => {
                    let name = ["_bucket", "_sum", "_count"]
                        .into_iter()
                        .find_map(|suffix| name.strip_suffix(suffix))
                        .unwrap_or(name);
                    name.ends_with('_') || name.is_empty() || known.contains(name)
                }
                None => !without_prefix.contains(word),
            };
            if !is_known {
                unknown.push(format!("{page}: {word}"));
            }
        }
    }
    assert!(unknown.is_empty(), "\n{}\n", unknown.join("\n"));
}

#[test]
fn readme_lists_the_kinds() {
    let readme = read("README.md");
    let row = readme.lines().find(|line| line.starts_with("| objects |"));
    let listed: Vec<&str> = words(row.unwrap()).collect();
    for kind in Kind::all() {
        assert!(listed.contains(&kind.kind), "{} is missing", kind.kind);
    }
}

/// The value of a key of `Cargo.toml`.
pub(crate) fn manifest(key: &str) -> String {
    let text = read("Cargo.toml");
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(&format!("{key} = \"")));
    line.unwrap().trim_end_matches('"').to_owned()
}

#[test]
fn pages_name_the_versions_of_the_manifest() {
    let (version, rust) = (manifest("version"), manifest("rust-version"));
    let (minor, _) = version.rsplit_once('.').unwrap();
    for (page, text) in [
        ("docs/versions.md", format!("| Portcullis | {version}.")),
        ("docs/versions.md", format!("| {rust} or later |")),
        (
            "docs/first-route.md",
            format!("image: ghcr.io/portcullis/portcullis:{version}\n"),
        ),
        ("CONTRIBUTING.md", format!("Rust {rust} or newer")),
        ("SECURITY.md", format!("| {minor} | yes |")),
        ("CHANGELOG.md", format!("\n## {version} ")),
    ] {
        assert!(read(page).contains(&text), "{page} lacks {text:?}");
    }
}
