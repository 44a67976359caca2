//! Admission: every limit of the released API at its edge and one beyond it, and the type that objects are decoded to.

use serde_json::{Value, json};

use super::{Kind, Object, ObjectRef, admit};
use crate::finding::Severity;

/// Returns a valid HTTPRoute with at least one value in every part.
fn route() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "r"},
        "spec": {
            "parentRefs": [{"name": "g"}],
            "hostnames": ["a.com"],
            "rules": [{
                "matches": [{
                    "path": {"type": "PathPrefix", "value": "/"},
                    "headers": [{"name": "a", "value": "b"}],
                    "queryParams": [{"name": "a", "value": "b"}],
                }],
                "filters": [{
                    "type": "RequestHeaderModifier",
                    "requestHeaderModifier": {"set": [], "add": [], "remove": []},
                }],
                "backendRefs": [{"name": "s", "port": 80, "weight": 1}],
                "timeouts": {"request": "1s"},
            }],
        },
    })
}

fn gateway() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": "g"},
        "spec": {
            "gatewayClassName": "portcullis",
            "addresses": [],
            "listeners": [{
                "name": "a",
                "port": 443,
                "protocol": "HTTPS",
                "hostname": "a.com",
                "tls": {"certificateRefs": [{"name": "c"}]},
                "allowedRoutes": {"kinds": [{"kind": "HTTPRoute"}]},
            }],
        },
    })
}

fn grant() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "ReferenceGrant",
        "metadata": {"name": "g"},
        "spec": {
            "from": [{"group": "", "kind": "K", "namespace": "n"}],
            "to": [{"group": "", "kind": "Service"}],
        },
    })
}

fn slice() -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "s"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [{"port": 80}],
    })
}

/// Returns field and rule of every error of an object with this value at a JSON pointer.
fn errors(mut object: Value, at: &str, value: Value) -> Vec<(String, String)> {
    *object.pointer_mut(at).expect("a place") = value;
    admit(object)
        .findings
        .into_iter()
        .filter(|finding| finding.severity == Severity::Error)
        .map(|finding| (finding.field, finding.rule))
        .collect()
}

/// Converts `/spec/rules/0/name` into `spec.rules[0].name`.
fn field(pointer: &str) -> String {
    let mut field = String::new();
    for part in pointer.split('/').skip(1) {
        match part.parse::<usize>() {
            Ok(index) => field += &format!("[{index}]"),
            Err(_) if field.is_empty() => field += part,
            Err(_) => field += &format!(".{part}"),
        }
    }
    field
}

/// Checks that the value at the limit is valid, and that the one beyond it violates this rule.
fn edge(object: &dyn Fn() -> Value, at: &str, within: Value, beyond: Value, rule: &str) {
    assert_eq!(errors(object(), at, within), [], "{at} within {rule}");
    let found = errors(object(), at, beyond);
    let expected = (field(at), rule.to_owned());
    assert!(found.contains(&expected), "{at} beyond {rule}: {found:?}");
}

/// Returns the item of a list at this index.
type Item<'a> = &'a dyn Fn(usize) -> Value;

