//! What docs/install.md says about the manifests and the controller: CRDs, values for its flags, its rights with the
//! comments of its role, and Events. The manifests name kinds as they are and as they were before their release.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use portcullis::api::Kind;
use portcullis::cli;
use serde_json::Value;

use crate::{files, generated, pages, read, variants};

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

/// Names of the values in a line of a template.
fn values(line: &str) -> impl Iterator<Item = &str> {
    line.split(".Values.").skip(1).map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '.'));
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// A flag that is new in the program needs a value, or a place in the template.
#[test]
fn page_lists_the_values_for_flags_of_the_controller() {
    let template = read("deploy/helm/portcullis/templates/controller.yaml");
    let lines: Vec<&str> = template.lines().map(str::trim).collect();
    let defaults: Value =
        serde_saphyr::from_str(&read("deploy/helm/portcullis/values.yaml")).unwrap();
    let command = cli::command();
    let controller = command.find_subcommand("controller").unwrap();
    let mut table = "| flag | value |\n|---|---|\n".to_owned();
    for argument in controller.get_arguments() {
        let flag = format!("--{}", argument.get_long().unwrap());
        let variable = argument.get_env().map(|it| it.to_str().unwrap());
        let variable = variable.map(|name| format!("- name: {name}"));
        let sets = |line: &&str| {
            let is_flag = line.contains(&format!("{flag}=")) || line.ends_with(&flag);
            is_flag || variable.as_deref() == Some(*line)
        };
        let index = lines.iter().position(sets);
        let index = index.unwrap_or_else(|| panic!("the chart does not set {flag}"));
        let (above, line, below) = (lines[index - 1], lines[index], lines[index + 1]);
        let mut names: BTreeSet<&str> = values(line).collect();
        if above.starts_with("{{- if ") || above.starts_with("{{- with ") {
            names.extend(values(above));
        }
        if line.starts_with("- name: ") {
            names.extend(values(below));
        }
        for name in &names {
            let pointer = format!("/{}", name.replace('.', "/"));
            assert!(defaults.pointer(&pointer).is_some(), "{flag}: {name}");
        }
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let value = match names.is_empty() {
            true => "set by the chart".to_owned(),
            false => names.join(", "),
        };
        writeln!(table, "| `{flag}` | {value} |").unwrap();
    }
    generated::check("docs/install.md", "flags", &table);
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

/// The rules of roles and of admission policies in a manifest, which are apart in lists.
fn rule_lists<'a>(value: &'a Value, found: &mut Vec<Vec<&'a Value>>) {
    let rules: Vec<_> = (value.as_array().into_iter().flatten())
        .filter(|it| it["apiGroups"].is_array())
        .collect();
    if !rules.is_empty() {
        found.push(rules);
    }
    let below = value.as_object().into_iter().flat_map(|it| it.values());
    let below = below.chain(value.as_array().into_iter().flatten());
    below.for_each(|value| rule_lists(value, found));
}

/// Group, resource, and a verb or an operation.
fn permissions<'a>(rules: &[&'a Value]) -> BTreeSet<(&'a str, String, &'a str)> {
    let mut permissions = BTreeSet::new();
    for rule in rules {
        let actions = [list(&rule["verbs"]), list(&rule["operations"])].concat();
        for group in list(&rule["apiGroups"]) {
            for resource in list(&rule["resources"]) {
                let of_resource = actions.iter();
                permissions.extend(of_resource.map(|it| (group, resource.to_owned(), *it)));
            }
        }
    }
    permissions
}

#[test]
fn manifests_name_experimental_kinds_beside_released_ones() {
    let plural = |kind: &str| format!("{}s", kind.to_lowercase());
    let mut paths = files("deploy/policies", "yaml");
    paths.push("deploy/install.yaml".to_owned());
    let mut compared = 0;
    for path in paths {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&read(&path)).unwrap();
        let mut lists = Vec::new();
        documents
            .iter()
            .for_each(|document| rule_lists(document, &mut lists));
        for permissions in lists.iter().map(|rules| permissions(rules)) {
            for kind in Kind::all() {
                let Some(former) = kind.experimental else {
                    continue;
                };
                let (released, experimental) = (plural(kind.kind), plural(former.kind));
                let of_released = permissions.iter().filter_map(|(group, resource, action)| {
                    let part = resource.strip_prefix(&released)?;
                    (*group == kind.group).then_some((part, *action))
                });
                for (part, action) in of_released {
                    let expected = (former.group, format!("{experimental}{part}"), action);
                    assert!(permissions.contains(&expected), "{path}: {expected:?}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 0);
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

/// With `--reuse-values`, the templates of a later chart lack its new values.
#[test]
fn pages_upgrade_with_the_values_of_the_later_chart() {
    let wrong = pages().into_iter().filter(|page| {
        let text = read(page);
        let mut lines = text.lines().filter(|it| it.starts_with("helm upgrade "));
        lines.any(|it| it.contains(" --reuse-values"))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), Vec::<String>::new());
}
