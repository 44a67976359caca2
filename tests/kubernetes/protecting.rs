//! Objects that protect requests, while what they refer to is not fetched yet: the API server holds back the response, or
//! does not know their kind. No request passes that they would not let pass.

use crate::api::{Api, Fault};
use crate::harness::origin::Origin;
use crate::harness::ports::free_ports;
use crate::plane::{DataPlane, request};
use crate::{eventually, route, route_with};

/// Returns an AccessPolicy on the route `host`.
fn access(name: &str, host: &str, section: &str) -> String {
    format!(
        "
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {{name: {name}, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: {host}}}]
  {section}
"
    )
}

/// Returns an AccessPolicy on the route `host` with the passwords of a Secret.
fn passwords(name: &str, host: &str, secret: &str) -> String {
    access(
        name,
        host,
        &format!("basic: {{secretRef: {{name: {secret}}}}}"),
    )
}

/// Returns a Secret with the passwords of a user.
fn users(name: &str) -> String {
    // The SHA-1 of "a".
    format!(
        "{{apiVersion: v1, kind: Secret, metadata: {{name: {name}, namespace: default}}, type: Opaque, \
         stringData: {{auth: 'a:{{SHA}}hvfkN/qlp/zhXR3cuerq6jd2Z7g='}}}}"
    )
}

/// Starts a data plane whose API server has Secrets that nothing refers to.
fn start() -> (Api, DataPlane) {
    let api = Api::start();
    for name in ["one", "two"] {
        api.apply(&users(name));
    }
    let plane = DataPlane::start(&api);
    plane.wait_for("nothing.example", "404");
    api.hold("Secret", true);
    api.hold("ConfigMap", true);
    (api, plane)
}

/// Waits until a Secret or ConfigMap is requested, so that the object that refers to it has been read.
fn wait_until_requested(api: &Api, name: &str) {
    api.wait_for_requests(1, "GET", &format!("/{name}"));
}

/// Returns the first response for a host that says more than that there is no route.
fn first_answer(plane: &DataPlane, host: &str) -> String {
    let is_served = |answer: &Option<String>| answer.as_deref().is_some_and(|it| it != "404");
    let answer = std::cell::RefCell::new(None);
    eventually(
        || {
            let seen = plane.answer(host);
            answer.borrow_mut().clone_from(&seen);
            seen
        },
        is_served,
    );
    answer.into_inner().unwrap()
}

#[test]
fn new_access_policy_refuses_requests_until_its_secret_is_fetched() {
    let (api, plane) = start();
    api.apply(&passwords("policy", "a", "one"));
    wait_until_requested(&api, "one");
    api.apply(&route("a", "one"));
    assert_eq!(first_answer(&plane, "a.example"), "500");
    api.hold("Secret", false);
    plane.wait_for("a.example", "401");
}

#[test]
fn new_access_policy_refuses_requests_while_its_secret_does_not_exist() {
    let (api, plane) = start();
    api.apply(&passwords("policy", "a", "missing"));
    wait_until_requested(&api, "missing");
    api.apply(&route("a", "one"));
    assert_eq!(first_answer(&plane, "a.example"), "500");
    api.hold("Secret", false);
    api.apply(&route("marker", "one"));
    plane.wait_for("marker.example", "https://one/");
    assert_eq!(plane.answer("a.example").as_deref(), Some("500"));
    api.apply(&users("missing"));
    plane.wait_for("a.example", "401");
}

#[test]
fn new_credentials_of_a_policy_take_effect_before_their_secret_is_fetched() {
    let (api, plane) = start();
    api.apply(&access("policy", "a", "ipRules: {deny: [192.0.2.1]}"));
    api.apply(&route("a", "one"));
    plane.wait_for("a.example", "https://one/");
    api.apply(&passwords("policy", "a", "one"));
    wait_until_requested(&api, "one");
    api.apply(&route("marker", "one"));
    plane.wait_for("marker.example", "https://one/");
    assert_eq!(plane.answer("a.example").as_deref(), Some("500"));
}

