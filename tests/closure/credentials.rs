//! Credentials in a closure: those of policies that have an effect on the Gateway, within the budget of their namespace.

use portcullis::api::{ObjectRef, Resource};
use portcullis::status::{AncestorStatus, Condition, StatusReport};
use portcullis::translate::{Mode, Options, Translator, translate};
use serde_json::{Value, json};

use crate::contents::{Followed, class, http, object, route, service};
use crate::secrets::secrets;

/// Size of a Secret with API keys, in bytes. Four of them fit into a budget, and five do not.
const SIZE: usize = 1_000_000;

/// A Secret with a key of a client, and a value that makes it large.
fn keys(namespace: &str, name: &str) -> Value {
    let mut secret = object("Secret", namespace, name, Value::Null);
    secret["stringData"] = json!({"client": format!("key-of-{name}"), "rest": "x".repeat(SIZE)});
    secret
}

/// A policy that asks for these keys on a target of a day.
fn policy(namespace: &str, name: &str, day: usize, (kind, target): (&str, &str)) -> Value {
    let target = json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": target});
    let from = json!([{"type": "Header", "name": "x-api-key"}]);
    let api_key = json!({"secretRefs": [{"name": name}], "from": from});
    let spec = json!({"targetRefs": [target], "apiKey": api_key});
    let mut policy = object("AccessPolicy", namespace, name, spec);
    policy["metadata"]["creationTimestamp"] = json!(format!("2026-01-{day:02}T00:00:00Z"));
    policy
}

/// A route with a policy, which has a Secret of its own. All have the same name.
fn team(namespace: &str, name: &str, gateway: &str, day: usize) -> [Value; 3] {
    let app = json!({"name": "app", "port": 80});
    [
        route(namespace, name, gateway, app),
        policy(namespace, name, day, ("HTTPRoute", name)),
        keys(namespace, name),
    ]
}

/// Returns the Secrets in a closure of which there are values.
fn with_values(followed: &Followed, gateway: &str) -> Vec<String> {
    let mut secrets = secrets(followed, gateway);
    secrets.retain(|secret| !secret.ends_with(": "));
    secrets
}

fn options() -> Options {
    Options {
        mode: Mode::Dedicated,
        ..Options::default()
    }
}

/// Returns the status of a policy for a Gateway.
fn status(report: &StatusReport, policy: (&str, &str), gateway: &str) -> AncestorStatus {
    let name = ObjectRef::new("portcullis.dev", "AccessPolicy", policy.0, policy.1);
    let ancestors = &report.policies[&name];
    let mut of_gateway = ancestors
        .iter()
        .filter(|it| it.ancestor_ref.name == *gateway);
    of_gateway.next().unwrap().clone()
}

/// Checks that a new translation is the same as one after the changes, and that the pods of a Gateway serve what it decides.
fn check(followed: &Followed, translator: &mut Translator, gateway: &str) {
    let whole = translate(followed.cluster(), None, &options());
    let after_changes = translator.translate(followed.cluster(), None);
    assert_eq!(after_changes.ir, whole.ir);
    assert_eq!(after_changes.report, whole.report);
    let alone = translate(followed.snapshot(gateway), None, &options());
    let ports = whole.ir.ports.iter();
    let own: Vec<_> = ports
        .filter(|port| &*port.gateway.name == gateway)
        .collect();
    assert_eq!(alone.ir.ports.iter().collect::<Vec<_>>(), own);
    for policy in followed.snapshot(gateway).access_policies.iter() {
        let name = policy.object_ref();
        let name = (&*name.namespace, &*name.name);
        let mut statuses = [&whole.report, &alone.report].map(|it| status(it, name, gateway));
        // Pods do not judge credentials that they are not sent.
        if statuses[0].conditions.iter().any(is_without_effect) {
            for status in &mut statuses {
                let is_effect = |it: &Condition| it.kind.to_string() == "Programmed";
                status.conditions.retain(is_effect);
            }
        }
        assert_eq!(statuses[1], statuses[0], "{name:?}");
    }
}

/// Reports whether a condition says that a policy brings no credentials to pods: its target does not exist, or another decides.
fn is_without_effect(condition: &Condition) -> bool {
    let reason = condition.reason.to_string();
    ["TargetNotFound", "Overridden"].contains(&&*reason)
}

