//! The CORS filter end to end, beyond what the conformance test checks.

use http::{Method, Response};
use serde_json::{Value, json};

use crate::client::{Answer, Client, connect, read_until, write_text};
use crate::harness::tls::{self, Certificate};
use crate::origin::{Origin, empty, full};
use crate::scene::{Objects, Scene, https, prefix, secret};

/// Returns a rule with a CORS filter.
pub(crate) fn with_cors(path: &str, service: &str, cors: &Value) -> Value {
    let mut rule = prefix(path, service);
    rule["filters"] = json!([{"type": "CORS", "cors": cors}]);
    rule
}

/// Returns a Gateway on port 80, and with TLS on port 443.
pub(crate) fn gateway() -> Objects {
    Objects::gateway(&[
        crate::scene::http("plain", 80, ""),
        https("tls", 443, "", &["certificate"]),
    ])
}

/// Serves these objects with a certificate.
pub(crate) fn start(objects: Objects) -> Scene {
    let certificate = Certificate::new(&["a.com"]);
    Scene::start(&objects.with(secret("certificate", &certificate)))
}

/// Clients of both HTTP versions over TLS.
pub(crate) async fn clients(scene: &Scene) -> [Client; 2] {
    let address = scene.at(443);
    [
        Client::tls(address, "a.com", &tls::client(&["http/1.1"])).await,
        Client::tls(address, "a.com", &tls::client(&["h2"])).await,
    ]
}

/// Sends a request with these headers.
pub(crate) async fn fetch(
    client: &mut Client,
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
) -> Answer {
    let method: Method = method.parse().expect("a method");
    let mut request = client.request(method, "a.com", path);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    client
        .fetch(request.body(empty()).expect("a request"))
        .await
}

/// Returns a backend with its own CORS policy, which the route overrides.
async fn opinionated() -> Origin {
    Origin::new(|_| async {
        Response::builder()
            .header("access-control-allow-origin", "https://backend.org")
            .header("access-control-allow-credentials", "true")
            .header("access-control-allow-methods", "DELETE")
            .header("access-control-expose-headers", "x-backend")
            .header("vary", "Accept")
            .header("x-one", "1")
            .body(full("body"))
            .expect("a response")
    })
    .await
}

/// Origin of the page.
pub(crate) const ORIGIN: &str = "origin";
/// Method of the actual request.
pub(crate) const METHOD: &str = "access-control-request-method";

#[tokio::test]
async fn response_to_a_preflight_request_has_no_body() {
    let echo = Origin::echo("echo").await;
    let cors = json!({"allowOrigins": ["https://a.org"], "allowMethods": ["PUT"], "maxAge": 60});
    let objects = gateway().service("echo", &[echo.address]);
    let scene = start(objects.route("route", &[with_cors("/", "echo", &cors)]));
    let mut stream = connect(scene.at(80)).await;
    for (origin, cors) in [
        (
            "https://a.org",
            "access-control-allow-origin: https://a.org\r\naccess-control-max-age: 60\r\n\
             access-control-allow-methods: PUT\r\n",
        ),
        ("https://b.org", ""),
    ] {
        // A second request on the connection shows that the response has no body.
        let request = format!(
            "OPTIONS /a HTTP/1.1\r\nHost: a.com\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: PUT\r\n\r\n"
        );
        write_text(&mut stream, request).await;
        let head = read_until(&mut stream, "\r\n\r\n").await.to_lowercase();
        let (status, fields) = head.split_once("\r\n").expect("a status line");
        assert_eq!(status, "http/1.1 204 no content");
        assert!(fields.contains("vary: origin\r\n"), "{head}");
        assert!(!fields.contains("content-length"), "{head}");
        assert!(!fields.contains("transfer-encoding"), "{head}");
        for line in cors.to_lowercase().split_inclusive("\r\n") {
            assert!(fields.contains(line), "{line} in {head}");
        }
        assert_eq!(
            fields.matches("access-control-").count(),
            cors.matches("access-control-").count(),
            "{head}"
        );
    }
    assert_eq!(echo.requests(), 0);
}

#[tokio::test]
async fn response_headers_of_the_backend_are_replaced() {
    let origin = opinionated().await;
    let cors = json!({
        "allowOrigins": ["https://a.org"],
        "allowMethods": ["GET"],
        "exposeHeaders": ["x-one"],
    });
    let rules = [
        with_cors("/cors", "origin", &cors),
        with_cors("/public", "origin", &json!({"allowOrigins": ["*"]})),
        prefix("/none", "origin"),
    ];
    let objects = gateway().service("origin", &[origin.address]);
    let scene = start(objects.route("route", &rules));
    let varies = vec!["Accept", "Origin"];
    let plain = vec!["Accept"];
    let rows = [
        (
            "/cors",
            Some("https://a.org"),
            "https://a.org",
            "x-one",
            &varies,
        ),
        ("/cors", Some("https://b.org"), "", "", &varies),
        ("/cors", None, "", "", &varies),
        ("/public", Some("https://b.org"), "*", "", &plain),
        ("/public", None, "*", "", &plain),
        (
            "/none",
            Some("https://a.org"),
            "https://backend.org",
            "x-backend",
            &plain,
        ),
    ];
    for mut client in clients(&scene).await {
        for (path, origin, allowed, exposed, vary) in &rows {
            let fields: Vec<_> = origin.map(|origin| (ORIGIN, origin)).into_iter().collect();
            let answer = fetch(&mut client, "GET", path, &fields).await;
            let case = format!("{path} {origin:?}");
            let header = |name: &str| answer.header(&format!("access-control-{name}")).to_owned();
            assert_eq!(header("allow-origin"), *allowed, "{case}");
            assert_eq!(header("expose-headers"), *exposed, "{case}");
            let of_backend = *path == "/none";
            assert_eq!(
                header("allow-credentials").is_empty(),
                !of_backend,
                "{case}"
            );
            assert_eq!(header("allow-methods").is_empty(), !of_backend, "{case}");
            let found: Vec<_> = answer.headers.get_all("vary").iter().collect();
            assert_eq!(found, **vary, "{case}");
            assert_eq!((answer.text(), answer.header("x-one")), ("body", "1"));
        }
    }
}

