//! Objects with fields that this version does not know.

use serde_json::{Value, json};

use super::*;

/// Returns a version of a route.
fn applied(spec: &Value) -> Change {
    let kind = Kind::find("gateway.networking.k8s.io/v1", "HTTPRoute").unwrap();
    let object = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
    Change::Applied(ParsedObject::of(kind, object, false).unwrap())
}

#[test]
fn unknown_field_is_a_problem_of_an_object_in_service_while_it_has_the_field() {
    let (mut store, routes) = (listed(), index("HTTPRoute"));
    let known = json!({"hostnames": ["a.example"], "rules": [{}]});
    let mut later = known.clone();
    later["rules"][0]["later"] = json!({});
    for version in [&later, &known, &later] {
        assert!(store.apply(routes, applied(version)));
        assert!(!store.apply(routes, applied(version)));
        let problems = store.load().unwrap().problems;
        assert_eq!(problems.len(), usize::from(version == &later));
        assert_eq!(hostname(&store, "a").as_deref(), Some("a.example"));
    }
    let problem = store.load().unwrap().problems[0].to_string();
    let expected =
        "HTTPRoute default/a: spec.rules[0].later: unknown field; requests of the rule are refused";
    assert!(problem.contains(expected), "{problem}");
    assert!(store.apply(routes, deleted("a")));
    assert!(store.load().unwrap().problems.is_empty());
    assert_eq!(hostname(&store, "a"), None);
}