/// Checks that this number of items is valid, and that one more is not.
fn at_most(object: &dyn Fn() -> Value, rows: &[(&str, usize, Item<'_>)]) {
    for (at, most, item) in rows {
        let list = |length: usize| Value::from((0..length).map(item).collect::<Vec<_>>());
        let rule = format!("maxItems: {most}");
        edge(object, at, list(*most), list(most + 1), &rule);
    }
}

#[test]
fn limits_lists_of_routes() {
    let header = |i: usize| json!({"name": format!("h{i}"), "value": "v"});
    let path = |i: usize| json!({"path": {"value": format!("/{i}")}});
    let backend = |i: usize| json!({"name": format!("s{i}"), "port": 80});
    let extension = |i: usize| {
        let reference = json!({"group": "a.io", "kind": "K", "name": format!("n{i}")});
        json!({"type": "ExtensionRef", "extensionRef": reference})
    };
    let modifier = "/spec/rules/0/filters/0/requestHeaderModifier";
    at_most(
        &route,
        &[
            (
                "/spec/parentRefs",
                32,
                &|i| json!({"name": format!("g{i}")}),
            ),
            ("/spec/hostnames", 16, &|i| json!(format!("h{i}.com"))),
            ("/spec/rules", 16, &|_| json!({})),
            ("/spec/rules/0/matches", 64, &path),
            ("/spec/rules/0/filters", 16, &extension),
            ("/spec/rules/0/backendRefs", 16, &backend),
            ("/spec/rules/0/matches/0/headers", 16, &header),
            ("/spec/rules/0/matches/0/queryParams", 16, &header),
            (&format!("{modifier}/set"), 16, &header),
            (&format!("{modifier}/add"), 16, &header),
            (&format!("{modifier}/remove"), 16, &|i| {
                json!(format!("h{i}"))
            }),
        ],
    );
    let no_rules = errors(route(), "/spec/rules", json!([]));
    assert_eq!(
        no_rules,
        [("spec.rules".to_owned(), "minItems: 1".to_owned())]
    );
    let four_rules = |matches: usize| {
        let rule = json!({"matches": vec![path(0); matches]});
        errors(route(), "/spec/rules", json!(vec![rule; 4]))
    };
    assert_eq!(four_rules(32), []);
    assert_eq!(four_rules(33)[0].0, "spec.rules");
}

#[test]
fn limits_lists_of_other_kinds() {
    let listener =
        |i: usize| json!({"name": format!("l{i}"), "port": 1000 + i, "protocol": "HTTP"});
    let certificate = |i: usize| json!({"name": format!("n{i}")});
    let kind = |i: usize| json!({"kind": format!("K{i}")});
    at_most(
        &gateway,
        &[
            ("/spec/listeners", 64, &listener),
            (
                "/spec/addresses",
                16,
                &|i| json!({"value": format!("10.0.0.{i}")}),
            ),
            ("/spec/listeners/0/tls/certificateRefs", 64, &certificate),
            ("/spec/listeners/0/allowedRoutes/kinds", 8, &kind),
        ],
    );
    let from = |i: usize| json!({"group": "", "kind": format!("K{i}"), "namespace": "n"});
    let to = |i: usize| json!({"group": "", "kind": format!("K{i}")});
    at_most(&grant, &[("/spec/from", 16, &from), ("/spec/to", 16, &to)]);
    let port = |i: usize| json!({"name": format!("p{i}"), "port": 80});
    at_most(
        &slice,
        &[
            ("/endpoints", 1000, &|_| json!({"addresses": ["10.0.0.1"]})),
            ("/endpoints/0/addresses", 100, &|i| {
                json!(format!("10.0.0.{i}"))
            }),
            ("/ports", 100, &port),
        ],
    );
}

#[test]
fn limits_strings() {
    let name = |length: usize| json!("a".repeat(length));
    let path = |length: usize| json!(format!("/{}", "a".repeat(length - 1)));
    let host = |length: usize| {
        let end = if length.is_multiple_of(2) { "ab" } else { "a" };
        json!("a.".repeat((length - end.len()) / 2) + end)
    };
    let rows: [(&dyn Fn() -> Value, &str, usize, Item<'_>); 9] = [
        (&route, "/metadata/name", 253, &name),
        (&route, "/spec/hostnames/0", 253, &host),
        (&route, "/spec/rules/0/matches/0/path/value", 1024, &path),
        (&route, "/spec/rules/0/matches/0/headers/0/name", 256, &name),
        (
            &route,
            "/spec/rules/0/matches/0/headers/0/value",
            4096,
            &name,
        ),
        (
            &route,
            "/spec/rules/0/matches/0/queryParams/0/value",
            1024,
            &name,
        ),
        (&gateway, "/spec/gatewayClassName", 253, &name),
        (&gateway, "/spec/listeners/0/name", 253, &name),
        (&gateway, "/spec/listeners/0/hostname", 253, &host),
    ];
    for (object, at, most, text) in rows {
        edge(
            object,
            at,
            text(most),
            text(most + 1),
            &format!("maxLength: {most}"),
        );
    }
    let annotation =
        |length: usize| json!({"name": "r", "annotations": {"a": "x".repeat(length - 1)}});
    assert_eq!(errors(route(), "/metadata", annotation(256 << 10)), []);
    let found = errors(route(), "/metadata", annotation((256 << 10) + 1));
    assert_eq!(found[0].0, "metadata.annotations");
}

#[test]
fn limits_numbers() {
    let rows: [(&dyn Fn() -> Value, &str, i64, i64); 4] = [
        (&route, "/spec/rules/0/backendRefs/0/port", 1, 65_535),
        (&route, "/spec/rules/0/backendRefs/0/weight", 0, 1_000_000),
        (&gateway, "/spec/listeners/0/port", 1, 65_535),
        (&slice, "/ports/0/port", 1, 65_535),
    ];
    for (object, at, least, most) in rows {
        edge(
            object,
            at,
            json!(least),
            json!(least - 1),
            &format!("minimum: {least}"),
        );
        edge(
            object,
            at,
            json!(most),
            json!(most + 1),
            &format!("maximum: {most}"),
        );
        for (value, rule) in [
            (json!("80"), "type: integer"),
            (json!(1.5), "type: integer"),
        ] {
            edge(object, at, json!(most), value, rule);
        }
        assert!(!errors(object(), at, json!(u64::MAX)).is_empty(), "{at}");
    }
}

#[test]
fn accepts_durations_of_gep_2257() {
    let at = "/spec/rules/0/timeouts/request";
    for good in ["0s", "1ms", "1h30m", "99999h", "1h2m3s4ms", "10s10s"] {
        assert_eq!(errors(route(), at, json!(good)), [], "{good}");
    }
    for bad in [
        "",
        "0",
        "1",
        "1.5s",
        "-1s",
        "+1s",
        "1d",
        "1us",
        "100000s",
        "1s1s1s1s1s",
        " 1s",
        "1s\n",
        "1 s",
        "1S",
    ] {
        let found = errors(route(), at, json!(bad));
        let rule = "pattern: ^([0-9]{1,5}(h|m|s|ms)){1,4}$".to_owned();
        assert_eq!(found, [(field(at), rule)], "{bad:?}");
    }
}

#[test]
fn matches_kinds_and_versions_exactly() {
    let taken_for = |version: &str, kind: &str| {
        let admission =
            admit(json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}}));
        assert!(admission.object.is_none());
        let finding = admission.findings.first().expect("a finding").clone();
        (finding.severity, finding.message)
    };
    let group = "gateway.networking.k8s.io";
    for (version, kind, shown) in [
        (
            "v1",
            "HTTPRoute",
            "gateway.networking.k8s.io/v1, kind: HTTPRoute",
        ),
        (
            group,
            "HTTPRoute",
            "gateway.networking.k8s.io/v1, kind: HTTPRoute",
        ),
        (
            "gateway.networking.k8s.io/v1",
            "HttpRoute",
            "kind: HTTPRoute",
        ),
        ("gateway.networking.k8s.io/v1", "Route", "there is no Route"),
        (
            "gateway.networking.k8s.io/v2",
            "Gateway",
            "apiVersion: gateway.networking.k8s.io/v1",
        ),
        ("v2", "Service", "apiVersion: v1, kind: Service"),
        (
            "discovery.k8s.io/v1beta1",
            "EndpointSlice",
            "discovery.k8s.io/v1, kind",
        ),
        ("v1", "Pod\n", "must be letters"),
        ("v1", &"a".repeat(1000), "must be letters"),
        ("v1", "List", "must be a list of objects"),
    ] {
        let (severity, message) = taken_for(version, kind);
        assert_eq!(severity, Severity::Error, "{version} {kind}");
        assert!(message.contains(shown), "{version} {kind}: {message}");
    }
    for (version, kind) in [
        ("v1", "Node"),
        ("serving.knative.dev/v1", "Service"),
        ("networking.istio.io/v1", "Gateway"),
        ("gateway.networking.x-k8s.io/v1alpha1", "XMesh"),
    ] {
        assert_eq!(
            taken_for(version, kind).0,
            Severity::Warning,
            "{version} {kind}"
        );
    }
}

