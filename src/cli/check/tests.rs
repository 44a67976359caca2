//! What `check` prints about folders of each test.

mod endpoints;
mod readings;

use serde_json::Value;

use super::*;

const GATEWAY: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec: {gatewayClassName: portcullis, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
"#;

const SHADOWED: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: narrow, creationTimestamp: "2026-02-01T00:00:00Z"}
spec:
  parentRefs: [{name: web}]
  rules: [{matches: [{path: {type: Exact, value: /login}}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: wide, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  parentRefs: [{name: web}]
  rules: [{matches: [{path: {type: Exact, value: /login}}]}]
"#;

fn check<T>(text: &str, look: impl FnOnce(&CheckResult<'_>) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("routes.yaml"), text).unwrap();
    let (load, _, translation) =
        translate_objects(ObjectSource::Folder(folder.path()), &Options::default()).unwrap();
    let now = (Mode::Standalone, Timestamp::now());
    let found = of_valid(&load.snapshot, &translation, now);
    let locations = Locations::default();
    look(&CheckResult::new(&load, &locations, &translation, found))
}

fn printed(text: &str) -> String {
    let mut out = Vec::new();
    check(text, |result| result.print(false, &mut out)).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn warns_of_shadowed_match() {
    let text = printed(&format!("{GATEWAY}{SHADOWED}"));
    let warning = "warning: HTTPRoute default/narrow: spec.rules[0].matches[0] gets no request for host * of \
                   Gateway default/web listener http: spec.rules[0] of HTTPRoute default/wide has the same match or \
                   a wider one, and comes first; remove it, or narrow the match that comes first\n";
    assert!(text.contains(warning), "{text}");
    assert!(
        text.contains("not accepted: 0, other problems: 2, warnings: 1"),
        "{text}"
    );
}

/// Every map of the report has an entry, so that a map that `check` leaves out fails the test.
#[test]
fn prints_conditions_of_every_kind() {
    let text = printed(&format!(
        "{GATEWAY}{}",
        r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r}
spec:
  parentRefs: [{name: web, sectionName: http}]
  rules:
  - backendRefs:
    - {name: s, port: 80}
    - {group: portcullis.dev, kind: ReleaseBackend, name: rb, port: 80}
    - {group: gateway.networking.x-k8s.io, kind: XBackend, name: x}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: set}
spec:
  parentRef: {name: web}
  listeners: [{name: more, port: 81, protocol: HTTP}]
---
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {selector: {app: s}, ports: [{port: 80}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: ReleaseBackend
metadata: {name: rb}
spec: {loadBalancer: {v1.Service: {name: s}}, splitBy: app, releases: [{value: a, weight: 1}]}
---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackend
metadata: {name: x}
spec: {type: ExternalHostname, externalHostname: {hostname: a.example.com}, port: {port: 80}}
---
apiVersion: portcullis.dev/v1alpha1
kind: BackendTLSOverride
metadata: {name: plain}
spec: {targetRefs: [{group: "", kind: Service, name: s, from: {kind: Gateway, name: web}}], mode: None}
"#
    ));
    for line in [
        "\nGateway default/web\n  Accepted",
        "\n  listener http (1 routes)\n    Accepted",
        "\nListenerSet default/set\n  Accepted",
        "\nHTTPRoute default/r\n  for Gateway web listener http\n    Accepted",
        "\nBackendTLSOverride default/plain\n  for Gateway default/web\n    ",
        "\nXBackend default/x\n  for Gateway default/web\n    ",
        "\nReleaseBackend default/rb\n  ",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}

#[test]
fn prints_a_pool_and_its_picker() {
    let page = include_str!("../../../docs/inference.md");
    let example = page.split("```yaml\n").nth(1).unwrap();
    let text = printed(example.split("```").next().unwrap());
    for line in [
        "\nInferencePool default/llm\n  for Gateway default/web\n    Accepted",
        "without an answer of the endpoint picker: requests are balanced over the ready endpoints (FailOpen)",
        "the picker is Service default/epp:9002, in TLS, whose certificate is not verified",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}

#[test]
fn route_of_an_invalid_gateway_names_it_as_invalid() {
    let text = printed(&format!(
        "{}{SHADOWED}",
        GATEWAY.replace("port: 80,", "port: 80000,")
    ));
    let line = "not accepted: HTTPRoute default/wide: spec.parentRefs[0] names Gateway default/web, which is invalid";
    assert!(text.contains(line), "{text}");
}

#[test]
fn accepted_route_is_never_called_not_accepted() {
    let (before, _) = SHADOWED.rsplit_once("rules: ").unwrap();
    let routes = format!("{before}rules: [{{backendRefs: [{{name: missing, port: 80}}]}}]\n");
    let routes = routes.replacen("{name: web}", "{name: web, sectionName: x}", 1);
    let text = printed(&format!("{GATEWAY}{routes}"));
    for line in [
        "problem: HTTPRoute default/wide: for Gateway web: ResolvedRefs is False (BackendNotFound)",
        "not accepted: HTTPRoute default/narrow: for Gateway web listener x: Accepted is False",
        "not accepted: 1, other problems: 1, warnings: ",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}

#[test]
fn warns_of_requests_that_fail() {
    let text = printed(&format!(
        "{GATEWAY}{}",
        r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r}
spec:
  parentRefs: [{name: web}]
  rules:
  - matches: [{path: {value: /a}}]
  - matches: [{path: {value: /b}}]
    backendRefs: [{name: misnamed, port: 80, weight: 0}]
  - matches: [{path: {value: /c}}]
    backendRefs: [{name: misnamed, port: 80}, {name: missing, port: 80, weight: 0}]
  - matches: [{path: {value: /d}}]
    backendRefs: [{name: empty, port: 80}]
  - matches: [{path: {value: /e}}]
    filters: [{type: RequestRedirect, requestRedirect: {scheme: https}}]
---
apiVersion: v1
kind: Service
metadata: {name: misnamed}
spec: {ports: [{name: web, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: misnamed-1, labels: {kubernetes.io/service-name: misnamed}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1]}]
ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {ports: [{port: 80}]}
"#
    ));
    for line in [
        "problem: HTTPRoute default/r: spec.rules[0] has no backendRefs: every request gets status 500; name a backendRef",
        "problem: HTTPRoute default/r: all weights of spec.rules[1].backendRefs are 0: every request gets status 500; name a \
         backendRef with a weight above 0\n",
        "problem: HTTPRoute default/r: spec.rules[2]: Service default/misnamed:80 has no ready endpoint (the port has the name \
         web, but the EndpointSlices of the Service have only http): requests get status 503\n",
        "warning: HTTPRoute default/r: spec.rules[3]: Service default/empty:80 has no ready endpoint (no EndpointSlice has the \
         label kubernetes.io/service-name: empty): requests get status 503\n",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    assert!(!text.contains("spec.rules[4]"), "{text}");
}

#[test]
fn warns_of_filters_and_calls_that_fail() {
    let text = printed(&format!(
        "{GATEWAY}{}",
        r#"
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: r}
spec:
  parentRefs: [{name: web}]
  rules:
  - filters:
    - type: ExternalAuth
      externalAuth: {protocol: HTTP, http: {}, backendRef: {name: empty, port: 80}}
    backendRefs:
    - name: full
      port: 80
      filters: [{type: RequestMirror, requestMirror: {backendRef: {name: empty, port: 81}}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: g}
spec:
  parentRefs: [{name: calls}]
  rules:
  - matches: [{method: {service: a}}]
  - matches: [{method: {service: b}}]
    backendRefs: [{name: empty, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: calls}
spec: {gatewayClassName: portcullis, listeners: [{name: http, port: 81, protocol: HTTP}]}
---
apiVersion: v1
kind: Service
metadata: {name: full}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: full-1, labels: {kubernetes.io/service-name: full}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1]}]
ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {ports: [{name: a, port: 80}, {name: b, port: 81}]}
"#
    ));
    for line in [
        "warning: HTTPRoute default/r: spec.rules[0]: Service default/empty:80 has no ready endpoint (no EndpointSlice has the \
         label kubernetes.io/service-name: empty): requests get status 503\n",
        "warning: HTTPRoute default/r: spec.rules[0]: Service default/empty:81 has no ready endpoint (no EndpointSlice has the \
         label kubernetes.io/service-name: empty): no copy is sent\n",
        "problem: GRPCRoute default/g: spec.rules[0] has no backendRefs: every call gets gRPC status UNAVAILABLE; ",
        "warning: GRPCRoute default/g: spec.rules[1]: Service default/empty:80 has no ready endpoint (no EndpointSlice has the \
         label kubernetes.io/service-name: empty): calls get gRPC status UNAVAILABLE\n",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
}

#[test]
fn warns_of_certificates_that_clients_refuse() {
    let now = Timestamp::now();
    let secret = |name: &str, host: &str, from: i64, to: i64| {
        let mut params = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
        let day = |days: i64| {
            let date = now.to_zoned(jiff::tz::TimeZone::UTC).date();
            let date = date.saturating_add(jiff::Span::new().days(days));
            rcgen::date_time_ymd(date.year().into(), date.month() as u8, date.day() as u8)
        };
        (params.not_before, params.not_after) = (day(from), day(to));
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let data =
            serde_json::json!({"tls.crt": certificate.pem(), "tls.key": key.serialize_pem()});
        serde_json::json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": name}, "stringData": data,
        })
    };
    let listener = |name: &str| {
        serde_json::json!({
            "name": name, "port": 443, "protocol": "HTTPS", "hostname": format!("{name}.example.com"),
            "tls": {"certificateRefs": [{"name": name}]},
        })
    };
    let names = ["expired", "early", "soon", "other", "good"];
    let listeners: Vec<_> = names.into_iter().map(listener).collect();
    let gateway = serde_json::json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "tls"},
        "spec": {"gatewayClassName": "portcullis", "listeners": listeners},
    });
    let documents = [
        gateway,
        secret("expired", "expired.example.com", -20, -2),
        secret("early", "early.example.com", 2, 90),
        secret("soon", "soon.example.com", -80, 3),
        secret("other", "else.example.com", -1, 90),
        secret("good", "*.example.com", -1, 90),
    ];
    let texts: Vec<_> = documents.iter().map(Value::to_string).collect();
    let text = printed(&texts.join("\n---\n"));
    for line in [
        "problem: Gateway default/tls: listener expired: the certificate of Secret default/expired has expired at ",
        "problem: Gateway default/tls: listener early: the certificate of Secret default/early is not valid before ",
        "warning: Gateway default/tls: listener soon: the certificate of Secret default/soon expires at ",
        "problem: Gateway default/tls: listener other: no certificate is for other.example.com, only for else.example.com",
    ] {
        assert!(text.contains(line), "{line:?} in {text}");
    }
    assert!(
        !text.contains(": Gateway default/tls: listener good: "),
        "{text}"
    );
}

#[test]
fn prints_json() {
    let value = check(&format!("{GATEWAY}{SHADOWED}"), |result| {
        serde_json::to_value(result.document(false)).unwrap()
    });
    assert_eq!(value["summary"]["gateways"], 1);
    assert_eq!(value["summary"]["notAccepted"], 0);
    assert_eq!(value["warnings"].as_array().unwrap().len(), 1);
    let unweighted = value["otherProblems"].as_array().unwrap();
    assert_eq!(unweighted.len(), 2);
    for finding in unweighted {
        assert_eq!(
            (&finding["kind"], &finding["severity"]),
            (&"route".into(), &"error".into())
        );
        assert_eq!(finding["cause"], "spec.rules[0] has no backendRefs");
        assert_eq!(finding["effect"], "every request gets status 500");
        assert_eq!(finding["remedy"], "name a backendRef with a weight above 0");
    }
    let conditions = value["conditions"].as_array().unwrap();
    let of_route = |it: &&Value| it["object"] == "HTTPRoute default/wide";
    let route = conditions.iter().find(of_route).unwrap();
    assert_eq!(route["place"], "for Gateway web");
    assert_eq!(route["conditions"][0]["status"], "True");
    let broken = check("kind: Gateway", |result| {
        serde_json::to_value(result.document(true)).unwrap()
    });
    let problem = &broken["problems"][0];
    assert_eq!(problem["severity"], "error");
    assert_eq!(problem["line"], 1);
    assert!(problem["file"].as_str().unwrap().ends_with("routes.yaml"));
}

/// The provider knows one URL of each host, and a route for a part of the paths does not take it.
#[test]
fn warns_of_sign_ins_that_no_rule_ends() {
    const POLICY: &str = r#"
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: desk}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: desk}]
  oidc: {issuer: "https://login.example.com", clientID: desk, PATHS}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: open}
