//! Updates for a pod: the full state first, then changes at the pod's pace.

use portcullis::status::lease::Leadership;
use serde_json::json;

use crate::scene::{Controller, Pod, block_on, gateway, route, summary, token};

/// Reads `begin`, the objects up to the first commit, and the leader's address.
async fn begin(pod: &mut Pod) -> Vec<serde_json::Value> {
    let lines = pod.change().await;
    assert_eq!(summary(&[pod.line().await.unwrap()]), ["leader"]);
    lines
}

#[test]
fn pod_gets_only_its_gateways_objects_and_secrets() {
    block_on(async {
        let mut controller = Controller::start().await;
        controller.put([
            route("a", "edge", "a.example"),
            route("b", "other", "b.example"),
        ]);
        let mut pod = controller.pod(None).await;
        let lines = begin(&mut pod).await;
        let mut seen = summary(&lines);
        assert_eq!(
            (seen.remove(0), seen.pop().unwrap()),
            ("begin".into(), "commit".into())
        );
        assert_eq!(
            seen,
            [
                "sessionSecret",
                "put GatewayClass portcullis",
                "put Gateway edge",
                "put HTTPRoute a",
                "put Secret edge-key"
            ]
        );
        assert!(lines[0]["begin"].get("base").is_none());
    });
}

#[test]
fn streams_only_changes_of_the_pods_gateway() {
    block_on(async {
        let mut controller = Controller::start().await;
        let mut pod = controller.pod(None).await;
        begin(&mut pod).await;
        controller.put([route("a", "edge", "a.example")]);
        assert_eq!(summary(&pod.change().await), ["put HTTPRoute a", "commit"]);
        controller.put([route("b", "other", "b.example")]);
        controller.remove("HTTPRoute", "a");
        assert_eq!(
            summary(&pod.change().await),
            ["delete HTTPRoute a", "commit"]
        );
    });
}

#[test]
fn reconnecting_pod_gets_the_changes() {
    block_on(async {
        let mut controller = Controller::start().await;
        let mut pod = controller.pod(None).await;
        let lines = begin(&mut pod).await;
        let instance = lines[0]["begin"]["instance"].as_str().unwrap().to_owned();
        let revision = &lines.last().unwrap()["commit"]["revision"];
        drop(pod);
        controller.put([route("a", "edge", "a.example")]);
        let mut pod = controller
            .pod(Some(&format!("{instance}/{revision}")))
            .await;
        let lines = pod.change().await;
        assert_eq!(
            summary(&lines),
            ["begin", "sessionSecret", "put HTTPRoute a", "commit"]
        );
        assert_eq!(lines[0]["begin"]["base"], *revision);
    });
}

