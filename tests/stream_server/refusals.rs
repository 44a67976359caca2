//! Rejected pods and their counters.

use std::time::SystemTime;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api_server::Fault;
use crate::scene::{Controller, TEST_TIMEOUT, block_on, object, token, uid};

/// Status and body of a request with this token for a Gateway.
async fn round_trip(controller: &Controller, gateway: &str, token: &str) -> (StatusCode, String) {
    let (status, pod) = controller
        .send(controller.request(gateway, token, None))
        .await;
    if status == StatusCode::OK {
        return (status, String::new());
    }
    (status, pod.rest().await)
}

#[test]
fn rejects_tokens_for_other_audiences_without_a_token_review() {
    block_on(async {
        let controller = Controller::start().await;
        let tokens = [
            "nonsense".to_owned(),
            token(&json!({"aud": ["https://kubernetes.default.svc"]})),
            token(&json!({"exp": 1_700_000_000})),
        ];
        for token in tokens {
            let (status, text) = round_trip(&controller, "edge", &token).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{text}");
        }
        let mut request = controller.request("edge", "", None);
        request.headers_mut().remove("authorization");
        let (status, _) = controller.send(request).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(controller.api.requests("tokenreviews").is_empty());
        let refusals: Vec<_> = controller.stats.refusals().collect();
        assert_eq!(refusals[0], (401, 4));
    });
}

#[test]
fn rejects_tokens_that_the_api_server_rejects() {
    block_on(async {
        let controller = Controller::start().await;
        let forged = token(&json!({"sub": "forged"}));
        let (status, _) = round_trip(&controller, "edge", &forged).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        let other = token(&json!({"sub": "other"}));
        let status = json!({"authenticated": true, "audiences": ["other"], "user": {}});
        controller.api.review(&other, status);
        assert_eq!(
            round_trip(&controller, "edge", &other).await.0,
            StatusCode::FORBIDDEN
        );
    });
}

#[test]
fn reviews_a_token_once() {
    block_on(async {
        let controller = Controller::start().await;
        let token = controller.token("edge-1");
        for _ in 0..3 {
            assert_eq!(
                round_trip(&controller, "edge", &token).await.0,
                StatusCode::OK
            );
        }
        assert_eq!(controller.api.requests("tokenreviews").len(), 1);
    });
}

#[test]
fn admits_pods_of_deployments_and_daemon_sets() {
    block_on(async {
        let controller = Controller::start().await;
        for pod in ["edge-1", "edge-2"] {
            let token = controller.token(pod);
            assert_eq!(
                round_trip(&controller, "edge", &token).await.0,
                StatusCode::OK
            );
        }
    });
}

#[test]
fn rejects_pods_of_other_gateways() {
    block_on(async {
        let controller = Controller::start().await;
        controller.add_workload("other");
        let token = controller.token("edge-1");
        for gateway in ["other", "unknown"] {
            let (status, text) = round_trip(&controller, gateway, &token).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{text}");
        }
    });
}

#[test]
fn rejects_tokens_not_bound_to_a_pod() {
    block_on(async {
        let controller = Controller::start().await;
        let token = token(&json!({"sub": "unbound"}));
        let user = json!({"username": "system:serviceaccount:infra:edge-portcullis", "uid": "1"});
        let audiences = ["portcullis.dev/controller"];
        let status = json!({"authenticated": true, "audiences": audiences, "user": user});
        controller.api.review(&token, status);
        let (status, _) = round_trip(&controller, "edge", &token).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
    });
}

/// Checks that a pod is rejected after a change to an object of the controller.
async fn refused_after(kind: &str, name: &str, change: impl Fn(&mut Value)) {
    let controller = Controller::start().await;
    let token = controller.token("edge-1");
    let mut object = controller.api.object(kind, "infra", name);
    change(&mut object);
    controller.api.put(object);
    let (status, text) = round_trip(&controller, "edge", &token).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{kind} {name}: {text}");
}