#[test]
fn replaced_policy_protects_until_the_secret_of_the_new_one_is_fetched() {
    let (api, plane) = start();
    api.hold("Secret", false);
    api.apply(&passwords("old", "a", "one"));
    api.apply(&route("a", "one"));
    plane.wait_for("a.example", "401");
    api.hold("Secret", true);
    api.apply(&passwords("new", "a", "two"));
    wait_until_requested(&api, "two");
    api.delete("AccessPolicy", "default", "old");
    eventually(
        || plane.answer("a.example"),
        |answer| match answer.as_deref() {
            Some("401") => false,
            other => other == Some("500") || panic!("{other:?}"),
        },
    );
    api.hold("Secret", false);
    plane.wait_for("a.example", "401");
}

#[test]
fn policies_stay_in_force_while_the_api_server_does_not_serve_their_kind() {
    let (api, plane) = start();
    api.hold("Secret", false);
    api.apply(&passwords("policy", "a", "one"));
    api.apply(&route("a", "one"));
    plane.wait_for("a.example", "401");
    api.set_served("AccessPolicy", false);
    // Ends the watch.
    api.fail("AccessPolicy", None);
    let is_logged = || plane.log("no longer serves AccessPolicy").len();
    eventually(is_logged, |lines| *lines == 1);
    api.apply(&route("marker", "one"));
    plane.wait_for("marker.example", "https://one/");
    assert_eq!(plane.answer("a.example").as_deref(), Some("401"));
    // What was deleted meanwhile is removed as soon as the kind is served.
    api.delete("AccessPolicy", "default", "policy");
    api.set_served("AccessPolicy", true);
    plane.wait_for("a.example", "https://one/");
}

/// Returns a BackendTLSPolicy of the Service `a` with the authorities of a ConfigMap.
fn tls(name: &str, map: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {{name: {name}, namespace: default}}
spec:
  targetRefs: [{{group: '', kind: Service, name: a}}]
  validation: {{hostname: a.example, caCertificateRefs: [{{group: '', kind: ConfigMap, name: {map}}}]}}
"
    )
}

/// Applies a Service of an origin and its route.
fn serve(api: &Api, origin: &Origin) {
    let port = origin.address.port();
    api.apply(&format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: a, namespace: default}}
spec: {{ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: a-1, namespace: default, labels: {{kubernetes.io/service-name: a}}}}
addressType: IPv4
endpoints: [{{addresses: [127.0.0.1]}}]
ports: [{{port: {port}}}]
"
    ));
    api.apply(&route_with("a", "{backendRefs: [{name: a, port: 80}]}"));
}

#[test]
fn nothing_is_sent_in_plain_text_before_the_authorities_of_a_policy_are_fetched() {
    let (api, plane) = start();
    let origin = Origin::hello();
    for (name, map) in [("old", "first"), ("new", "second")] {
        api.apply(&tls(name, map));
        wait_until_requested(&api, map);
        serve(&api, &origin);
        eventually(
            || plane.answer("a.example"),
            |answer| answer.as_deref() == Some("500"),
        );
        if name == "new" {
            api.delete("BackendTLSPolicy", "default", "old");
            api.apply(&route("marker", "one"));
            plane.wait_for("marker.example", "https://one/");
            assert_eq!(plane.answer("a.example").as_deref(), Some("500"));
        }
    }
    assert!(origin.requests().is_empty());
}

/// The events of the policy arrive after those of the route, although the policy was written first.
#[test]
fn new_route_is_not_served_before_a_policy_that_is_older() {
    let (api, plane) = start();
    api.apply(&route("marker", "one"));
    plane.wait_for("marker.example", "https://one/");
    api.delay("AccessPolicy", true);
    api.apply(&access("policy", "a", "ipRules: {allow: [192.0.2.1]}"));
    api.apply(&route("a", "one"));
    api.apply(&route("marker", "two"));
    plane.wait_for("marker.example", "https://two/");
    assert_eq!(plane.answer("a.example").as_deref(), Some("404"));
    let is_late = || plane.log("HTTPRoute default/a: is new: ").len();
    eventually(is_late, |lines| *lines > 0);
    assert_eq!(plane.answer("a.example").as_deref(), Some("404"));
    api.delay("AccessPolicy", false);
    eventually(
        || plane.answer("a.example"),
        |answer| match answer.as_deref() {
            Some("404") => false,
            other => other == Some("403") || panic!("{other:?}"),
        },
    );
}

