//! Feeds and reports as sessions use them.

use serde_json::{Value, json};
use tokio::sync::oneshot::error::TryRecvError;

use super::*;
use crate::api::core::SERVICE_NAME_LABEL;
use crate::api::{Kind, Object};
use crate::provision::{GATEWAY_LABEL, MANAGED_BY, MANAGED_BY_LABEL};

fn name() -> ObjectRef {
    ObjectRef::gateway_api("Gateway", "infra", "edge")
}

fn object(value: &Value) -> Object {
    let text = |field: &str| value[field].as_str().unwrap();
    let kind = Kind::find(text("apiVersion"), text("kind")).unwrap();
    kind.decode(value).unwrap()
}

/// A hub and its cluster. `changes` counts the changes of the Gateway: its creation, then numbered
/// routes.
struct TestHub {
    hub: Hub,
    cluster: Snapshot,
}

impl TestHub {
    fn new(changes: u64) -> Self {
        let mut cluster = Snapshot::default();
        cluster.insert(object(&json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "ours"},
            "spec": {"controllerName": "example.com/ours"},
        })));
        let options = Options {
            controller_name: "example.com/ours".into(),
            ..Options::default()
        };
        let hub = Hub::new("5f2c".to_owned(), options);
        let mut scene = Self { hub, cluster };
        scene.put_gateway();
        for number in 2..=changes {
            scene.put_route(number);
        }
        scene
    }

    fn put_gateway(&mut self) -> u64 {
        self.put(&json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"namespace": "infra", "name": "edge"},
            "spec": {"gatewayClassName": "ours", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
        }))
    }

    fn put_route(&mut self, number: u64) -> u64 {
        self.put(&json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"namespace": "infra", "name": number.to_string()},
            "spec": {"parentRefs": [{"name": "edge"}]},
        }))
    }

    fn put_endpoints(&mut self) -> u64 {
        self.put(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "infra", "name": "echo"},
        }));
        self.put(&json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"namespace": "infra", "name": "echo"},
            "spec": {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [{"name": "echo", "port": 80}]}]},
        }));
        self.put(&json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": "infra", "name": "echo-1", "labels": {"kubernetes.io/service-name": "echo"}},
        }))
    }

    /// Returns the revision that pods must reach.
    fn put(&mut self, value: &Value) -> u64 {
        self.cluster.insert(object(value));
        self.hub.follow(&self.cluster)[&name()]
    }

    fn remove_gateway(&mut self) {
        assert!(self.cluster.remove(&name()));
        assert!(self.hub.follow(&self.cluster).is_empty());
    }
}

fn serves(instance: &str, revision: u64) -> Serves {
    Serves {
        position: Position {
            instance: instance.to_owned(),
            revision,
        },
        unbound: BTreeMap::new(),
        binds: None,
        problems: Vec::new(),
        behind: None,
    }
}

fn text(changes: &[Arc<Line>]) -> String {
    changes
        .iter()
        .map(|line| String::from_utf8(line.text().to_vec()).unwrap())
        .collect()
}

fn connect(hub: &Hub) -> Connected {
    hub.connect(&name(), "pod", "uid").unwrap()
}

fn reported(hub: &Hub) -> Option<u64> {
    let reports = hub.reports();
    let reports = reports.borrow();
    reports.get(&name())?.get("pod")?.revision
}

#[test]
fn pod_gets_the_missing_changes() {
    let TestHub { hub, .. } = TestHub::new(3);
    assert!(matches!(hub.next(&name(), None), Next::FullState(_, 3)));
    assert!(matches!(hub.next(&name(), Some(3)), Next::Current));
    assert!(matches!(hub.next(&name(), Some(9)), Next::FullState(_, 3)));
    let Next::Changes(changes, 3) = hub.next(&name(), Some(1)) else {
        panic!("no difference");
    };
    let text = text(&changes);
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names = lines.iter().map(|line| &line["put"]["metadata"]["name"]);
    assert_eq!(names.collect::<Vec<_>>(), ["2", "3"]);
}

#[test]
fn lagging_pod_gets_no_key_that_was_replaced_or_removed() {
    let mut scene = TestHub::new(1);
    let secret = |data: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"namespace": "infra", "name": "tls"}, "data": {"tls.crt": "Y2VydA==", "tls.key": data},
        })
    };
    let gateway = |listener: Value| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"namespace": "infra", "name": "edge"},
            "spec": {"gatewayClassName": "ours", "listeners": [listener]},
        })
    };
    let before = scene.put(&gateway(json!({
        "name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "tls"}]},
    })));
    let (old, new) = ("b2xk", "bmV3");
    scene.put(&secret(old));
    scene.put(&secret(new));
    let missing = |scene: &TestHub| {
        let Next::Changes(changes, _) = scene.hub.next(&name(), Some(before)) else {
            panic!("no difference");
        };
        text(&changes)
    };
    let lines = missing(&scene);
    assert!(lines.contains(new) && !lines.contains(old), "{lines}");
    scene.put(&gateway(
        json!({"name": "http", "port": 80, "protocol": "HTTP"}),
    ));
    let lines = missing(&scene);
    assert!(!lines.contains(new) && lines.contains("delete"), "{lines}");
}

