//! Rollouts of the controller's own changes, one Gateway after the other.

use std::time::Duration;

use serde_json::json;

use crate::scene::{Scene, TestGateway, test_gateway};
use crate::server::{Server, State, key};

/// Returns the image of a Gateway's pods.
fn image(state: &State, test_gateway: &TestGateway) -> String {
    let deployment = &state.objects[&test_gateway.key("deployments")];
    let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
    image.as_str().unwrap().to_owned()
}

/// The Gateways with this image.
async fn have_image(server: &Server, gateways: &[&TestGateway], wanted: &str) {
    server
        .until(&format!("{wanted} in all"), |state| {
            let all = gateways
                .iter()
                .all(|test_gateway| image(state, test_gateway) == wanted);
            all.then_some(())
        })
        .await;
}

fn upgraded(test_gateway: &TestGateway) -> TestGateway {
    TestGateway {
        image: "portcullis:2".to_owned(),
        ..test_gateway.clone()
    }
}

/// Three Gateways that serve the first image.
async fn three() -> (Server, [TestGateway; 3], Scene) {
    let server = Server::start();
    let all = ["a", "b", "c"].map(test_gateway);
    let scene = Scene::start(&server, &all);
    scene.until_idle(&all).await;
    let [a, b, c] = &all;
    scene.serve(&[a, b, c]);
    (server, all, scene)
}

#[tokio::test]
async fn rolls_out_to_the_next_gateway_when_the_last_one_serves() {
    let (server, all, scene) = three().await;
    let new = all.each_ref().map(upgraded);
    let [a, b, c] = &new;
    server.stop_controllers();
    scene.serve(&[]);
    scene.serve(&[b, c]);
    scene.set_desired(&new);
    have_image(&server, &[a], "portcullis:2").await;
    have_image(&server, &[b, c], "portcullis:1").await;

    // Complete, but it does not serve.
    server.with(|state| state.settle(&a.key("deployments")));
    scene.process_events(&new, "one").await;
    have_image(&server, &[b, c], "portcullis:1").await;
    scene.serve(&[a, b, c]);
    have_image(&server, &[b], "portcullis:2").await;

    // It serves with its old pods, but the rollout is not complete.
    scene.process_events(&new, "two").await;
    have_image(&server, &[c], "portcullis:1").await;
    server.with(|state| state.settle(&b.key("deployments")));
    have_image(&server, &[c], "portcullis:2").await;
}

#[tokio::test]
async fn completed_rollout_leaves_only_the_version() {
    let (server, all, scene) = three().await;
    let new = all.each_ref().map(upgraded);
    scene.set_desired(&new);
    let [a, b, c] = &new;
    have_image(&server, &[a, b, c], "portcullis:2").await;
    for one in &new {
        server
            .until("a rollout that is over", |state| {
                let annotations =
                    &state.objects[&one.key("deployments")]["metadata"]["annotations"];
                let record = annotations["portcullis.dev/rollout"].as_str()?;
                (!record.contains("wasServing")).then_some(())
            })
            .await;
    }
}

#[tokio::test]
async fn user_changes_apply_at_once() {
    let (server, all, scene) = three().await;
    server.stop_controllers();
    let mut new = all.each_ref().map(upgraded);
    scene.set_desired(&new);
    have_image(&server, &[&new[0]], "portcullis:2").await;
    new[2].parameters = json!({"workload": {"replicas": 5}});
    scene.set_desired(&new);
    server
        .until("replicas", |state| {
            let spec = &state.objects[&new[2].key("deployments")]["spec"];
            (spec["replicas"] == 5).then_some(())
        })
        .await;
    have_image(&server, &[&new[1]], "portcullis:1").await;
}

#[tokio::test]
async fn other_objects_apply_at_once() {
    let (server, all, scene) = three().await;
    server.stop_controllers();
    let mut new = all.each_ref().map(upgraded);
    new[2].ca = "new CA".to_owned();
    new[2].ports = vec![80, 443];
    scene.set_desired(&new);
    let certificates = key("configmaps", "shop", "c-portcullis-controller-ca");
    server
        .until("the CA and the port", |state| {
            let ports = &state.objects[&new[2].key("services")]["spec"]["ports"];
            let has_port = ports.as_array()?.len() == 2;
            let data = &state.objects[&certificates]["data"];
            (has_port && data["ca.crt"] == "new CA").then_some(())
        })
        .await;
    have_image(&server, &[&new[2]], "portcullis:1").await;
}

#[tokio::test]
async fn new_ca_replaces_no_pods() {
    let (server, all, scene) = three().await;
    let generation = |server: &Server| {
        server.object(&all[0].key("deployments")).unwrap()["metadata"]["generation"].clone()
    };
    let before = generation(&server);
    let mut new = all.clone();
    new[0].ca = "new CA".to_owned();
    scene.set_desired(&new);
    scene.has_all(&new[0]).await;
    scene.process_events(&new, "one").await;
    assert_eq!(generation(&server), before);
}