#[test]
fn refuses_namespace_that_is_not_a_string() {
    for namespace in [json!(3), json!(true), json!(["a"])] {
        let metadata = json!({"name": "r", "namespace": namespace});
        let found = errors(route(), "/metadata", metadata);
        let expected = ("metadata.namespace".to_owned(), "type: string".to_owned());
        assert_eq!(found, [expected], "{namespace}");
    }
    let metadata = json!({"name": "r", "namespace": null});
    assert_eq!(errors(route(), "/metadata", metadata), []);
}

#[test]
fn reads_status_of_pod_and_no_other_fields() {
    let pod = |annotation: &str, phase: &str, heartbeat: &str| {
        let condition = |kind| json!({"type": kind, "status": "True", "lastProbeTime": heartbeat});
        let admission = admit(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"release": "v1"}, "annotations": {"a": annotation}},
            "spec": {
                "nodeName": "node",
                "initContainers": [{"name": "i", "restartPolicy": "Always", "ports": [{"containerPort": 1}]},
                                   {"name": "j", "ports": [{"containerPort": 2}]}],
                "containers": [{"name": "c", "image": "c", "ports": [{"name": "http", "containerPort": 3}]}],
            },
            "status": {
                "phase": phase, "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
                "conditions": [condition("PodScheduled"), condition("Ready")],
            },
        }));
        assert!(admission.findings.is_empty(), "{:?}", admission.findings);
        let object = admission.object.unwrap();
        let again = object.kind().decode(&object.to_value().unwrap()).unwrap();
        assert_eq!(object, again);
        object
    };
    let one = pod("a", "Running", "2024-05-01T10:00:00Z");
    assert_eq!(one, pod("b", "Pending", "2024-05-01T10:00:10Z"));
    let has_ended = |phase| matches!(pod("a", phase, ""), Object::Pod(it) if it.status.has_ended);
    assert!(has_ended("Succeeded") && has_ended("Failed"));
    let Object::Pod(pod) = one else {
        panic!("not a pod")
    };
    assert!(pod.status.is_ready && !pod.status.has_ended);
    assert_eq!(pod.status.pod_ip.as_deref(), Some("10.0.0.1"));
    let ports = pod.running_containers().flat_map(|it| &it.ports);
    let ports: Vec<_> = ports.map(|port| port.container_port).collect();
    assert_eq!(ports, [3, 1]);
}

