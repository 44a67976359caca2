//! Policies that protect and are not valid: which version of them is served.

use std::fs;

use super::super::{FileProvider, Load};
use super::{directory, write};
use crate::api::Severity;

fn policy(targets: &str, rules: &str) -> String {
    format!(
        "apiVersion: portcullis.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {{name: a}}\n\
         spec: {{targetRefs: {targets}, ipRules: {rules}}}\n"
    )
}

const TARGETS: &str = "[{group: gateway.networking.k8s.io, kind: HTTPRoute, name: b}]";
const VALID: &str = "{deny: [192.0.2.1]}";
const BROKEN: &str = "{deny: 192.0.2.1}";

/// Returns whether the policy refuses its targets; `None` if it is not served.
fn refuses(load: &Load) -> Option<bool> {
    let policy = load.snapshot.access_policies.get("default", "a")?;
    Some(policy.unreadable.is_some())
}

/// Returns the last problem, which says what follows.
fn consequence(load: &Load) -> (Severity, &str) {
    let problem = load.problems.last().unwrap();
    (problem.severity, &problem.message)
}

#[test]
fn policy_without_a_valid_version_refuses_its_targets() {
    let refused = "is invalid; requests to its targets get 500 until it is valid";
    let directory = directory(&[("a.yaml", &policy(TARGETS, BROKEN))]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    let mut load = provider.load().unwrap();
    for _ in 0..2 {
        assert_eq!(refuses(&load), Some(true));
        assert_eq!(load.problems.len(), 2, "{:?}", load.problems);
        assert_eq!(load.problems[0].severity, Severity::Error);
        assert_eq!(consequence(&load), (Severity::Warning, refused));
        assert_eq!(load.snapshot.invalid.len(), 1);
        // Another version that is not valid either.
        write(directory.path(), "a.yaml", &policy(TARGETS, "{deny: [7]}"));
        load = provider.load().unwrap();
    }
    // A file that is no longer YAML.
    write(directory.path(), "a.yaml", "{");
    assert_eq!(refuses(&provider.load().unwrap()), Some(true));
    write(directory.path(), "a.yaml", &policy(TARGETS, VALID));
    let load = provider.load().unwrap();
    assert_eq!((refuses(&load), load.problems.len()), (Some(false), 0));
    assert!(load.snapshot.invalid.is_empty());
    write(directory.path(), "a.yaml", &policy(TARGETS, BROKEN));
    let load = provider.load().unwrap();
    assert_eq!(refuses(&load), Some(false));
    let stays = "is invalid; its previous valid version stays in service";
    assert_eq!(consequence(&load), (Severity::Warning, stays));
    fs::remove_file(directory.path().join("a.yaml")).unwrap();
    let load = provider.load().unwrap();
    assert_eq!((refuses(&load), load.problems.len()), (None, 1));
}

#[test]
fn policy_without_readable_targets_is_an_error_of_its_own() {
    let directory = directory(&[("a.yaml", &policy("[{kind: Gateway}]", VALID))]);
    let load = FileProvider::new(directory.path().to_owned())
        .load()
        .unwrap();
    let (severity, message) = consequence(&load);
    assert_eq!(severity, Severity::Error);
    let expected = "is invalid, and no target of it can be read; the requests that it protects are served without it";
    assert_eq!(message, expected);
}

#[test]
fn text_that_is_no_yaml_says_which_requests_are_unprotected() {
    let text = format!("{}  broken", policy(TARGETS, VALID));
    let other = "kind: Service\nmetadata: {";
    let directory = directory(&[("a.yaml", &text), ("b.yaml", other)]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    let load = provider.load().unwrap();
    let messages: Vec<_> = load.problems.iter().map(|it| &*it.message).collect();
    let expected = "the document is ignored; it names AccessPolicy: if it has such a policy";
    assert!(messages[0].contains(expected), "{messages:?}");
    assert!(
        messages[1].ends_with("; the document is ignored"),
        "{messages:?}"
    );
    assert!(
        load.problems
            .iter()
            .all(|it| it.severity == Severity::Error)
    );
    // An earlier version stays in use.
    write(directory.path(), "a.yaml", &policy(TARGETS, VALID));
    provider.load().unwrap();
    write(directory.path(), "a.yaml", &text);
    let load = provider.load().unwrap();
    assert_eq!(refuses(&load), Some(false));
    let message = &load.problems[0].message;
    assert!(
        message.ends_with("retain their previous version"),
        "{message}"
    );
}
