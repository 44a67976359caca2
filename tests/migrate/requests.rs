//! Requests through migrated configuration, with a real backend behind it.

use http::{Method, Response};

use crate::client::Client;
use crate::harness::tls::{self, Certificate};
use crate::harness::yaml;
use crate::origin::{Origin, empty, full};
use crate::scene::Scene;
use crate::{migrated, settings};

/// An Ingress of the namespace `default` for `a.example.com`, with these annotations and paths of Service `origin`.
pub(crate) fn ingress(name: &str, annotations: &str, paths: &[(&str, &str)], tls: bool) -> String {
    let paths: Vec<String> = paths
        .iter()
        .map(|(path, kind)| {
            let backend = "{service: {name: origin, port: {number: 80}}}";
            format!("{{path: '{path}', pathType: {kind}, backend: {backend}}}")
        })
        .collect();
    let tls = if tls {
        "[{hosts: [a.example.com], secretName: certificate}]"
    } else {
        "[]"
    };
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\nspec:\n  \
         ingressClassName: nginx\n  tls: {tls}\n  rules: [{{host: a.example.com, http: {{paths: [{}]}}}}]\n",
        paths.join(", ")
    )
}

pub(crate) fn set(name: &str, value: &str) -> String {
    format!("nginx.ingress.kubernetes.io/{name}: '{value}'")
}

/// Serves what these Ingresses become.
pub(crate) async fn serve(ingresses: &[String]) -> (Scene, Origin) {
    let origin = Origin::echo("origin").await;
    (serve_to(&origin, ingresses), origin)
}

/// Serves what these Ingresses become, with this backend.
fn serve_to(origin: &Origin, ingresses: &[String]) -> Scene {
    let migration = migrated(&ingresses.join("---\n"), &settings());
    assert_eq!(migration.report.faults, Vec::<String>::new());
    let files = migration.output.files().expect("YAML");
    let mut text: String = files.into_iter().map(|(_, text)| text).collect();
    let certificate = Certificate::new(&["a.example.com"]);
    for document in [
        yaml::service("origin", &[origin.address]),
        yaml::secret("certificate", &certificate),
    ] {
        text.push_str("---\n");
        text.push_str(&document);
    }
    let write = |folder: &std::path::Path| crate::scene::write(folder, "objects.yaml", &text);
    Scene::prepared(write, |_| {})
}

pub(crate) async fn path(client: &mut Client, path: &str) -> String {
    let answer = client.get("a.example.com", path).await;
    match answer.status {
        200 => answer.received()["path"]
            .as_str()
            .expect("a path")
            .to_owned(),
        status => status.to_string(),
    }
}

#[tokio::test]
async fn patterns_match_prefixes_and_ignore_case_and_rewrites_have_groups() {
    let rewrite = set("rewrite-target", "/$2");
    let paths = [("/api(/|$)(.*)", "ImplementationSpecific")];
    let other = [("/charts", "Prefix")];
    let (scene, _origin) = serve(&[
        ingress("api", &rewrite, &paths, false),
        ingress("charts", "", &other, false),
    ])
    .await;
    let mut client = Client::http1(scene.at(80)).await;
    for (request, expected) in [
        ("/api/users/7?a=b", "/users/7?a=b"),
        ("/API/Users", "/Users"),
        ("/api", "/"),
        ("/apis", "404"),
        ("/charts/1", "/charts/1"),
        // All paths of the host are patterns for prefixes of the text.
        ("/CHARTSx", "/CHARTSx"),
        ("/other", "404"),
        // nginx normalizes paths.
        ("/x/../api//users", "/users"),
    ] {
        assert_eq!(path(&mut client, request).await, expected, "{request}");
    }
}

#[tokio::test]
async fn plain_hosts_match_segments_and_redirect_to_a_slash() {
    let paths = [
        ("/app", "Prefix"),
        ("/static/", "Prefix"),
        ("/exact", "Exact"),
    ];
    let (scene, _origin) = serve(&[ingress("app", "", &paths, false)]).await;
    let mut client = Client::http1(scene.at(80)).await;
    for (request, expected) in [
        ("/app/x", "/app/x"),
        ("/app", "/app"),
        ("/application", "404"),
        ("/exact", "/exact"),
        ("/exact/x", "404"),
        ("/static/a.css", "/static/a.css"),
    ] {
        assert_eq!(path(&mut client, request).await, expected, "{request}");
    }
    let answer = client.get("a.example.com", "/static").await;
    assert_eq!(answer.status, 301);
    assert!(
        answer.header("location").ends_with("/static/"),
        "{}",
        answer.header("location")
    );
}

#[tokio::test]
async fn http_redirects_to_https_which_has_hsts() {
    let (scene, _origin) = serve(&[ingress("app", "", &[("/", "Prefix")], true)]).await;
    let mut client = Client::http1(scene.at(80)).await;
    let answer = client.get("a.example.com", "/x?y=z").await;
    assert_eq!(answer.status, 308);
    assert_eq!(answer.header("location"), "https://a.example.com/x?y=z");
    let config = tls::client(&["http/1.1"]);
    let mut client = Client::tls(scene.at(443), "a.example.com", &config).await;
    let answer = client.get("a.example.com", "/x").await;
    assert_eq!(answer.status, 200);
    let hsts = answer.header("strict-transport-security");
    assert_eq!(hsts, "max-age=31536000; includeSubDomains");
}

