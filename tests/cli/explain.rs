//! What `explain` says of configuration that is broken, from a folder and from a running proxy alike.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::ports::free_ports;
use crate::{Running, TEST_TIMEOUT, output, stdout};

/// An explanation as text and as JSON.
pub(crate) struct Explained {
    text: String,
    json: Value,
}

impl Explained {
    fn of(source: &[&str], request: &[&str]) -> Self {
        let asked = |format: &str| {
            let arguments = [&["explain", "-o", format], source, request].concat();
            output(&arguments)
        };
        let text = asked("text");
        let error = String::from_utf8_lossy(&text.stderr);
        assert!(matches!(text.status.code(), Some(0 | 1)), "{error}");
        let json = stdout(&asked("json"));
        Self {
            text: stdout(&text),
            json: serde_json::from_str(&json).unwrap(),
        }
    }

    pub(crate) fn outcome(&self) -> &Value {
        &self.json["ports"][0]["outcome"]
    }

    /// Asserts that both forms have the lines under a label, in camel case.
    pub(crate) fn has(&self, label: &str, line: &str) {
        let Self { text, json } = self;
        assert!(text.contains(line), "{line:?} in {text}");
        let lines = json["ports"][0][label].as_array();
        let mut lines = lines.into_iter().flatten().filter_map(Value::as_str);
        assert!(lines.any(|it| it.contains(line)), "{line:?} in {json:#}");
    }
}

/// A folder, and a proxy that serves it.
pub(crate) struct Served {
    folder: tempfile::TempDir,
    admin: String,
    _proxy: Running,
}

impl Served {
    pub(crate) fn new(objects: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.yaml"), objects).unwrap();
        let [port] = free_ports();
        let admin = format!("127.0.0.1:{port}");
        let path = name(folder.path());
        let proxy = Running::start(&["run", "--config-dir", path, "--admin", &admin]);
        let served = Self {
            admin,
            _proxy: proxy,
            folder,
        };
        served.wait();
        served
    }

    /// Waits until the proxy serves its first configuration.
    fn wait(&self) {
        let end = Instant::now() + TEST_TIMEOUT;
        let asked = || stdout(&output(&["explain", "--admin", &self.admin, "http://a/"]));
        while !asked().contains("in service: generation 1") {
            assert!(Instant::now() < end, "no configuration");
            // Nothing tells the first configuration.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The admin address of the proxy.
    pub(crate) fn admin(&self) -> &str {
        &self.admin
    }

    /// Explains a request by the folder and by the proxy.
    pub(crate) fn explain(&self, request: &[&str]) -> [Explained; 2] {
        [
            Explained::of(&[name(self.folder.path())], request),
            Explained::of(&["--admin", &self.admin], request),
        ]
    }
}

fn name(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Routes to `/NAME` of which each has one fault.
pub(crate) const BROKEN: &str = r#"
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
  - {name: missing, matches: [{path: {value: /missing}}], backendRefs: [{name: missing, port: 80}]}
  - name: filter
    matches: [{path: {value: /filter}}]
    filters: [{type: ExtensionRef, extensionRef: {group: portcullis.dev, kind: RouteFilter, name: missing}}]
    backendRefs: [{name: app, port: 80}]
  - {name: none, matches: [{path: {value: /none}}]}
  - {name: weight, matches: [{path: {value: /weight}}], backendRefs: [{name: app, port: 80, weight: 0}]}
  - {name: empty, matches: [{path: {value: /empty}}], backendRefs: [{name: empty, port: 80}]}
  - {name: mixed, matches: [{path: {value: /mixed}}], backendRefs: [{name: missing, port: 80}, {name: app, port: 80}]}
  - {name: denied, matches: [{path: {value: /denied}}], backendRefs: [{name: app, port: 80}]}
  - {name: asked, matches: [{path: {value: /asked}}], backendRefs: [{name: app, port: 80}]}
  - name: authorized
    matches: [{path: {value: /authorized}}]
    filters:
    - type: ExternalAuth
      externalAuth: {protocol: HTTP, http: {}, backendRef: {name: empty, port: 80}}
    backendRefs: [{name: app, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: calls}
spec:
  parentRefs: [{name: web}]
  hostnames: [grpc.example.com]
  rules: [{backendRefs: [{name: missing, port: 80}]}]
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: denied}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: shop, sectionName: denied}]
  ipRules: {deny: [nonsense]}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: asked}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: shop, sectionName: asked}]
  external: {protocol: HTTP, backendRef: {name: missing, port: 80}}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: app, labels: {kubernetes.io/service-name: app}}
addressType: IPv4
endpoints: [{addresses: [127.0.0.1]}]
ports: [{port: 9}]
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {ports: [{port: 80}]}
"#;

