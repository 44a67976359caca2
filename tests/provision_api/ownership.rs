//! Ownership of objects: UID of the Gateway and field manager decide, labels and names do not.

use portcullis::provision::FailureReason;
use serde_json::{Value, json};

use crate::scene::{MANAGER, Scene, TestGateway, gateway_key, test_gateway, with_web};
use crate::server::{Server, key};

/// Returns an object with the controller's labels, created by another client.
fn forged(test_gateway: &TestGateway, kind: &str, owner: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": kind,
        "metadata": {
            "name": test_gateway.object_name(), "namespace": test_gateway.namespace,
            "labels": {"app.kubernetes.io/managed-by": "portcullis-controller"},
            "ownerReferences": owner,
            "managedFields": [{"manager": "kubectl", "operation": "Update"}],
        },
    })
}

#[tokio::test]
async fn creates_all_objects_with_post_and_records_fields_as_applied() {
    let (server, _web, _scene) = with_web().await;
    let writes = server.take_writes();
    assert!(
        writes.iter().all(|write| write.verb != "APPLY"),
        "{writes:?}"
    );
    let made = writes.iter().filter(|write| write.verb == "POST");
    let made: Vec<_> = made.map(|write| write.plural.as_str()).collect();
    let order = [
        "serviceaccounts",
        "configmaps",
        "services",
        "poddisruptionbudgets",
        "deployments",
    ];
    assert_eq!(made, order);
}

#[tokio::test]
async fn removes_field_that_is_no_longer_desired() {
    let server = Server::start();
    let with = TestGateway {
        annotations: json!({"example.com/a": "1", "example.com/b": "2"}),
        ..test_gateway("web")
    };
    let scene = Scene::start(&server, std::slice::from_ref(&with));
    scene.has_all(&with).await;
    let without = TestGateway {
        annotations: json!({"example.com/a": "1"}),
        ..with.clone()
    };
    scene.set_desired(std::slice::from_ref(&without));
    for plural in ["serviceaccounts", "services", "deployments"] {
        server
            .until("an annotation less", |state| {
                let annotations = &state.objects[&without.key(plural)]["metadata"]["annotations"];
                (annotations["example.com/a"] == "1" && annotations["example.com/b"].is_null())
                    .then_some(())
            })
            .await;
    }
}

#[tokio::test]
async fn gateway_with_taken_object_names_fails_without_changes() {
    let server = Server::start();
    let first = TestGateway {
        class: "internal-portcullis".to_owned(),
        ..test_gateway("web")
    };
    let second = test_gateway("web-internal");
    assert_eq!(first.object_name(), second.object_name());
    let scene = Scene::start(&server, std::slice::from_ref(&first));
    scene.has_all(&first).await;
    let before = server.object(&first.key("services")).unwrap();
    server.take_writes();
    scene.set_desired(&[first.clone(), second.clone()]);
    let failure = scene.failure(&second, |_| true).await;
    assert_eq!(failure.reason, FailureReason::NameTaken);
    assert_eq!(
        failure.message,
        "ServiceAccount shop/web-internal-portcullis already exists and belongs to Gateway web: \
         rename Gateway web-internal or delete that object"
    );
    server
        .until("an event", |state| {
            state.names("events", "shop").first().map(|_| ())
        })
        .await;
    let writes = server.take_writes();
    let touched = writes
        .iter()
        .filter(|write| write.plural != "events" && write.verb != "POST");
    assert_eq!(touched.count(), 0, "{writes:?}");
    assert_eq!(server.object(&first.key("services")).unwrap(), before);

    // The name becomes free when the first Gateway is deleted.
    scene
        .desired
        .send_replace(crate::scene::desired(std::slice::from_ref(&second)));
    server.with(|state| {
        state.remove(&gateway_key(&first));
        state.collect();
    });
    scene.has_all(&second).await;
    scene.has_no_failures().await;
}

#[tokio::test]
async fn never_changes_objects_of_another_owner() {
    let server = Server::start();
    let web = test_gateway("web");
    let owner = json!([{
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web",
        "uid": web.uid, "controller": true,
    }]);
    let account = forged(&web, "ServiceAccount", &owner);
    server.with(|state| state.put(&web.key("serviceaccounts"), account));
    let before = server.object(&web.key("serviceaccounts"));
    let scene = Scene::start(&server, std::slice::from_ref(&web));
    let failure = scene.failure(&web, |_| true).await;
    assert_eq!(failure.reason, FailureReason::NameTaken);
    assert_eq!(server.object(&web.key("serviceaccounts")), before);
    // Unowned objects that look obsolete are not deleted either.
    let stray = key("services", "shop", "stray");
    let service = forged(&web, "Service", &owner);
    server.with(|state| state.put(&stray, service));
    scene
        .process_events(std::slice::from_ref(&web), "other")
        .await;
    assert!(server.object(&stray).is_some());
}

