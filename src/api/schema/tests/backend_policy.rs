//! Schema of BackendPolicy.

use super::{findings, yaml};

fn policy(spec: &str) -> Vec<String> {
    let target = "{group: '', kind: Service, name: a}";
    let spec = match spec.contains("targetRefs") {
        true => spec.to_owned(),
        false => format!("targetRefs: [{target}], {spec}"),
    };
    findings(yaml(&format!(
        "{{apiVersion: portcullis.dev/v1alpha1, kind: BackendPolicy, metadata: {{name: a}}, spec: {{{spec}}}}}"
    )))
}

/// Checks what is found in each spec; nothing if the text is empty.
fn check(rows: &[(&str, &str)]) {
    for (spec, expected) in rows {
        let found = policy(spec);
        let as_expected = match *expected {
            "" => found.is_empty(),
            expected => found.iter().any(|it| it.contains(expected)),
        };
        assert!(as_expected, "{spec}: {found:?}");
    }
}

#[test]
fn validates_fields_of_backend_policies() {
    check(&[
        ("", ""),
        (
            "targetRefs: [{group: '', kind: Service, name: a, sectionName: http}]",
            "",
        ),
        (
            "targetRefs: [{group: portcullis.dev, kind: ReleaseBackend, name: a}]",
            "",
        ),
        (
            "targetRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: a}]",
            "",
        ),
        (
            "targetRefs: [{group: '', kind: ReleaseBackend, name: a}]",
            "group does not have this kind",
        ),
        (
            "targetRefs: [{group: portcullis.dev, kind: ReleaseBackend, name: a, sectionName: b}]",
            "sectionName is for Services",
        ),
        (
            "targetRefs: [{group: '', kind: Service, name: a}, {group: '', kind: Service, name: a}]",
            "must be distinct",
        ),
        ("retryConstraint: {}", ""),
        ("connection: {http1: {maxHeaderBytes: 4096}}", ""),
        (
            "connection: {http1: {maxHeaderBytes: 4.5Ki}}",
            "http1.maxHeaderBytes",
        ),
        ("connection: {http1: {}}", "http1"),
        (
            "connection: {http2: {maxConcurrentStreams: 1001}}",
            "less than or equal to 1000",
        ),
        (
            "connection: {http2: {initialStreamWindow: all}}",
            "http2.initialStreamWindow",
        ),
        (
            "retryConstraint: {budget: {percent: 101}}",
            "less than or equal to 100",
        ),
        (
            "retryConstraint: {budget: {interval: 999ms}}",
            "must be 1s to 1h",
        ),
        (
            "sessionPersistence: {cookieConfig: {lifetimeType: Permanent}}",
            "absoluteTimeout",
        ),
    ]);
}

#[test]
fn validates_load_balancing_of_backend_policies() {
    check(&[
        ("loadBalancing: {type: RoundRobin}", ""),
        ("loadBalancing: {slowStart: 30s}", ""),
        ("loadBalancing: {type: Random, topology: PreferZone}", ""),
        ("loadBalancing: {topology: Zone}", "Unsupported value"),
        (
            "loadBalancing: {type: ConsistentHash, topology: PreferZone, consistentHash: {key: [{type: ClientIP}]}}",
            "topology PreferZone is not for type ConsistentHash",
        ),
        ("loadBalancing: {slowStart: 16m}", "must be 1s to 15m"),
        (
            "loadBalancing: {type: Random, slowStart: 30s}",
            "slowStart is for type LeastRequest",
        ),
        (
            "loadBalancing: {type: ConsistentHash}",
            "consistentHash is for",
        ),
        (
            "loadBalancing: {type: ConsistentHash, consistentHash: {key: [{type: ClientIP, v4Prefix: 24}]}}",
            "",
        ),
        (
            "loadBalancing: {type: ConsistentHash, consistentHash: {key: [{type: Cookie}]}}",
            "name is for Header and Cookie",
        ),
        (
            "loadBalancing: {type: ConsistentHash, consistentHash: {key: []}}",
            "at least 1",
        ),
    ]);
}

#[test]
fn validates_limits_and_health_checks() {
    check(&[
        (
            "limits: {maxConnections: 1, maxPending: 1, maxRequests: 1, perEndpoint: {maxRequests: 1}}",
            "",
        ),
        ("limits: {maxRequests: 0}", "greater than or equal to 1"),
        ("limits: {}", "at least 1"),
        ("healthCheck: {active: {http: {}}}", ""),
        (
            "healthCheck: {active: {tcp: {}, interval: 1s, timeout: 100ms, jitter: 0}}",
            "",
        ),
        (
            "healthCheck: {active: {grpc: {service: a.b}}, passive: {panicPercent: 10}}",
            "",
        ),
        ("healthCheck: {active: {}}", "exactly one of"),
        (
            "healthCheck: {active: {tcp: {}, http: {}}}",
            "exactly one of",
        ),
        (
            "healthCheck: {active: {tcp: {}, interval: 500ms}}",
            "must be 1s to 1h",
        ),
        ("healthCheck: {active: {http: {path: a}}}", "path"),
        (
            "healthCheck: {passive: {maxEjectedPercent: 101}}",
            "less than or equal to 100",
        ),
        (
            "connection: {connectTimeout: 10ms, idle: 1h, maxRequests: 1, keepalive: 2h}",
            "",
        ),
        ("connection: {connectTimeout: 61s}", "must be 10ms to 1m"),
        ("connection: {pickerTimeout: 100ms}", ""),
        ("connection: {pickerTimeout: 61m}", "must be 100ms to 1h"),
        ("connection: {maxRequests: 0}", "greater than or equal to 1"),
    ]);
}
