//! Repairs of changed objects, and deletion with the Gateway.

use serde_json::json;

use crate::scene::{Scene, TestGateway, desired, gateway_key, test_gateway, with_web};
use crate::server::{Fault, Server, key};

#[tokio::test]
async fn recreates_deleted_objects() {
    let (server, web, scene) = with_web().await;
    for child in web.children() {
        let name = key(child.kind.plural(), &child.namespace, &child.name);
        let uid = server.object(&name).unwrap()["metadata"]["uid"].clone();
        server.with(|state| state.remove(&name));
        let is_new = |state: &crate::server::State| {
            let new = &state.objects.get(&name)?["metadata"]["uid"];
            (*new != uid).then_some(())
        };
        server.until("a new object", is_new).await;
    }
    scene.has_all(&web).await;
}

#[tokio::test]
async fn restores_changed_objects() {
    let (server, web, scene) = with_web().await;
    let uid = server.object(&web.key("deployments")).unwrap()["metadata"]["uid"].clone();
    let certificates = key("configmaps", "shop", "web-portcullis-controller-ca");
    server.with(|state| {
        state.edit(&certificates, |map| {
            map["data"]["ca.crt"] = json!("of somebody else")
        });
        state.edit(&web.key("services"), |service| {
            service["spec"]["selector"] = json!({"a": "b"})
        });
        state.edit(&web.key("deployments"), |deployment| {
            deployment["spec"]["template"]["spec"]["containers"][0]["image"] = json!("evil");
        });
    });
    scene.has_all(&web).await;
    // Without the label, the watch no longer selects the object; without the owner, it is unowned.
    server.with(|state| {
        state.edit(&web.key("deployments"), |deployment| {
            let labels = deployment["metadata"]["labels"].as_object_mut().unwrap();
            labels.remove("app.kubernetes.io/managed-by");
        });
        state.edit(&web.key("serviceaccounts"), |account| {
            account["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("ownerReferences");
        });
    });
    scene.has_all(&web).await;
    assert_eq!(
        server.object(&web.key("deployments")).unwrap()["metadata"]["uid"],
        uid
    );
}

fn has_no_writes_of_web(server: &Server) {
    let writes = server.take_writes();
    let of_web: Vec<_> = writes
        .iter()
        .filter(|write| write.namespace == "shop")
        .collect();
    assert!(of_web.is_empty(), "{of_web:?}");
}

#[tokio::test]
async fn unchanged_state_needs_no_write() {
    let (server, web, scene) = with_web().await;
    scene
        .process_events(std::slice::from_ref(&web), "one")
        .await;
    server.take_writes();
    server.with(|state| {
        state.edit(&web.key("deployments"), |deployment| {
            deployment["status"]["availableReplicas"] = json!(1);
        });
        state.edit(&web.key("services"), |service| {
            service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
            service["metadata"]["finalizers"] =
                json!(["service.kubernetes.io/load-balancer-cleanup"]);
        });
    });
    scene
        .process_events(std::slice::from_ref(&web), "two")
        .await;
    has_no_writes_of_web(&server);
}

#[tokio::test]
async fn applies_nothing_for_a_terminating_gateway() {
    let (server, web, scene) = with_web().await;
    // The controller's view of the Gateway is older than its view of the objects.
    server.with(|state| {
        state.edit(&gateway_key(&web), |gateway| {
            gateway["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        });
    });
    server.take_writes();
    server.with(|state| {
        for plural in ["deployments", "services", "serviceaccounts"] {
            state.remove(&web.key(plural));
        }
    });
    server
        .until("a look at the Gateway", |state| {
            let mut requests = state.requests.iter();
            requests
                .any(|request| request.plural == "gateways" && request.name == "web")
                .then_some(())
        })
        .await;
    scene
        .process_events(std::slice::from_ref(&web), "one")
        .await;
    has_no_writes_of_web(&server);
    // The controller learns of the deletion.
    let other = TestGateway {
        namespace: "barrier".to_owned(),
        ..test_gateway("two")
    };
    server.with(|state| state.put(&gateway_key(&other), other.gateway()));
    let mut state = (*desired(std::slice::from_ref(&other)).unwrap()).clone();
    state.retained.insert(web.object_ref());
    scene.desired.send_replace(Some(state.into()));
    server.with(|state| state.remove(&web.key("poddisruptionbudgets")));
    scene.has_all(&other).await;
    has_no_writes_of_web(&server);
}

#[tokio::test]
async fn deletes_objects_of_a_deleted_gateway() {
    let (server, web, scene) = with_web().await;
    server.with(|state| state.remove(&gateway_key(&web)));
    scene.desired.send_replace(desired(&[]));
    server
        .until("nothing left", |state| {
            state.objects.is_empty().then_some(())
        })
        .await;
}

#[tokio::test]
async fn keeps_orphaned_objects() {
    let server = Server::start();
    let web = test_gateway("web");
    let scene = Scene::start(&server, std::slice::from_ref(&web));
    scene.until_idle(std::slice::from_ref(&web)).await;
    // Orphan deletion: the garbage collector removes the owner references and then deletes the
    // Gateway.
    server.with(|state| {
        for child in web.children() {
            let name = key(child.kind.plural(), &child.namespace, &child.name);
            state.edit(&name, |object| {
                let metadata = object["metadata"].as_object_mut().unwrap();
                metadata.remove("ownerReferences");
            });
        }
        state.remove(&gateway_key(&web));
    });
    scene.process_events(&[], "one").await;
    for child in web.children() {
        let name = key(child.kind.plural(), &child.namespace, &child.name);
        let object = server.object(&name).unwrap();
        assert!(object["metadata"]["ownerReferences"].is_null(), "{name:?}");
    }
}

#[tokio::test]
async fn deletes_objects_of_a_gateway_of_another_class() {
    let server = Server::start();
    let (web, other) = (test_gateway("web"), test_gateway("other"));
    let scene = Scene::start(&server, &[web.clone(), other.clone()]);
    scene.has_all(&web).await;
    scene.has_all(&other).await;
    scene.set_desired(std::slice::from_ref(&other));
    server
        .until("nothing of the Gateway", |state| {
            let mut keys = state.objects.keys();
            (!keys.any(|key| key.0 != "gateways" && key.2.starts_with("web-"))).then_some(())
        })
        .await;
    scene.has_all(&other).await;
}

/// Tokens of pods are invalid once their ServiceAccount is deleted, even if another one takes its name.
#[tokio::test]
async fn deletes_pods_before_their_service_account() {
    let server = Server::start();
    let (web, other) = (test_gateway("web"), test_gateway("other"));
    let scene = Scene::start(&server, &[web.clone(), other.clone()]);
    scene.has_all(&web).await;
    scene.has_all(&other).await;
    let (refused, mut refusals) = tokio::sync::mpsc::unbounded_channel();
    server.rule(move |request| {
        let is_deleted = request.verb == "DELETE" && request.plural == "deployments";
        is_deleted.then(|| {
            refused.send(()).unwrap();
            Fault::Refuse(403, "Forbidden", "no")
        })
    });
    scene.set_desired(std::slice::from_ref(&other));
    refusals.recv().await.unwrap();
    assert!(server.object(&web.key("serviceaccounts")).is_some());
    server.lift_rule();
    server
        .until("no ServiceAccount", |state| {
            (!state.objects.contains_key(&web.key("serviceaccounts"))).then_some(())
        })
        .await;
    assert!(server.object(&web.key("deployments")).is_none());
}

#[tokio::test]
async fn deletes_replaced_objects_after_creating_their_successors() {
    let (server, web, scene) = with_web().await;
    server.rule(|request| {
        let is_set = request.verb == "POST" && request.plural == "daemonsets";
        is_set.then_some(Fault::Refuse(403, "Forbidden", "no"))
    });
    let everywhere = TestGateway {
        parameters: json!({"workload": {"kind": "DaemonSet"}}),
        ..web.clone()
    };
    scene.set_desired(std::slice::from_ref(&everywhere));
    scene.failure(&everywhere, |_| true).await;
    assert!(server.object(&web.key("deployments")).is_some());
    server.lift_rule();
    scene.has_all(&everywhere).await;
    server
        .until("no Deployment", |state| {
            (!state.objects.contains_key(&web.key("deployments"))).then_some(())
        })
        .await;
}

#[tokio::test]
async fn replaced_pods_stay_until_their_successors_are_available() {
    let everywhere = TestGateway {
        parameters: json!({"workload": {"kind": "DaemonSet"}}),
        ..test_gateway("web")
    };
    let of_another_class = TestGateway {
        class: "other".to_owned(),
        ..test_gateway("web")
    };
    for (workload, new) in [
        ("daemonsets", everywhere),
        ("deployments", of_another_class),
    ] {
        let (server, web, scene) = with_web().await;
        server.stop_controllers();
        server.take_writes();
        scene.set_desired(std::slice::from_ref(&new));
        scene.has_all(&new).await;
        scene
            .process_events(std::slice::from_ref(&new), "one")
            .await;
        let writes = server.take_writes();
        let is_kept = writes.iter().all(|write| write.verb != "DELETE");
        assert!(is_kept, "{writes:?}");
        server.with(|state| state.settle(&new.key(workload)));
        server
            .until("no Deployment of before", |state| {
                (!state.objects.contains_key(&web.key("deployments"))).then_some(())
            })
            .await;
    }
}

/// Their successors need the same ports of the nodes.
#[tokio::test]
async fn replaced_pods_on_the_host_network_end_at_once() {
    let server = Server::start();
    let on_host = |kind: &str| TestGateway {
        parameters: json!({"workload": {"kind": kind, "hostNetwork": true}}),
        ..test_gateway("web")
    };
    let web = on_host("Deployment");
    let scene = Scene::start(&server, std::slice::from_ref(&web));
    scene.has_all(&web).await;
    server.stop_controllers();
    scene.set_desired(&[on_host("DaemonSet")]);
    server
        .until("no Deployment", |state| {
            (!state.objects.contains_key(&web.key("deployments"))).then_some(())
        })
        .await;
}