#[tokio::test]
async fn autoscaler_begins_with_the_present_number_of_pods() {
    let server = Server::start();
    let fixed = TestGateway {
        parameters: json!({"workload": {"replicas": 5}}),
        ..test_gateway("web")
    };
    let scene = Scene::start(&server, std::slice::from_ref(&fixed));
    scene.has_all(&fixed).await;
    let autoscaled = TestGateway {
        parameters: json!({"autoscaling": {"minReplicas": 2, "maxReplicas": 8}}),
        ..fixed.clone()
    };
    let deployment = fixed.key("deployments");
    let replicas = || server.object(&deployment).unwrap()["spec"]["replicas"].clone();
    scene.set_desired(std::slice::from_ref(&autoscaled));
    // The autoscaler is applied after the Deployment.
    scene.has_all(&autoscaled).await;
    assert_eq!(replicas(), 5);
    server.with(|state| {
        state.edit(&deployment, |deployment| {
            deployment["spec"]["replicas"] = json!(7);
        });
    });
    scene
        .process_events(std::slice::from_ref(&autoscaled), "one")
        .await;
    assert_eq!(replicas(), 7);
    scene.set_desired(std::slice::from_ref(&fixed));
    scene.has_all(&fixed).await;
}

#[tokio::test]
async fn new_deployment_begins_with_the_minimum_of_its_autoscaler() {
    let server = Server::start();
    let web = TestGateway {
        parameters: json!({"autoscaling": {"minReplicas": 3}}),
        ..test_gateway("web")
    };
    let scene = Scene::start(&server, std::slice::from_ref(&web));
    scene.has_all(&web).await;
    let deployment = server.object(&web.key("deployments")).unwrap();
    assert_eq!(deployment["spec"]["replicas"], 3);
}

#[tokio::test]
async fn adopts_objects_of_the_previous_version() {
    let server = Server::start();
    let web = test_gateway("web");
    // The previous version applied everything; Services could have ports of two field managers.
    server.with(|state| {
        for child in web.children() {
            let mut object = child.object.clone();
            let ports = json!({"f:ports": {".": {}}});
            let labels = json!({"f:labels": {"f:old": {".": {}}}});
            object["metadata"]["labels"]["old"] = json!("label");
            object["metadata"]["managedFields"] = json!([
                {
                    "manager": MANAGER, "operation": "Apply",
                    "fieldsV1": {"f:metadata": labels, "f:spec": ports},
                },
                {"manager": MANAGER, "operation": "Update", "fieldsV1": {"f:spec": ports}},
            ]);
            let name = key(child.kind.plural(), &child.namespace, &child.name);
            state.put(&name, object);
        }
    });
    let uids = || {
        server.with(|state| {
            let objects = state.objects.values();
            objects
                .map(|object| object["metadata"]["uid"].clone())
                .collect::<Vec<_>>()
        })
    };
    let scene = Scene::start(&server, std::slice::from_ref(&web));
    let before = uids();
    for plural in ["serviceaccounts", "services", "deployments"] {
        server
            .until("adopted", |state| {
                let metadata = &state.objects[&web.key(plural)]["metadata"];
                let entries = metadata["managedFields"].as_array()?;
                let is_clean = entries.iter().all(|entry| entry["operation"] == "Apply");
                (is_clean && metadata["labels"]["old"].is_null()).then_some(())
            })
            .await;
    }
    scene.has_no_failures().await;
    assert_eq!(uids(), before);
    let writes = server.take_writes();
    assert!(
        writes
            .iter()
            .all(|write| !matches!(write.verb.as_str(), "POST" | "DELETE")),
        "{writes:?}"
    );
}

#[tokio::test]
async fn replaces_objects_of_a_deleted_gateway_of_the_same_name() {
    let server = Server::start();
    let former = test_gateway("web");
    let scene = Scene::start(&server, std::slice::from_ref(&former));
    scene.has_all(&former).await;
    let new = TestGateway {
        uid: "another".to_owned(),
        ..former.clone()
    };
    // The garbage collector has not run yet.
    server.with(|state| {
        state.edit(&gateway_key(&former), |gateway| {
            gateway["metadata"]["uid"] = json!("another")
        })
    });
    scene.set_desired(std::slice::from_ref(&new));
    for child in new.children() {
        let name = key(child.kind.plural(), &child.namespace, &child.name);
        server
            .until("an object of the new Gateway", |state| {
                let owner = &state.objects.get(&name)?["metadata"]["ownerReferences"];
                (owner[0]["uid"] == "another" && owner.as_array()?.len() == 1).then_some(())
            })
            .await;
    }
    scene.has_no_failures().await;
}
