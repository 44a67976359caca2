//! The status of an explanation is that of the response where no backend responds: of filters, of what is broken and of requests
//! without a rule, each with the error page of a policy in its place.

use serde_json::{Value, json};

use super::sent::{Connections, Sent};
use crate::access_policy::gateway;
use crate::cors::with_cors;
use crate::origin::Origin;
use crate::route_filter::{filter, rule};
use crate::route_policy::policy;
use crate::scene::{Objects, Scene, prefix};

const HTML: (&str, &str) = ("accept", "text/html");
const IMAGE: (&str, &str) = ("accept", "image/png");
const CALL: (&str, &str) = ("content-type", "application/grpc");
const PREFLIGHT: [(&str, &str); 2] = [
    ("origin", "https://a.com"),
    ("access-control-request-method", "PUT"),
];

fn sent(method: &'static str, path: &str, headers: &[(&str, &str)]) -> Sent {
    let headers = headers.iter();
    let headers: Vec<_> = headers
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    Sent {
        id: path.to_owned(),
        port: 80,
        name: "a.com".to_owned(),
        host: "a.com".to_owned(),
        method,
        path: path.to_owned(),
        http2: headers.iter().any(|(_, value)| value == CALL.1),
        headers,
    }
}

/// Pages with status 200 for three statuses of the proxy.
fn objects(origin: &Origin) -> Objects {
    let keys = json!([{"key": "a.html", "mediaType": "text/html"}]);
    let page = json!({
        "codes": [404, 500, 503], "source": "Gateway", "keepStatus": false,
        "configMapRef": {"name": "pages", "keys": keys},
    });
    let pages = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pages"}, "data": {"a.html": "<p>sorry</p>"},
    });
    let moved = json!({"hostname": "b.com", "statusCode": 301});
    let redirect = json!({
        "matches": [{"path": {"value": "/redirect"}}],
        "filters": [{"type": "RequestRedirect", "requestRedirect": moved}],
    });
    let response = |name, response: Value| filter(name, &json!({"directResponse": response}));
    let rules = [
        redirect,
        rule("/text", "text"),
        rule("/empty", "empty"),
        prefix("/missing", "missing"),
        with_cors(
            "/cors",
            "origin",
            &json!({"allowOrigins": ["https://a.com"]}),
        ),
    ];
    Objects::http()
        .service("origin", &[origin.address])
        .route("route", &rules)
        .with(response("text", json!({"status": 503, "body": "closed"})))
        .with(response("empty", json!({"status": 503})))
        .with(pages.to_string())
        .with(policy("pages", &gateway(), &json!({"errorPages": [page]})))
}

#[tokio::test]
async fn server_is_named_whose_page_may_have_another_status() {
    let pages = Origin::echo("pages").await;
    for (keeps, server, status) in [
        (false, json!("Service default/pages"), 200),
        (true, Value::Null, 500),
    ] {
        let page = json!({
            "codes": [500], "source": "Gateway", "keepStatus": keeps,
            "backendRef": {"name": "pages", "port": 80},
        });
        let objects = Objects::http()
            .service("pages", &[pages.address])
            .route("route", &[prefix("/missing", "missing")])
            .with(policy("pages", &gateway(), &json!({"errorPages": [page]})));
        let scene = Scene::start(&objects);
        let mut connections = Connections::of(&scene);
        let sent = sent("GET", "/missing", &[HTML]);
        let explained = connections.explain(&sent).await;
        let outcome = &explained["ports"][0]["outcome"];
        assert_eq!(outcome["status"], 500, "{outcome}");
        assert_eq!(outcome["pageServer"], server, "{outcome}");
        let answer = connections.send(&sent).await.expect("a response");
        assert_eq!(answer.status, status, "{outcome}");
    }
}

#[tokio::test]
async fn status_is_that_of_the_response_with_its_error_page() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&objects(&origin));
    let mut connections = Connections::of(&scene);
    for (sent, status, grpc_status) in [
        (sent("GET", "/redirect", &[]), 301, None),
        (sent("GET", "/text", &[HTML]), 503, None),
        (sent("GET", "/empty", &[HTML]), 200, None),
        (sent("GET", "/empty", &[IMAGE]), 503, None),
        (sent("POST", "/empty", &[CALL]), 200, Some("UNAVAILABLE")),
        (sent("GET", "/missing", &[HTML]), 200, None),
        (sent("GET", "/missing", &[IMAGE]), 500, None),
        (sent("GET", "/nothing", &[HTML]), 200, None),
        (sent("GET", "/nothing", &[IMAGE]), 404, None),
        (sent("OPTIONS", "/cors", &PREFLIGHT), 204, None),
    ] {
        let explained = connections.explain(&sent).await;
        let outcome = &explained["ports"][0]["outcome"];
        let answer = connections.send(&sent).await.expect("a response");
        assert_eq!(answer.status, status, "{sent:?}");
        assert_eq!(outcome["status"], json!(status), "{sent:?}: {outcome}");
        assert_eq!(outcome["grpcStatus"].as_str(), grpc_status, "{sent:?}");
        let call_status = grpc_status.map_or("", |_| "14");
        assert_eq!(answer.header("grpc-status"), call_status, "{sent:?}");
    }
}
