//! Endpoints of what had none wait for the policies that are older, and no others do.

use serde_json::{Value, json};

use super::order::{answer, answer_at, answer_with_policy, has_policy, policy, published};
use super::*;
use crate::api::core::EndpointSlice;
use crate::api::inference_pool::ACTIVE_PORTS;

/// Returns an object of a kind in namespace `default`.
fn object(kind: &str, name: &str, fields: &Value) -> ParsedObject {
    let mut value = fields.clone();
    value["metadata"]["name"] = name.into();
    value["metadata"]["namespace"] = "default".into();
    let kind = Kind::all().iter().find(|it| it.kind == kind).unwrap();
    ParsedObject {
        content: Content::Parsed(Ok(kind.decode(&value).unwrap())),
        ..parsed("Namespace", name, &json!({}))
    }
}

/// Returns an EndpointSlice of Service `app` with these ports, and endpoints `192.0.2.x` of pods `x`, each with its conditions.
fn slice(name: &str, ports: &[&str], endpoints: &[(u8, Value)]) -> Change {
    let ports = ports.iter().map(|port| json!({"name": port, "port": 80}));
    let endpoints = endpoints.iter().map(|(number, conditions)| {
        let pod = json!({"kind": "Pod", "name": number.to_string()});
        let addresses = json!([format!("192.0.2.{number}")]);
        json!({"addresses": addresses, "conditions": conditions, "targetRef": pod})
    });
    let fields = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "app"}}, "addressType": "IPv4",
        "endpoints": endpoints.collect::<Value>(), "ports": ports.collect::<Value>(),
    });
    Change::Applied(object("EndpointSlice", name, &fields))
}

fn ready() -> Value {
    json!({})
}

fn unready() -> Value {
    json!({"ready": false})
}

/// Applies an EndpointSlice. Returns whether something of it is published at once.
fn apply(store: &mut Store, change: Change) -> bool {
    store.apply(index("EndpointSlice"), change)
}

/// Returns the published endpoints of an EndpointSlice that may get requests at a port, each by the last part of its address.
fn served(store: &Store, name: &str, port: &str) -> Vec<String> {
    let snapshot = store.load().unwrap().snapshot;
    let slice = snapshot.endpoint_slices.get("default", name);
    let has_port = |it: &&Arc<EndpointSlice>| {
        let mut ports = it.ports.iter();
        ports.any(|it| it.name.as_deref() == Some(port))
    };
    let endpoints = slice.filter(has_port).map(|it| it.endpoints.iter());
    let usable = endpoints.into_iter().flatten();
    let usable = usable.filter(|it| it.conditions.may_get_requests());
    usable
        .map(|it| it.addresses[0].trim_start_matches("192.0.2.").to_owned())
        .collect()
}

/// Returns a store that has published these EndpointSlices.
fn serving(slices: Vec<Change>) -> Store {
    let mut store = published();
    for slice in slices {
        apply(&mut store, slice);
    }
    if let Some(moment) = store.take_moment() {
        answer_at(&mut store, moment);
    }
    store.release(Instant::now());
    assert!(store.deferred.is_empty());
    store
}

#[test]
fn first_endpoints_of_a_service_are_published_with_the_policy_that_is_older() {
    let policies = index("AccessPolicy");
    let empty = || slice("one", &["http"], &[]);
    let other = || slice("two", &["http"], &[(9, unready())]);
    for before in [vec![], vec![empty()], vec![other()]] {
        let mut store = serving(before);
        assert!(!apply(&mut store, slice("one", &["http"], &[(1, ready())])));
        answer_with_policy(&mut store);
        assert!(!store.release(Instant::now()));
        assert!(served(&store, "one", "http").is_empty());
        store.apply(policies, policy("a", 9));
        assert!(store.release(Instant::now()) && has_policy(&store, "a"));
        assert_eq!(served(&store, "one", "http"), ["1"]);
    }
}

#[test]
fn endpoints_that_join_others_or_take_their_place_do_not_wait() {
    let draining = json!({"ready": false, "serving": true, "terminating": true});
    let mut store = serving(vec![slice("one", &["http"], &[(1, ready())])]);
    let changes = [
        ("one", vec![(1, ready()), (2, ready())]),
        ("one", vec![(1, draining), (2, unready()), (3, ready())]),
        ("two", vec![(4, ready())]),
        ("one", vec![(2, unready())]),
        ("one", vec![(5, ready())]),
    ];
    for (name, endpoints) in changes {
        let change = slice(name, &["http"], &endpoints);
        assert!(apply(&mut store, change), "{endpoints:?}");
        assert_eq!(store.take_moment(), None, "{endpoints:?}");
    }
    assert_eq!(served(&store, "one", "http"), ["5"]);
    assert_eq!(served(&store, "two", "http"), ["4"]);
}