/// The API server permits lists of the kind, and no watch: nothing shows the policy.
#[test]
fn route_that_waits_names_the_right_that_is_missing() {
    let (api, plane) = start();
    api.apply(&route("marker", "one"));
    plane.wait_for("marker.example", "https://one/");
    api.fail_watches("AccessPolicy", Some(Fault::Status(403)));
    api.apply(&access("policy", "a", "ipRules: {allow: [192.0.2.1]}"));
    api.apply(&route("a", "one"));
    let names_right = || {
        let lines = plane.log("HTTPRoute default/a: is new: ");
        let right = "AccessPolicy (the API server does not permit the verb watch: status 403 (403 Forbidden))";
        lines.iter().any(|line| line.contains(right))
    };
    eventually(names_right, |names| *names);
    let waiting = plane.metric("portcullis_waiting_objects");
    assert_eq!(waiting.as_deref(), Some("1"));
    assert_eq!(plane.answer("a.example").as_deref(), Some("404"));
    api.fail_watches("AccessPolicy", None);
    plane.wait_for("a.example", "403");
}

/// Nothing says whether policies of another kind were written before that take the place of those that are deleted.
#[test]
fn namespace_with_too_many_deleted_policies_is_refused() {
    let (api, plane) = start();
    api.apply(&route("a", "one"));
    plane.wait_for("a.example", "https://one/");
    api.fail("BackendTLSPolicy", Some(Fault::Status(403)));
    for number in 0..=1024 {
        let name = format!("policy{number}");
        api.apply(&access(&name, "other", "ipRules: {deny: [192.0.2.1]}"));
        api.delete("AccessPolicy", "default", &name);
    }
    plane.wait_for("a.example", "500");
    let problem = "Namespace default: too many policies of the namespace were deleted";
    eventually(|| plane.log(problem).len(), |lines| *lines > 0);
    api.fail("BackendTLSPolicy", None);
    plane.wait_for("a.example", "https://one/");
}

/// The same before the first configuration is complete.
#[test]
fn first_configuration_has_the_policies_that_are_older_than_its_routes() {
    let api = Api::start();
    api.hang("HTTPRoute", Some(0));
    let plane = DataPlane::start(&api);
    api.wait_until(|| {
        let mut requests = api.requests("accesspolicies").into_iter();
        requests.find(|request| request.target.contains("watch=true"))
    });
    api.delay("AccessPolicy", true);
    api.apply(&access("policy", "a", "ipRules: {allow: [192.0.2.1]}"));
    api.apply(&route("a", "one"));
    api.hang("HTTPRoute", None);
    api.wait_for_requests(2, "GET", "httproutes?");
    assert!(!plane.is_ready());
    assert_eq!(plane.answer("a.example"), None);
    api.delay("AccessPolicy", false);
    plane.wait_for("a.example", "403");
}

/// The API server has a later version of the kind, whose section may be all that protects the requests.
#[test]
fn policy_with_a_section_of_a_later_version_refuses_requests_and_is_reported() {
    let api = Api::start();
    api.apply(&access("listed", "a", "later: {}"));
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    assert_eq!(first_answer(&plane, "a.example"), "500");
    api.apply(&access("seen", "b", "ipRules: {later: [192.0.2.1]}"));
    api.apply(&route("b", "one"));
    assert_eq!(first_answer(&plane, "b.example"), "500");
    for (name, field) in [("listed", "spec.later"), ("seen", "spec.ipRules.later")] {
        let problem =
            format!("AccessPolicy default/{name}: cannot be read: {field}: unknown field");
        assert_eq!(plane.log(&problem).len(), 1, "{problem}");
    }
    api.apply(&access("seen", "b", "ipRules: {allow: [127.0.0.1]}"));
    plane.wait_for("b.example", "https://one/");
}

