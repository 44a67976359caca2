//! Who gets nothing, and that it is counted.

use std::time::SystemTime;

use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api_server::Fault;
use crate::scene::{Controller, PATIENCE, block_on, object, token, uid};

/// The status and the text that a request of this token for a Gateway gets.
async fn ask(controller: &Controller, gateway: &str, token: &str) -> (StatusCode, String) {
    let (status, pod) = controller
        .send(controller.request(gateway, token, None))
        .await;
    if status == StatusCode::OK {
        return (status, String::new());
    }
    (status, pod.rest().await)
}

#[test]
fn tokens_that_are_not_for_the_stream_are_refused_without_a_review() {
    block_on(async {
        let controller = Controller::start().await;
        let tokens = [
            "nonsense".to_owned(),
            token(&json!({"aud": ["https://kubernetes.default.svc"]})),
            token(&json!({"exp": 1_700_000_000})),
        ];
        for token in tokens {
            let (status, text) = ask(&controller, "edge", &token).await;
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
fn tokens_that_the_api_server_refuses_are_refused() {
    block_on(async {
        let controller = Controller::start().await;
        let forged = token(&json!({"sub": "forged"}));
        let (status, text) = ask(&controller, "edge", &forged).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(text.contains("invalid bearer token"), "{text}");
        let other = token(&json!({"sub": "other"}));
        let status = json!({"authenticated": true, "audiences": ["other"], "user": {}});
        controller.api.review(&other, status);
        assert_eq!(
            ask(&controller, "edge", &other).await.0,
            StatusCode::UNAUTHORIZED
        );
    });
}

#[test]
fn a_token_is_reviewed_once() {
    block_on(async {
        let controller = Controller::start().await;
        let token = controller.token("edge-1");
        for _ in 0..3 {
            assert_eq!(ask(&controller, "edge", &token).await.0, StatusCode::OK);
        }
        assert_eq!(controller.api.requests("tokenreviews").len(), 1);
    });
}

#[test]
fn pods_of_deployments_and_daemon_sets_are_admitted() {
    block_on(async {
        let controller = Controller::start().await;
        for pod in ["edge-1", "edge-2"] {
            let token = controller.token(pod);
            assert_eq!(ask(&controller, "edge", &token).await.0, StatusCode::OK);
        }
    });
}

#[test]
fn a_pod_gets_no_other_gateways_objects() {
    block_on(async {
        let controller = Controller::start().await;
        controller.add_workload("other");
        let token = controller.token("edge-1");
        for gateway in ["other", "unknown"] {
            let (status, text) = ask(&controller, gateway, &token).await;
            assert_eq!(status, StatusCode::FORBIDDEN, "{text}");
        }
    });
}

#[test]
fn accounts_that_are_not_bound_to_a_pod_are_refused() {
    block_on(async {
        let controller = Controller::start().await;
        let token = token(&json!({"sub": "unbound"}));
        let user = json!({"username": "system:serviceaccount:infra:edge-portcullis", "uid": "1"});
        let audiences = ["portcullis.dev/controller"];
        let status = json!({"authenticated": true, "audiences": audiences, "user": user});
        controller.api.review(&token, status);
        let (status, text) = ask(&controller, "edge", &token).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(text.contains("not bound to a pod"), "{text}");
    });
}

/// A pod of the Gateway is refused once an object is not what the controller made.
async fn refused_after(kind: &str, name: &str, change: impl Fn(&mut Value)) {
    let controller = Controller::start().await;
    let token = controller.token("edge-1");
    let mut object = controller.api.object(kind, "infra", name);
    change(&mut object);
    controller.api.put(object);
    let (status, text) = ask(&controller, "edge", &token).await;
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
fn every_link_from_the_token_to_the_gateway_has_to_hold() {
    type Change = (&'static str, &'static str, fn(&mut Value));
    let changes: [Change; 9] = [
        // Made by hand, with our labels and owner but not by us.
        ("ServiceAccount", "edge-portcullis", |account| {
            account["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
        }),
        ("ServiceAccount", "edge-portcullis", |account| {
            account["metadata"]["ownerReferences"] = owners("Gateway", "edge", "another");
        }),
        ("ServiceAccount", "edge-portcullis", |account| {
            account["metadata"]["uid"] = json!("made anew");
        }),
        // Somebody else's pod that borrows the ServiceAccount.
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
fn a_deleted_pod_is_refused_though_its_token_was_reviewed() {
    block_on(async {
        let controller = Controller::start().await;
        let token = controller.token("edge-1");
        assert_eq!(ask(&controller, "edge", &token).await.0, StatusCode::OK);
        controller.api.delete("Pod", "infra", "edge-1");
        assert_eq!(
            ask(&controller, "edge", &token).await.0,
            StatusCode::FORBIDDEN
        );
    });
}

#[test]
fn a_service_account_of_another_name_is_refused() {
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
            ask(&controller, "edge", &token).await.0,
            StatusCode::FORBIDDEN
        );
    });
}

#[test]
fn nobody_is_refused_for_good_while_the_api_server_is_away() {
    block_on(async {
        let controller = Controller::start().await;
        let token = controller.token("edge-1");
        controller.api.fail("Pod", Some(Fault::Status(500)));
        assert_eq!(
            ask(&controller, "edge", &token).await.0,
            StatusCode::SERVICE_UNAVAILABLE
        );
        controller.api.fail("Pod", None);
        assert_eq!(ask(&controller, "edge", &token).await.0, StatusCode::OK);
    });
}

#[test]
fn a_stream_ends_with_the_token_that_it_began_with() {
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
        let text = timeout(PATIENCE, pod.rest()).await.unwrap();
        assert!(text.contains("commit"), "{text}");
        assert_eq!(
            ask(&controller, "edge", &token).await.0,
            StatusCode::UNAUTHORIZED
        );
    });
}
