//! `/api/v1/` of the admin server and the commands on it: what is in service, for clients of this machine only, without
//! secrets.

use std::net::SocketAddr;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::access_policy::{access, ip_rules, of_route};
use crate::admin::page;
use crate::client::{Client, connect, get, read_until, write_text};
use crate::harness::ports::closed_address;
use crate::harness::tls::{self, Certificate};
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, https, prefix, secret, write};

const DOCUMENTS: [&str; 12] = [
    "status",
    "ports",
    "routes",
    "backends",
    "certificates",
    "policies",
    "problems",
    "totals",
    "history",
    "limits",
    "conditions",
    "route?name=HTTPRoute%20default/route",
];

pub(crate) async fn document(scene: &Scene, name: &str) -> Value {
    serde_json::from_str(&page(scene, &format!("/api/v1/{name}")).await).expect("JSON")
}

/// Checks that a process has these problems and no other, each by the begin of its text.
pub(crate) async fn has_problems(scene: &Scene, expected: &[impl AsRef<str>]) {
    let problems = document(scene, "problems").await;
    let problems = problems["problems"].as_array().expect("a list").iter();
    let shown: Vec<_> = problems
        .map(|it| format!("{} {}: {}", it["kind"], it["object"], it["message"]).replace('"', ""))
        .collect();
    assert_eq!(shown.len(), expected.len(), "{shown:#?}");
    for (shown, expected) in shown.iter().zip(expected) {
        let expected = expected.as_ref();
        assert!(shown.starts_with(expected), "{expected} is not {shown}");
    }
}

pub(crate) async fn portcullis(scene: &Scene, arguments: &[&str]) -> Output {
    portcullis_at(scene.admin_address(), arguments).await
}