/// Polls a port until the answer for a host is `last`. Any other answer than 404 fails.
fn wait_for_first(port: u16, host: &str, last: &str) {
    eventually(
        || request(port, "/", host).and_then(|head| head.split(' ').nth(1).map(str::to_owned)),
        |status| match status.as_deref() {
            None | Some("404") => false,
            other => other == Some(last) || panic!("{other:?}"),
        },
    );
}

/// The label opens a listener to a route that is known, and no object of the kinds that policies target is new.
#[test]
fn label_of_a_namespace_serves_no_route_before_a_policy_that_is_older() {
    let (api, [port]) = (Api::start(), free_ports());
    let in_team = |object: &str| object.replace("namespace: default", "namespace: team");
    api.apply("{apiVersion: v1, kind: Namespace, metadata: {name: team}}");
    api.apply(&format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: open, namespace: default}}
spec:
  gatewayClassName: portcullis
  listeners:
  - name: http
    port: {port}
    protocol: HTTP
    allowedRoutes: {{namespaces: {{from: Selector, selector: {{matchLabels: {{open: 'true'}}}}}}}}
"
    ));
    let parent = "parentRefs: [{name: open, namespace: default}]";
    api.apply(&in_team(&route("a", "one")).replace("parentRefs: [{name: edge}]", parent));
    let plane = DataPlane::start(&api);
    plane.wait_for("nothing.example", "404");
    api.delay("AccessPolicy", true);
    let deny = "ipRules: {allow: [192.0.2.1]}";
    api.apply(&in_team(&access("policy", "a", deny)));
    api.apply("{apiVersion: v1, kind: Namespace, metadata: {name: team, labels: {open: 'true'}}}");
    eventually(
        || {
            let head = request(port, "/", "a.example").unwrap();
            assert!(head.starts_with("HTTP/1.1 404"), "{head}");
            plane.log("Namespace team: has changed").len()
        },
        |lines| *lines > 0,
    );
    api.delay("AccessPolicy", false);
    wait_for_first(port, "a.example", "403");
}

/// A Service that had no endpoints gets some after a policy was written, whose event arrives last.
#[test]
fn first_endpoints_get_no_request_before_a_policy_that_is_older() {
    for kind in ["AccessPolicy", "BackendTLSPolicy"] {
        let (api, origin) = (Api::start(), Origin::hello());
        api.apply("{apiVersion: v1, kind: Service, metadata: {name: a, namespace: default}, spec: {ports: [{port: 80}]}}");
        api.apply(&route_with("a", "{backendRefs: [{name: a, port: 80}]}"));
        let plane = DataPlane::start(&api);
        plane.wait_for("a.example", "503");
        api.delay(kind, true);
        api.apply(&match kind {
            "AccessPolicy" => access("policy", "a", "ipRules: {allow: [192.0.2.1]}"),
            _ => tls("policy", "missing"),
        });
        serve(&api, &origin);
        eventually(
            || {
                assert_eq!(plane.answer("a.example").as_deref(), Some("503"), "{kind}");
                plane.log("EndpointSlice default/a-1: is new").len()
            },
            |lines| *lines > 0,
        );
        let waiting = || plane.metric("portcullis_waiting_objects");
        eventually(waiting, |count| count.as_deref() == Some("1"));
        api.delay(kind, false);
        let refused = match kind {
            "AccessPolicy" => "403",
            _ => "500",
        };
        plane.wait_for("a.example", refused);
        eventually(waiting, |count| count.as_deref() == Some("0"));
        assert!(origin.requests().is_empty(), "{kind}");
    }
}

/// The watch of the kind has found that the API server does not serve it, and asks again only now and then.
#[test]
fn new_route_is_not_served_before_a_policy_whose_kind_is_new() {
    let api = Api::start();
    api.set_served("AccessPolicy", false);
    let plane = DataPlane::start(&api);
    for round in 0..3 {
        let marker = format!("marker{round}");
        api.apply(&route(&marker, "one"));
        plane.wait_for(&format!("{marker}.example"), "https://one/");
    }
    api.set_served("AccessPolicy", true);
    api.apply(&access("policy", "a", "ipRules: {allow: [192.0.2.1]}"));
    api.apply(&route("a", "one"));
    wait_for_first(plane.port, "a.example", "403");
}
