//! Objects with fields that this version does not know: what these may narrow or protect is refused, and nothing else. No folder
//! has such objects.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{Translation, gateway, object, run};
use crate::ir::route::{Action, BackendTarget};

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";

/// Returns an object whose reader does not know this field.
fn without(mut object: Value, field: &str) -> Value {
    object["metadata"]["unknownFields"] = json!([field]);
    object
}

fn problems(translation: &Translation) -> String {
    let mut shown = String::new();
    for (object, problem) in translation.report.problems() {
        writeln!(shown, "{object}: {problem}").unwrap();
    }
    shown
}

/// Returns what rules do, in the order of routes and rules.
fn actions(translation: &Translation) -> Vec<Action> {
    let ports = translation.ir.ports.iter();
    let listeners = ports.flat_map(|port| &port.listeners);
    let routes = listeners.flat_map(|listener| listener.routes.iter());
    let rules = routes.flat_map(|attached| attached.route.rules.iter());
    rules.map(|rule| rule.action.clone()).collect()
}

/// Returns which rules are served.
fn served(translation: &Translation) -> Vec<bool> {
    let actions = actions(translation).into_iter();
    let served = actions.map(|action| matches!(action, Action::Forward(_)));
    served.collect()
}

/// Returns which backends get requests.
fn reached(translation: &Translation) -> Vec<bool> {
    let actions = actions(translation).into_iter();
    let backends = actions.flat_map(|action| match action {
        Action::Forward(backends) => backends.into_vec(),
        Action::Invalid(_) => Vec::new(),
    });
    let reached = backends.map(|it| matches!(it.target, BackendTarget::Backend(_)));
    reached.collect()
}

/// Returns the names of the listeners that are served.
fn listeners(translation: &Translation) -> Vec<String> {
    let ports = translation.ir.ports.iter();
    let listeners = ports.flat_map(|port| &port.listeners);
    let mut names: Vec<_> = listeners.map(|it| it.key.name.to_string()).collect();
    names.sort();
    names
}

fn route(kind: &str, rules: &Value) -> Value {
    let spec = json!({"parentRefs": [{"name": "web"}], "rules": rules});
    object(GATEWAY_API, kind, "r", &json!({"spec": spec}))
}

fn listener(name: &str, port: u16, protocol: &str) -> Value {
    json!({"name": name, "port": port, "protocol": protocol})
}

fn everything() -> Value {
    let listeners = [
        listener("http", 80, "HTTP"),
        listener("tcp", 81, "TCP"),
        listener("udp", 82, "UDP"),
    ];
    gateway(&json!({"listeners": listeners}))
}

#[test]
fn rule_with_an_unknown_field_is_refused() {
    let rules = json!([
        {"matches": [{"path": {"type": "PathPrefix", "value": "/a"}}]},
        {"matches": [{"path": {"type": "PathPrefix", "value": "/b"}}]},
    ]);
    let field = "spec.rules[1].matches[0].later";
    let of_rule = without(route("HTTPRoute", &rules), field);
    let translation = run(&[everything(), of_rule], None);
    assert_eq!(served(&translation), [true, false]);
    let expected = format!(
        "HTTPRoute default/r: for Gateway web: PartiallyInvalid is True (UnsupportedValue): Dropped Rule: {field}: unknown \
         field; use a later version of Portcullis, or remove the field; requests that match this rule get 500\n"
    );
    assert_eq!(problems(&translation), expected);
    let of_timeouts = without(route("HTTPRoute", &rules), "spec.rules[1].timeouts.later");
    let translation = run(&[everything(), of_timeouts], None);
    assert_eq!(served(&translation), [true, true]);
    assert_eq!(problems(&translation), "");
}

#[test]
fn each_kind_of_route_is_refused() {
    for kind in ["HTTPRoute", "GRPCRoute", "TCPRoute", "UDPRoute"] {
        for field in ["spec.rules[0].later", "spec.parentRefs[0].later"] {
            let known = route(kind, &json!([{}]));
            let translation = run(&[everything(), known.clone()], None);
            assert_eq!(served(&translation), [true], "{kind}");
            let translation = run(&[everything(), without(known, field)], None);
            assert_eq!(served(&translation), [false], "{kind}");
            let problems = problems(&translation);
            let expected = format!("{field}: unknown field");
            assert!(
                problems.contains("Accepted is False (UnsupportedValue)"),
                "{problems}"
            );
            assert!(problems.contains(&expected), "{problems}");
        }
    }
    // The rule that a route without rules has.
    let spec = json!({"spec": {"parentRefs": [{"name": "web"}]}});
    let route = object(GATEWAY_API, "HTTPRoute", "r", &spec);
    let translation = run(&[everything(), without(route, "spec.later")], None);
    assert_eq!(served(&translation), [false]);
}

#[test]
fn listener_with_an_unknown_field_is_not_served() {
    let field = "spec.listeners[1].allowedRoutes.later";
    let translation = run(&[without(everything(), field)], None);
    assert_eq!(listeners(&translation), ["http", "udp"]);
    let problems = problems(&translation);
    let expected =
        format!("listener tcp: Accepted is False (UnsupportedValue): {field}: unknown field");
    assert!(problems.contains(&expected), "{problems}");
}

