//! One session per pod: a new one ends the previous one, and the pod's own reports count again.

use http::StatusCode;
use portcullis::ir::ObjectRef;
use portcullis::stream::hub::Reports;
use serde_json::{Value, json};

use crate::scene::{Controller, Pod, block_on};

/// Reads the full state. Returns the instance and the revision.
async fn begin(pod: &mut Pod) -> (Value, u64) {
    let lines = pod.change().await;
    let revision = lines.last().unwrap()["commit"]["revision"].as_u64();
    (lines[0]["begin"]["instance"].clone(), revision.unwrap())
}

fn serves(instance: &Value, revision: u64) -> Value {
    json!({"serves": {"instance": instance, "revision": revision}})
}

fn reported(reports: &Reports) -> Option<u64> {
    let name = ObjectRef::gateway_api("Gateway", "infra", "edge");
    reports.get(&name)?.get("edge-1")?.revision
}

/// Reads until the stream ends.
async fn ended(mut pod: Pod) {
    while pod.line().await.is_some() {}
}

#[test]
fn oversized_report_ends_the_session() {
    const MAX: usize = 64 << 10;
    block_on(async {
        let mut controller = Controller::start().await;
        for (length, is_taken) in [(MAX, true), (MAX + 1, false)] {
            let mut pod = controller.pod(None).await;
            let (instance, revision) = begin(&mut pod).await;
            let mut report = serves(&instance, revision);
            let rest = length - report.to_string().len() - ",\"problems\":[\"\"]".len();
            report["serves"]["problems"] = json!(["x".repeat(rest)]);
            assert_eq!(report.to_string().len(), length);
            pod.write_text(&report);
            if is_taken {
                controller
                    .wait_for_reports(|reports| reported(reports) == Some(revision))
                    .await;
                drop(pod);
            } else {
                ended(pod).await;
            }
            controller.wait_for_reports(Reports::is_empty).await;
        }
    });
}

#[test]
fn new_session_of_a_pod_ends_its_previous_one() {
    block_on(async {
        let mut controller = Controller::start().await;
        let mut own = controller.pod(None).await;
        let (instance, revision) = begin(&mut own).await;
        own.write_text(&serves(&instance, revision));
        controller
            .wait_for_reports(|reports| reported(reports) == Some(revision))
            .await;

        let mut stolen = controller.pod(None).await;
        begin(&mut stolen).await;
        ended(own).await;
        assert_eq!(
            reported(&controller.reports.borrow()),
            Some(revision),
            "the pod still serves it"
        );
        let mut own = controller.pod(None).await;
        begin(&mut own).await;
        ended(stolen).await;
        assert_eq!(reported(&controller.reports.borrow()), Some(revision));
        own.write_text(&serves(&instance, revision + 1));
        controller
            .wait_for_reports(|reports| reported(reports) == Some(revision + 1))
            .await;
        assert_eq!(controller.stats.open(), 1);
        drop(own);
        controller.wait_for_reports(Reports::is_empty).await;
    });
}

#[test]
fn other_pods_keep_their_sessions() {
    block_on(async {
        let mut controller = Controller::start().await;
        let mut other = controller.pod_named("edge-2", None).await;
        begin(&mut other).await;
        for _ in 0..3 {
            let mut pod = controller.pod(None).await;
            begin(&mut pod).await;
        }
        controller.put([crate::scene::route("a", "edge", "a.example")]);
        other.change().await;
    });
}

#[test]
fn pod_that_asks_without_pause_is_refused_and_others_are_not() {
    block_on(async {
        let controller = Controller::start().await;
        let token = controller.token("edge-1");
        let mut streams = 0;
        loop {
            let request = controller.request("edge", &token, None);
            let (status, pod) = controller.send(request).await;
            if status == StatusCode::SERVICE_UNAVAILABLE {
                assert!(pod.rest().await.contains("without pause"));
                break;
            }
            assert_eq!(status, StatusCode::OK);
            streams += 1;
        }
        assert!(streams >= 20, "{streams}: a pod reconnects after failures");
        begin(&mut controller.pod_named("edge-2", None).await).await;
    });
}
