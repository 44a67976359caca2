//! When the states of controllers and of copies are published.

use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::*;
use crate::api::Key;

/// Returns a follower whose connection has these updates, and what it publishes.
fn follower(
    received: mpsc::Receiver<Update>,
) -> (
    Follower<impl FnMut(StreamEvent<'_>)>,
    watch::Receiver<Arc<Load>>,
) {
    let settings = StreamSettings {
        host: "localhost".to_owned(),
        port: 1,
        gateway: Key::new("infra", "edge"),
        ca_file: "ca".into(),
        token_file: "token".into(),
        state_dir: None,
    };
    let (loads, loaded) = watch::channel(Arc::default());
    let (_, reports) = watch::channel(None);
    let outgoing = Outgoing {
        reports,
        key_requests: Arc::default(),
    };
    let (copies, _) = watch::channel(GatewayObjects::default());
    let ignore = |_: StreamEvent<'_>| {};
    let mut follower = Follower::new(Arc::new(settings), loads, outgoing, copies, ignore);
    follower.current = Some(Connection {
        session: Session::of(received),
        intake: UpdateDecoder::default(),
        address: None,
        leader: None,
        begun: None,
    });
    (follower, loaded)
}

fn begin(instance: &str, base: Option<u64>) -> Update {
    let instance = instance.to_owned();
    Update::Begin { instance, base }
}

/// Waits for the next load.
async fn next_load(loaded: &mut watch::Receiver<Arc<Load>>) -> Arc<Load> {
    let changed = timeout(Duration::from_secs(60), loaded.changed()).await;
    changed.expect("one is published").unwrap();
    loaded.borrow_and_update().clone()
}

#[tokio::test(start_paused = true)]
async fn copy_is_served_once_a_controller_is_silent() {
    let (updates, received) = mpsc::channel(1);
    let (follower, mut loaded) = follower(received);
    let (mut copy, mut decoder) = (GatewayObjects::default(), UpdateDecoder::default());
    for update in [begin("5f2c", None), Update::Commit { revision: 7 }] {
        decoder.take(update, &mut copy).unwrap();
    }
    tokio::spawn(follower.run(Some(copy)));
    let start = Instant::now();
    sleep(Duration::from_secs(3)).await;
    updates.send(begin("5f2c", Some(7))).await.unwrap();
    next_load(&mut loaded).await;
    assert_eq!(start.elapsed(), Duration::from_secs(3) + SILENCE);
}

/// Returns a version of a policy.
fn policy(generation: i64) -> Update {
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge"});
    Update::Put(json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
        "metadata": {"name": "a", "namespace": "infra", "generation": generation},
        "spec": {"targetRefs": [target], "ipRules": {"deny": ["192.0.2.1"]}},
    }))
}

/// The watches of the process that sends it may be behind.
#[tokio::test(start_paused = true)]
async fn state_of_another_controller_without_a_policy_waits_for_it() {
    let (updates, received) = mpsc::channel(1);
    let (follower, mut loaded) = follower(received);
    tokio::spawn(follower.run(None));
    let commit = |revision| Update::Commit { revision };
    let generation = |load: &Arc<Load>| {
        let policy = load.snapshot.access_policies.get("infra", "a");
        policy.map(|policy| policy.metadata.generation)
    };
    let send = async |all: Vec<Update>| {
        for update in all {
            updates.send(update).await.unwrap();
        }
    };
    send(vec![begin("one", None), policy(2), commit(1)]).await;
    assert_eq!(generation(&next_load(&mut loaded).await), Some(2));
    // It arrives, in both versions.
    let start = Instant::now();
    send(vec![begin("two", None), commit(1), policy(1), commit(2)]).await;
    send(vec![policy(2), commit(3)]).await;
    assert_eq!(generation(&next_load(&mut loaded).await), Some(2));
    assert!(start.elapsed() < CATCH_UP);
    // It was deleted.
    send(vec![begin("three", None), commit(1)]).await;
    assert_eq!(generation(&next_load(&mut loaded).await), None);
    assert!(start.elapsed() >= CATCH_UP);
    let start = Instant::now();
    send(vec![begin("one", None), policy(3), commit(9)]).await;
    assert_eq!(generation(&next_load(&mut loaded).await), Some(3));
    assert!(start.elapsed() < CATCH_UP);
}

#[tokio::test(start_paused = true)]
async fn state_without_a_policy_of_the_copy_waits_for_it() {
    let (updates, received) = mpsc::channel(1);
    let (follower, mut loaded) = follower(received);
    let commit = |revision| Update::Commit { revision };
    let (mut copy, mut decoder) = (GatewayObjects::default(), UpdateDecoder::default());
    for update in [begin("one", None), policy(2), commit(1)] {
        decoder.take(update, &mut copy).unwrap();
    }
    tokio::spawn(follower.run(Some(copy)));
    let leader = Update::Leader { address: None };
    for update in [begin("two", None), commit(1), leader, policy(2), commit(2)] {
        updates.send(update).await.unwrap();
    }
    let load = next_load(&mut loaded).await;
    assert_eq!(load.position.as_ref().unwrap().to_string(), "two/2");
    assert!(load.snapshot.access_policies.get("infra", "a").is_some());
}

/// Returns a version of an object.
fn version(api_version: &str, kind: &str, generation: i64, spec: &serde_json::Value) -> Update {
    Update::Put(json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": "a", "namespace": "infra", "generation": generation}, "spec": spec,
    }))
}

/// A later version of a Gateway may ask for client certificates, and another route gets the requests of one that is missing.
#[tokio::test(start_paused = true)]
async fn state_of_another_controller_with_an_earlier_gateway_or_without_a_route_waits() {
    let (updates, received) = mpsc::channel(1);
    let (follower, mut loaded) = follower(received);
    tokio::spawn(follower.run(None));
    let api = "gateway.networking.k8s.io/v1";
    let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    let spec = json!({"gatewayClassName": "ours", "listeners": listeners});
    let gateway = |generation| version(api, "Gateway", generation, &spec);
    let route = || version(api, "HTTPRoute", 1, &json!({"parentRefs": [{"name": "a"}]}));
    let service = || version("v1", "Service", 0, &json!({"ports": [{"port": 80}]}));
    let commit = |revision| Update::Commit { revision };
    let send = async |all: Vec<Update>| {
        for update in all {
            updates.send(update).await.unwrap();
        }
    };
    send(vec![begin("one", None), gateway(2), route(), service()]).await;
    send(vec![commit(1)]).await;
    next_load(&mut loaded).await;
    let start = Instant::now();
    let behind = [
        ("two", vec![gateway(1), route()]),
        ("three", vec![gateway(2)]),
    ];
    for (instance, objects) in behind {
        send(vec![begin(instance, None)]).await;
        send(objects).await;
        send(vec![commit(1), gateway(2), route(), commit(2)]).await;
        let load = next_load(&mut loaded).await;
        let gateway = load.snapshot.gateways.get("infra", "a").unwrap();
        assert_eq!(gateway.metadata.generation, 2, "{instance}");
        assert_eq!(load.snapshot.http_routes.len(), 1, "{instance}");
        assert!(start.elapsed() < CATCH_UP, "{instance}");
    }
    // Nothing is open without a Service.
    send(vec![begin("four", None), gateway(2), route(), commit(1)]).await;
    assert!(next_load(&mut loaded).await.snapshot.services.is_empty());
    assert!(start.elapsed() < CATCH_UP);
}