#[test]
fn no_listener_that_terminates_tls_is_served_without_what_clients_need() {
    let (certificate, key) = super::pair("a.example.com");
    let secret = super::secret("default", &certificate, &key);
    let tls = json!({"certificateRefs": [{"name": "cert"}]});
    let (mut https, mut terminated) =
        (listener("https", 443, "HTTPS"), listener("tls", 444, "TLS"));
    (https["tls"], terminated["tls"]) = (tls.clone(), tls);
    let mut passed = listener("passed", 445, "TLS");
    passed["tls"] = json!({"mode": "Passthrough"});
    let listeners = [listener("http", 80, "HTTP"), https, terminated, passed];
    let gateway = gateway(&json!({"listeners": listeners}));
    let all = run(&[gateway.clone(), secret.clone()], None);
    assert_eq!(self::listeners(&all), ["http", "https", "passed", "tls"]);
    let backend = without(gateway.clone(), "spec.tls.backend.later");
    assert_eq!(run(&[backend, secret.clone()], None).ir, all.ir);
    for field in [
        "spec.tls.frontend.default.validation.later",
        "spec.tls.later",
    ] {
        let translation = run(&[without(gateway.clone(), field), secret.clone()], None);
        assert_eq!(self::listeners(&translation), ["http", "passed"]);
        let problems = problems(&translation);
        let expected = format!(
            "listener https: Accepted is False (UnsupportedValue): Gateway default/web: {field}: unknown field"
        );
        assert!(problems.contains(&expected), "{problems}");
    }
}

#[test]
fn no_listener_set_attaches_without_the_conditions_of_its_gateway_or_its_own() {
    let gateway = gateway(&json!({"allowedListeners": {"namespaces": {"from": "All"}}}));
    let spec = json!({"parentRef": {"name": "web"}, "listeners": [listener("set", 8080, "HTTP")]});
    let set = object(GATEWAY_API, "ListenerSet", "s", &json!({"spec": spec}));
    let both = run(&[gateway.clone(), set.clone()], None);
    assert_eq!(listeners(&both), ["http", "set"]);
    let field = "spec.allowedListeners.namespaces.later";
    let translation = run(&[without(gateway.clone(), field), set.clone()], None);
    assert_eq!(listeners(&translation), ["http"]);
    let shown = problems(&translation);
    assert!(
        shown.contains(&format!("(NotAllowed): Gateway default/web: {field}")),
        "{shown}"
    );
    for field in ["spec.parentRef.later", "spec.listeners[0].later"] {
        let translation = run(&[gateway.clone(), without(set.clone(), field)], None);
        assert_eq!(listeners(&translation), ["http"], "{field}");
    }
}

#[test]
fn grant_with_an_unknown_field_permits_nothing() {
    let backend = json!({"name": "app", "namespace": "other", "port": 80});
    let route = route("HTTPRoute", &json!([{"backendRefs": [backend]}]));
    let from =
        json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": "default"});
    let spec = json!({"from": [from], "to": [{"group": "", "kind": "Service"}]});
    let mut grant = object(GATEWAY_API, "ReferenceGrant", "g", &json!({"spec": spec}));
    let ports = json!({"spec": {"ports": [{"port": 80}]}});
    let mut service = object("v1", "Service", "app", &ports);
    for other in [&mut grant, &mut service] {
        other["metadata"]["namespace"] = json!("other");
    }
    let objects = [everything(), route, service, grant];
    assert_eq!(problems(&run(&objects, None)), "");
    let [everything, route, service, grant] = objects;
    let grant = without(grant, "spec.to[0].later");
    let problems = problems(&run(&[everything, route, service, grant], None));
    assert!(problems.contains("RefNotPermitted"), "{problems}");
}

#[test]
fn rules_with_a_filter_of_a_later_version_are_refused() {
    let reference = json!({"group": "portcullis.dev", "kind": "RouteFilter", "name": "f"});
    let filters = json!([{"type": "ExtensionRef", "extensionRef": reference}]);
    let route = route("HTTPRoute", &json!([{"filters": filters}, {}]));
    let spec = json!({"spec": {"directResponse": {"status": 200}}});
    let filter = object("portcullis.dev/v1alpha1", "RouteFilter", "f", &spec);
    let translation = run(&[everything(), route.clone(), filter.clone()], None);
    assert_eq!(served(&translation), [true, true]);
    let filter = without(filter, "spec.directResponse.later");
    let translation = run(&[everything(), route, filter], None);
    assert_eq!(served(&translation), [false, true]);
    let problems = problems(&translation);
    let expected = "RouteFilter f: spec.directResponse.later: unknown field";
    assert!(problems.contains(expected), "{problems}");
}

#[test]
fn nothing_is_sent_to_an_external_backend_of_a_later_version() {
    let (group, kind) = ("gateway.networking.x-k8s.io", "XBackend");
    let backend = json!({"group": group, "kind": kind, "name": "b"});
    let route = route("HTTPRoute", &json!([{"backendRefs": [backend]}]));
    let spec = json!({
        "type": "ExternalHostname", "port": {"port": 80},
        "externalHostname": {"hostname": "api.example.com"},
    });
    let backend = object(
        &format!("{group}/v1alpha1"),
        kind,
        "b",
        &json!({"spec": spec}),
    );
    let translation = run(&[everything(), route.clone(), backend.clone()], None);
    assert_eq!(reached(&translation), [true]);
    let backend = without(backend, "spec.tls.validation.later");
    let translation = run(&[everything(), route, backend], None);
    assert_eq!(reached(&translation), [false]);
    let problems = problems(&translation);
    let expected = "Accepted is False (Invalid): spec.tls.validation.later: unknown field";
    assert!(problems.contains(expected), "{problems}");
}
