//! Key sets that pods ask for: those of their own Gateway, however much a pod asks.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use portcullis::ir::ObjectRef;
use portcullis::stream::hub::Reports;
use serde_json::{Value, json};

use crate::scene::{Controller, Pod, block_on};

/// Returns an AccessPolicy of a Gateway, and the key set that it names.
fn policy(gateway: &str) -> [Value; 2] {
    let uri = uri(gateway);
    let remote = json!({"uri": uri, "cacheDuration": "1h"});
    let policy = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
        "metadata": {"namespace": "infra", "name": gateway},
        "spec": {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": gateway}],
            "jwt": {"providers": [{"issuer": uri, "jwks": {"remote": remote}}]},
        },
    });
    let key_set = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "KeySet",
        "metadata": {"namespace": "infra", "name": uri},
    });
    [policy, key_set]
}

fn uri(gateway: &str) -> String {
    format!("https://login.example.com/{gateway}")
}

async fn start() -> Controller {
    let mut controller = Controller::start().await;
    let objects = ["edge", "other"].map(policy);
    controller.put(objects.into_iter().flatten());
    controller
}

fn refresh(namespace: &str, name: &str) -> Value {
    json!({"refreshKeySet": {"namespace": namespace, "name": name}})
}

fn ask(pod: &mut Pod, namespace: &str, name: &str) {
    pod.write_text(&refresh(namespace, name));
}

/// Reads the full state. Returns a report of it.
async fn begin(pod: &mut Pod) -> Value {
    let lines = pod.change().await;
    let instance = &lines[0]["begin"]["instance"];
    let revision = &lines.last().unwrap()["commit"]["revision"];
    json!({"serves": {"instance": instance, "revision": revision}})
}

/// Returns the key sets that were asked for, once the pod's report that follows them has arrived.
async fn asked(controller: &mut Controller, name: &str) -> Vec<String> {
    controller
        .wait_for_reports(|reports| has_reported(reports, name))
        .await;
    let mut cx = Context::from_waker(Waker::noop());
    match controller.key_requests.poll_take(&mut cx) {
        Poll::Ready(asked) => asked.iter().map(ToString::to_string).collect(),
        Poll::Pending => Vec::new(),
    }
}

fn has_reported(reports: &Reports, pod: &str) -> bool {
    let name = ObjectRef::gateway_api("Gateway", "infra", "edge");
    let report = reports.get(&name).and_then(|pods| pods.get(pod));
    report.is_some_and(|report| report.revision.is_some())
}

#[test]
fn pod_asks_for_key_sets_of_its_own_gateway_alone() {
    block_on(async {
        let mut controller = start().await;
        let mut pod = controller.pod(None).await;
        let report = begin(&mut pod).await;
        ask(&mut pod, "infra", &uri("other"));
        ask(&mut pod, "default", &uri("edge"));
        ask(&mut pod, "infra", "https://10.0.0.1/internal");
        pod.write_text(&json!({"refreshKeySet": {"name": uri("edge")}}));
        pod.write_text(&json!({"refreshKeySet": uri("edge")}));
        pod.write_text(&report);
        assert!(asked(&mut controller, "edge-1").await.is_empty());
        let mut other = controller.pod_named("edge-2", None).await;
        let report = begin(&mut other).await;
        ask(&mut pod, "infra", &uri("edge"));
        // That of the first pod has arrived before.
        ask(&mut other, "infra", &uri("other"));
        other.write_text(&report);
        let asked = asked(&mut controller, "edge-2").await;
        assert_eq!(
            asked,
            [format!("KeySet infra/{}", uri("edge"))],
            "the session goes on after the others"
        );
    });
}

#[test]
fn pod_that_asks_without_pause_waits_for_itself_alone() {
    const COUNT: usize = 200;
    block_on(async {
        let mut controller = start().await;
        let mut hostile = controller.pod(None).await;
        let mut other = controller.pod_named("edge-2", None).await;
        let report = begin(&mut hostile).await;
        let of_other = begin(&mut other).await;
        let began = Instant::now();
        let asks = (0..COUNT).map(|_| refresh("infra", &uri("edge")));
        hostile.write_all(asks.chain([report]));
        other.write_text(&of_other);
        controller
            .wait_for_reports(|reports| has_reported(reports, "edge-2"))
            .await;
        assert!(!has_reported(&controller.reports.borrow(), "edge-1"));
        let asked = asked(&mut controller, "edge-1").await;
        // 10 ms for each line.
        assert!(began.elapsed() >= Duration::from_secs(2));
        assert_eq!(asked.len(), 1, "{asked:?}");
    });
}
