//! Rejected and hanging requests, and how failures are reported.

use portcullis::provision::FailureReason;
use serde_json::json;

use crate::scene::{Scene, TestGateway, test_gateway, with_web};
use crate::server::{Fault, Server, TEST_TIMEOUT};

#[tokio::test]
async fn rejection_is_reported_with_the_servers_message_and_retried() {
    let server = Server::start();
    let web = test_gateway("web");
    server.rule(|request| {
        let is_deployment = request.verb == "POST" && request.plural == "deployments";
        is_deployment.then_some(Fault::Refuse(403, "Forbidden", "exceeded quota: small"))
    });
    let scene = Scene::start(&server, std::slice::from_ref(&web));
    let failure = scene.failure(&web, |_| true).await;
    assert_eq!(failure.reason, FailureReason::Refused);
    assert_eq!(
        failure.message,
        "Deployment shop/web-portcullis cannot be created: exceeded quota: small (403 Forbidden)"
    );
    assert!(server.object(&web.key("services")).is_some());
    let event = server
        .until("an event", |state| {
            let (_, event) = state.objects.iter().find(|(key, _)| key.0 == "events")?;
            Some(event.clone())
        })
        .await;
    assert_eq!(event["type"], "Warning");
    assert_eq!(event["reason"], "ProvisioningRefused");
    assert_eq!(event["regarding"]["uid"], web.uid.as_str());
    assert_eq!(event["regarding"]["kind"], "Gateway");
    assert_eq!(event["note"], failure.message.as_str());
    server.lift_rule();
    scene.has_all(&web).await;
    scene.has_no_failures().await;
    let events = server.with(|state| state.names("events", "shop").len());
    assert_eq!(events, 1);
}

#[tokio::test]
async fn rejected_disruption_budget_does_not_block_pods() {
    let server = Server::start();
    let web = test_gateway("web");
    server.rule(|request| {
        let is_budget = request.verb == "POST" && request.plural == "poddisruptionbudgets";
        is_budget.then_some(Fault::Refuse(403, "Forbidden", "no"))
    });
    let scene = Scene::start(&server, std::slice::from_ref(&web));
    scene.failure(&web, |_| true).await;
    assert!(server.object(&web.key("deployments")).is_some());
}

#[tokio::test]
async fn creates_prerequisites_before_pods() {
    let server = Server::start();
    let web = test_gateway("web");
    server.rule(|request| {
        let is_map = request.verb == "POST" && request.plural == "configmaps";
        is_map.then_some(Fault::Refuse(422, "Invalid", "no"))
    });
    let scene = Scene::start(&server, std::slice::from_ref(&web));
    scene.failure(&web, |_| true).await;
    assert!(server.object(&web.key("deployments")).is_none());
}

#[tokio::test]
async fn server_error_is_not_a_rejection() {
    let server = Server::start();
    let web = test_gateway("web");
    server.rule(|request| {
        let is_service = request.verb == "POST" && request.plural == "services";
        is_service.then_some(Fault::Refuse(
            500,
            "InternalError",
            "failed calling webhook",
        ))
    });
    let scene = Scene::start(&server, std::slice::from_ref(&web));
    let failure = scene.failure(&web, |_| true).await;
    assert_eq!(failure.reason, FailureReason::Unreachable);
    assert!(
        failure.message.contains("failed calling webhook"),
        "{}",
        failure.message
    );
}

#[tokio::test]
async fn hanging_namespace_does_not_delay_others() {
    let server = Server::start();
    let slow = |count: u32| TestGateway {
        namespace: "slow".to_owned(),
        ..test_gateway(&format!("slow-{count}"))
    };
    let mut gateways: Vec<_> = (0..60).map(slow).collect();
    server
        .rule(|request| (request.is_write() && request.namespace == "slow").then_some(Fault::Hang));
    let scene = Scene::start(&server, &gateways);
    server
        .until("all requests that may hang", |state| {
            let writes = state.requests.iter().filter(|request| request.is_write());
            (writes.count() == 4).then_some(())
        })
        .await;
    let quick: Vec<_> = (0..10)
        .map(|count| test_gateway(&format!("quick-{count}")))
        .collect();
    gateways.extend(quick.clone());
    scene.set_desired(&gateways);
    let served = async {
        for test_gateway in &quick {
            scene.has_all(test_gateway).await;
        }
    };
    // A hanging request takes 10 s, so that the others take more than two minutes, four at a time.
    let served = tokio::time::timeout(TEST_TIMEOUT, served).await;
    served.expect("in time");
}

#[tokio::test]
async fn takes_over_ports_of_another_field_manager() {
    let (server, web, scene) = with_web().await;
    // A real server rejects a duplicate port name of another manager.
    server.with(|state| {
        state.edit(&web.key("services"), |service| {
            service["spec"]["ports"] = json!([{"name": "port-80", "port": 81}]);
        });
    });
    scene.has_all(&web).await;
}
