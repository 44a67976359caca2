//! Objects with fields of a later version, as with CRDs that are newer than the program: what such a field may narrow or
//! protect is refused and reported, and everything else is served.

use crate::api::Api;
use crate::harness::ports::free_ports;
use crate::plane::{DataPlane, request};
use crate::{eventually, route, route_with};

/// Waits until the log has one line on an object, and the field with what follows from it.
fn wait_for_report(plane: &DataPlane, object: &str, field: &str, effect: &str) {
    let line =
        format!("{object}: {field}: unknown field; {effect}; use a later version of Portcullis");
    eventually(|| plane.log(&line), |lines| lines.len() == 1);
}

/// Returns a rule for a path, which redirects to `target`.
fn rule(path: &str, target: &str, more: &str) -> String {
    format!(
        "{{matches: [{{path: {{type: PathPrefix, value: {path}}}{more}}}], \
         filters: [{{type: RequestRedirect, requestRedirect: {{hostname: {target}}}}}]}}"
    )
}

/// Returns the status of a response.
fn status(plane: &DataPlane, path: &str, host: &str) -> Option<String> {
    let head = request(plane.port, path, host)?;
    head.split(' ').nth(1).map(str::to_owned)
}

/// Waits for a status that is not 404, as a host without a route has.
fn wait_for(plane: &DataPlane, path: &str, host: &str, expected: &str) {
    eventually(
        || status(plane, path, host),
        |status| match status.as_deref() {
            None | Some("404") => false,
            other => other == Some(expected) || panic!("{host}{path}: {other:?}"),
        },
    );
}

#[test]
fn rule_with_a_field_of_a_later_version_refuses_its_requests_alone() {
    let api = Api::start();
    let with = |host: &str, more: &str| {
        let rules = [rule("/admin", "admin", more), rule("/", "rest", "")];
        route_with(host, &rules.join(", "))
    };
    api.apply(&with("listed", ", later: {}"));
    let plane = DataPlane::start(&api);
    wait_for(&plane, "/admin", "listed.example", "500");
    api.apply(&with("seen", ", cookies: [{name: a}]"));
    wait_for(&plane, "/admin", "seen.example", "500");
    for (host, field) in [("listed", "later"), ("seen", "cookies")] {
        wait_for(&plane, "/other", &format!("{host}.example"), "302");
        let field = format!("spec.rules[0].matches[0].{field}");
        let effect = "requests of the rule are refused";
        wait_for_report(&plane, &format!("HTTPRoute default/{host}"), &field, effect);
    }
    // The version before, which is not narrowed, does not stay in service.
    api.apply(&with("seen", ""));
    eventually(
        || status(&plane, "/admin", "seen.example"),
        |status| status.as_deref() == Some("302"),
    );
    api.apply(&with("seen", ", cookies: [{name: b}]"));
    eventually(
        || status(&plane, "/admin", "seen.example"),
        |status| status.as_deref() == Some("500"),
    );
}

#[test]
fn field_that_narrows_nothing_is_left_out_and_reported() {
    let api = Api::start();
    let rule = rule("/", "rest", "").replace("{matches", "{timeouts: {later: 1s}, matches");
    api.apply(&route_with("a", &rule));
    let plane = DataPlane::start(&api);
    wait_for(&plane, "/", "a.example", "302");
    let effect = "the rest of it has an effect";
    wait_for_report(
        &plane,
        "HTTPRoute default/a",
        "spec.rules[0].timeouts.later",
        effect,
    );
}

#[test]
fn listener_with_a_field_of_a_later_version_is_not_served() {
    let (api, ports) = (Api::start(), free_ports::<2>());
    let gateway = |later: &str| {
        let [one, two] = ports;
        format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: later, namespace: default}}
spec:
  gatewayClassName: portcullis
  listeners:
  - {{name: one, port: {one}, protocol: HTTP}}
  - {{name: two, port: {two}, protocol: HTTP, allowedRoutes: {{namespaces: {{from: Same{later}}}}}}}
"
        )
    };
    api.apply(&gateway(", later: a"));
    api.apply(&route("a", "one").replace("name: edge", "name: later"));
    let plane = DataPlane::start(&api);
    let answers = |port: u16| request(port, "/", "a.example").is_some();
    eventually(|| answers(ports[0]), |is_served| *is_served);
    eventually(|| plane.is_ready(), |ready| *ready);
    assert!(!answers(ports[1]));
    let field = "spec.listeners[1].allowedRoutes.namespaces.later";
    let effect = "the listener is not served";
    wait_for_report(&plane, "Gateway default/later", field, effect);
    api.apply(&gateway(""));
    eventually(|| answers(ports[1]), |is_served| *is_served);
}

#[test]
fn grant_with_a_field_of_a_later_version_permits_nothing() {
    let api = Api::start();
    let grant = |later: &str| {
        format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {{name: grant, namespace: other}}
spec:
  from: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: default}}]
  to: [{{group: '', kind: Service{later}}}]
"
        )
    };
    api.apply(&grant(", port: 80"));
    api.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: app, namespace: other}, spec: {ports: [{port: 80}]}}",
    );
    api.apply(&route_with(
        "a",
        "{backendRefs: [{name: app, namespace: other, port: 80}]}",
    ));
    let plane = DataPlane::start(&api);
    wait_for(&plane, "/", "a.example", "500");
    wait_for_report(
        &plane,
        "ReferenceGrant other/grant",
        "spec.to[0].port",
        "it permits nothing",
    );
    // The Service has no endpoint.
    api.apply(&grant(""));
    eventually(
        || status(&plane, "/", "a.example"),
        |status| status.as_deref() == Some("503"),
    );
}

#[test]
fn filter_with_a_field_of_a_later_version_refuses_the_requests_of_its_rules() {
    let api = Api::start();
    let filter = |later: &str| {
        format!(
            "
apiVersion: portcullis.dev/v1alpha1
kind: RouteFilter
metadata: {{name: filter, namespace: default}}
spec: {{directResponse: {{status: 204{later}}}}}
"
        )
    };
    api.apply(&filter(", onlyFor: [192.0.2.1]"));
    let reference = "{group: portcullis.dev, kind: RouteFilter, name: filter}";
    api.apply(&route_with(
        "a",
        &format!("{{filters: [{{type: ExtensionRef, extensionRef: {reference}}}]}}"),
    ));
    api.apply(&route("other", "one"));
    let plane = DataPlane::start(&api);
    wait_for(&plane, "/", "a.example", "500");
    wait_for(&plane, "/", "other.example", "302");
    let field = "spec.directResponse.onlyFor";
    let effect = "requests of rules with it are refused";
    wait_for_report(&plane, "RouteFilter default/filter", field, effect);
    api.apply(&filter(""));
    eventually(
        || status(&plane, "/", "a.example"),
        |status| status.as_deref() == Some("204"),
    );
}