#[test]
fn pods_of_one_gateway_share_a_session_secret() {
    block_on(async {
        let controller = Controller::start().await;
        controller.add_workload("other");
        let secret = async |gateway: &str, account: &str, pod: &str| {
            let token = token(&json!({"sub": pod}));
            controller.accept(&token, account, pod);
            let request = controller.request(gateway, &token, None);
            let (_, mut pod) = controller.send(request).await;
            let lines = pod.change().await;
            lines[1]["sessionSecret"]["secret"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let edge = secret("edge", "edge-portcullis", "edge-1").await;
        assert_eq!(edge, secret("edge", "edge-portcullis", "edge-1").await);
        assert_ne!(edge, secret("other", "other-portcullis", "other-1").await);
    });
}

#[test]
fn pod_of_another_instance_gets_the_full_state() {
    block_on(async {
        let controller = Controller::start().await;
        for position in ["other/1", "nonsense"] {
            let mut pod = controller.pod(Some(position)).await;
            let lines = pod.change().await;
            assert!(lines[0]["begin"].get("base").is_none());
            assert!(summary(&lines).contains(&"put Gateway edge".to_owned()));
        }
    });
}

#[test]
fn slow_pod_gets_the_latest_state() {
    const CHANGES: u64 = 400;
    block_on(async {
        let mut controller = Controller::start().await;
        let mut pod = controller.pod(None).await;
        begin(&mut pod).await;
        // Far more than the windows and buffers can hold.
        let large = "x".repeat(16 << 10);
        let mut swift = controller.pod_named("edge-2", None).await;
        begin(&mut swift).await;
        let mut last = 0;
        for number in 0..CHANGES {
            let mut route = route("a", "edge", "a.example");
            route["metadata"]["annotations"] =
                json!({"large": large, "number": number.to_string()});
            controller.put([route]);
            last = swift.commit().await;
        }
        let (mut lines, mut revision) = (Vec::new(), 0);
        while revision < last {
            let change = pod.change().await;
            revision = change.last().unwrap()["commit"]["revision"]
                .as_u64()
                .unwrap();
            lines.extend(change);
        }
        let seen = summary(&lines);
        let routes = seen
            .iter()
            .filter(|line| *line == "put HTTPRoute a")
            .count();
        assert!(routes < 100, "{routes} versions of one route were sent");
        let is_route = |line: &&serde_json::Value| line["put"]["kind"] == "HTTPRoute";
        let latest = lines.iter().rfind(is_route).unwrap();
        let number = &latest["put"]["metadata"]["annotations"]["number"];
        assert_eq!(*number, (CHANGES - 1).to_string());
    });
}

#[test]
fn keeps_reports_of_connected_pods_only() {
    block_on(async {
        let mut controller = Controller::start().await;
        let mut pod = controller.pod(None).await;
        let lines = begin(&mut pod).await;
        let instance = &lines[0]["begin"]["instance"];
        let revision = lines.last().unwrap()["commit"]["revision"].as_u64();
        pod.write_text(&json!({"later versions say more": {}}));
        pod.write_text(&json!({"serves": {"instance": instance, "revision": revision, "unbound": {"443": "taken"}}}));
        let name = portcullis::ir::ObjectRef::gateway_api("Gateway", "infra", "edge");
        let tcp = portcullis::ir::Bind::tcp(None, 443);
        controller
            .wait_for_reports(|reports| {
                let report = reports.get(&name).and_then(|pods| pods.get("edge-1"));
                report.is_some_and(|report| {
                    report.revision == revision && report.unbound[&tcp] == "taken"
                })
            })
            .await;
        drop(pod);
        controller
            .wait_for_reports(|reports| reports.is_empty())
            .await;
    });
}

/// Reads lines up to the next ready pods.
async fn ready_pods(pod: &mut Pod) -> serde_json::Value {
    loop {
        let line = pod.line().await.unwrap();
        if let Some(pods) = line.get("pods") {
            return pods.clone();
        }
    }
}

#[test]
fn pod_learns_which_http3_ports_all_ready_pods_serve() {
    block_on(async {
        let mut controller = Controller::start().await;
        let labels = json!({
            "app.kubernetes.io/managed-by": "portcullis-controller",
            "gateway.networking.k8s.io/gateway-name": "edge",
        });
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "infra", "name": "edge-portcullis", "labels": labels},
            "spec": {"ports": [{"port": 443}, {"port": 443, "protocol": "UDP"}]},
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "namespace": "infra", "name": "edge-portcullis-1",
                "labels": {"kubernetes.io/service-name": "edge-portcullis"},
            },
            "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "edge-1"}}],
        });
        controller.put([service, slice]);
        let mut pod = controller.pod(None).await;
        let begin = pod.line().await.unwrap();
        let instance = &begin["begin"]["instance"];
        let without = json!({"own": "edge-1", "ready": {"edge-1": "10.0.0.1"}});
        assert_eq!(ready_pods(&mut pod).await, without);
        let serves = |error: Option<&str>| {
            let binds = json!({"quic": {"443": error}});
            json!({"serves": {"instance": instance, "revision": 1, "binds": binds}})
        };
        pod.write_text(&serves(None));
        assert_eq!(ready_pods(&mut pod).await["http3"], json!([443]));
        pod.write_text(&serves(Some("taken")));
        assert_eq!(ready_pods(&mut pod).await, without);
    });
}

#[test]
fn pod_gets_the_leaders_address() {
    block_on(async {
        let controller = Controller::start().await;
        let lead = |leader_address: Option<&str>| Leadership {
            is_leader: leader_address.is_none(),
            leader_address: leader_address.map(str::to_owned),
            until: None,
        };
        controller
            .leadership
            .send_replace(lead(Some("10.0.0.7:19443")));
        let mut pod = controller.pod(None).await;
        pod.change().await;
        let leader = json!({"leader": {"address": "10.0.0.7:19443"}});
        assert_eq!(pod.line().await, Some(leader));
        controller.leadership.send_replace(lead(None));
        assert_eq!(pod.line().await, Some(json!({"leader": {}})));
    });
}

#[test]
fn deleted_gateway_ends_its_streams() {
    block_on(async {
        let mut controller = Controller::start().await;
        let mut pod = controller.pod(None).await;
        begin(&mut pod).await;
        controller.remove("Gateway", "edge");
        assert_eq!(pod.line().await, None);
        controller.put([gateway("edge")]);
        let mut pod = controller.pod(None).await;
        assert!(summary(&pod.change().await).contains(&"put Gateway edge".to_owned()));
    });
}
