//! The lines on TLS policies.

use serde_json::Value;

use super::*;
use crate::api;
use crate::settings::permissions::{Permissions, PolicyLevel};
use crate::snapshot::Snapshot;
use crate::translate::Options;

const OBJECTS: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web, namespace: edge}
spec:
  gatewayClassName: portcullis
  listeners:
  - {name: http, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r, namespace: app}
spec:
  parentRefs: [{name: web, namespace: edge}]
  rules:
  - {name: one, backendRefs: [{name: app, port: 443}, {name: other, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: app}
spec: {ports: [{name: https, port: 443}, {name: admin, port: 444}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: app}
spec: {ports: [{port: 80}]}
"#;

/// A policy of this name in a namespace, for Service `app/app`.
fn policy(namespace: &str, name: &str, target: &str, spec: &str) -> String {
    format!(
        "\n---\napiVersion: portcullis.dev/v1alpha1\nkind: BackendTLSOverride\n\
         metadata: {{name: {name}, namespace: {namespace}}}\n\
         spec:\n  targetRefs: [{{group: '', kind: Service, name: app, namespace: app{target}}}]\n  {spec}\n"
    )
}

/// The lines about TLS policies for the host `app.example`.
fn explained(objects: &str, permissions: Permissions) -> String {
    let text = explanation(objects, "http://app.example/", permissions);
    let lines = text.lines();
    let lines = lines.skip_while(|line| !line.starts_with("TLS policy"));
    let lines = lines.take_while(|line| !line.starts_with("note"));
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

fn explanation(objects: &str, url: &str, permissions: Permissions) -> String {
    let (text, found) = explained_request(objects, &url.parse().unwrap(), permissions);
    assert!(found, "{text}");
    text
}

/// The explanation of a request, and whether a rule matches it.
fn explained_request(
    objects: &str,
    request: &ExplainedRequest,
    permissions: Permissions,
) -> (String, bool) {
    let mut snapshot = Snapshot::default();
    for object in serde_saphyr::from_multiple::<Value>(objects).unwrap() {
        let admission = api::admit(object);
        assert!(admission.findings.is_empty(), "{:?}", admission.findings);
        snapshot.insert(admission.object.unwrap());
    }
    let options = Options {
        permissions,
        ..Options::default()
    };
    let mut translator = Translator::new(options);
    let translation = translator.translate(&snapshot, None);
    let table = Table::build(Arc::new(translation.ir), None);
    let configuration = Configuration {
        table: &table,
        state: State::Offline {
            policies: &|rule, port, listener| of_rule(&translator, rule, port, listener),
        },
        values: Values::Shown,
    };
    let findings = Findings {
        report: &translation.report,
        names: &snapshot,
        now: Timestamp::now(),
    };
    let explanation = explain(configuration, findings, request);
    (explanation.to_string(), explanation.is_found())
}

#[test]
fn shows_grpc_routes_of_grpc_requests() {
    let rule = "{name: one, matches: [{method: {service: a.B, method: C}}], ";
    let objects = OBJECTS
        .replace("kind: HTTPRoute", "kind: GRPCRoute")
        .replace("{name: one, ", rule)
        + &policy(
            "edge",
            "tls",
            ", from: {kind: Gateway, name: web}",
            "mode: None",
        );
    let mut request: ExplainedRequest = "POST http://app.example/a.B/C".parse().unwrap();
    let (text, found) = explained_request(&objects, &request, Permissions::default());
    assert!(!found, "{text}");
    let reason = "(path /a.B/C, gRPC; hostname *): the request is not gRPC, which is a POST with content-type";
    assert!(text.contains(reason), "{text}");
    let mut preflight: ExplainedRequest = "OPTIONS http://app.example/a.B/C".parse().unwrap();
    let fields = [
        "origin: https://x.example",
        "access-control-request-method: POST",
    ];
    let fields = fields.map(|field| field.parse().unwrap());
    preflight.add_headers(&fields).unwrap();
    let (text, found) = explained_request(&objects, &preflight, Permissions::default());
    assert!(!found, "{text}");
    let reason = "the rule permits no calls of other origins";
    assert!(text.contains(reason), "{text}");
    let grpc = "content-type: application/grpc".parse().unwrap();
    request.add_headers(&[grpc]).unwrap();
    let (text, found) = explained_request(&objects, &request, Permissions::default());
    assert!(found, "{text}");
    let backend = "Service app/app:443 by BackendTLSOverride edge/tls for gRPC has no ready endpoint: gRPC status UNAVAILABLE";
    assert!(text.contains(backend), "{text}");
    assert!(text.contains("TLS policy"), "{text}");
}

#[test]
fn shows_routes_of_forwarded_connections() {
    let objects = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners:
  - {name: tls, port: 443, protocol: TLS, hostname: "*.example.com", tls: {mode: Passthrough}}
  - {name: tcp, port: 5432, protocol: TCP, allowedRoutes: {kinds: [{kind: TCPRoute}]}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: vault}
spec:
  parentRefs: [{name: web, sectionName: tls}]
  hostnames: [vault.example.com]
  rules: [{backendRefs: [{name: app, port: 80}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: database}
spec:
  parentRefs: [{name: web, sectionName: tcp}]
  rules: [{backendRefs: [{name: app, port: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {ports: [{port: 80}]}
"#;
    for (url, expected, is_found) in [
        (
            "tls://Vault.example.com",
            "rule        TLSRoute default/vault rule 0",
            true,
        ),
        (
            "https://vault.example.com/",
            "rule        TLSRoute default/vault rule 0",
            true,
        ),
        (
            "tls://a.example.com",
            "rule        none: the handshake is refused\n",
            false,
        ),
        (
            "tls://b.org",
            "listener    none for b.org: the handshake is refused\n",
            false,
        ),
        (
            "tls://10.0.0.1",
            "listener    none for 10.0.0.1: the handshake is refused\n",
            false,
        ),
        (
            "tcp://any:5432",
            "rule        TCPRoute default/database rule 0",
            true,
        ),
    ] {
        let request = url.parse().unwrap();
        let (text, found) = explained_request(objects, &request, Permissions::default());
        assert!(text.contains(expected), "{text}");
        assert_eq!(found, is_found, "{text}");
    }
}

#[test]
fn shows_hostname_of_xbackend() {
    let page = include_str!("../../../docs/xbackend.md");
    let example = page.split("```yaml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let url = "http://shop.example:8080/payments";
    let text = explanation(example, url, Permissions::default());
    let backend = "XBackend default/payments:443 in TLS over HTTP/2: api.payments.example.com:443, whose addresses are \
                   resolved at runtime";
    assert!(text.contains(backend), "{text}");
}

#[test]
fn shows_traffic_policies_of_backends() {
    let page = include_str!("../../../docs/traffic-policy.md");
    let example = page.split("```yaml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let text = explanation(example, "http://shop.example:8080/", Permissions::default());
    for line in [
        "XBackendTrafficPolicy default/shop: retries up to 20 % of the requests in 10s, but always at least 10 in 1s",
        "XBackendTrafficPolicy default/shop: sessions by cookie cart",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let with_session = example.replace("    retry:", "    sessionPersistence: {}\n    retry:");
    let url = "http://shop.example:8080/";
    let text = explanation(&with_session, url, Permissions::default());
    let line = "sessions: not used, because the rule has sessionPersistence";
    assert!(text.contains(line), "{text}");
}

#[test]
fn shows_what_policies_require_and_the_order_of_phases() {
    let page = include_str!("../../../docs/policies.md");
    let examples = page.split("```yaml\n").skip(1);
    let examples: Vec<_> = examples.filter_map(|it| it.split("```").next()).collect();
    let objects = examples.join("---\n");
    let shown = |path: &str| {
        let url = format!("http://any.example:8080{path}");
        explanation(&objects, &url, Permissions::default())
    };
    let (rule, other) = (shown("/admin"), shown("/"));
    let denied = "every address, but not 203.0.113.0/24 (AccessPolicy default/scanners)";
    assert!(other.contains(denied), "{other}");
    for line in [
        "only 192.0.2.0/24, 2001:db8::/32, but not 203.0.113.0/24 (AccessPolicy default/scanners, AccessPolicy default/office)",
        "client: 600 requests in 60s, 50 at once for each client address /32 or /64, except for 10.0.0.0/8 (RateLimitPolicy default/clients)",
        "all: 1000 requests at the same time (RateLimitPolicy default/clients)",
        "one of 1 users with a password, named in header x-user (AccessPolicy default/office)",
        "or one of 1 API keys, in header x-api-key, named in header x-client (AccessPolicy default/partners)",
        "staff: Allow client alice (AccessPolicy default/partners)",
        "orders: Allow method GET or POST, path /orders and below (AccessPolicy default/partners)",
        "others: Deny (AccessPolicy default/partners)",
        "client IP, then IP rules, then limits without identity, then body limit, then authentication, then authorization, then limits by identity, then filters, then backend",
        "connections from 10.0.0.0/8 may begin with a header (ClientPolicy default/load-balancer)",
        "the last one in X-Forwarded-For that is not in 198.51.100.0/24 (ClientPolicy default/load-balancer)",
        "idle 120s, underscores Drop, forwarded X-Forwarded-For X-Real-IP (ClientPolicy default/load-balancer)",
        "minVersion 1.3 (ClientPolicy default/load-balancer)",
        "escaped slashes are kept, duplicate slashes compared as one and forwarded, dot segments resolved (ClientPolicy default/load-balancer)",
    ] {
        assert!(rule.contains(line), "{rule}");
    }
    let files = explanation(
        &objects,
        "http://files.example.com:8080/",
        Permissions::default(),
    );
    let line = "bytes: 100000000 bytes of responses in 60s, 500000000 at once for each client address /32 or /64 (RateLimitPolicy default/downloads)";
    assert!(files.contains(line), "{files}");
    let url = "http://api.example.com:8080/";
    let api = explanation(&objects, url, Permissions::default());
    for line in [
        "a token of https://login.example.com for api, with one of 1 keys, in header authorization (AccessPolicy default/api)",
        "client: 10 requests in 1s, 10 at once for each authenticated client (RateLimitPolicy default/tenants)",
        "tenant: 10000 requests in 3600s, 10000 at once for each claim tenant of the token (RateLimitPolicy default/tenants)",
        "clerks: Allow claim realm_access.roles clerk (AccessPolicy default/api)",
    ] {
        assert!(api.contains(line), "{api}");
    }
}

#[test]
fn shows_that_nothing_establishes_the_identity_of_a_limit() {
    let objects = include_str!("../../../tests/golden/rate_limit/identity_that_requests_lack.yaml");
    let (objects, _) = objects.split_once("---\nir:").unwrap();
    let objects = objects.replace("port: 80", "port: 8080");
    for (path, line) in [
        (
            "/admin",
            "client: 10 requests in 1s, 10 at once for each authenticated client (RateLimitPolicy default/admin)",
        ),
        (
            "/",
            "for each authenticated client; no policy authenticates requests so that they have it: all count together (",
        ),
    ] {
        let url = format!("http://any.example:8080{path}");
        let text = explanation(&objects, &url, Permissions::default());
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn shows_releases_of_release_backend() {
    let page = include_str!("../../../docs/release-backend.md");
    let example = page.split("```yaml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let text = explanation(example, "http://shop.example:8080/", Permissions::default());
    let backend = "ReleaseBackend default/shop:80";
    assert!(text.contains(backend), "{text}");
    for release in [
        "release shop-v41 90.0 %: 10.0.0.41:8080",
        "release shop-v42 10.0 %: 10.0.0.42:9090",
    ] {
        assert!(text.contains(release), "{text}");
    }
}

#[test]
fn shows_pool_and_picker() {
    let page = include_str!("../../../docs/inference.md");
    let example = page.split("```yaml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let shown = |it: &str| explanation(it, "http://llm.example:8080/", Permissions::default());
    let text = shown(example);
    for line in [
        "InferencePool default/llm:8000 over HTTP/1.1: 10.0.0.1:8000, only by the picker: 10.0.0.2:8000",
        "endpoint picker Service default/epp:9002 by InferencePool default/llm for gRPC over HTTP/2 in TLS, whose certificate is not verified",
        "without an answer of the endpoint picker: requests are balanced over the ready endpoints (FailOpen)",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let closed = example.replace("FailOpen", "FailClose");
    let unready = closed.replace("[10.0.1.1]", "[10.0.1.1], conditions: {ready: false}");
    let none = example.replace("name: epp, port:", "name: none, port:");
    for (objects, line) in [
        (closed, "endpoint picker: requests get 503 (FailClose)"),
        (unready, "default/llm:8000, has no ready endpoint"),
        (none, "Service default/none does not exist"),
    ] {
        let text = shown(&objects);
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn shows_cors_filter() {
    let rows = [
        (
            "{allowOrigins: ['*'], allowCredentials: true}",
            "allow every origin, with credentials",
        ),
        (
            "{allowOrigins: ['https://*.a.com']}",
            "allow https://*.a.com:443, without credentials",
        ),
        ("{}", "allow no origin, without credentials"),
    ];
    for (cors, expected) in rows {
        let rule = format!("{{name: one, filters: [{{type: CORS, cors: {cors}}}], ");
        let objects = OBJECTS.replace("{name: one, ", &rule);
        let text = explanation(&objects, "http://app.example/", Permissions::default());
        let expected = format!("CORS: respond to preflight requests, {expected}");
        assert!(text.contains(&expected), "{text}");
    }
}

#[test]
fn shows_every_policy_for_the_backend_with_its_reason() {
    let tls = "validation: {hostname: h, wellKnownCACertificates: System}";
    let objects = [
        policy("app", "producer", "", tls),
        policy("edge", "consumer", "", tls),
        policy("edge", "b", ", from: {kind: Gateway, name: web}", tls),
        policy("edge", "a", ", from: {kind: Gateway, name: web}", tls),
        policy("edge", "two", ", from: {kind: Gateway, name: two}", tls),
        policy("edge", "admin", ", sectionName: admin", tls),
        policy(
            "app",
            "rule",
            ", from: {kind: HTTPRoute, name: r, sectionName: x}",
            tls,
        ),
        policy("third", "stranger", "", tls),
    ];
    let objects = format!("{OBJECTS}{}", objects.concat());
    let expected = "\
TLS policy  Service app/app:443
              BackendTLSOverride edge/a (level gateway) applies
              BackendTLSOverride edge/b (level gateway) has lower precedence: the policy that applies is first by name
              BackendTLSOverride edge/consumer (level consumer) has lower precedence: the policy that applies has a more specific level
              BackendTLSOverride app/producer (level producer) has lower precedence: the policy that applies has a more specific level
              BackendTLSOverride app/rule (level route) does not select this request: it is for requests of HTTPRoute app/r rule x
              BackendTLSOverride edge/admin (level consumer) does not select this request: it is for port admin
              BackendTLSOverride edge/two (level gateway) does not select this request: it is for requests of Gateway edge/two
              BackendTLSOverride third/stranger (level consumer) does not select this request: namespace third is neither that \
of the Gateway nor that of the Service
";
    assert_eq!(explained(&objects, Permissions::default()), expected);
}

#[test]
fn shows_the_flag_that_forbids_a_policy() {
    let permissions = Permissions {
        backend_tls_floor: PolicyLevel::Gateway,
        ..Permissions::default()
    };
    let route = ", from: {kind: HTTPRoute, name: r}";
    let objects = [
        policy("app", "plain", route, "mode: None"),
        policy(
            "edge",
            "skip",
            "",
            "validation: {hostname: h, insecureSkipVerify: true}",
        ),
    ];
    let objects = format!("{OBJECTS}{}", objects.concat());
    let text = explained(&objects, permissions);
    for part in [
        "edge/skip (level consumer) applies but cannot be used, so that requests get 500: \
         spec.validation.insecureSkipVerify is not permitted",
        "--allow-insecure-backend=skip-verify",
        "app/plain (level route) is ignored: spec.mode None is not permitted at level route",
        "--backend-tls-floor=gateway",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn shows_nothing_for_backends_without_policies() {
    assert_eq!(explained(OBJECTS, Permissions::default()), "");
}

#[test]
fn names_authorization_servers_and_mirrors_without_endpoints() {
    let objects = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: portcullis, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r}
spec:
  parentRefs: [{name: web}]
  rules:
  - filters:
    - type: ExternalAuth
      externalAuth: {protocol: HTTP, http: {}, backendRef: {name: empty, port: 80}}
    - type: RequestMirror
      requestMirror: {backendRef: {name: empty, port: 80}}
    backendRefs: [{name: empty, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {ports: [{port: 80}]}
"#;
    let text = explanation(objects, "http://a.example/", Permissions::default());
    for line in [
        "authorize requests with Service default/empty:80 over HTTP, which has no ready endpoint\n",
        "mirror every request to Service default/empty:80, which has no ready endpoint\n",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}

#[test]
fn names_the_authorization_server_of_a_policy() {
    let asked = |name: &str| {
        let policy = format!(
            "---\napiVersion: portcullis.dev/v1alpha1\nkind: AccessPolicy\nmetadata: {{name: asked, namespace: app}}\n\
             spec:\n  targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: r}}]\n  \
             external: {{protocol: HTTP, backendRef: {{name: {name}, port: 80}}}}\n"
        );
        let objects = format!("{OBJECTS}{policy}");
        explanation(&objects, "http://app.example/", Permissions::default())
    };
    for (name, line) in [
        (
            "other",
            "the permission of the authorization server Service app/other:80, which has no ready endpoint, asked over HTTP (AccessPolicy app/asked)",
        ),
        (
            "missing",
            "the permission of the authorization server that cannot be used (until then 500: ",
        ),
    ] {
        let text = asked(name);
        assert!(text.contains(line), "{line:?} in {text}");
    }
}