#[test]
fn names_the_status_of_a_rule_that_is_broken() {
    let [port] = free_ports();
    let served = Served::new(&BROKEN.replace("PORT", &port.to_string()));
    for (path, status, why) in [
        ("missing", 500, "Service default/missing does not exist"),
        ("filter", 500, "RouteFilter default/missing does not exist"),
        ("none", 500, "spec.rules[2] has no backendRefs"),
        (
            "weight",
            500,
            "all weights of spec.rules[3].backendRefs are 0",
        ),
        (
            "empty",
            503,
            "Service default/empty:80 has no ready endpoint",
        ),
        ("denied", 500, "AccessPolicy default/denied"),
        ("asked", 500, "Service default/missing does not exist"),
        (
            "authorized",
            503,
            "Service default/empty:80 has no ready endpoint",
        ),
    ] {
        let url = format!("http://shop.example.com:{port}/{path}");
        for explained in served.explain(&[&url]) {
            let outcome = explained.outcome();
            assert_eq!(outcome["route"], "HTTPRoute default/shop", "{path}");
            assert_eq!(outcome["status"], json!(status), "{path}: {outcome}");
            let reason = outcome["reason"].as_str().unwrap_or_default();
            assert!(reason.contains(why), "{path}: {outcome}");
            explained.has("response", &format!("{status}: {reason}"));
        }
    }
    let url = format!("http://shop.example.com:{port}/mixed");
    for explained in served.explain(&[&url]) {
        let outcome = explained.outcome();
        assert_eq!(
            (&outcome["status"], &outcome["reason"]),
            (&Value::Null, &Value::Null)
        );
        assert!(!explained.text.contains("response "), "{}", explained.text);
    }
    let url = format!("POST http://grpc.example.com:{port}/a.B/C");
    for explained in served.explain(&[&url, "-H", "content-type: application/grpc"]) {
        let outcome = explained.outcome();
        assert_eq!(outcome["status"], 200, "{outcome}");
        assert_eq!(outcome["grpcStatus"], "UNAVAILABLE", "{outcome}");
        explained.has("response", "gRPC status UNAVAILABLE: ");
    }
}

/// A Gateway with a listener for each certificate, and two more.
const UNSERVED: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners:
  - {name: missing, port: CLOSED, protocol: HTTPS, tls: {certificateRefs: [{name: shop-tsl}]}}
  - {name: invalid, port: OPEN, protocol: HTTPS, hostname: shop.example.com, tls: {certificateRefs: [{name: empty}]}}
  - {name: good, port: OPEN, protocol: HTTPS, hostname: other.example.com, tls: {certificateRefs: [{name: shop-tls}]}}
---
apiVersion: v1
kind: Secret
metadata: {name: empty}
type: kubernetes.io/tls
stringData: {tls.crt: none, tls.key: none}
---
"#;

#[test]
fn names_the_listener_that_is_not_served_and_why() {
    let [closed, open] = free_ports();
    let objects = UNSERVED.replace("CLOSED", &closed.to_string());
    let objects = objects.replace("OPEN", &open.to_string());
    let secret = secret("shop-tls", &["other.example.com"], (2020, 2100));
    let served = Served::new(&(objects + &secret));
    let url = format!("https://shop.example.com:{closed}/");
    let [folder, proxy] = served.explain(&[&url]);
    for explained in [&folder, &proxy] {
        let line = format!("port {closed} is closed: no listener on it is served");
        explained.has("port", &line);
        let line = format!(
            "listener missing of Gateway default/web, port {closed}, hostname *: Programmed is False (Invalid): no usable \
                    certificate: spec.listeners[missing].tls.certificateRefs[0]: Secret default/shop-tsl does not exist"
        );
        explained.has("notServed", &line);
        explained.has(
            "notServed",
            "create the Secret, repair it, or name another one",
        );
        let reason = explained.outcome()["reason"].as_str().unwrap_or_default();
        assert!(
            reason.contains("Secret default/shop-tsl does not exist"),
            "{reason}"
        );
    }
    folder.has("notServed", "; did you mean shop-tls?");
    let url = format!("https://shop.example.com:{open}/");
    for explained in served.explain(&[&url]) {
        explained.has(
            "listener",
            "none for shop.example.com: the handshake is refused",
        );
        explained.has(
            "notServed",
            &format!(
                "listener invalid of Gateway default/web, port {open}, hostname shop.example.com: "
            ),
        );
        explained.has("notServed", "Secret default/empty");
    }
    let url = format!("https://other.example.com:{open}/");
    for explained in served.explain(&[&url]) {
        assert!(!explained.text.contains("not served"), "{}", explained.text);
    }
}

