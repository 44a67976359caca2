//! Events as a watch brings them: their order, their size, and those that say nothing.

use std::sync::Arc;

use portcullis::provider::Load;
use serde_json::{Value, json};

use crate::api::Api;
use crate::eventually;
use crate::watching::Watching;

/// Number of hostnames of a route that makes it larger than what arrives at once.
const MANY: usize = 20_000;

/// Returns a route with this many hostnames, the first of which is `version`.
fn route(name: &str, version: &str, hostnames: usize) -> Value {
    let others = (1..hostnames).map(|number| format!("{number}.example"));
    let hostnames: Vec<_> = std::iter::once(version.to_owned()).chain(others).collect();
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"hostnames": hostnames},
    })
}

/// Returns the version of a route.
fn version(load: &Load, name: &str) -> Option<String> {
    let route = load.snapshot.http_routes.get("default", name)?;
    route.spec.hostnames.first().map(ToString::to_string)
}

fn is_at(load: &Load, name: &str, wanted: &str) -> bool {
    version(load, name).as_deref() == Some(wanted)
}

/// Returns a server with the route `a`, and a provider that has published it.
fn watched() -> (Api, Watching) {
    let api = Api::start();
    api.put(route("a", "0", 1));
    let watching = Watching::start(&api);
    watching.wait_for(|load| is_at(load, "a", "0"));
    (api, watching)
}

/// Returns the versions of a route that were published.
fn published(watching: &Watching, name: &str) -> Vec<Option<String>> {
    let history = watching.history();
    let versions = history.iter().map(|load: &Arc<Load>| version(load, name));
    let mut versions: Vec<_> = versions.collect();
    versions.dedup();
    versions
}

#[test]
fn small_changes_do_not_overtake_large_ones_of_the_same_object() {
    let (api, watching) = watched();
    for number in 1..=20 {
        let hostnames = if number % 2 == 0 { 1 } else { MANY };
        api.put(route("a", &number.to_string(), hostnames));
    }
    watching.wait_for(|load| is_at(load, "a", "20"));
    let published = published(&watching, "a");
    let numbers = published.iter().flatten();
    let numbers: Vec<u32> = numbers.map(|number| number.parse().unwrap()).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
}

#[test]
fn deletion_does_not_overtake_a_large_change() {
    let (api, watching) = watched();
    api.put(route("a", "1", MANY));
    api.delete("HTTPRoute", "default", "a");
    api.put(route("end", "0", 1));
    watching.wait_for(|load| is_at(load, "end", "0"));
    assert_eq!(published(&watching, "a").last(), Some(&None));
}

#[test]
fn list_after_large_changes_is_newer_than_they_are() {
    let (api, watching) = watched();
    for number in 1..=10 {
        api.put(route("a", &number.to_string(), MANY));
        api.put(route("b", &number.to_string(), MANY));
    }
    api.delete_unseen("HTTPRoute", "default", "b");
    api.put(route("end", "0", 1));
    let load = watching.wait_for(|load| is_at(load, "end", "0") && version(load, "b").is_none());
    assert_eq!(version(&load, "a").as_deref(), Some("10"));
}

#[test]
fn invalid_event_loses_no_change() {
    let lines = [
        r#"{"type":"MODIFIED","#,
        "[]",
        "",
        r#"{"type":"ADDED","object":{"metadata":7}}"#,
    ];
    for line in lines {
        let (api, watching) = watched();
        api.send_line("HTTPRoute", line);
        api.put(route("a", "1", 1));
        let load = watching.wait_for(|load| is_at(load, "a", "1"));
        assert!(load.problems.is_empty(), "{line}: {:?}", load.problems);
    }
}

#[test]
fn events_of_unknown_objects_apply() {
    let (api, watching) = watched();
    let event = |what: &str, version: u64, object: Value| {
        let mut object = object;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        api.send_line(
            "HTTPRoute",
            &json!({"type": what, "object": object}).to_string(),
        );
    };
    event("DELETED", 100, route("never", "0", 1));
    event("MODIFIED", 101, route("late", "1", 1));
    let load = watching.wait_for(|load| is_at(load, "late", "1"));
    assert!(is_at(&load, "a", "0") && version(&load, "never").is_none());
}

#[test]
fn next_watch_continues_from_a_bookmark() {
    let (api, watching) = watched();
    let object = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute", "metadata": {"resourceVersion": "777"},
    });
    let bookmark = json!({"type": "BOOKMARK", "object": object});
    api.send_line("HTTPRoute", &bookmark.to_string());
    let continued = || {
        api.fail("HTTPRoute", None);
        let requests = api.requests("/httproutes?");
        requests
            .iter()
            .any(|it| it.target.contains("resourceVersion=777"))
    };
    eventually(continued, |continued| *continued);
    assert_eq!(watching.history().len(), 1);
}