spec:
  parentRefs: [{name: web}]
  rules: [{filters: [{type: RequestRedirect, requestRedirect: {statusCode: 302}}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: desk}
spec:
  parentRefs: [{name: web}]
  hostnames: [desk.example.com]
  rules:
  - matches: [MATCHES]
    filters: [{type: RequestRedirect, requestRedirect: {statusCode: 302}}]
"#;
    const APP: &str = "{path: {value: /app}}";
    let warnings = |paths: &str, matches: &str| {
        let policy = POLICY.replace("PATHS", paths).replace("MATCHES", matches);
        let text = printed(&format!("{GATEWAY}{policy}"));
        let lines = text
            .lines()
            .filter(|line| line.contains(": no rule that the policy applies to "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let outside = |field: &str, path: &str, outcome: &str| {
        format!(
            "problem: AccessPolicy default/desk: no rule that the policy applies to matches spec.oidc.{field} {path} for host \
             desk.example.com of Gateway default/web listener http: {outcome}; correct the path, or add a rule for it"
        )
    };
    let callback = outside(
        "redirectPath",
        "/oauth2/callback",
        "browsers that come back from the provider are not signed in",
    );
    let logout = outside("logoutPath", "/oauth2/logout", "browsers cannot sign out");
    let both = [logout, callback.clone()];
    assert_eq!(warnings("", APP), both);
    assert_eq!(warnings("logoutPath: /app/out", APP), [callback]);
    let within = "redirectPath: /app/in, logoutPath: /app/out";
    for (paths, matches) in [
        (within, APP),
        ("", "{}"),
        ("", "{path: {value: /oauth2}}, {path: {value: /app}}"),
        (
            "",
            "{path: {type: Exact, value: /oauth2/callback}}, {path: {type: Exact, value: /oauth2/logout}, method: GET}",
        ),
    ] {
        assert!(warnings(paths, matches).is_empty(), "{paths} {matches}");
    }
    let of_another_method = "{path: {value: /app}, method: POST}";
    assert_eq!(warnings(within, of_another_method).len(), 2);
    let ends = outside(
        "backChannelLogoutPath",
        "/oauth2/ended",
        "the provider cannot end sessions",
    );
    let within = format!("{within}, backChannelLogoutPath");
    assert_eq!(warnings(&format!("{within}: /oauth2/ended"), APP), [ends]);
    let inside = format!("{within}: /app/ended");
    assert!(warnings(&inside, APP).is_empty());
    // The provider sends POST, and browsers send GET.
    let of_browsers = "{path: {value: /app}, method: GET}";
    assert_eq!(warnings(&inside, of_browsers).len(), 1);
}

#[test]
fn warns_of_shared_limits_in_a_folder_alone() {
    let objects = r#"
apiVersion: portcullis.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: shared}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web}]
  rules:
  - {name: own, limit: {requests: 10, per: Second}}
  - {name: all, limit: {requests: 10, per: Second}, scope: Gateway}
"#;
    let text = printed(&format!("{GATEWAY}{objects}"));
    let warnings: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("warning:"))
        .collect();
    assert_eq!(
        warnings,
        [
            "warning: RateLimitPolicy default/shared: limit all has scope Gateway: a process without a controller knows no \
             others, and admits the whole limit by itself; run it with a controller, or divide the limit and count by scope Replica"
        ]
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), format!("{GATEWAY}{objects}")).unwrap();
    let (load, locations, translation) =
        translate_objects(ObjectSource::Folder(folder.path()), &Options::default()).unwrap();
    let in_cluster = (Mode::Kubernetes, Timestamp::now());
    let found = of_valid(&load.snapshot, &translation, in_cluster);
    let result = CheckResult::new(&load, &locations, &translation, found);
    assert!(result.warnings.is_empty());
}
