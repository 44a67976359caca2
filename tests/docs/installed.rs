//! What docs/install.md says about the manifests and the controller: CRDs, the rights of the controller with the comments
//! of its role, and Events.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use crate::{files, generated, read, variants};

#[test]
fn page_lists_the_crds() {
    let mut table = "| CRD | short name | what |\n|---|---|---|\n".to_owned();
    for path in files("deploy/crds", "yaml") {
        let crd: Value = serde_saphyr::from_str(&read(&path)).unwrap();
        let spec = &crd["spec"];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let short = spec["names"]["shortNames"].as_array();
        let short: Vec<_> = short.into_iter().flatten().map(text).collect();
        let schema = &spec["versions"][0]["schema"]["openAPIV3Schema"];
        let what = text(&schema["description"]);
        let what = what.split_whitespace().collect::<Vec<_>>().join(" ");
        let first = what.split_once(". ").map_or(&*what, |(first, _)| first);
        writeln!(
            table,
            "| `{}` | {} | {} |",
            text(&crd["metadata"]["name"]),
            short.join(", "),
            first.trim_end_matches('.'),
        )
        .unwrap();
    }
    generated::check("docs/install.md", "crds", &table);
}

/// The rules of a role, each with the comment above it or above the previous ones.
fn rules(kind: &str) -> Vec<(String, Value)> {
    let manifests = read("deploy/install.yaml");
    let role = manifests
        .split("\n---\n")
        .find(|text| text.contains(&format!("\nkind: {kind}\n")) && text.contains("\nrules:\n"));
    let (_, lines) = role.unwrap().split_once("\nrules:\n").unwrap();
    let mut rules: Vec<(String, String)> = Vec::new();
    let mut purpose = String::new();
    let mut is_comment = false;
    for line in lines.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            match is_comment {
                true => write!(purpose, " {comment}").unwrap(),
                false => purpose = comment.to_owned(),
            }
        } else if line.starts_with("- ") {
            rules.push((purpose.clone(), format!("{line}\n")));
        } else if let Some((_, rule)) = rules.last_mut() {
            writeln!(rule, "{line}").unwrap();
        }
        is_comment = line.starts_with('#');
    }
    let parsed = rules.into_iter().map(|(purpose, text)| {
        let rule: Value = serde_saphyr::from_str(&text).unwrap();
        (purpose, rule[0].clone())
    });
    parsed.collect()
}

fn list(value: &Value) -> Vec<&str> {
    let texts = value.as_array().into_iter().flatten();
    texts.map(|text| text.as_str().unwrap()).collect()
}

/// A row for each purpose and set of verbs, in the order of the role.
fn rows(kind: &str) -> String {
    let mut order = Vec::new();
    let mut resources: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (purpose, rule) in rules(kind) {
        let key = (purpose, list(&rule["verbs"]).join(", "));
        let group = match list(&rule["apiGroups"])[..] {
            [""] => "core".to_owned(),
            [group] => format!("`{group}`"),
            _ => panic!("a rule has one group"),
        };
        let only = list(&rule["resourceNames"]).join("`, `");
        let only = match only.is_empty() {
            true => String::new(),
            false => format!(", only `{only}`"),
        };
        if !order.contains(&key) {
            order.push(key.clone());
        }
        let names = list(&rule["resources"]).join(", ");
        let found = resources.entry(key).or_default();
        found.push(format!("{group}: {names}{only}"));
    }
    let mut rows = String::new();
    for key in order {
        let (purpose, verbs) = &key;
        let purpose = purpose.trim_end_matches('.');
        writeln!(
            rows,
            "| {verbs} | {} | {purpose} |",
            resources[&key].join("<br>")
        )
        .unwrap();
    }
    rows
}

#[test]
fn page_lists_the_rights_of_the_controller() {
    let head = "| verbs | on | for |\n|---|---|---|\n";
    let table = format!(
        "In all namespaces:\n\n{head}{}\nIn its own namespace:\n\n{head}{}",
        rows("ClusterRole"),
        rows("Role"),
    );
    generated::check("docs/install.md", "rights", &table);
}

#[test]
fn page_lists_the_events() {
    let page = read("docs/install.md");
    let (_, table) = page.split_once("| Event | when |\n|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let reasons: Vec<_> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    assert_eq!(
        reasons,
        variants("src/cluster/events/notice.rs", "EventReason"),
        "docs/install.md"
    );
}