#[test]
fn pod_keeps_no_annotation_but_its_active_ports() {
    let ports = "inference.networking.k8s.io/active-ports";
    let annotations = json!({ports: "8000", "other": "long"});
    let value = json!({"metadata": {"name": "a", "namespace": "b", "annotations": annotations}});
    let kind = Kind::find("v1", "Pod").unwrap();
    let object = kind.decode(&value).unwrap();
    let kept = &object.to_value().unwrap()["metadata"]["annotations"];
    assert_eq!(*kept, json!({ports: "8000"}));
}

#[test]
fn pod_is_ready_only_by_its_condition() {
    let is_ready = |status: Value| {
        let value = json!({"metadata": {"name": "a", "namespace": "b"}, "status": status});
        let kind = Kind::find("v1", "Pod").unwrap();
        let Object::Pod(pod) = kind.decode(&value).unwrap() else {
            panic!("not a pod")
        };
        pod.status.is_ready
    };
    let condition = |kind, status| json!({"conditions": [{"type": kind, "status": status}]});
    assert!(is_ready(condition("Ready", "True")));
    assert!(!is_ready(condition("Ready", "Unknown")));
    assert!(!is_ready(condition("ContainersReady", "True")));
    assert!(!is_ready(json!({"conditions": null})));
    assert!(!is_ready(json!({})));
}

#[test]
fn names_the_kind_that_was_meant() {
    for (api_version, kind, expected) in [
        (
            "networking.k8s.io/v1",
            "HTTPRoute",
            "no HTTPRoute in networking.k8s.io/v1; write apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute",
        ),
        (
            "gateway.networking.k8s.io/v1",
            "HTTPRoutes",
            "there is no HTTPRoutes in gateway.networking.k8s.io/v1; did you mean HTTPRoute?",
        ),
        (
            "networking.istio.io/v1",
            "Gateway",
            "Gateway of networking.istio.io/v1 is not a kind that Portcullis reads; ignored",
        ),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "NetworkPolicy of networking.k8s.io/v1 is not a kind that Portcullis reads; ignored",
        ),
    ] {
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a"}});
        let messages: Vec<_> = admit(object)
            .findings
            .into_iter()
            .map(|it| it.message)
            .collect();
        assert_eq!(messages, [expected]);
    }
}

#[test]
fn experimental_listener_set_is_read_as_the_released_one() {
    let value = json!({
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XListenerSet", "metadata": {"name": "set"},
        "spec": {"parentRef": {"name": "web"}, "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    });
    let admission = admit(value);
    let id = admission.id.expect("a name");
    assert_eq!(id, ObjectRef::gateway_api("ListenerSet", "default", "set"));
    assert!(matches!(admission.object, Some(Object::ListenerSet(_))));
    let [finding] = &*admission.findings else {
        panic!("{:?}", admission.findings);
    };
    assert_eq!(finding.severity, Severity::Warning);
    assert!(
        finding
            .message
            .contains("write apiVersion: gateway.networking.k8s.io/v1, kind: ListenerSet")
    );
}
