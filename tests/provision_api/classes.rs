//! The finalizer of GatewayClasses in use.

use kube::{Client, Config};
use portcullis::provision::{ClassUsage, keep_finalizers};
use serde_json::json;
use tokio::sync::watch;

use crate::server::{Server, State, key};

fn usage(is_used: bool) -> ClassUsage {
    ClassUsage::from([("edge".to_owned(), is_used)])
}

#[tokio::test]
async fn restores_finalizer_that_another_client_removes() {
    let server = Server::start();
    let edge = key("gatewayclasses", "", "edge");
    let class = json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "edge", "finalizers": ["example.com/other"]},
        "spec": {"controllerName": "portcullis.dev/gateway-controller"},
    });
    server.with(|state| state.put(&edge, class));
    let has = |state: &State, finalizers: &[&str]| {
        (state.objects[&edge]["metadata"]["finalizers"] == json!(finalizers)).then_some(())
    };
    let ours = "gateway-exists-finalizer.gateway.networking.k8s.io";
    let usages = watch::Sender::new(usage(true));
    let client = Client::try_from(Config::new(server.url().parse().unwrap())).unwrap();
    let test = async {
        let both = ["example.com/other", ours];
        server.until("both", |state| has(state, &both)).await;
        // As `kubectl replace` does.
        server.with(|state| {
            state.edit(&edge, |class| {
                class["metadata"]["finalizers"] = json!([]);
            });
        });
        server
            .until("ours again", |state| has(state, &[ours]))
            .await;
        usages.send_replace(usage(false));
        server.until("none", |state| has(state, &[])).await;
    };
    tokio::select! {
        () = keep_finalizers(&client, usages.subscribe()) => panic!("it has ended"),
        () = test => {}
    }
}
