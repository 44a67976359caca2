//! Links between pages, and the index of `docs`.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{files, pages, read, root};

/// The lines of a page outside of code blocks.
fn prose(text: &str) -> Vec<&str> {
    let mut is_code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            lines.push(line);
        }
    }
    lines
}

/// The anchors of a page: those of its headings, as GitHub makes them, and those of `<a id>`.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in prose(text) {
        for rest in line.split("<a id=\"").skip(1) {
            anchors.extend(rest.split('"').next().map(str::to_owned));
        }
        let Some(heading) = line.strip_prefix('#') else {
            continue;
        };
        let slug = slug(heading.trim_start_matches('#').trim());
        let is_new = anchors.insert(slug.clone());
        assert!(is_new, "two headings have the anchor {slug}");
    }
    anchors
}

fn slug(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| {
        if c == ' ' {
            '-'
        } else {
            c.to_ascii_lowercase()
        }
    })
    .collect()
}

/// The targets of the links of a page.
fn targets(text: &str) -> Vec<String> {
    let lines = prose(text).join("\n");
    let targets = lines.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

#[test]
fn every_link_and_anchor_resolves() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        for target in targets(&text) {
            if target.contains("://") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let linked = match path {
                "" => page.clone(),
                path => Path::new(&page).with_file_name(path).display().to_string(),
            };
            let has_anchor = || linked.ends_with(".md") && anchors(&read(&linked)).contains(anchor);
            let resolves = root(&linked).exists() && (anchor.is_empty() || has_anchor());
            if !resolves {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn index_names_every_page() {
    let index: BTreeSet<String> = targets(&read("docs/README.md")).into_iter().collect();
    for page in files("docs", "md") {
        let name = page.strip_prefix("docs/").unwrap();
        assert!(
            name == "README.md" || index.contains(name),
            "docs/README.md lacks {name}"
        );
    }
}

#[test]
fn anchors_are_those_of_headings() {
    let text = "# One\n## `tls` and SNI: how?\n```sh\n# no heading\n```\n| <a id=\"old\"></a>x |\n";
    let expected = ["old", "one", "tls-and-sni-how"].map(str::to_owned);
    assert_eq!(anchors(text), expected.into());
}
