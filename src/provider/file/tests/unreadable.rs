//! Policies that protect and are not valid: which version of them is served.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::super::{FileProvider, Load};
use super::{directory, write};
use crate::finding::Severity;

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

/// Returns how bad the first problem with an effect is, and what follows from it.
fn consequence(load: &Load) -> (Severity, &str) {
    let mut problems = load.problems.iter();
    let problem = problems.find(|it| !it.effect.is_empty()).unwrap();
    (problem.severity, &problem.effect)
}

#[test]
fn policy_without_a_valid_version_refuses_its_targets() {
    let refused = "requests to its targets get 500 until it is valid";
    let directory = directory(&[("a.yaml", &policy(TARGETS, BROKEN))]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    let mut load = provider.load().unwrap();
    for _ in 0..2 {
        assert_eq!(refuses(&load), Some(true));
        assert_eq!(load.problems.len(), 1, "{:?}", load.problems);
        assert_eq!(consequence(&load), (Severity::Error, refused));
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
    let stays = "its previous valid version stays in service";
    assert_eq!(consequence(&load), (Severity::Error, stays));
    let finding = load.problems[0].finding();
    assert_eq!(
        (&*finding.effect, finding.location.unwrap().line),
        (stays, 4)
    );
    assert!(
        finding.cause.starts_with("spec.ipRules.deny: "),
        "{}",
        finding.cause
    );
    fs::remove_file(directory.path().join("a.yaml")).unwrap();
    let load = provider.load().unwrap();
    assert_eq!((refuses(&load), load.problems.len()), (None, 1));
}

#[test]
fn version_that_is_not_valid_refuses_the_targets_that_it_adds() {
    let with = |target: &str| {
        TARGETS.replace(
            "]",
            &format!(", {{group: gateway.networking.k8s.io, kind: HTTPRoute, name: {target}}}]"),
        )
    };
    let added = |load: &Load| {
        let policy = load.snapshot.access_policies.get("default", "a").unwrap();
        assert!(policy.unreadable.is_none());
        let added = policy.pending.as_ref().map(|it| &it.spec.target_refs);
        let names = added.into_iter().flatten();
        names.map(|it| it.name.clone()).collect::<Vec<_>>()
    };
    let directory = directory(&[("a.yaml", &policy(TARGETS, VALID))]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    assert!(added(&provider.load().unwrap()).is_empty());
    for target in ["c", "d"] {
        write(directory.path(), "a.yaml", &policy(&with(target), BROKEN));
        let load = provider.load().unwrap();
        assert_eq!(added(&load), [target]);
        let expected = "its previous valid version stays in service; where only the new one applies, requests to its targets get \
                        500 until it is valid";
        assert_eq!(consequence(&load), (Severity::Error, expected));
    }
    // It adds a rule of its route, which the valid version protects.
    let rule = with("b, sectionName: rule");
    write(directory.path(), "a.yaml", &policy(&rule, BROKEN));
    assert!(added(&provider.load().unwrap()).is_empty());
    write(directory.path(), "a.yaml", &policy(&with("c"), BROKEN));
    write(directory.path(), "a.yaml", &policy(&with("c"), VALID));
    assert!(added(&provider.load().unwrap()).is_empty());
}

#[test]
fn policy_without_readable_targets_is_an_error_of_its_own() {
    let nameless = policy(TARGETS, VALID).replace("{name: a}", "{}");
    let slash = policy(TARGETS, VALID).replace("{name: a}", "{name: a/b}");
    let wrong_version = policy("7", VALID).replace("v1alpha1", "v2");
    let misspelled = policy("7", VALID).replace("AccessPolicy", "AcessPolicy");
    let unnamed = policy("7", VALID).replace("apiVersion: portcullis.dev/v1alpha1\n", "");
    let without_targets = policy("[{kind: Gateway}]", VALID);
    for text in [
        without_targets,
        nameless,
        slash,
        wrong_version,
        misspelled,
        unnamed,
    ] {
        let directory = directory(&[("a.yaml", &text)]);
        let mut provider = FileProvider::new(directory.path().to_owned());
        let load = provider.load().unwrap();
        let (severity, message) = consequence(&load);
        assert_eq!(severity, Severity::Error, "{text}");
        let expected = "no target of it can be read, the requests that it protects are served without it, and a process";
        assert!(message.starts_with(expected), "{text}: {message}");
        assert_eq!(open(&load), 1, "{text}: {:?}", load.problems);
        write(directory.path(), "a.yaml", &policy(TARGETS, VALID));
        let load = provider.load().unwrap();
        assert_eq!((refuses(&load), open(&load)), (Some(false), 0));
    }
}

#[test]
fn file_that_cannot_be_read_says_nothing_of_what_it_protects() {
    let directory = directory(&[]);
    let file = directory.path().join("a.yaml");
    fs::write(&file, [0xff, 0xfe, 0xff]).unwrap();
    let mut provider = FileProvider::new(directory.path().to_owned());
    let load = provider.load().unwrap();
    assert_eq!(open(&load), 1, "{:?}", load.problems);
    write(directory.path(), "a.yaml", &policy(TARGETS, VALID));
    assert_eq!(open(&provider.load().unwrap()), 0);
    fs::write(&file, [0xff, 0xfe, 0xff]).unwrap();
    let load = provider.load().unwrap();
    assert_eq!((open(&load), refuses(&load)), (0, Some(false)));
}

/// A symlink to itself, as a folder without permission to read it, says nothing of what is there.
#[test]
fn folder_that_cannot_be_read_keeps_its_policies_and_at_start_nobody_knows_them() {
    let (directory, other) = (directory(&[]), directory(&[]));
    write(other.path(), "a.yaml", &policy(TARGETS, VALID));
    write(directory.path(), "b.yaml", "");
    let link = directory.path().join("policies");
    let point_to = |target: &Path| {
        let _ = fs::remove_file(&link);
        symlink(target, &link).unwrap();
    };
    point_to(&link);
    let mut provider = FileProvider::new(directory.path().to_owned());
    let load = provider.load().unwrap();
    assert_eq!((open(&load), refuses(&load)), (1, None));
    point_to(other.path());
    let load = provider.load().unwrap();
    assert_eq!((open(&load), refuses(&load)), (0, Some(false)));
    point_to(&link);
    for _ in 0..2 {
        let load = provider.load().unwrap();
        assert_eq!((open(&load), refuses(&load)), (0, Some(false)));
        assert_eq!(load.problems[0].severity, Severity::Error);
    }
    // Its files are deleted, and then the folder is.
    fs::remove_file(other.path().join("a.yaml")).unwrap();
    assert_eq!(refuses(&provider.load().unwrap()), None);
    fs::remove_file(&link).unwrap();
    let load = provider.load().unwrap();
    assert_eq!((open(&load), refuses(&load)), (0, None));
}

/// Its author has moved it there.
#[test]
fn policy_that_a_file_may_have_that_cannot_be_read_stays_in_force() {
    let text = format!("{}  broken", policy(TARGETS, VALID));
    for unreadable in [text.into_bytes(), vec![0xff, 0xfe]] {
        let directory = directory(&[("a.yaml", &policy(TARGETS, VALID))]);
        let [own, other] = ["a.yaml", "b.yaml"].map(|name| directory.path().join(name));
        let mut provider = FileProvider::new(directory.path().to_owned());
        assert_eq!(refuses(&provider.load().unwrap()), Some(false));
        fs::write(&other, unreadable).unwrap();
        fs::remove_file(&own).unwrap();
        for _ in 0..2 {
            let load = provider.load().unwrap();
            assert_eq!(refuses(&load), Some(false));
            let problems: Vec<_> = load.problems.iter().map(ToString::to_string).collect();
            let stays = "may have AccessPolicy default/a, which no other file has any more";
            assert!(problems.iter().any(|it| it.contains(stays)), "{problems:?}");
        }
        // It is in none, and then in the other one.
        fs::write(
            &other,
            policy(TARGETS, VALID).replace("name: a}", "name: c}"),
        )
        .unwrap();
        let load = provider.load().unwrap();
        assert_eq!((refuses(&load), open(&load)), (None, 0));
        fs::write(&other, policy(TARGETS, VALID)).unwrap();
        assert_eq!(refuses(&provider.load().unwrap()), Some(false));
    }
}

/// The text of a file that is no YAML has other objects.
#[test]
fn policy_that_no_text_names_is_deleted() {
    let other = "kind: AccessPolicy\nmetadata: {name: z";
    let directory = directory(&[("a.yaml", &policy(TARGETS, VALID)), ("b.yaml", other)]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    assert_eq!(refuses(&provider.load().unwrap()), Some(false));
    fs::remove_file(directory.path().join("a.yaml")).unwrap();
    assert_eq!(refuses(&provider.load().unwrap()), None);
}

/// Returns the number of problems that leave requests without protection.
fn open(load: &Load) -> usize {
    let problems = load.problems.iter();
    problems.filter(|problem| problem.leaves_open).count()
}

#[test]
fn policies_of_every_protecting_kind_have_targets_that_are_refused() {
    let service = "[{group: '', kind: Service, name: b}]";
    for (kind, targets, section, leaves_open) in [
        ("AccessPolicy", TARGETS, "ipRules: {deny: [x]}", false),
        ("AccessPolicy", TARGETS, "later: {}", false),
        (
            "AccessPolicy",
            TARGETS,
            "authorization: {rules: [{name: a, action: Permit}]}",
            false,
        ),
        ("RateLimitPolicy", TARGETS, "rules: 7", false),
        ("ClientPolicy", "[{name: b}]", "clientIP: 7", false),
        ("BackendTLSPolicy", service, "validation: 7", false),
        ("BackendTLSOverride", service, "validation: 7", false),
        ("BackendTLSPolicy", "7", "validation: {}", true),
        ("BackendTLSOverride", "7", "validation: {}", true),
        ("RateLimitPolicy", "7", "rules: []", true),
        (
            "RateLimitPolicy",
            "7",
            "rules: [{name: a, mode: Audit}]",
            false,
        ),
        ("ClientPolicy", "7", "clientIP: {}", true),
        ("ClientPolicy", "7", "timeouts: {}", false),
        ("RoutePolicy", "7", "retry: {}", false),
    ] {
        let group = match kind {
            "BackendTLSPolicy" => "gateway.networking.k8s.io/v1",
            _ => "portcullis.dev/v1alpha1",
        };
        let text = format!(
            "apiVersion: {group}\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{targetRefs: {targets}, {section}}}\n"
        );
        let directory = directory(&[("a.yaml", &text)]);
        let load = FileProvider::new(directory.path().to_owned())
            .load()
            .unwrap();
        assert_eq!(open(&load) > 0, leaves_open, "{text}: {:?}", load.problems);
        let mut effects = load.problems.iter().map(|it| &it.effect);
        let refused = effects.any(|it| it.contains("get 500"));
        assert_eq!(refused, targets != "7", "{text}: {:?}", load.problems);
    }
}

#[test]
fn limits_without_their_broken_audit_rules_are_enforced() {
    let limits = |requests: &str, per: &str| {
        let rules = format!(
            "[{{name: tried, limit: {{requests: {requests}, per: Hour}}, mode: Audit}}, \
             {{name: held, limit: {{requests: 10, per: {per}}}}}]"
        );
        policy(TARGETS, VALID)
            .replace("AccessPolicy", "RateLimitPolicy")
            .replace(&format!("ipRules: {VALID}"), &format!("rules: {rules}"))
    };
    let rules = |load: &Load| {
        let policy = load.snapshot.rate_limit_policies.get("default", "a")?;
        let names = policy.spec.rules.iter().map(|rule| rule.name.clone());
        Some((policy.unreadable.is_some(), names.collect::<Vec<_>>()))
    };
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let directory = directory(&[("a.yaml", &limits("many", "Hour"))]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    let load = provider.load().unwrap();
    assert_eq!(rules(&load), Some((true, names(&["held"]))));
    let left_out = "its rules of mode Audit that are not valid are left out until it is valid";
    assert_eq!(consequence(&load), (Severity::Error, left_out));
    // An enforced rule that is not valid refuses all.
    write(directory.path(), "a.yaml", &limits("many", "Fortnight"));
    assert_eq!(rules(&provider.load().unwrap()), Some((true, names(&[]))));
    write(directory.path(), "a.yaml", &limits("1", "Hour"));
    let valid = Some((false, names(&["tried", "held"])));
    assert_eq!(rules(&provider.load().unwrap()), valid);
    write(directory.path(), "a.yaml", &limits("many", "Hour"));
    assert_eq!(rules(&provider.load().unwrap()), valid);
}

#[test]
fn text_that_is_no_yaml_says_which_requests_are_unprotected() {
    let text = format!("{}  broken", policy(TARGETS, VALID));
    let other = "kind: Service\nmetadata: {";
    let directory = directory(&[("a.yaml", &text), ("b.yaml", other)]);
    let mut provider = FileProvider::new(directory.path().to_owned());
    let load = provider.load().unwrap();
    assert_eq!(open(&load), 1, "{:?}", load.problems);
    let effects: Vec<_> = load.problems.iter().map(|it| &*it.effect).collect();
    let expected = "the document is ignored; it names AccessPolicy: if it has such a policy";
    assert!(effects[0].starts_with(expected), "{effects:?}");
    assert_eq!(effects[1], "the document is ignored");
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
    assert_eq!(open(&load), 0, "{:?}", load.problems);
    let effect = &load.problems[0].effect;
    assert_eq!(
        effect,
        "the objects of this file retain their previous version"
    );
}
