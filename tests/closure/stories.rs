//! Objects that match, so that a policy on TLS applies to requests. Random objects rarely do.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::objects::{self, CONTROLLER};

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";

/// The requests that a policy selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Route,
    ListenerSet,
    Gateway,
    Consumer,
    Producer,
}

const SENDERS: [Sender; 5] = [
    Sender::Route,
    Sender::ListenerSet,
    Sender::Gateway,
    Sender::Consumer,
    Sender::Producer,
];

/// The settings of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Tls,
    PlainText,
    Broken,
}

/// Random objects, and some that match.
pub(crate) fn cluster(
    sizes: impl Into<proptest::collection::SizeRange>,
) -> impl Strategy<Value = Vec<Value>> {
    let stories = (vec(story(), 0..3), vec(rivals(), 0..2));
    (vec(objects::object(), sizes), stories).prop_map(|(mut objects, (stories, rivals))| {
        objects.extend(stories.into_iter().chain(rivals).flatten());
        objects
    })
}

/// A Gateway with two listeners, and routes of both kinds whose hostnames often intersect there.
fn rivals() -> impl Strategy<Value = Vec<Value>> {
    let hosts = select(vec![
        &["a.example"][..],
        &["b.test"],
        &["a.example", "*.test"],
        &[],
    ]);
    let route = (
        select(vec!["HTTPRoute", "GRPCRoute"]),
        0..3_u8,
        1..4_u8,
        hosts,
    );
    (0..3_u8, vec(route, 2..5)).prop_map(|(number, routes)| {
        let all = json!({"namespaces": {"from": "All"}});
        let listener = |name: &str, hostname: &str| {
            json!({"name": name, "port": 80, "protocol": "HTTP", "hostname": hostname, "allowedRoutes": all})
        };
        let class = json!({"controllerName": CONTROLLER});
        let gateway = json!({
            "gatewayClassName": "ours", "listeners": [listener("l0", "a.example"), listener("l1", "*.test")],
        });
        let routes = routes.into_iter().map(|(kind, name, day, hosts)| {
            let spec = json!({
                "parentRefs": [{"name": format!("g{number}"), "namespace": "a"}], "hostnames": hosts,
                "rules": [{"backendRefs": [{"name": "v0", "port": 80}]}],
            });
            let mut route = object(kind, "a", &format!("r{name}"), &spec);
            route["metadata"]["creationTimestamp"] = json!(format!("2026-01-0{day}T00:00:00Z"));
            route
        });
        let before = [
            object("GatewayClass", "", "ours", &class),
            object("Gateway", "a", &format!("g{number}"), &gateway),
        ];
        before.into_iter().chain(routes).collect()
    })
}

/// A Gateway, a route of it, the Service that the route refers to, and a policy for the requests between them.
fn story() -> impl Strategy<Value = Vec<Value>> {
    let namespaces = select(vec![("a", "b"), ("b", "c"), ("c", "a")]);
    let asked = prop_oneof![
        3 => Just(Asked::Tls),
        1 => Just(Asked::PlainText),
        1 => Just(Asked::Broken),
    ];
    let parts = (
        namespaces,
        0..3_u8,
        select(SENDERS.to_vec()),
        asked,
        any::<(bool, bool)>(),
    );
    parts.prop_map(
        |((edge, app), number, sender, asked, (is_routed_at_edge, has_client))| {
            let route = if is_routed_at_edge { edge } else { app };
            let namespaces = (edge, route, app);
            let mut objects = consumers(namespaces, number, sender, has_client);
            objects.extend(backends(app, route, number));
            objects.extend(policy(namespaces, number, sender, asked));
            objects
        },
    )
}

fn object(kind: &str, namespace: &str, name: &str, spec: &Value) -> Value {
    let version = match kind {
        "Service" => "v1",
        "BackendTLSOverride" => "portcullis.dev/v1alpha1",
        _ => GATEWAY_API,
    };
    let metadata = json!({"namespace": namespace, "name": name});
    json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
}

