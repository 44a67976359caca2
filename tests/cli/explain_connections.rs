//! What `explain` says of connections and datagrams that are not forwarded.

use crate::explain::Served;
use crate::ports::free_ports;

/// Routes of which each has one fault, by listener.
const BROKEN: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners:
  - {name: idle, port: IDLE, protocol: TCP}
  - {name: asking, port: ASKING, protocol: TCP}
  - {name: lost, port: LOST, protocol: UDP}
  - {name: drained, port: DRAINED, protocol: TLS, hostname: "*.example.com", tls: {mode: Passthrough}}
---
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: idle}
spec: {parentRefs: [{name: web, sectionName: idle}], rules: [{backendRefs: [{name: s, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: asking}
spec: {parentRefs: [{name: web, sectionName: asking}], rules: [{backendRefs: [{name: s, port: 80}]}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: asking}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: TCPRoute, name: asking}]
  authorization: {default: Allow, rules: [{name: a, action: Deny, match: {methods: [GET]}}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: lost}
spec: {parentRefs: [{name: web, sectionName: lost}], rules: [{backendRefs: [{name: missing, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: drained}
spec:
  parentRefs: [{name: web, sectionName: drained}]
  hostnames: [a.example.com]
  rules: [{backendRefs: [{name: s, port: 80, weight: 0}]}]
"#;

#[test]
fn outcome_of_a_connection_that_is_not_forwarded_has_its_reason() {
    let [idle, asking, lost, drained] = free_ports();
    let ports = [
        ("IDLE", idle),
        ("ASKING", asking),
        ("LOST", lost),
        ("DRAINED", drained),
    ];
    let objects = ports.iter().fold(BROKEN.to_owned(), |text, (name, port)| {
        text.replace(name, &port.to_string())
    });
    let served = Served::new(&objects);
    for (url, route, effect, reason) in [
        (
            format!("tcp://a.example.com:{idle}"),
            "TCPRoute default/idle",
            "every connection is closed",
            "Service default/s:80 for TCP has no ready endpoint",
        ),
        (
            format!("tcp://a.example.com:{asking}"),
            "TCPRoute default/asking",
            "every connection is closed",
            "a policy asks for credentials or decides by requests",
        ),
        (
            format!("udp://a.example.com:{lost}"),
            "UDPRoute default/lost",
            "every datagram is dropped",
            "Service default/missing does not exist",
        ),
        (
            format!("https://a.example.com:{drained}/"),
            "TLSRoute default/drained",
            "every connection is closed",
            "all weights of spec.rules[0].backendRefs are 0",
        ),
    ] {
        for explained in served.explain(&[&url]) {
            let outcome = explained.outcome();
            assert_eq!(outcome["route"], route, "{outcome}");
            assert!(outcome["status"].is_null(), "{outcome}");
            let why = outcome["reason"].as_str().unwrap_or_default();
            assert!(why.contains(reason), "{outcome}");
            explained.has("response", &format!("none: {effect}: "));
        }
    }
    for (host, reason) in [
        ("b.example.com", "none: the handshake is refused"),
        (
            "example.org",
            "none for example.org: the handshake is refused",
        ),
    ] {
        for explained in served.explain(&[&format!("https://{host}:{drained}/")]) {
            let outcome = explained.outcome();
            assert!(outcome["route"].is_null(), "{outcome}");
            assert_eq!(outcome["reason"], reason, "{outcome}");
        }
    }
}
