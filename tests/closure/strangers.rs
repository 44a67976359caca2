//! What a namespace writes that a Gateway does not admit moves nothing to the pods of the Gateway, whatever its kind and size.

use portcullis::api::Kind;
use portcullis::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::contents::{
    Followed, class, gateway, http, https, object, route, secret, service, slice,
};

/// Size of a part of an object, in bytes: that of a whole one in a cluster.
const LARGE: usize = 1 << 20;

/// Returns the size of all objects of a closure, as they are streamed.
fn size(closure: &Snapshot) -> usize {
    let objects = closure.objects();
    objects
        .map(|object| object.to_value().unwrap().to_string().len())
        .sum()
}

/// Returns a large object of the namespace `stranger` that refers to the Gateway and to other objects there, all of which
/// have the same name.
fn large(kind: &Kind) -> Value {
    let text = "x".repeat(LARGE);
    let mut large = stranger(kind.kind);
    large["apiVersion"] = kind.api_version().into();
    let metadata = &mut large["metadata"];
    metadata["annotations"] = json!({"example.com/large": text});
    if metadata["labels"].is_null() {
        metadata["labels"] = json!({});
    }
    metadata["labels"]["large"] = text.as_str().into();
    match kind.kind {
        "Secret" => {
            large["stringData"] = json!({
                "auth": text, "secret": text, "client-secret": text, "tls.crt": text, "tls.key": text, "ca.crt": text,
            });
        }
        "ConfigMap" => large["data"] = json!({"ca.crt": text, "jwks": text, "page.html": text}),
        _ => {}
    }
    large
}

fn stranger(kind: &str) -> Value {
    let gateway_api = "gateway.networking.k8s.io";
    let target = |kind: &str, name: &str| json!({"group": gateway_api, "kind": kind, "name": name});
    let targets = json!([
        target("Gateway", "g"),
        target("ListenerSet", "x"),
        target("HTTPRoute", "x")
    ]);
    let backend = json!({"name": "x", "port": 80});
    let services = json!([{"group": "", "kind": "Service", "name": "app"}]);
    let authorities = json!([{"group": "", "kind": "ConfigMap", "name": "x"}]);
    let validation = json!({"hostname": "h", "caCertificateRefs": authorities});
    let spec = match kind {
        "EndpointSlice" => return slice("stranger", "app", "10.0.0.1"),
        "Service" | "ServiceImport" => json!({"type": "ClusterSetIP", "ports": [{"port": 80}]}),
        "Secret" | "ConfigMap" | "Pod" | "GatewayParameters" => json!({}),
        "Gateway" => json!({"gatewayClassName": "ours", "listeners": https("x", None)}),
        "ListenerSet" => {
            let parent = json!({"name": "g", "namespace": "infra"});
            json!({"parentRef": parent, "listeners": https("x", None)})
        }
        "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute" | "UDPRoute" => {
            let mut route = route("stranger", "x", "g", backend);
            route["spec"]["useDefaultGateways"] = "All".into();
            route["kind"] = kind.into();
            return route;
        }
        "BackendTLSPolicy" => json!({"targetRefs": services, "validation": validation}),
        "BackendTLSOverride" => {
            let target =
                json!({"group": "", "kind": "Service", "name": "app", "namespace": "infra"});
            json!({"targetRefs": [target], "validation": validation})
        }
        "BackendPolicy" | "XBackendTrafficPolicy" => json!({"targetRefs": services}),
        "ReferenceGrant" => {
            let from = json!({"group": gateway_api, "kind": "Gateway", "namespace": "infra"});
            json!({"from": [from], "to": [{"group": "", "kind": "Secret"}]})
        }
        "TelemetryPolicy" => {
            json!({"targetRefs": targets, "tracing": {"provider": {"backendRef": backend}}})
        }
        "XBackend" => json!({
            "type": "ExternalHostname", "externalHostname": {"hostname": "x.example"}, "port": {"port": 443},
            "tls": {"mode": "ClientAndServer", "clientCertificateRef": {"name": "x"}, "validation": validation},
        }),
        "ReleaseBackend" => {
            json!({"loadBalancer": {"v1.Service": {"name": "app"}}, "splitBy": "release", "releases": []})
        }
        "InferencePool" => json!({
            "selector": {"matchLabels": {"app": "app"}}, "targetPorts": [{"number": 80}],
            "endpointPickerRef": {"name": "app", "port": {"number": 80}},
        }),
        "AccessPolicy" => json!({
            "targetRefs": targets,
            "basic": {"secretRef": {"name": "x"}},
            "apiKey": {"secretRefs": [{"name": "x"}], "from": [{"type": "Query", "name": "key"}]},
            "jwt": {"providers": [{"issuer": "a", "jwks": {"configMapRef": {"name": "x"}}}]},
            "oidc": {
                "issuer": "https://a.com", "clientID": "a", "clientSecretRef": {"name": "x"},
                "caConfigMapRef": {"name": "x"},
            },
        }),
        "RoutePolicy" => {
            let map =
                json!({"name": "x", "keys": [{"key": "page.html", "mediaType": "text/html"}]});
            json!({"targetRefs": targets, "errorPages": [{"codes": [404], "configMapRef": map}]})
        }
        "RateLimitPolicy" => {
            json!({"targetRefs": targets, "rules": [{"name": "one", "concurrent": 1}]})
        }
        "ClientPolicy" => json!({"targetRefs": targets, "timeouts": {"idle": "10s"}}),
        "RouteFilter" => {
            let map = json!({"name": "x", "key": "page.html"});
            json!({"directResponse": {"status": 404, "configMapRef": map}})
        }
        other => panic!("say what a stranger writes of the kind {other}"),
    };
    object(kind, "stranger", "x", spec)
}

#[test]
fn namespace_that_is_not_admitted_moves_nothing_to_pods() {
    let only_own = gateway("g", json!([{"name": "l", "port": 80, "protocol": "HTTP"}]));
    let backend = json!({"name": "app", "port": 80});
    let mut followed = Followed::new([
        class(),
        only_own,
        route("infra", "x", "g", backend),
        service("infra", "app"),
        secret("infra", "x"),
    ]);
    let before = size(followed.snapshot("g"));
    let mut written = 0;
    for kind in Kind::all().iter().filter(|kind| kind.namespaced) {
        let large = large(kind);
        written += large.to_string().len();
        let changes = followed.put(&large).join("; ");
        assert!(!changes.contains("g:"), "{changes}");
    }
    assert!(written > 28 * LARGE, "only {written} bytes");
    assert_eq!(size(followed.snapshot("g")), before);
    // The same objects reach the pods of a Gateway that admits the namespace.
    let mut admitting = http("g");
    admitting["spec"]["allowedListeners"] = json!({"namespaces": {"from": "All"}});
    followed.put(&admitting);
    assert!(size(followed.snapshot("g")) > 4 * LARGE);
}