#[test]
fn recreated_gateway_has_new_revisions() {
    let mut scene = TestHub::new(3);
    scene.remove_gateway();
    assert!(matches!(scene.hub.next(&name(), Some(3)), Next::Gone));
    assert!(scene.hub.connect(&name(), "pod", "uid").is_none());
    assert!(scene.put_gateway() > 3);
    for number in 4..=6 {
        assert!(scene.put_route(number) > 3);
    }
    for previous in 0..=3 {
        let next = scene.hub.next(&name(), Some(previous));
        assert!(matches!(next, Next::FullState(..)), "{previous}: {next:?}");
    }
}

#[test]
fn sessions_observe_changes_and_deletion_of_their_gateway() {
    let mut scene = TestHub::new(1);
    let mut revisions = connect(&scene.hub).revisions;
    assert!(!revisions.has_changed().unwrap());
    scene.put_route(2);
    assert_eq!(*revisions.borrow_and_update(), 2);
    scene.remove_gateway();
    assert!(revisions.has_changed().is_err());
}

#[test]
fn only_the_last_session_of_a_pod_reports() {
    let TestHub { hub, .. } = TestHub::new(2);
    let mut first = connect(&hub);
    hub.report(&first.session, serves("5f2c", 1));
    assert_eq!(reported(&hub), Some(1));
    assert_eq!(first.replaced.try_recv(), Err(TryRecvError::Empty));
    let second = connect(&hub);
    assert_eq!(first.replaced.try_recv(), Err(TryRecvError::Closed));
    hub.report(&first.session, serves("5f2c", 2));
    hub.disconnect(&first.session);
    assert_eq!(reported(&hub), Some(1), "the pod still serves it");
    hub.report(&second.session, serves("5f2c", 2));
    assert_eq!(reported(&hub), Some(2));
    hub.disconnect(&second.session);
    assert!(hub.reports().borrow().is_empty());
    assert!(hub.feeds().connected.is_empty());
}

#[test]
fn pod_reports_again_after_another_session_with_its_token() {
    let TestHub { hub, .. } = TestHub::new(2);
    let own = connect(&hub);
    hub.report(&own.session, serves("5f2c", 1));
    let stolen = connect(&hub);
    hub.disconnect(&own.session);
    let own = connect(&hub);
    hub.disconnect(&stolen.session);
    assert_eq!(reported(&hub), Some(1));
    hub.report(&own.session, serves("5f2c", 2));
    assert_eq!(reported(&hub), Some(2));
}

#[test]
fn restarted_pod_has_no_report_of_its_previous_session() {
    let TestHub { hub, .. } = TestHub::new(2);
    let first = connect(&hub);
    hub.report(&first.session, serves("5f2c", 1));
    hub.disconnect(&first.session);
    let _second = connect(&hub);
    assert_eq!(reported(&hub), None);
}

#[test]
fn ignores_revisions_of_another_process() {
    let TestHub { hub, .. } = TestHub::new(2);
    let connected = connect(&hub);
    hub.report(&connected.session, serves("other", 2));
    assert_eq!(reported(&hub), None);
}

/// Reports these results of binding in a session.
fn report(hub: &Hub, session: &Session, binds: Binds) {
    let serves = Serves {
        binds: Some(binds),
        ..serves("5f2c", 1)
    };
    hub.report(session, serves);
}

fn quic(ports: &[(u16, bool)]) -> Binds {
    let error = |is_bound: bool| (!is_bound).then(|| "taken".to_owned());
    let ports = ports.iter();
    Binds {
        quic: ports
            .map(|(port, is_bound)| (*port, error(*is_bound)))
            .collect(),
        ..Binds::default()
    }
}

/// The Service of the Gateway, with TCP 443 and these UDP ports.
fn service(udp: &[u16], status: &Value) -> Value {
    let udp = udp
        .iter()
        .map(|port| json!({"port": port, "protocol": "UDP"}));
    let ports: Vec<_> = [json!({"port": 443, "protocol": "TCP"})]
        .into_iter()
        .chain(udp)
        .collect();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "infra", "name": "edge-ours", "labels": {
            MANAGED_BY_LABEL: MANAGED_BY, GATEWAY_LABEL: "edge",
        }},
        "spec": {"ports": ports}, "status": status,
    })
}

/// The ready pods behind it.
fn endpoints(pods: &[&str]) -> Value {
    let pods = pods
        .iter()
        .map(|pod| json!({"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": pod}}));
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "namespace": "infra", "name": "edge-ours-1", "labels": {SERVICE_NAME_LABEL: "edge-ours"},
        },
        "endpoints": pods.collect::<Vec<_>>(),
    })
}