#[test]
fn credentials_beyond_the_budget_of_a_namespace_are_not_sent() {
    let mut followed = Followed::new([class(), http("g"), http("h"), service("shop", "app")]);
    let translator = &mut Translator::new(options());
    // The last one is the oldest.
    for number in 0..6 {
        for object in team("shop", &format!("p{number}"), "g", 20 - number) {
            followed.put(&object);
        }
    }
    let sent = |names: &[&str]| -> Vec<String> {
        let names = names.iter();
        names.map(|name| format!("{name}: client rest")).collect()
    };
    let oldest = sent(&["p2", "p3", "p4", "p5"]);
    assert_eq!(with_values(&followed, "g"), oldest);
    check(&followed, translator, "g");
    let report = translate(followed.cluster(), None, &options()).report;
    for number in 0..6 {
        let name = format!("p{number}");
        let [accepted, resolved, ..] = &status(&report, ("shop", &name), "g").conditions[..] else {
            panic!("no conditions");
        };
        for condition in [accepted, resolved] {
            let is_refused = condition.reason.to_string() == "CredentialLimitExceeded";
            assert_eq!(is_refused, number < 2, "{condition}");
            let named = format!("spec.apiKey.secretRefs[0]: Secret shop/{name} has 977 KiB");
            let says = ["4096 KiB", &named].map(|part| condition.message.contains(part));
            assert_eq!(says, [is_refused; 2], "{condition}");
        }
    }

    // A younger policy takes nothing from them, nor does one of another namespace. On another Gateway, and in another
    // namespace, there is a budget of its own.
    for object in team("shop", "young", "g", 25) {
        followed.put(&object);
    }
    assert_eq!(with_values(&followed, "g"), oldest);
    let others = [team("web", "old", "g", 1), team("shop", "other", "h", 26)];
    for object in others.iter().flatten() {
        followed.put(object);
    }
    let expected = [&oldest[..], &sent(&["old"])].concat();
    assert_eq!(with_values(&followed, "g"), expected);
    assert_eq!(with_values(&followed, "h"), sent(&["other"]));
    check(&followed, translator, "g");
    check(&followed, translator, "h");

    // Room that is free again is for the oldest of the others.
    followed.delete(&policy("shop", "p5", 15, ("HTTPRoute", "p5")));
    let expected = sent(&["p1", "p2", "p3", "p4", "old"]);
    assert_eq!(with_values(&followed, "g"), expected);
    check(&followed, translator, "g");
    // A Secret that no longer fits leaves the pods; one that shrinks makes room.
    let mut larger = keys("shop", "p4");
    larger["stringData"]["rest"] = "x".repeat(2 * SIZE).into();
    followed.put(&larger);
    let expected = sent(&["p2", "p3", "p4", "old"]);
    assert_eq!(with_values(&followed, "g"), expected);
    check(&followed, translator, "g");
    followed.put(&keys("shop", "p4"));
    check(&followed, translator, "g");
    assert!(with_values(&followed, "g").contains(&"p1: client rest".to_owned()));
}

#[test]
fn policies_without_effect_bring_no_credentials() {
    let mut followed = Followed::new([class(), http("g"), service("infra", "app")]);
    for object in team("infra", "own", "g", 2) {
        followed.put(&object);
    }
    let own = ["own: client rest"];
    assert_eq!(with_values(&followed, "g"), own);
    // A younger policy on the same target.
    followed.put(&keys("infra", "younger"));
    let younger = policy("infra", "younger", 3, ("HTTPRoute", "own"));
    followed.put(&younger);
    assert_eq!(secrets(&followed, "g"), ["own: client rest", "younger: "]);
    // One above that locks what is below.
    followed.put(&keys("infra", "above"));
    let mut above = policy("infra", "above", 4, ("Gateway", "g"));
    above["spec"]["strategy"] = json!("Overrides");
    followed.put(&above);
    assert_eq!(with_values(&followed, "g"), ["above: client rest"]);
    // One for a route that the Gateway does not have.
    let [_, elsewhere, secret] = team("infra", "elsewhere", "g", 1);
    followed.put(&elsewhere);
    followed.put(&secret);
    assert_eq!(with_values(&followed, "g"), ["above: client rest"]);
    let whole = translate(followed.cluster(), None, &options()).ir;
    let alone = translate(followed.snapshot("g"), None, &options());
    assert_eq!(alone.ir, whole);
    // In the pods, nothing is wrong with what has no effect.
    for policy in ["own", "younger"] {
        let conditions = status(&alone.report, ("infra", policy), "g").conditions;
        let problems: Vec<_> = conditions.iter().filter(|it| it.is_problem()).collect();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].reason.to_string(), "Overridden");
    }
    followed.delete(&above);
    assert_eq!(with_values(&followed, "g"), own);
    followed.delete(&policy("infra", "own", 2, ("HTTPRoute", "own")));
    assert_eq!(with_values(&followed, "g"), ["younger: client rest"]);
}

