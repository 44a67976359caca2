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

/// Routes whose policies are broken in what is not asked of connections and datagrams, and one whose backends all fail.
const FORWARDED: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners:
  - {name: limited, port: LIMITED, protocol: TCP}
  - {name: datagrams, port: DATAGRAMS, protocol: UDP}
  - {name: mixed, port: MIXED, protocol: TCP}
---
apiVersion: v1
kind: Service
metadata: {name: up}
spec: {ports: [{name: tcp, port: 80}, {name: udp, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: up, labels: {kubernetes.io/service-name: up}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1]}]
ports: [{name: tcp, port: 9}, {name: udp, port: 9, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: limited}
spec: {parentRefs: [{name: web, sectionName: limited}], rules: [{backendRefs: [{name: up, port: 80}]}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: limited}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web, sectionName: limited}]
  rules: [{name: one, limit: {requests: 10, per: Second}, key: [{type: Path}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: datagrams}
spec: {parentRefs: [{name: web, sectionName: datagrams}], rules: [{backendRefs: [{name: up, port: 53}]}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: ClientPolicy
metadata: {name: datagrams}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web, sectionName: datagrams}]
  proxyProtocol: {mode: Optional, trustedCIDRs: [10.0.0.0/33]}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: datagrams}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: UDPRoute, name: datagrams}]
  ipRules: {deny: [192.0.2.0/24]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: mixed}
spec: {parentRefs: [{name: web, sectionName: mixed}], rules: [{backendRefs: [{name: missing, port: 80}, {name: s, port: 80}]}]}
"#;

#[test]
fn connections_and_datagrams_are_asked_what_the_proxy_asks() {
    let [limited, datagrams, mixed] = free_ports();
    let ports = [
        ("LIMITED", limited),
        ("DATAGRAMS", datagrams),
        ("MIXED", mixed),
    ];
    let objects = ports
        .iter()
        .fold(FORWARDED.to_owned(), |text, (name, port)| {
            text.replace(name, &port.to_string())
        });
    let served = Served::new(&objects);
    for (url, route) in [
        (
            format!("tcp://a.example.com:{limited}"),
            "TCPRoute default/limited",
        ),
        (
            format!("udp://a.example.com:{datagrams}"),
            "UDPRoute default/datagrams",
        ),
    ] {
        for explained in served.explain(&[&url]) {
            let outcome = explained.outcome();
            assert_eq!(outcome["route"], route, "{outcome}");
            assert!(outcome["reason"].is_null(), "{outcome}");
        }
    }
    for explained in served.explain(&[&format!("tcp://a.example.com:{mixed}")]) {
        let outcome = explained.outcome();
        let why = outcome["reason"].as_str().unwrap_or_default();
        for part in [
            "Service default/missing does not exist",
            "Service default/s:80 for TCP has no ready endpoint",
        ] {
            assert!(why.contains(part), "{outcome}");
        }
        explained.has("response", "none: every connection is closed: ");
    }
}