/// Two EndpointSlices have the first endpoints: the one that is not published opens nothing for the other.
#[test]
fn endpoints_do_not_join_others_that_wait() {
    let mut store = serving(Vec::new());
    assert!(!apply(&mut store, slice("one", &["http"], &[(1, ready())])));
    store.take_moment().unwrap();
    assert!(!apply(&mut store, slice("two", &["http"], &[(2, ready())])));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(served(&store, "two", "http"), ["2"]);
}

#[test]
fn first_endpoints_of_a_port_wait_and_those_that_are_gone_get_no_requests() {
    let mut store = serving(vec![slice("one", &["http"], &[(1, ready())])]);
    let both = ["http", "grpc"];
    // Endpoint 1 is removed.
    assert!(apply(&mut store, slice("one", &both, &[(2, ready())])));
    assert_eq!(served(&store, "one", "http"), ["2"]);
    assert!(served(&store, "one", "grpc").is_empty());
    // So is endpoint 2, before the policies are known.
    assert!(apply(&mut store, slice("one", &both, &[(3, ready())])));
    assert_eq!(served(&store, "one", "http"), ["3"]);
    assert!(apply(&mut store, slice("one", &both, &[(3, unready())])));
    assert!(served(&store, "one", "http").is_empty());
    assert!(store.deferred.is_empty());
}

/// A Service whose only endpoint becomes ready again has had none.
#[test]
fn endpoint_that_is_ready_again_waits() {
    let mut store = serving(vec![slice("one", &["http"], &[(1, ready())])]);
    assert!(apply(
        &mut store,
        slice("one", &["http"], &[(1, unready())])
    ));
    assert!(!apply(&mut store, slice("one", &["http"], &[(1, ready())])));
    assert!(served(&store, "one", "http").is_empty());
}

#[test]
fn changes_of_endpoints_that_wait_are_published_after_the_first_moment() {
    let mut store = serving(Vec::new());
    apply(&mut store, slice("one", &["http"], &[(1, ready())]));
    let moment = store.take_moment().unwrap();
    for number in 2..10 {
        let change = slice("one", &["http"], &[(1, ready()), (number, ready())]);
        assert!(!apply(&mut store, change));
        assert_eq!(store.take_moment(), None);
    }
    answer_at(&mut store, moment);
    assert!(store.release(Instant::now()));
    assert_eq!(served(&store, "one", "http"), ["1", "9"]);
}

/// The label by which pods are of releases.
const RELEASE: &str = "app.kubernetes.io/version";

/// Returns a pod of a release, which gets requests or not.
fn pod(number: u8, release: &str, is_ready: bool) -> ParsedObject {
    let condition = json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }});
    let status = json!({"conditions": [condition], "podIP": format!("192.0.2.{number}")});
    let labels = json!({RELEASE: release});
    let fields = json!({"metadata": {"labels": labels}, "status": status});
    object("Pod", &number.to_string(), &fields)
}

/// Returns a store with a ReleaseBackend and these pods of its namespace, and the scope of these pods.
fn with_pods(pods: Vec<ParsedObject>) -> (Store, usize) {
    with_pods_of("ReleaseBackend", release_backend("app"), pods)
}

/// Returns a store with an object of a kind that selects pods and these pods of its namespace, and the scope of these pods.
fn with_pods_of(kind: &str, selecting: ParsedObject, pods: Vec<ParsedObject>) -> (Store, usize) {
    let mut store = published();
    store.apply(index(kind), Change::Applied(selecting));
    let (added, _) = follow_pods(&mut store, true);
    store.apply(added[0], Change::Listing);
    for pod in pods {
        store.apply(added[0], Change::Listed(pod));
    }
    store.apply(added[0], Change::Complete);
    // Without the pods, the release backend would be published without endpoints.
    assert!(store.is_waiting());
    answer(&mut store);
    assert!(store.release(Instant::now()) && !store.is_waiting());
    (store, added[0])
}

/// Returns the published pods, each with whether it gets requests.
fn published_pods(store: &Store) -> Vec<(String, bool)> {
    let snapshot = store.load().unwrap().snapshot;
    let pods = snapshot.pods.iter();
    pods.map(|pod| (pod.metadata.name.to_string(), pod.status.is_ready))
        .collect()
}