#[test]
fn policies_on_missing_listeners_and_rules_bring_no_credentials() {
    let translator = &mut Translator::new(options());
    let mut followed = Followed::new([class(), http("g"), service("infra", "app")]);
    for object in team("infra", "own", "g", 2) {
        followed.put(&object);
    }
    followed.put(&keys("infra", "astray"));
    for target in [("Gateway", "g"), ("HTTPRoute", "own")] {
        let mut astray = policy("infra", "astray", 1, target);
        let existing = astray["spec"]["targetRefs"][0].clone();
        astray["spec"]["targetRefs"][0]["sectionName"] = "none".into();
        followed.put(&astray);
        assert_eq!(secrets(&followed, "g"), ["astray: ", "own: client rest"]);
        check(&followed, translator, "g");
        // What it brings is for its other target.
        let targets = astray["spec"]["targetRefs"].as_array_mut().unwrap();
        targets.push(existing);
        followed.put(&astray);
        assert_eq!(with_values(&followed, "g")[0], "astray: client rest");
        check(&followed, translator, "g");
    }
}

#[test]
fn policy_of_a_gateway_that_does_not_fit_is_served_once_its_secret_shrinks() {
    let translator = &mut Translator::new(options());
    let app = json!({"name": "app", "port": 80});
    let mut followed = Followed::new([
        class(),
        http("g"),
        service("shop", "app"),
        route("shop", "plain", "g", app),
        policy("infra", "all", 1, ("Gateway", "g")),
    ]);
    for object in team("shop", "own", "g", 2) {
        followed.put(&object);
    }
    let mut secret = keys("infra", "all");
    for size in [SIZE, 5 * SIZE, 6 * SIZE, SIZE] {
        secret["stringData"]["rest"] = "x".repeat(size).into();
        followed.put(&secret);
        check(&followed, translator, "g");
        let fits = size == SIZE;
        let sent = with_values(&followed, "g");
        assert_eq!(sent.contains(&"all: client rest".to_owned()), fits);
        assert!(sent.contains(&"own: client rest".to_owned()));
    }
}

#[test]
fn policies_on_what_a_gateway_does_not_admit_take_no_room() {
    let translator = &mut Translator::new(options());
    let mut followed = Followed::new([class(), http("g"), service("shop", "app")]);
    let all = json!({"namespaces": {"from": "All"}});
    let parent = json!({"name": "g", "namespace": "infra"});
    let listeners = json!([{"name": "m", "port": 81, "protocol": "HTTP", "allowedRoutes": all}]);
    let spec = json!({"parentRef": parent, "listeners": listeners});
    followed.put(&object("ListenerSet", "shop", "set", spec));
    // The oldest are on the ListenerSet, on a listener that it does not have, and on a route without a parent.
    followed.put(&policy("shop", "p0", 1, ("ListenerSet", "set")));
    let mut of_listener = policy("shop", "p1", 2, ("ListenerSet", "set"));
    of_listener["spec"]["targetRefs"][0]["sectionName"] = "m".into();
    followed.put(&of_listener);
    let mut of_missing = policy("shop", "p2", 3, ("ListenerSet", "set"));
    of_missing["spec"]["targetRefs"][0]["sectionName"] = "none".into();
    followed.put(&of_missing);
    for number in 3..8 {
        let name = format!("p{number}");
        followed.put(&policy("shop", &name, 4, ("HTTPRoute", "elsewhere")));
    }
    for number in 0..8 {
        followed.put(&keys("shop", &format!("p{number}")));
    }
    for (name, day) in [("one", 11), ("two", 12)] {
        for object in team("shop", name, "g", day) {
            followed.put(&object);
        }
    }
    let own = ["one: client rest", "two: client rest"];
    assert_eq!(with_values(&followed, "g"), own);
    check(&followed, translator, "g");

    // Once the Gateway admits the ListenerSet, its policies come first.
    let mut admitting = http("g");
    admitting["spec"]["allowedListeners"] = all;
    followed.put(&admitting);
    let sent = with_values(&followed, "g");
    let expected = ["one", "p0", "p1", "two"].map(|name| format!("{name}: client rest"));
    assert_eq!(sent, expected);
    check(&followed, translator, "g");
    followed.put(&http("g"));
    assert_eq!(with_values(&followed, "g"), own);
    check(&followed, translator, "g");
}
