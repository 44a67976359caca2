//! InferencePools: which pods get requests, and what happens without the picker.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::client::Client;
use crate::first_problem::{Problem, is_first, is_gone};
use crate::mirror::Recorder;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, to};

const GROUP: &str = "inference.networking.k8s.io";

/// Returns a pool of the pods with the label of its name. They listen where the origins do, each on a port of its own.
fn pool(name: &str, origins: &[SocketAddr], picker: Option<Value>) -> String {
    let ports: Vec<_> = origins
        .iter()
        .map(|origin| json!({"number": origin.port()}))
        .collect();
    let mut pool = json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "InferencePool",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": name}}, "targetPorts": ports},
    });
    if let Some(picker) = picker {
        pool["spec"]["endpointPickerRef"] = picker;
    }
    pool.to_string()
}

/// Returns a pod of a pool that listens where the origin does.
fn pod(pool: &str, name: &str, origin: SocketAddr, ready: &str) -> String {
    let ports = json!({(format!("{GROUP}/active-ports")): origin.port().to_string()});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": pool}, "annotations": ports},
        "status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": ready}]},
    });
    pod.to_string()
}

fn picker(mode: &str) -> Option<Value> {
    Some(json!({"name": "epp", "port": {"number": 80}, "failureMode": mode}))
}

fn reference(name: &str) -> Value {
    json!({"group": GROUP, "kind": "InferencePool", "name": name})
}

fn rule(name: &str) -> Value {
    json!({"backendRefs": [reference(name)]})
}

#[tokio::test]
async fn ready_pods_get_requests_unless_the_pool_needs_its_picker() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let addresses = [one.address, two.address];
    let objects = |picker: Option<Value>| {
        Objects::http()
            .service("epp", &[Origin::dead()])
            .with(pool("llm", &addresses, picker))
            .with(pod("llm", "one", one.address, "True"))
            .with(pod("llm", "two", two.address, "False"))
            .route("route", &[rule("llm")])
    };
    let mut scene = Scene::start(&objects(None));
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..20 {
        assert_eq!(client.get("a.com", "/").await.name(), "one");
    }
    scene.replace(&objects(picker("FailClose"))).await;
    let refused = client.get("a.com", "/").await;
    assert_eq!(refused.status, 503);
    let text = "the endpoint picker of the backend is not available";
    assert!(refused.text().contains(text), "{}", refused.text());
    scene.replace(&objects(picker("FailOpen"))).await;
    for _ in 0..20 {
        assert_eq!(client.get("a.com", "/").await.name(), "one");
    }
    scene.replace(&objects(None)).await;
    assert_eq!(client.get("a.com", "/").await.name(), "one");
}

#[tokio::test]
async fn pool_without_its_picker_or_without_pods_costs_only_its_share() {
    let origin = Origin::echo("one").await;
    let shares =
        json!({"backendRefs": [reference("llm"), reference("closed"), reference("empty")]});
    let objects = Objects::http()
        .with(pool("llm", &[origin.address], None))
        .with(pool("closed", &[origin.address], picker("FailClose")))
        .with(pool("empty", &[origin.address], None))
        .with(pod("llm", "one", origin.address, "True"))
        .with(pod("closed", "two", origin.address, "True"));
    let scene = Scene::start(&objects.route("route", &[shares]));
    let mut client = Client::http1(scene.at(80)).await;
    let mut statuses = [0, 0];
    for _ in 0..3_000 {
        match client.get("a.com", "/").await.status {
            200 => statuses[0] += 1,
            503 => statuses[1] += 1,
            other => panic!("{other}"),
        }
    }
    // Six standard deviations of a binomial distribution.
    assert!((845..=1_155).contains(&statuses[0]), "{statuses:?}");
}

#[tokio::test]
async fn copies_go_to_a_pool_without_its_picker() {
    let echo = Origin::echo("echo").await;
    let mut recorder = Recorder::new().await;
    let mut rule = to("echo");
    rule["filters"] =
        json!([{"type": "RequestMirror", "requestMirror": {"backendRef": reference("llm")}}]);
    let copied = recorder.origin.address;
    let objects = Objects::http()
        .service("echo", &[echo.address])
        .service("epp", &[Origin::dead()])
        .with(pool("llm", &[copied], picker("FailClose")))
        .with(pod("llm", "one", copied, "True"))
        .route("route", &[rule]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.post("a.com", "/", "body").await.name(), "echo");
    assert_eq!(recorder.next().await.body, "body");
}

#[tokio::test]
async fn clients_do_not_steer_requests_or_copies_of_a_pool_without_its_picker() {
    const CLAIM: &str = "x-gateway-destination-endpoint";
    let echo = Origin::echo("echo").await;
    let mut recorder = Recorder::new().await;
    let copied = recorder.origin.address;
    let mut mirrored = rule("llm");
    mirrored["filters"] =
        json!([{"type": "RequestMirror", "requestMirror": {"backendRef": reference("copies")}}]);
    let objects = Objects::http()
        .service("epp", &[Origin::dead()])
        .with(pool("llm", &[echo.address], None))
        .with(pod("llm", "one", echo.address, "True"))
        .with(pool("copies", &[copied], picker("FailClose")))
        .with(pod("copies", "two", copied, "True"))
        .route("route", &[mirrored]);
    let scene = Scene::start(&objects);
    let mut client = Client::http1(scene.at(80)).await;
    let sent = [(CLAIM, "192.0.2.1:80"), ("x-other", "1")];
    let received = client.get_with("a.com", "/", &sent).await.received();
    let headers = &received["headers"];
    assert!(headers.get(CLAIM).is_none(), "{headers}");
    assert_eq!(headers["x-other"], "1");
    let copy = recorder.next().await.head.headers;
    assert!(!copy.contains_key(CLAIM), "{copy:?}");
    assert_eq!(copy["x-other"], "1");
}

fn of_pool<'a>(texts: &'a [&'a str]) -> Problem<'a> {
    Problem {
        kind: "backend",
        object: "InferencePool default/llm",
        texts,
    }
}

#[tokio::test]
async fn pool_whose_picker_may_choose_pods_that_are_not_ready_is_a_warning() {
    let (origin, server) = (Origin::echo("origin").await, Origin::echo("epp").await);
    let without = Objects::http();
    let with = Objects::http().service("epp", &[server.address]);
    let objects = |base: &Objects, ready: &str| {
        base.clone()
            .with(pool("llm", &[origin.address], picker("FailClose")))
            .with(pod("llm", "one", origin.address, ready))
            .route("route", &[rule("llm")])
    };
    let mut scene = Scene::start(&objects(&with, "False"));
    let texts = [
        "no pod is ready, and its endpoint picker may choose one that is not: its requests get 503 unless the picker does",
        "look why the pods are not ready",
    ];
    is_first(&scene, &of_pool(&texts)).await;
    // Nothing chooses the pod.
    scene.replace(&objects(&without, "False")).await;
    let texts = ["has no ready endpoint: its requests get 503"];
    is_first(&scene, &of_pool(&texts)).await;
    scene.replace(&objects(&with, "True")).await;
    is_gone(&scene).await;
}