#[test]
fn first_pod_of_a_release_waits_and_others_do_not() {
    let (mut store, scope) = with_pods(vec![pod(1, "old", true)]);
    let apply = |store: &mut Store, pod| store.apply(scope, Change::Applied(pod));
    assert!(apply(&mut store, pod(2, "old", true)));
    assert!(apply(&mut store, pod(3, "new", false)));
    assert_eq!(store.take_moment(), None);
    assert!(!apply(&mut store, pod(3, "new", true)));
    assert!(!apply(&mut store, pod(4, "new", true)));
    let now = published_pods(&store).into_iter();
    let now: Vec<_> = now
        .map(|(name, is_ready)| format!("{name} {is_ready}"))
        .collect();
    assert_eq!(now, ["1 true", "2 true", "3 false"]);
    answer(&mut store);
    assert!(store.release(Instant::now()));
    let now = published_pods(&store);
    assert!(now.len() == 4 && now.iter().all(|(_, is_ready)| *is_ready));
    // A deleted pod gets no requests.
    assert!(apply(&mut store, pod(3, "new", false)));
    assert!(store.apply(scope, deleted("4")));
    assert!(!apply(&mut store, pod(3, "new", true)));
}

#[test]
fn first_endpoint_of_a_release_waits_and_others_of_its_service_do_not() {
    let pods = vec![pod(1, "old", true), pod(2, "new", true)];
    let (mut store, scope) = with_pods(pods);
    apply(&mut store, slice("one", &["http"], &[(1, ready())]));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    store.apply(scope, Change::Applied(pod(3, "old", true)));
    let all = [(1, ready()), (2, ready()), (3, ready())];
    assert!(apply(&mut store, slice("one", &["http"], &all)));
    assert_eq!(served(&store, "one", "http"), ["1", "3"]);
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(served(&store, "one", "http"), ["1", "2", "3"]);
}

/// A ReleaseBackend may refuse all requests until a second endpoint of a release is ready.
#[test]
fn each_endpoint_of_a_release_waits_where_ready_ones_are_counted() {
    let spec = json!({"splitBy": RELEASE, "minReady": 2, "belowMinReady": "Unavailable"});
    let backend = parsed("ReleaseBackend", "app", &spec);
    let (mut store, scope) = with_pods_of("ReleaseBackend", backend, vec![pod(1, "old", true)]);
    apply(&mut store, slice("one", &["http"], &[(1, ready())]));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert!(!store.apply(scope, Change::Applied(pod(2, "old", true))));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    let both = [(1, ready()), (2, ready())];
    assert!(!apply(&mut store, slice("one", &["http"], &both)));
    assert_eq!(served(&store, "one", "http"), ["1"]);
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(served(&store, "one", "http"), ["1", "2"]);
    // What was removed gets no requests, and what has changed otherwise does not wait.
    assert!(apply(&mut store, slice("one", &["http"], &[(2, ready())])));
    assert_eq!(store.take_moment(), None);
    assert_eq!(served(&store, "one", "http"), ["2"]);
}

/// A pod that is not ready gets no requests, although its new labels wait.
#[test]
fn pod_of_another_release_that_is_not_ready_gets_no_requests() {
    let pods = vec![pod(1, "old", true), pod(2, "old", true)];
    let (mut store, scope) = with_pods(pods);
    apply(
        &mut store,
        slice("one", &["http"], &[(1, ready()), (2, ready())]),
    );
    answer(&mut store);
    assert!(store.release(Instant::now()));
    let apply = |store: &mut Store, pod| store.apply(scope, Change::Applied(pod));
    assert!(!apply(&mut store, pod(2, "new", true)));
    assert!(apply(&mut store, pod(2, "new", false)));
    let now = |store: &Store| {
        let snapshot = store.load().unwrap().snapshot;
        let pod = snapshot.pods.get("default", "2").unwrap();
        let release = pod.metadata.labels.get(RELEASE);
        (release.cloned(), pod.status.is_ready)
    };
    assert_eq!(now(&store), (Some("old".to_owned()), false));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(now(&store), (Some("new".to_owned()), false));
}

/// Says for all kinds that there were no policies at a moment, and publishes what waits for none.
fn publish(store: &mut Store, moment: Moment) {
    answer_at(store, moment);
    assert!(store.release(Instant::now()));
}

/// Each version opens another port: it waits for its own moment, and the one before is published meanwhile.
#[test]
fn endpoints_that_change_without_end_wait_for_none_for_ever() {
    let mut store = serving(Vec::new());
    apply(&mut store, slice("x", &["0"], &[(1, ready())]));
    for round in 0..9 {
        let moment = store.take_moment().unwrap();
        let (port, next) = (round.to_string(), (round + 1).to_string());
        let ports = [&*port, &*next];
        apply(&mut store, slice("x", &ports, &[(2, ready())]));
        assert!(served(&store, "x", &port).is_empty());
        publish(&mut store, moment);
        // The endpoint of the version before is removed.
        assert_eq!(served(&store, "x", &port), ["2"]);
        assert!(served(&store, "x", &next).is_empty());
    }
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(served(&store, "x", "9"), ["2"]);
}