#[tokio::test]
async fn challenges_for_certificates_are_not_redirected_to_https() {
    let challenge = "/.well-known/acme-challenge/token";
    let solver = [(challenge, "ImplementationSpecific"), ("/solver", "Prefix")];
    let (scene, _origin) = serve(&[
        ingress("app", "", &[("/", "Prefix")], true),
        ingress("solver", "", &solver, false),
    ])
    .await;
    let mut client = Client::http1(scene.at(80)).await;
    for (request, expected) in [(challenge, challenge), ("/solver", "308"), ("/", "308")] {
        assert_eq!(path(&mut client, request).await, expected, "{request}");
    }
}

#[tokio::test]
async fn addresses_outside_of_the_list_are_refused_on_every_spelling_of_a_path() {
    let restricted = set("whitelist-source-range", "192.0.2.0/24");
    let (scene, origin) = serve(&[
        ingress("open", "", &[("/", "Prefix")], false),
        ingress(
            "admin",
            &restricted,
            &[("/admin", "ImplementationSpecific")],
            false,
        ),
    ])
    .await;
    let mut client = Client::http1(scene.at(80)).await;
    for request in [
        "/admin",
        "/admin/users",
        "/admin.php",
        "/adminx",
        "//admin",
        "/x/../admin",
        "/./admin",
    ] {
        assert_eq!(path(&mut client, request).await, "403", "{request}");
    }
    for request in [
        "/%61dmin",
        "/admi%6e/users",
        "/%2Fadmin",
        "/x%2f..%2fadmin",
        "/%2e/admin",
    ] {
        // A request that is refused as malformed ends its connection.
        let mut client = Client::http1(scene.at(80)).await;
        // The restriction of the first Ingress comes before the response of its rule.
        let status = path(&mut client, request).await;
        assert!(["400", "403"].contains(&&*status), "{request}: {status}");
    }
    assert_eq!(origin.requests(), 0);
    assert_eq!(path(&mut client, "/x").await, "/x");
}

#[tokio::test]
async fn restriction_that_cannot_be_converted_refuses_all_requests() {
    let unknown = set("auth-url", "https://login.example.com/check");
    let (scene, origin) = serve(&[ingress("app", &unknown, &[("/", "Prefix")], false)]).await;
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(path(&mut client, "/").await, "403");
    assert_eq!(origin.requests(), 0);
}

#[tokio::test]
async fn authorization_server_of_the_cluster_is_asked() {
    let url = set("auth-url", "http://origin.default.svc.cluster.local/check");
    let (scene, origin) = serve(&[ingress("app", &url, &[("/", "Prefix")], false)]).await;
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(path(&mut client, "/a").await, "/a");
    assert_eq!(origin.requests(), 2);
}

#[tokio::test]
async fn bodies_have_the_limit_of_the_ingress_or_else_one_mebibyte() {
    let large = set("proxy-body-size", "2m");
    let (scene, _origin) = serve(&[
        ingress("app", "", &[("/", "Prefix")], false),
        ingress("uploads", &large, &[("/uploads", "Prefix")], false),
    ])
    .await;
    for (path, size, status) in [
        ("/", 1 << 20, 200),
        ("/", (1 << 20) + 1, 413),
        ("/uploads", 2 << 20, 200),
        ("/uploads", (2 << 20) + 1, 413),
    ] {
        let mut client = Client::http1(scene.at(80)).await;
        let request = client.request(Method::POST, "a.example.com", path);
        let request = request.body(full(vec![b'a'; size])).expect("a request");
        let answer = client.fetch(request).await;
        assert_eq!(answer.status, status, "{path} {size}");
    }
}

#[tokio::test]
async fn headers_of_snippets_reach_clients_and_backends() {
    let snippet = "nginx.ingress.kubernetes.io/configuration-snippet: 'more_set_headers \"X-Frame-Options: DENY\"; \
                   proxy_set_header X-Service $service_name;'";
    let (scene, _origin) = serve(&[ingress("app", snippet, &[("/", "Prefix")], false)]).await;
    let mut client = Client::http1(scene.at(80)).await;
    let answer = client.get("a.example.com", "/").await;
    assert_eq!(answer.header("x-frame-options"), "DENY");
    let received = answer.received();
    assert_eq!(received["headers"]["x-service"], "origin");
    assert_eq!(received["headers"]["x-real-ip"], "127.0.0.1");
}

/// nginx sends no POST again without `non_idempotent`, and here a status is retried for every method.
#[tokio::test]
async fn statuses_are_retried_only_where_nginx_repeats_every_method() {
    let origin = Origin::new(|_| async {
        let response = Response::builder().status(502).body(empty());
        response.expect("a response")
    })
    .await;
    let conditions = |text| set("proxy-next-upstream", text);
    let usual = conditions("error timeout http_502");
    let all = conditions("error timeout http_502 non_idempotent");
    let without_connections = conditions("http_502 non_idempotent");
    let scene = serve_to(
        &origin,
        &[
            ingress("usual", &usual, &[("/", "Prefix")], false),
            ingress("all", &all, &[("/all", "Prefix")], false),
            ingress("some", &without_connections, &[("/some", "Prefix")], false),
        ],
    );
    for (method, path, expected) in [
        (Method::POST, "/", 1),
        (Method::PATCH, "/", 1),
        (Method::GET, "/", 1),
        (Method::POST, "/some", 1),
        (Method::POST, "/all", 3),
    ] {
        let mut client = Client::http1(scene.at(80)).await;
        let before = origin.requests();
        let request = client.request(method.clone(), "a.example.com", path);
        let request = request.body(empty()).expect("a request");
        assert_eq!(client.fetch(request).await.status, 502);
        let requests = origin.requests() - before;
        assert_eq!(requests, expected, "{method} {path}");
    }
}
