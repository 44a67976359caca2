//! What `explain` says of backends that no request reaches, and of requests that policies refuse or change.

use serde_json::Value;

use crate::check::check_says;
use crate::explain::{Explained, Served};
use crate::ports::free_ports;

/// A route to `/NAME` of several backends.
const BACKENDS: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners: [{name: http, port: PORT, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec:
  parentRefs: [{name: web}]
  hostnames: [shop.example.com]
  rules:
  - {matches: [{path: {value: /short}}], backendRefs: [{group: portcullis.dev, kind: ReleaseBackend, name: short, port: 80}]}
  - {matches: [{path: {value: /unready}}], backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: unready}]}
  - {matches: [{path: {value: /none}}], backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: none}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: calls}
spec:
  parentRefs: [{name: web}]
  hostnames: [grpc.example.com]
  rules: [{backendRefs: [{name: missing, port: 80}, {name: empty, port: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {ports: [{name: http, port: 80, targetPort: 8080}], selector: {app: app}}
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {ports: [{port: 80}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: ReleaseBackend
metadata: {name: short}
spec:
  loadBalancer: {v1.Service: {name: app, selector: {app: app}}}
  splitBy: release
  releases: [{value: v1, weight: 1}, {value: v2, weight: 0}]
  minReady: 2
  belowMinReady: Unavailable
---
apiVersion: v1
kind: Pod
metadata: {name: a, labels: {app: app, release: v1}}
status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b, labels: {app: app, release: v2}}
status: {podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: unready}
spec:
  selector: {matchLabels: {app: llm}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: epp, port: {number: 9002}}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: none}
spec:
  selector: {matchLabels: {app: none}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: missing, port: {number: 9002}}
---
apiVersion: v1
kind: Service
metadata: {name: epp}
spec: {ports: [{name: grpc, port: 9002}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: epp-1, labels: {kubernetes.io/service-name: epp}}
addressType: IPv4
ports: [{name: grpc, port: 9002}]
endpoints: [{addresses: [10.0.1.1]}]
---
apiVersion: v1
kind: Pod
metadata: {name: c, labels: {app: llm}}
status: {podIP: 10.0.0.3, podIPs: [{ip: 10.0.0.3}], conditions: [{type: Ready, status: "False"}]}
"#;

fn reason(explained: &Explained) -> &str {
    explained.outcome()["reason"].as_str().unwrap_or_default()
}

#[test]
fn endpoints_are_those_that_the_proxy_may_select() {
    let [port] = free_ports();
    let served = Served::new(&BACKENDS.replace("PORT", &port.to_string()));
    for (path, why) in [
        (
            "short",
            "ReleaseBackend default/short:80 has no ready endpoint",
        ),
        // The picker is asked first.
        ("none", "Service default/missing does not exist"),
    ] {
        let url = format!("http://shop.example.com:{port}/{path}");
        for explained in served.explain(&[&url]) {
            assert_eq!(explained.outcome()["status"], 503, "{path}");
            assert!(reason(&explained).contains(why), "{}", reason(&explained));
        }
    }
    let url = format!("http://shop.example.com:{port}/unready");
    for explained in served.explain(&[&url]) {
        assert_eq!(explained.outcome()["status"], Value::Null);
        explained.has("backends", "only by the picker");
    }
}

#[test]
fn check_names_pickers_without_endpoints_and_pools_without_ready_pods() {
    let objects = BACKENDS.replace("PORT", "80");
    let objects = objects.replace("endpoints: [{addresses: [10.0.1.1]}]", "endpoints: []");
    let parts = [
        "InferencePool default/unready: spec.endpointPickerRef: Service default/epp:9002 has no ready endpoint (none is ready): \
         requests get 503 (FailClose)",
        "HTTPRoute default/shop: spec.rules[1]: InferencePool default/unready:8000 has no ready endpoint (no pod is ready): \
         requests get status 503 unless the endpoint picker chooses a pod that is not ready",
    ];
    check_says(&[], &objects, 1, &parts);
}

#[test]
fn backends_that_fail_alike_make_one_response() {
    let [port] = free_ports();
    let served = Served::new(&BACKENDS.replace("PORT", &port.to_string()));
    let url = format!("POST http://grpc.example.com:{port}/a.B/C");
    for explained in served.explain(&[&url, "-H", "content-type: application/grpc"]) {
        assert_eq!(explained.outcome()["grpcStatus"], "UNAVAILABLE");
        for why in [
            "Service default/missing does not exist",
            "Service default/empty:80",
        ] {
            assert!(reason(&explained).contains(why), "{}", reason(&explained));
        }
    }
}

/// A route whose requests may have small bodies, and need credentials.
const LIMITED: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners: [{name: http, port: PORT, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec:
  parentRefs: [{name: web}]
  rules: [{backendRefs: [{name: missing, port: 80}]}]
---
apiVersion: portcullis.dev/v1alpha1
kind: RoutePolicy
metadata: {name: small}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: shop}]
  requestBody: {maxSize: 1k}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: asking}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: shop}]
  basic: {secretRef: {name: missing}}
"#;

#[test]
fn declared_bodies_are_refused_before_credentials() {
    let [port] = free_ports();
    let served = Served::new(&LIMITED.replace("PORT", &port.to_string()));
    let url = format!("POST http://shop.example.com:{port}/");
    for (length, status, why) in [
        ("1000", 500, "AccessPolicy default/asking"),
        ("1001", 413, "the request body is larger than"),
    ] {
        let header = format!("content-length: {length}");
        for explained in served.explain(&[&url, "-H", &header]) {
            assert_eq!(explained.outcome()["status"], status, "{length}");
            assert!(reason(&explained).contains(why), "{}", reason(&explained));
            explained.has("response", &format!("{status}: "));
        }
    }
}

#[test]
fn declared_bodies_are_refused_where_they_would_be_read() {
    let (basic, max) = (
        "basic: {secretRef: {name: missing}}",
        "requestBody: {maxSize: 1k}",
    );
    let asked = "external: {protocol: HTTP, backendRef: {name: empty, port: 80}, forwardBody: {maxSize: 100}}";
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: empty}\nspec: {ports: [{port: 80}]}\n";
    let buffered = "requestBody: {buffer: {limit: 100}}";
    for (objects, status) in [
        (LIMITED.replace(basic, asked), 503),
        (
            LIMITED
                .replace(basic, "ipRules: {deny: [192.0.2.0/24]}")
                .replace(max, buffered),
            500,
        ),
    ] {
        let [port] = free_ports();
        let objects = objects.replace("PORT", &port.to_string()) + service;
        let served = Served::new(&objects);
        let url = format!("POST http://shop.example.com:{port}/");
        for (length, status) in [("100", status), ("101", 413)] {
            let header = format!("content-length: {length}");
            for explained in served.explain(&[&url, "-H", &header]) {
                assert_eq!(explained.outcome()["status"], status, "{length}");
            }
        }
    }
}

/// A route by the header with which proxies name clients.
const NAMED: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners: [{name: http, port: PORT, protocol: HTTP}]
---
apiVersion: portcullis.dev/v1alpha1
kind: ClientPolicy
metadata: {name: proxies}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web}]
  clientIP: {header: {name: X-Client, trustedCIDRs: [192.0.2.0/24]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop}
spec:
  parentRefs: [{name: web}]
  rules:
  - {matches: [{headers: [{name: X-Client, value: 198.51.100.1}]}], backendRefs: [{name: app, port: 80}]}
  - {backendRefs: [{name: app, port: 80}]}
"#;

#[test]
fn only_trusted_proxies_name_clients() {
    let [port] = free_ports();
    let served = Served::new(&NAMED.replace("PORT", &port.to_string()));
    let url = format!("http://shop.example.com:{port}/");
    let request = [&*url, "-H", "x-client: 198.51.100.1"];
    for explained in served.explain(&request) {
        assert_eq!(explained.outcome()["rule"], 1);
    }
    for explained in served.explain(&[&request[..], &["--trusted-proxy"]].concat()) {
        assert_eq!(explained.outcome()["rule"], 0);
    }
}