fn owners(kind: &str, name: &str, uid: &str) -> Value {
    let version = match kind {
        "Gateway" => "gateway.networking.k8s.io/v1",
        _ => "apps/v1",
    };
    json!([{"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true}])
}

#[test]
fn verifies_every_owner_from_token_to_gateway() {
    type Change = (&'static str, &'static str, fn(&mut Value));
    let changes: [Change; 9] = [
        // Created by hand, with the controller's labels and owner, but by another field manager.
        ("ServiceAccount", "edge-portcullis", |account| {
            account["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
        }),
        ("ServiceAccount", "edge-portcullis", |account| {
            account["metadata"]["ownerReferences"] = owners("Gateway", "edge", "another");
        }),
        ("ServiceAccount", "edge-portcullis", |account| {
            account["metadata"]["uid"] = json!("made anew");
        }),
        // A foreign pod that uses the ServiceAccount.
        ("Pod", "edge-1", |pod| {
            pod["metadata"]["ownerReferences"] = json!([])
        }),
        ("Pod", "edge-1", |pod| {
            pod["metadata"]["uid"] = json!("made anew")
        }),
        ("Pod", "edge-1", |pod| {
            let set = "edge-portcullis-1";
            pod["metadata"]["ownerReferences"] = owners("ReplicaSet", set, "made up");
        }),
        ("Pod", "edge-1", |pod| {
            pod["metadata"]["ownerReferences"] = owners("Job", "job", "job");
        }),
        ("ReplicaSet", "edge-portcullis-1", |set| {
            set["metadata"]["ownerReferences"] = owners("Deployment", "edge-portcullis", "made up");
        }),
        ("Deployment", "edge-portcullis", |deployment| {
            let other = uid("other");
            deployment["metadata"]["ownerReferences"] = owners("Gateway", "other", &other);
        }),
    ];
    block_on(async move {
        for (kind, name, change) in changes {
            refused_after(kind, name, change).await;
        }
    });
}

#[test]
fn rejects_deleted_pod_with_a_reviewed_token() {
    block_on(async {
        let controller = Controller::start().await;
        let token = controller.token("edge-1");
        assert_eq!(
            round_trip(&controller, "edge", &token).await.0,
            StatusCode::OK
        );
        controller.api.delete("Pod", "infra", "edge-1");
        assert_eq!(
            round_trip(&controller, "edge", &token).await.0,
            StatusCode::FORBIDDEN
        );
    });
}

#[test]
fn rejects_service_account_of_another_name() {
    block_on(async {
        let controller = Controller::start().await;
        let owner = &owners("Gateway", "edge", &uid("edge"))[0];
        let mut account = object("ServiceAccount", "borrowed", owner);
        account["metadata"]["managedFields"] =
            json!([{"manager": "portcullis.dev/controller", "operation": "Apply"}]);
        controller.api.put(account);
        let token = token(&json!({"sub": "borrowed"}));
        controller.accept(&token, "borrowed", "edge-1");
        assert_eq!(
            round_trip(&controller, "edge", &token).await.0,
            StatusCode::FORBIDDEN
        );
    });
}

#[test]
fn unreachable_api_server_is_a_temporary_error() {
    block_on(async {
        let controller = Controller::start().await;
        let token = controller.token("edge-1");
        controller.api.fail("Pod", Some(Fault::Status(500)));
        assert_eq!(
            round_trip(&controller, "edge", &token).await.0,
            StatusCode::SERVICE_UNAVAILABLE
        );
        controller.api.fail("Pod", None);
        assert_eq!(
            round_trip(&controller, "edge", &token).await.0,
            StatusCode::OK
        );
    });
}

#[test]
fn stream_ends_when_its_token_expires() {
    block_on(async {
        let controller = Controller::start().await;
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let token = token(&json!({"sub": "brief", "exp": now.as_secs() + 3}));
        controller.accept(&token, "edge-portcullis", "edge-1");
        let (status, pod) = controller
            .send(controller.request("edge", &token, None))
            .await;
        assert_eq!(status, StatusCode::OK);
        let text = timeout(TEST_TIMEOUT, pod.rest()).await.unwrap();
        assert!(text.contains("commit"), "{text}");
        assert_eq!(
            round_trip(&controller, "edge", &token).await.0,
            StatusCode::UNAUTHORIZED
        );
    });
}
