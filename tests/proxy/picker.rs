//! InferencePools with a scripted picker: what it chooses, what it makes of requests and responses, and how requests end if it
//! fails at any phase.

mod bodies;
mod choices;
mod connections;
mod framing;
mod message;
mod outcomes;
mod phases;
mod records;
mod rest;
mod scripts;
mod server;
mod steps;

use std::net::SocketAddr;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::timeout;

use self::server::Picker;
use crate::client::Client;
use crate::harness::TEST_TIMEOUT;
use crate::harness::yaml::service_of;
use crate::origin::{Origin, Payload, full};
use crate::scene::{Objects, Scene};

const DESTINATION: &str = "x-gateway-destination-endpoint";
const H2C: &str = "kubernetes.io/h2c";

/// The protocols of model servers, and how the paths of their pools begin.
const PROTOCOLS: [(&str, &str); 2] = [("", "http"), ("/h2c", H2C)];

/// How a request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// With a response of this status; the body is that of a 200.
    Whole(u16, String),
    /// With a response that has broken off.
    Broken(u16),
}

/// Starts a model server that returns the body that it gets, and in headers what it sees of the head.
async fn model(name: &'static str) -> Origin {
    Origin::new(move |request| answer(name, request)).await
}

async fn answer(name: &str, request: Request<Incoming>) -> Response<Payload> {
    let (head, body) = request.into_parts();
    let response = Response::builder()
        .header("x-model", name)
        .header("x-length", seen(&head.headers, CONTENT_LENGTH.as_str()))
        .header("x-coding", seen(&head.headers, TRANSFER_ENCODING.as_str()))
        .header("x-host", seen(&head.headers, HOST.as_str()))
        .header("x-destination", seen(&head.headers, DESTINATION));
    let (status, body) = match body.collect().await {
        Ok(body) => (200, body.to_bytes()),
        Err(_) => (400, "the request broke off".into()),
    };
    let response = response.status(status).body(full(body));
    response.expect("a response")
}

/// Returns all values of a header.
fn seen(headers: &HeaderMap, name: &str) -> String {
    let values = headers.get_all(name).iter();
    let values: Vec<_> = values.map(|value| value.to_str().expect("text")).collect();
    values.join(",")
}

/// Returns a pool of the model servers at these addresses, and the pod that they all are in.
fn pool(name: &str, models: &[SocketAddr], picker: &str, failure_mode: &str) -> Value {
    let ports = models.iter();
    let ports: Vec<_> = ports.map(|model| json!({"number": model.port()})).collect();
    json!({
        "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": "llm"}},
            "targetPorts": ports,
            "endpointPickerRef": {"name": picker, "port": {"number": 80}, "failureMode": failure_mode},
        },
    })
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "llm", "labels": {"app": "llm"}},
        "status": {
            "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// Returns a reference to a pool.
fn reference(pool: &str) -> Value {
    json!({"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": pool})
}

/// Returns a rule that sends a path to a pool.
fn rule(path: &str, pool: &str) -> Value {
    json!({
        "matches": [{"path": {"type": "PathPrefix", "value": path}}],
        "backendRefs": [reference(pool)],
    })
}

/// Returns a Gateway, a pod, and a Service of the picker at this address.
fn objects(picker: &[SocketAddr]) -> Objects {
    Objects::http()
        .with(pod().to_string())
        .with(service_of("epp", picker, H2C))
}

/// Serves pools that fail open at `/open` and pools that fail closed at `/close`, after the prefixes of [`PROTOCOLS`].
fn serve(picker: &Picker, models: &[SocketAddr]) -> Scene {
    let mut all = objects(&[picker.origin.address]);
    let mut rules = Vec::new();
    for (prefix, protocol) in PROTOCOLS {
        for (path, failure_mode) in [("/open", "FailOpen"), ("/close", "FailClose")] {
            let path = format!("{prefix}{path}");
            let name = path[1..].replace('/', "-");
            let mut object = pool(&name, models, "epp", failure_mode);
            object["spec"]["appProtocol"] = protocol.into();
            all = all.with(object.to_string());
            rules.push(rule(&path, &name));
        }
    }
    Scene::start(&all.route("route", &rules))
}

/// Sends a POST and reads the response.
async fn post(client: &mut Client, path: &str, body: Payload) -> Outcome {
    let request = client.request(Method::POST, "a.com", path);
    let request = request.body(body).expect("a request");
    let Ok(response) = client.send(request).await else {
        return Outcome::Broken(0);
    };
    let status = response.status().as_u16();
    let body = timeout(TEST_TIMEOUT, response.into_body().collect()).await;
    match body.expect("an end in time") {
        Ok(body) if status == 200 => {
            let text = body.to_bytes().to_vec();
            Outcome::Whole(status, String::from_utf8(text).expect("text"))
        }
        Ok(_) => Outcome::Whole(status, String::new()),
        Err(_) => Outcome::Broken(status),
    }
}

/// Returns a connection of each version of HTTP.
async fn clients(scene: &Scene) -> [Client; 2] {
    let address = scene.at(80);
    Client::both(address).await
}