/// Routes that nothing serves.
const UNATTACHED: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: web}
spec:
  gatewayClassName: portcullis
  listeners: [{name: http, port: PORT, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: gateway}
spec: {parentRefs: [{name: wbe}], hostnames: ["*.gateway.example.com"], rules: [{}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: section}
spec: {parentRefs: [{name: web, sectionName: htp}], hostnames: [section.example.com], rules: [{}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: port}
spec: {parentRefs: [{name: web, port: 81}], hostnames: [port.example.com], rules: [{}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: good}
spec: {parentRefs: [{name: web}], hostnames: [good.example.com], rules: [{}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: tcp}
spec: {parentRefs: [{name: wbe}], rules: [{}]}
"#;

#[test]
fn names_the_route_for_the_host_that_is_not_attached() {
    let [port] = free_ports();
    let served = Served::new(&UNATTACHED.replace("PORT", &port.to_string()));
    for (host, route, why, meant) in [
        (
            "a.gateway.example.com",
            "HTTPRoute default/gateway",
            "spec.parentRefs[0] names Gateway default/wbe, which does not exist",
            "did you mean web?",
        ),
        (
            "section.example.com",
            "HTTPRoute default/section",
            "for Gateway web listener htp: Accepted is False (NoMatchingParent): Gateway default/web has no listener named htp",
            "did you mean http?",
        ),
        (
            "port.example.com",
            "HTTPRoute default/port",
            "for Gateway web port 81: Accepted is False (NoMatchingParent): Gateway default/web has no listener on port 81",
            "",
        ),
    ] {
        let url = format!("http://{host}:{port}/");
        for explained in served.explain(&[&url]) {
            explained.has("rule", "none matches: 404");
            explained.has(
                "unattached",
                &format!("{route} is for {host}, but is not attached: {why}"),
            );
            let lines = explained.json["ports"][0]["unattached"].as_array();
            assert_eq!(lines.map(Vec::len), Some(1), "{}", explained.text);
            assert_eq!(explained.text.matches(why).count(), 1, "{}", explained.text);
            explained.has("unattached", meant);
        }
    }
    let url = format!("http://good.example.com:{port}/");
    for explained in served.explain(&[&url]) {
        assert!(
            !explained.text.contains("not attached"),
            "{}",
            explained.text
        );
    }
}

/// A Secret with a certificate for these names, valid from the start of a year to that of another.
fn secret(name: &str, names: &[&str], (from, to): (i32, i32)) -> String {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    params.not_before = rcgen::date_time_ymd(from, 1, 1);
    params.not_after = rcgen::date_time_ymd(to, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let data = json!({"tls.crt": certificate.pem(), "tls.key": key.serialize_pem()});
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": name}, "stringData": data,
    });
    format!("{secret}\n")
}

#[test]
fn warns_of_the_certificate_that_clients_refuse() {
    let [port] = free_ports();
    let listener = |name: &str, hostname: &str| {
        json!({
            "name": name, "port": port, "protocol": "HTTPS", "hostname": hostname,
            "tls": {"certificateRefs": [{"name": name}]},
        })
    };
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "metadata": {"name": "web"},
        "spec": {
            "gatewayClassName": "portcullis",
            "listeners": [
                listener("expired", "expired.example.com"),
                listener("early", "early.example.com"),
                listener("other", "*.other.example.com"),
                listener("good", "*.good.example.com"),
            ],
        },
    });
    let objects = [
        format!("{gateway}\n"),
        secret("expired", &["expired.example.com"], (2020, 2021)),
        secret("early", &["early.example.com"], (2100, 2101)),
        secret("other", &["a.other.example.com"], (2020, 2100)),
        secret("good", &["*.good.example.com"], (2020, 2100)),
    ];
    let served = Served::new(&objects.join("---\n"));
    for (host, warning) in [
        (
            "expired.example.com",
            "the certificate of Secret default/expired has expired at 2021-01-01T00:00:00Z",
        ),
        (
            "early.example.com",
            "the certificate of Secret default/early is not valid before 2100-01-01T00:00:00Z",
        ),
        (
            "b.other.example.com",
            "no certificate is for b.other.example.com, only for a.other.example.com",
        ),
    ] {
        let url = format!("https://{host}:{port}/");
        for explained in served.explain(&[&url]) {
            explained.has("certificate", warning);
        }
    }
    for host in ["a.other.example.com", "a.good.example.com"] {
        let url = format!("https://{host}:{port}/");
        for explained in served.explain(&[&url]) {
            assert!(
                explained.json["ports"][0]["certificate"].is_null(),
                "{}",
                explained.text
            );
        }
    }
}