pub(crate) async fn portcullis_at(admin: SocketAddr, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command.args(arguments);
    command.args(["--admin", &format!("http://{admin}")]);
    let run = tokio::task::spawn_blocking(move || command.output());
    run.await.expect("it ran").expect("a program")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

async fn scene(echo: &Origin) -> Scene {
    let mut rule = prefix("/shop", "echo");
    rule["matches"][0]["headers"] = json!([{"name": "x-token", "value": "canary"}]);
    let objects = Objects::http_and_https()
        .service("echo", &[echo.address])
        .service("empty", &[])
        .route("route", &[rule, prefix("/empty", "empty")]);
    Scene::start(&objects)
}

#[tokio::test]
async fn documents_show_what_is_in_service() {
    let echo = Origin::echo("echo").await;
    let scene = scene(&echo).await;
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(
        client
            .get_with("a.com", "/shop", &[("x-token", "canary")])
            .await
            .status,
        200
    );
    assert_eq!(client.get("a.com", "/empty").await.status, 503);

    let status = document(&scene, "status").await;
    assert_eq!(
        (&status["ready"], &status["routes"]),
        (&json!(true), &json!(1))
    );
    let ports = document(&scene, "ports").await;
    let listener = &ports["ports"][1]["listeners"][0];
    assert_eq!(
        (&listener["name"], &listener["protocol"]),
        (&json!("tls"), &json!("HTTPS"))
    );
    // Of another listener, with the same routes.
    assert_eq!(listener["requests"]["2xx"], 0);
    let plain = &ports["ports"][0]["listeners"][0];
    let requests = json!({"1xx": 0, "2xx": 1, "3xx": 0, "4xx": 0, "5xx": 1});
    assert_eq!(plain["requests"], requests);
    let routes = document(&scene, "routes").await;
    let rule = &routes["routes"][0]["rules"][0];
    assert_eq!(rule["matches"], json!(["* /shop/* with conditions"]));
    assert_eq!(rule["requests"]["2xx"], 1);
    assert_eq!(
        rule["backends"],
        json!([{"backend": "Service default/echo:80", "weight": 1}])
    );
    let backends = document(&scene, "backends").await;
    let endpoint = &backends["backends"][0]["endpoints"][0];
    assert_eq!(endpoint["address"], echo.address.to_string());
    assert_eq!(backends["backends"][1]["errors"]["no_endpoint"], 1);
    let certificates = document(&scene, "certificates").await;
    let certificate = &certificates["certificates"][0];
    assert_eq!(
        (&certificate["names"], &certificate["listeners"]),
        (&json!(["a.com"]), &json!(1))
    );
    let problems = document(&scene, "problems").await;
    let objects: Vec<_> = problems["problems"]
        .as_array()
        .expect("a list")
        .iter()
        .collect();
    assert!(
        objects
            .iter()
            .any(|it| it["object"] == "Service default/empty:80"),
        "{problems}"
    );
}

#[tokio::test]
async fn counters_of_a_listener_survive_changes_of_its_certificate_and_routes() {
    let echo = Origin::echo("echo").await;
    let objects = |certificate: &Certificate, path: &str| {
        Objects::gateway(&[https("tls", 443, "", &["certificate"])])
            .with(secret("certificate", certificate))
            .service("echo", &[echo.address])
            .route("route", &[prefix(path, "echo")])
    };
    let certificate = || Certificate::new(&["a.com"]);
    let mut scene = Scene::start(&objects(&certificate(), "/before"));
    for path in ["/before", "/after"] {
        scene.replace(&objects(&certificate(), path)).await;
        let mut client = Client::tls(scene.at(443), "a.com", &tls::client(&["http/1.1"])).await;
        assert_eq!(client.get("a.com", path).await.status, 200);
    }
    let ports = document(&scene, "ports").await;
    assert_eq!(ports["ports"][0]["listeners"][0]["requests"]["2xx"], 2);
}

#[tokio::test]
async fn lists_have_the_part_that_is_asked_for() {
    let echo = Origin::echo("echo").await;
    let scene = scene(&echo).await;
    for (query, total, shown) in [
        ("backends", 2, 2),
        ("backends?limit=1", 2, 1),
        ("backends?offset=2&limit=1", 2, 0),
        ("backends?filter=NO%20endpoint", 1, 1),
        ("routes?filter=/shop&sort=errors", 1, 1),
        ("routes?filter=/other", 0, 0),
        ("ports?filter=https", 1, 1),
        ("certificates?filter=a.com", 1, 1),
        ("problems?filter=empty", 1, 1),
        ("conditions?filter=httproute%20default/route&limit=1", 1, 1),
    ] {
        let list = document(&scene, query).await;
        let (name, _) = query.split_once('?').unwrap_or((query, ""));
        let items = list[name].as_array().expect("a list").len();
        assert_eq!((&list["total"], items), (&json!(total), shown), "{query}");
    }
    let path = "/api/v1/routes?page=2";
    let refused = get(scene.admin_address(), "localhost", path).await;
    assert_eq!(refused.status, 400);
}

#[tokio::test]
async fn route_has_its_way_from_listeners_to_endpoints() {
    let echo = Origin::echo("echo").await;
    let scene = scene(&echo).await;
    let route = document(&scene, "route?name=HTTPRoute%20default/route").await;
    let listeners = route["listeners"].as_array().expect("a list");
    assert_eq!(listeners.len(), 2);
    assert_eq!(listeners[1]["protocol"], "HTTPS");
    let rule = &route["rules"][0];
    let endpoint = &rule["targets"][0]["endpoints"][0];
    assert_eq!(
        (&endpoint["address"], &endpoint["state"]),
        (&json!(echo.address.to_string()), &json!("healthy"))
    );
    assert!(rule["details"]["backends"].is_array(), "{rule}");
    assert_eq!(rule["broken"], Value::Null);
    let broken = &route["rules"][1]["broken"];
    assert_eq!(broken, "Service default/empty:80 has no ready endpoint");
    assert_eq!(route["conditions"][0]["conditions"][0]["type"], "Accepted");
    let path = "/api/v1/route?name=HTTPRoute%20default/other";
    let unknown = get(scene.admin_address(), "localhost", path).await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn route_with_other_policies_at_each_listener_is_shown_once() {
    let echo = Origin::echo("echo").await;
    let second = json!({"kind": "Gateway", "name": "gateway", "sectionName": "second"});
    let denies = |network: &str| ip_rules(&[], &[network]);
    let objects = Objects::gateway(&[http("first", 80, ""), http("second", 81, "")])
        .service("echo", &[echo.address])
        .route("route", &[prefix("/", "echo")])
        .with(access("a", &second, &denies("192.0.2.0/24")))
        .with(access("b", &of_route(), &denies("198.51.100.0/24")));
    let scene = Scene::start(&objects);
    let route = document(&scene, "route?name=HTTPRoute%20default/route").await;
    assert_eq!(route["listeners"].as_array().map(Vec::len), Some(2));
    let rules = route["rules"].as_array().expect("a list");
    assert_eq!(rules.len(), 1, "{route:#}");
    // As on the first listener.
    let details = rules[0]["details"].to_string();
    assert!(details.contains("198.51.100.0/24"), "{details}");
    assert!(!details.contains("192.0.2.0/24"), "{details}");
}

#[tokio::test]
async fn errors_come_first_and_then_what_has_the_most_effect() {
    let certificate = Certificate::expired(&["a.com"]);
    let closed = closed_address();
    let echo = Origin::echo("echo").await;
    let objects = Objects::gateway(&[
        http("http", 80, ""),
        https("tls", 443, "a.com", &["certificate"]),
    ])
    .with(secret("certificate", &certificate))
    .service("empty", &[])
    .service("down", &[closed])
    .service("half", &[closed, echo.address])
    .route(
        "route",
        &[
            prefix("/empty", "empty"),
            prefix("/down", "down"),
            prefix("/half", "half"),
        ],
    )
    .route("lost", &[prefix("/lost", "missing")]);
    let scene = Scene::start(&objects);
    assert_eq!(get(scene.at(80), "a.com", "/empty").await.status, 503);
    for _ in 0..20 {
        assert_eq!(get(scene.at(80), "a.com", "/down").await.status, 503);
        assert_eq!(get(scene.at(80), "a.com", "/half").await.status, 200);
    }
    let expected = [
        "expired Secret default/certificate: the certificate has expired at ".to_owned(),
        "backend Service default/empty:80: has no ready endpoint".to_owned(),
        format!(
            "failing {closed} of Service default/down:80: refuses connections (failed attempts in the last minute: 20); check \
             that the pods listen on this port"
        ),
        format!(
            "route HTTPRoute default/route rule 1: 20 of 20 responses in the last minute were 5xx, most with the error `cannot \
             connect to the backend`; see {closed} of Service default/down:80"
        ),
        "route HTTPRoute default/route rule 0: 1 of 1 responses in the last minute were 5xx, most with the error `the backend \
         has no ready endpoint`; see Service default/empty:80"
            .to_owned(),
        "object HTTPRoute default/lost: ".to_owned(),
        format!(
            "endpoint {closed} of Service default/half:80: has failed and gets no requests while others work: refuses connections ("
        ),
    ];
    has_problems(&scene, &expected).await;
}

#[tokio::test]
async fn files_that_cannot_be_read_are_problems() {
    let echo = Origin::echo("echo").await;
    let mut scene = scene(&echo).await;
    scene
        .change(|folder| write(folder, "typo.yaml", "kind: [\n"))
        .await;
    let problems = document(&scene, "problems?filter=typo.yaml").await;
    let problem = &problems["problems"][0];
    assert_eq!(
        (&problem["kind"], &problem["in"]),
        (&json!("file"), &json!("configuration")),
        "{problems}"
    );
    let status = portcullis(&scene, &["status"]).await;
    assert!(stdout(&status).contains("typo.yaml"));
}

#[tokio::test]
async fn events_have_the_totals() {
    let echo = Origin::echo("echo").await;
    let scene = scene(&echo).await;
    let mut stream = connect(scene.admin_address()).await;
    let head = "GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n";
    write_text(&mut stream, head).await;
    let text = read_until(&mut stream, "\n\n").await;
    assert!(text.contains("content-type: text/event-stream"), "{text}");
    let (_, data) = text.split_once("event: totals\ndata: ").expect("an event");
    let end = data.find("\n\n").expect("an end");
    let totals: Value = serde_json::from_str(&data[..end]).expect("JSON");
    assert_eq!(totals["ready"], true);
}

#[tokio::test]
async fn documents_have_no_secrets_and_are_for_this_machine() {
    let echo = Origin::echo("echo").await;
    let scene = scene(&echo).await;
    let mut client = Client::http1(scene.at(80)).await;
    let headers = [
        ("x-token", "canary"),
        ("cookie", "canary"),
        ("authorization", "Bearer canary"),
    ];
    client.get_with("a.com", "/shop?key=canary", &headers).await;
    for name in DOCUMENTS {
        let text = page(&scene, &format!("/api/v1/{name}")).await;
        assert!(
            !text.contains("canary") && !text.contains("PRIVATE"),
            "{text}"
        );
        let path = format!("/api/v1/{name}");
        assert_eq!(get(scene.admin_address(), "a.com", &path).await.status, 421);
    }
    assert_eq!(
        get(scene.admin_address(), "localhost", "/api/v1/other")
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn commands_print_the_documents() {
    let echo = Origin::echo("echo").await;
    let scene = scene(&echo).await;
    let status = portcullis(&scene, &["status"]).await;
    let text = stdout(&status);
    assert!(
        text.contains(": ready\n")
            && text.contains("Service default/empty:80: has no ready endpoint"),
        "{text}"
    );
    assert_eq!(status.status.code(), Some(1));
    for (part, line) in [
        ("ports", "*:443"),
        (
            "routes",
            "HTTPRoute default/route  0     * /shop/* with conditions",
        ),
        ("backends", "no endpoint"),
        ("certificates", "Secret default/certificate"),
    ] {
        let output = portcullis(&scene, &["config", part]).await;
        let text = stdout(&output);
        assert!(output.status.success() && text.contains(line), "{text}");
        let json = portcullis(&scene, &["config", part, "-o", "json"]).await;
        let json: Value = serde_json::from_str(&stdout(&json)).expect("JSON");
        assert!(json[part].is_array(), "{json}");
    }
    let top = stdout(&portcullis(&scene, &["top", "--once"]).await);
    assert!(
        top.starts_with("ROUTE") && top.contains("HTTPRoute default/route"),
        "{top}"
    );
}

#[tokio::test]
async fn no_control_character_of_a_route_reaches_the_terminal() {
    let echo = Origin::echo("echo").await;
    let mut rule = prefix("/", "echo");
    let path = json!({"type": "RegularExpression", "value": "/\u{1b}c|/a"});
    rule["matches"] = json!([{"path": path}]);
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .route("route", &[rule]);
    let scene = Scene::start(&objects);
    for arguments in [
        &["config", "routes"][..],
        &["config", "routes", "-o", "json"],
        &["explain", "http://a.com/b"],
        &["explain", "-o", "json", "http://a.com/b"],
    ] {
        let printed = stdout(&portcullis_at(scene.admin_address(), arguments).await);
        let is_obeyed = |it: char| it.is_control() && it != '\n';
        assert!(!printed.contains(is_obeyed), "{arguments:?}: {printed:?}");
        assert!(printed.contains("/\\u001bc|/a"), "{arguments:?}: {printed}");
    }
}