#[tokio::test]
async fn errors_and_redirects_have_cors_headers() {
    let cors = json!({"type": "CORS", "cors": {"allowOrigins": ["https://a.org"]}});
    let redirect = json!({"type": "RequestRedirect", "requestRedirect": {"hostname": "b.com"}});
    let mut redirected = prefix("/redirect", "");
    redirected["backendRefs"] = json!([]);
    redirected["filters"] = json!([redirect, cors]);
    let mut of_backend = prefix("/backend", "dead");
    of_backend["backendRefs"][0]["filters"] = json!([cors]);
    let mut of_rule = prefix("/rule", "dead");
    of_rule["filters"] = json!([cors]);
    let rules = [redirected, of_backend, of_rule, prefix("/none", "dead")];
    let objects = gateway().service("dead", &[Origin::dead()]);
    let scene = start(objects.route("route", &rules));
    for mut client in clients(&scene).await {
        for (path, is_error, allowed) in [
            ("/redirect", false, "https://a.org"),
            ("/backend", true, "https://a.org"),
            ("/rule", true, "https://a.org"),
            ("/none", true, ""),
        ] {
            let fields = [(ORIGIN, "https://a.org")];
            let answer = fetch(&mut client, "GET", path, &fields).await;
            assert_eq!(answer.status >= 500, is_error, "{path}: {answer:?}");
            assert_eq!(
                answer.header("access-control-allow-origin"),
                allowed,
                "{path}"
            );
            if !is_error {
                assert_eq!(answer.status, 302);
                let preflight = [fields[0], (METHOD, "PUT")];
                let answer = fetch(&mut client, "OPTIONS", path, &preflight).await;
                assert_eq!(answer.status, 204);
            }
        }
    }
}

#[tokio::test]
async fn responds_only_to_preflight_requests_that_match_the_rule() {
    let echo = Origin::echo("echo").await;
    let cors = json!({"allowOrigins": ["*"], "allowMethods": ["PUT"]});
    let mut of_method = with_cors("/method", "echo", &cors);
    of_method["matches"][0]["method"] = json!("PUT");
    let mut of_backend = prefix("/backend", "echo");
    of_backend["backendRefs"][0]["filters"] = json!([{"type": "CORS", "cors": cors}]);
    let rules = [with_cors("/cors", "echo", &cors), of_method, of_backend];
    let objects = gateway().service("echo", &[echo.address]);
    let scene = start(objects.route("route", &rules));
    let origin = (ORIGIN, "https://a.org");
    for mut client in clients(&scene).await {
        for (path, fields, status) in [
            ("/cors", &[origin, (METHOD, "PUT")] as &[_], 204),
            ("/backend", &[origin, (METHOD, "PUT")], 204),
            // Other OPTIONS requests go to the backend.
            ("/cors", &[origin], 200),
            ("/cors", &[(METHOD, "PUT")], 200),
            // The API makes no exception for preflight requests when it matches the method.
            ("/method", &[origin, (METHOD, "PUT")], 404),
        ] {
            let forwarded = echo.requests();
            let answer = fetch(&mut client, "OPTIONS", path, fields).await;
            assert_eq!(answer.status, status, "{path} {fields:?}");
            let is_forwarded = echo.requests() > forwarded;
            assert_eq!(is_forwarded, status == 200, "{path} {fields:?}");
            let allowed = answer.header("access-control-allow-origin");
            assert_eq!(allowed.is_empty(), status == 404, "{path} {fields:?}");
        }
        let answer = fetch(&mut client, "PUT", "/method", &[origin]).await;
        assert_eq!(answer.header("access-control-allow-origin"), "*");
    }
}

#[tokio::test]
async fn header_filters_after_cors_apply_last() {
    let origin = opinionated().await;
    let cors = json!({"type": "CORS", "cors": {"allowOrigins": ["https://a.org"], "maxAge": 9}});
    let set = json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": {
        "set": [{"name": "access-control-allow-origin", "value": "https://set.org"}],
    }});
    let mut rules = [prefix("/before", "origin"), prefix("/after", "origin")];
    rules[0]["filters"] = json!([set, cors]);
    rules[1]["filters"] = json!([cors, set]);
    let objects = gateway().service("origin", &[origin.address]);
    let scene = start(objects.route("route", &rules));
    for mut client in clients(&scene).await {
        for (path, allowed) in [("/before", "https://a.org"), ("/after", "https://set.org")] {
            let answer = fetch(&mut client, "GET", path, &[(ORIGIN, "https://a.org")]).await;
            let found = answer.header("access-control-allow-origin");
            assert_eq!(found, allowed, "{path}");
        }
    }
}