#[test]
fn http3_is_served_where_every_ready_pod_has_bound_it() {
    let mut scene = TestHub::new(1);
    scene.put(&service(&[443, 8443], &json!({})));
    scene.put(&endpoints(&["a"]));
    let one = scene.hub.connect(&name(), "a", "uid-a").unwrap();
    let other = scene.hub.connect(&name(), "b", "uid-b").unwrap();
    let http3 = || one.pods.borrow().http3.iter().copied().collect::<Vec<_>>();
    assert!(http3().is_empty(), "nothing is reported");
    report(
        &scene.hub,
        &one.session,
        quic(&[(443, true), (8443, false), (9443, true)]),
    );
    assert_eq!(http3(), [443], "8443 is taken, and the Service has no 9443");
    scene.put(&endpoints(&["a", "b"]));
    assert!(http3().is_empty(), "the other pod has not reported");
    scene.hub.report(&other.session, serves("5f2c", 1));
    assert!(http3().is_empty(), "its version has no HTTP/3");
    report(
        &scene.hub,
        &other.session,
        quic(&[(443, true), (8443, true)]),
    );
    assert_eq!(http3(), [443]);
    report(&scene.hub, &one.session, quic(&[(443, true), (8443, true)]));
    assert_eq!(http3(), [443, 8443]);
    report(
        &scene.hub,
        &other.session,
        quic(&[(443, false), (8443, true)]),
    );
    assert_eq!(http3(), [8443]);
    scene.hub.disconnect(&other.session);
    assert!(http3().is_empty(), "it serves, but nobody knows what");
    scene.put(&endpoints(&["a"]));
    assert_eq!(http3(), [443, 8443]);
    let again = scene.hub.connect(&name(), "b", "uid-b").unwrap();
    assert_eq!(again.pods.borrow().http3.len(), 2);
}

#[test]
fn http3_is_not_served_where_the_load_balancer_refuses_udp() {
    let mut scene = TestHub::new(1);
    scene.put(&service(&[443], &json!({})));
    scene.put(&endpoints(&["a"]));
    let one = scene.hub.connect(&name(), "a", "uid-a").unwrap();
    report(&scene.hub, &one.session, quic(&[(443, true)]));
    let http3 = || one.pods.borrow().http3.len();
    assert_eq!(http3(), 1);
    let tcp_only = json!({"port": 443, "protocol": "TCP"});
    let ingress = json!([{"ip": "192.0.2.1", "ports": [tcp_only]}]);
    scene.put(&service(
        &[443],
        &json!({"loadBalancer": {"ingress": ingress}}),
    ));
    assert_eq!(http3(), 0);
    scene.put(&service(&[443], &json!({})));
    assert_eq!(http3(), 1);
    scene.put(&service(&[], &json!({})));
    assert_eq!(http3(), 0);
}

#[test]
fn ports_without_a_transport_are_those_of_tcp_and_udp() {
    let TestHub { hub, .. } = TestHub::new(1);
    let connected = connect(&hub);
    let udp = Bind {
        transport: Transport::Udp,
        ..Bind::tcp(None, 53)
    };
    let unbound = |serves: Serves| {
        hub.report(&connected.session, serves);
        let reports = hub.reports();
        let unbound = reports.borrow()[&name()]["pod"].unbound.clone();
        unbound.into_keys().collect::<Vec<_>>()
    };
    let without = Serves {
        unbound: [(53, "taken".to_owned())].into(),
        ..serves("5f2c", 1)
    };
    assert_eq!(unbound(without.clone()), [Bind::tcp(None, 53), udp]);
    let with = Serves {
        binds: Some(Binds {
            udp: [(53, "taken".to_owned())].into(),
            ..Binds::default()
        }),
        ..without
    };
    assert_eq!(unbound(with), [udp]);
}

#[test]
fn endpoint_changes_do_not_raise_the_configured_revision() {
    let mut scene = TestHub::new(1);
    let configured = scene.put_endpoints();
    assert!(matches!(
        scene.hub.next(&name(), Some(configured)),
        Next::Changes(..)
    ));
    assert!(scene.put_route(9) > configured + 1);
}

#[test]
fn pods_of_release_backends_do_not_raise_the_configured_revision() {
    let mut scene = TestHub::new(1);
    scene.put(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "infra", "name": "shop"},
        "spec": {"ports": [{"port": 80}], "selector": {"app": "shop"}},
    }));
    scene.put(&json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "ReleaseBackend",
        "metadata": {"namespace": "infra", "name": "shop"},
        "spec": {
            "loadBalancer": {"v1.Service": {"name": "shop", "selector": {"app": "shop"}}},
            "splitBy": "release", "releases": [{"value": "v1", "weight": 1}],
        },
    }));
    let backend =
        json!({"group": "portcullis.dev", "kind": "ReleaseBackend", "name": "shop", "port": 80});
    let configured = scene.put(&json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"namespace": "infra", "name": "shop"},
        "spec": {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [backend]}]},
    }));
    let with_pod = scene.put(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "infra", "name": "a", "labels": {"app": "shop", "release": "v1"}},
        "status": {"podIP": "10.0.0.1"},
    }));
    assert_eq!(with_pod, configured);
    assert!(matches!(
        scene.hub.next(&name(), Some(configured)),
        Next::Changes(..)
    ));
    let pod = ObjectRef::new("", "Pod", "infra", "a");
    assert!(scene.cluster.remove(&pod));
    assert_eq!(scene.hub.follow(&scene.cluster)[&name()], configured);
}
