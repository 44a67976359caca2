//! `/api/v1/` of the admin server and the commands on it: what is in service, for clients of this machine only, without
//! secrets.

use std::net::SocketAddr;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::admin::page;
use crate::client::{Client, get};
use crate::harness::tls::Certificate;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, http, https, prefix, secret};

const DOCUMENTS: [&str; 7] = [
    "status",
    "ports",
    "routes",
    "backends",
    "certificates",
    "policies",
    "problems",
];

async fn document(scene: &Scene, name: &str) -> Value {
    serde_json::from_str(&page(scene, &format!("/api/v1/{name}")).await).expect("JSON")
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
    let objects = Objects::gateway(&[
        http("http", 80, ""),
        https("tls", 443, "", &["certificate"]),
    ])
    .with(secret("certificate", &Certificate::new(&["a.com"])))
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