/// A class, a Gateway with a ListenerSet, and a route of one of them.
fn consumers(
    (edge, route, app): (&str, &str, &str),
    number: u8,
    sender: Sender,
    has_client: bool,
) -> Vec<Value> {
    let all = json!({"namespaces": {"from": "All"}});
    let listener = |name: &str, hostname: &str| {
        json!([{
            "name": name, "port": 80, "protocol": "HTTP", "hostname": hostname, "allowedRoutes": all,
        }])
    };
    let client = has_client.then(|| json!({"name": "s0"}));
    let gateway = format!("g{number}");
    let (kind, parent) = match sender {
        Sender::ListenerSet => ("ListenerSet", format!("set{number}")),
        _ => ("Gateway", gateway.clone()),
    };
    let parent = json!({"kind": kind, "namespace": edge, "name": parent});
    let service = format!("v{number}");
    let references = json!([{"kind": "Service", "name": service, "namespace": app, "port": 81}]);
    vec![
        json!({
            "apiVersion": GATEWAY_API, "kind": "GatewayClass", "metadata": {"name": "ours"},
            "spec": {"controllerName": CONTROLLER},
        }),
        object(
            "Gateway",
            edge,
            &gateway,
            &json!({
                "gatewayClassName": "ours", "listeners": listener("l0", "a.example"),
                "allowedListeners": all, "tls": {"backend": {"clientCertificateRef": client}},
            }),
        ),
        object(
            "ListenerSet",
            edge,
            &format!("set{number}"),
            &json!({"parentRef": {"name": gateway}, "listeners": listener("l1", "b.test")}),
        ),
        objects::certificate_secret(edge, "s0"),
        object(
            "HTTPRoute",
            route,
            &format!("r{number}"),
            &json!({"parentRefs": [parent], "rules": [{"backendRefs": references}]}),
        ),
    ]
}

/// Returns the Service that the route refers to, and the grant for that.
fn backends(app: &str, route: &str, number: u8) -> Vec<Value> {
    let from =
        json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "namespace": route});
    vec![
        object(
            "Service",
            app,
            &format!("v{number}"),
            &json!({"ports": [{"port": 80}, {"name": "o", "port": 81}]}),
        ),
        object(
            "ReferenceGrant",
            app,
            "grant0",
            &json!({"from": [from], "to": [{"group": "", "kind": "Service"}]}),
        ),
    ]
}

/// Returns the policy, with its authority.
fn policy(
    (edge, route, app): (&str, &str, &str),
    number: u8,
    sender: Sender,
    asked: Asked,
) -> Vec<Value> {
    let (namespace, from) = match sender {
        Sender::Route => (route, Some(("HTTPRoute", "r"))),
        Sender::ListenerSet => (edge, Some(("ListenerSet", "set"))),
        Sender::Gateway => (edge, Some(("Gateway", "g"))),
        Sender::Consumer => (edge, None),
        Sender::Producer => (app, None),
    };
    let from = from.map(|(kind, prefix)| {
        let group = "gateway.networking.k8s.io";
        json!({"group": group, "kind": kind, "name": format!("{prefix}{number}")})
    });
    let target = json!({
        "group": "", "kind": "Service", "namespace": app, "name": format!("v{number}"), "from": from,
    });
    let authority = match asked {
        Asked::Broken => "nope",
        Asked::Tls | Asked::PlainText => "cm0",
    };
    let authority = json!({"group": "", "kind": "ConfigMap", "name": authority});
    let spec = match asked {
        Asked::PlainText => json!({"mode": "None", "targetRefs": [target]}),
        Asked::Tls | Asked::Broken => json!({
            "targetRefs": [target], "validation": {"hostname": "h", "caCertificateRefs": [authority]},
        }),
    };
    vec![
        objects::authority_map(namespace, "cm0"),
        object(
            "BackendTLSOverride",
            namespace,
            &format!("t{number}"),
            &spec,
        ),
    ]
}