#[tokio::test]
async fn restarted_controller_resumes_the_rollout() {
    let (server, all, scene) = three().await;
    server.stop_controllers();
    let new = all.each_ref().map(upgraded);
    let [a, b, c] = &new;
    scene.set_desired(&new);
    have_image(&server, &[a], "portcullis:2").await;
    let scene = scene.restart(&new);
    scene.serve(&[b, c]);
    scene.process_events(&new, "one").await;
    have_image(&server, &[b, c], "portcullis:1").await;
    server.with(|state| state.settle(&a.key("deployments")));
    scene.serve(&[a, b, c]);
    have_image(&server, &[b], "portcullis:2").await;
}

#[tokio::test]
async fn restarted_controller_replaces_no_pods() {
    let (server, all, scene) = three().await;
    let generations = |server: &Server| {
        all.each_ref().map(|one| {
            server.object(&one.key("deployments")).unwrap()["metadata"]["generation"].clone()
        })
    };
    let before = generations(&server);
    let scene = scene.restart(&all);
    scene.process_events(&all, "one").await;
    assert_eq!(generations(&server), before);
}

#[tokio::test]
async fn skips_broken_gateway_after_the_deadline() {
    let server = Server::start();
    let all = ["a", "b"].map(test_gateway);
    let scene = Scene::with_deadline(&server, &all, Duration::from_millis(300));
    scene.until_idle(&all).await;
    scene.serve(&[&all[1]]);
    server.stop_controllers();
    let new = all.each_ref().map(upgraded);
    scene.set_desired(&new);
    have_image(&server, &[&new[0], &new[1]], "portcullis:2").await;
    server
        .until("an event", |state| {
            let mut events = state.objects.iter().filter(|(key, _)| key.0 == "events");
            let is_reported = |event: &serde_json::Value| {
                event["reason"] == "RolloutStalled" && event["regarding"]["name"] == "a"
            };
            events.any(|(_, event)| is_reported(event)).then_some(())
        })
        .await;
}

#[tokio::test]
async fn rollout_stops_until_a_working_gateway_serves_again() {
    let server = Server::start();
    let all = ["a", "b"].map(test_gateway);
    let scene = Scene::with_deadline(&server, &all, Duration::from_millis(300));
    scene.until_idle(&all).await;
    let [a, b] = &all;
    scene.serve(&[a, b]);
    server.stop_controllers();
    let new = all.each_ref().map(upgraded);
    scene.set_desired(&new);
    have_image(&server, &[&new[0]], "portcullis:2").await;
    server
        .until("an event", |state| {
            state.names("events", "shop").first().map(|_| ())
        })
        .await;
    have_image(&server, &[&new[1]], "portcullis:1").await;
    server.with(|state| state.settle(&a.key("deployments")));
    have_image(&server, &[&new[1]], "portcullis:2").await;
}

#[tokio::test]
async fn rejected_workload_does_not_stop_the_rollout() {
    let (server, all, scene) = three().await;
    server.rule(|request| {
        let is_refused = request.verb == "APPLY"
            && request.plural == "deployments"
            && request.name == "a-portcullis";
        is_refused.then_some(crate::server::Fault::Refuse(403, "Forbidden", "no"))
    });
    let new = all.each_ref().map(upgraded);
    let [a, b, c] = &new;
    scene.set_desired(&new);
    have_image(&server, &[b, c], "portcullis:2").await;
    have_image(&server, &[a], "portcullis:1").await;
    server.lift_rule();
    have_image(&server, &[a], "portcullis:2").await;
}

#[tokio::test]
async fn rolls_out_gateways_without_records_one_after_another() {
    let server = Server::start();
    let all = ["a", "b"].map(test_gateway);
    let [a, b] = &all;
    let scene = Scene::start(&server, &all);
    scene.until_idle(&all).await;
    drop(scene);
    server.stop_controllers();
    server.with(|state| {
        for one in &all {
            state.edit(&one.key("deployments"), |deployment| {
                deployment["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .remove("annotations");
                deployment["spec"]["template"]["spec"]["containers"][0]["image"] =
                    json!("portcullis:0");
            });
        }
    });
    let scene = Scene::start(&server, &all);
    have_image(&server, &[a], "portcullis:1").await;
    scene.process_events(&all, "one").await;
    have_image(&server, &[b], "portcullis:0").await;
    scene.serve(&[a, b]);
    server.with(|state| state.settle(&a.key("deployments")));
    have_image(&server, &[b], "portcullis:1").await;
}