#[test]
fn pod_whose_labels_change_without_end_waits_for_none_for_ever() {
    let (mut store, scope) = with_pods(vec![pod(1, "0", true)]);
    apply(&mut store, slice("one", &["http"], &[(1, ready())]));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    let change = |store: &mut Store, release: &str| {
        store.apply(scope, Change::Applied(pod(1, release, true)));
    };
    change(&mut store, "1");
    for round in 1..9 {
        let moment = store.take_moment().unwrap();
        change(&mut store, "between");
        change(&mut store, &(round + 1).to_string());
        publish(&mut store, moment);
        let snapshot = store.load().unwrap().snapshot;
        let pod = snapshot.pods.get("default", "1").unwrap();
        let release = pod.metadata.labels.get(RELEASE).cloned();
        assert_eq!(release, Some(round.to_string()));
    }
}

/// Returns a pod that serves these ports of a pool.
fn pod_of_pool(number: u8, ports: &str, is_ready: bool) -> ParsedObject {
    let condition = json!({"type": "Ready", "status": if is_ready { "True" } else { "False" }});
    let status = json!({"conditions": [condition], "podIP": format!("192.0.2.{number}")});
    let metadata = json!({"annotations": {ACTIVE_PORTS: ports}});
    let fields = json!({"metadata": metadata, "status": status});
    object("Pod", &number.to_string(), &fields)
}

#[test]
fn first_pod_of_a_pool_or_of_its_ports_waits() {
    let labels = json!({"matchLabels": {"app": "model"}});
    let spec = json!({"selector": labels, "targetPorts": [{"number": 80}]});
    let pool = parsed("InferencePool", "model", &spec);
    let (mut store, scope) = with_pods_of("InferencePool", pool, Vec::new());
    let apply = |store: &mut Store, pod| store.apply(scope, Change::Applied(pod));
    // A picker may choose it.
    assert!(!apply(&mut store, pod_of_pool(1, "80", false)));
    assert!(published_pods(&store).is_empty());
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert!(apply(&mut store, pod_of_pool(2, "80", false)));
    assert!(!apply(&mut store, pod_of_pool(2, "80", true)));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert!(apply(&mut store, pod_of_pool(1, "80", true)));
    assert!(!apply(&mut store, pod_of_pool(1, "80,81", true)));
    assert_eq!(published_pods(&store).len(), 2);
    // One that has ended cannot be chosen.
    let metadata = json!({"annotations": {ACTIVE_PORTS: "82"}});
    let status = json!({"phase": "Failed", "podIP": "192.0.2.3"});
    let ended = object("Pod", "3", &json!({"metadata": metadata, "status": status}));
    assert!(apply(&mut store, ended));
    assert_eq!(published_pods(&store).len(), 3);
}

/// The EndpointSlice was published while the pod was not known, so that its endpoint was of no release.
#[test]
fn pod_whose_endpoint_is_published_waits() {
    let (mut store, scope) = with_pods(vec![pod(1, "old", true), pod(3, "new", true)]);
    apply(&mut store, slice("one", &["http"], &[(1, ready())]));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    let both = [(1, ready()), (2, ready())];
    assert!(apply(&mut store, slice("one", &["http"], &both)));
    assert_eq!(served(&store, "one", "http"), ["1", "2"]);
    let late = pod(2, "new", true);
    assert!(!store.apply(scope, Change::Applied(late)));
    assert_eq!(published_pods(&store).len(), 2);
    answer(&mut store);
    assert!(store.release(Instant::now()));
    assert_eq!(published_pods(&store).len(), 3);
}

#[test]
fn first_load_has_the_pods_of_release_backends() {
    let mut store =
        Store::new(scopes(), &kinds(), Referenced::default(), None).after(Moments::of(&scopes()));
    for kind in 0..scopes().len() {
        store.apply(kind, Change::Listing);
        if kind == index("ReleaseBackend") {
            store.apply(kind, Change::Listed(release_backend("app")));
        }
        store.apply(kind, Change::Complete);
    }
    let (added, _) = follow_pods(&mut store, false);
    answer(&mut store);
    assert!(store.load().is_none());
    store.apply(added[0], Change::Listing);
    store.apply(added[0], Change::Listed(pod(1, "old", true)));
    store.apply(added[0], Change::Complete);
    assert!(store.load().is_none());
    answer(&mut store);
    store.release(Instant::now());
    assert_eq!(published_pods(&store).len(), 1);
}
