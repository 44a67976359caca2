//! Objects of one configuration that arrive in any order or repeatedly. They are served as soon as
//! the last one arrives, and never incomplete.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use serde_json::json;

use crate::api::Api;
use crate::harness::origin::Origin;
use crate::harness::ports::free_ports;
use crate::harness::tls::{Certificate, client};
use crate::plane::DataPlane;
use crate::watching::Watching;
use crate::{TEST_TIMEOUT, eventually, route, route_with};

/// How often each order is tried. The median of times is compared, since other tests share the cores.
const MEASUREMENTS: usize = 5;

/// Returns a route of a host to a Service of its name, or of another namespace.
fn forward(host: &str, namespace: &str) -> String {
    let rule = format!("{{backendRefs: [{{name: {host}, namespace: {namespace}, port: 80}}]}}");
    route_with(host, &rule)
}

fn service(name: &str, namespace: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: {namespace}}}, spec: {{ports: [{{port: 80}}]}}}}"
    )
}

fn slice(name: &str, namespace: &str, origin: &Origin) -> String {
    let port = origin.address.port();
    format!(
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
endpoints: [{{addresses: [127.0.0.1]}}]
ports: [{{port: {port}}}]
"
    )
}

fn grant() -> String {
    "
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: grant, namespace: other}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: default}]
  to: [{group: '', kind: Service}]
"
    .to_owned()
}

/// Returns time until `is_so` returns true.
fn until(mut is_so: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < TEST_TIMEOUT, "it never is");
    }
    start.elapsed()
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Number of lists of objects that were requested, besides those of their versions.
fn lists(api: &Api) -> usize {
    let lists = api.requests("limit=").into_iter();
    lists.filter(|it| !it.is_of_metadata).count()
}

/// Applies objects in the given order; returns the time from the last one until the host is served. The event of the
/// last one is enough: nothing is listed again.
fn served_after(
    api: &Api,
    plane: &DataPlane,
    host: &str,
    pieces: &[String],
    before: &str,
) -> Duration {
    let (last, first) = pieces.split_last().unwrap();
    first.iter().for_each(|piece| api.apply(piece));
    let host = format!("{host}.example");
    plane.wait_for(&host, before);
    let listed = lists(api);
    api.apply(last);
    let time = until(|| plane.answer(&host).as_deref() == Some("200"));
    assert_eq!(lists(api), listed);
    time
}

/// The orders in which a route, its Service and the EndpointSlice arrive, each with the response before the last one.
const ORDERS: [([usize; 3], &str); 4] = [
    ([0, 1, 2], "503"),
    ([0, 2, 1], "500"),
    ([1, 2, 0], "404"),
    ([2, 1, 0], "404"),
];

/// Applies the objects of a host in this order; returns the time from the last one until it is served.
fn served_in_order(
    (api, plane, origin): (&Api, &DataPlane, &Origin),
    host: &str,
    (order, before): ([usize; 3], &str),
) -> Duration {
    let pieces = [
        forward(host, "default"),
        service(host, "default"),
        slice(host, "default", origin),
    ];
    let pieces = order.map(|piece| pieces[piece].clone());
    served_after(api, plane, host, &pieces, before)
}

#[test]
fn serves_route_at_once_in_any_order_of_objects() {
    let (api, origin) = (Api::start(), Origin::hello());
    let plane = DataPlane::start(&api);
    plane.wait_for("nothing.example", "404");
    for (name, order) in ORDERS.into_iter().enumerate() {
        for time in 0..MEASUREMENTS {
            let host = format!("h{name}-{time}");
            served_in_order((&api, &plane, &origin), &host, order);
        }
    }
}

/// The reference is a changed redirect, which needs nothing but itself.
#[test]
#[ignore = "compares times"]
fn last_object_takes_effect_as_fast_as_a_changed_route() {
    let (api, origin) = (Api::start(), Origin::hello());
    let plane = DataPlane::start(&api);
    plane.wait_for("nothing.example", "404");
    let changed = (0..2 * MEASUREMENTS).map(|time| {
        let target = ["one", "two"][time % 2];
        api.apply(&route("a", target));
        let location = format!("https://{target}/");
        until(|| plane.answer("a.example").as_deref() == Some(&location))
    });
    let most = 4 * middle(changed.collect());
    for (name, order) in ORDERS.into_iter().enumerate() {
        let times = (0..MEASUREMENTS).map(|time| {
            let host = format!("h{name}-{time}");
            served_in_order((&api, &plane, &origin), &host, order)
        });
        let middle = middle(times.collect());
        assert!(middle <= most, "{order:?} takes {middle:?}, of {most:?}");
    }
    let pieces = [
        service("b", "other"),
        slice("b", "other", &origin),
        forward("b", "other"),
        grant(),
    ];
    served_after(&api, &plane, "b", &pieces, "500");
    let (revoked, granted): (Vec<_>, Vec<_>) = (0..MEASUREMENTS)
        .map(|_| {
            api.delete("ReferenceGrant", "other", "grant");
            let revoked = until(|| plane.answer("b.example").as_deref() == Some("500"));
            let granted = served_after(&api, &plane, "b", &pieces[3..], "500");
            (revoked, granted)
        })
        .unzip();
    for times in [revoked, granted] {
        let middle = middle(times);
        assert!(
            middle <= most,
            "a ReferenceGrant takes {middle:?}, of {most:?}"
        );
    }
}

#[test]
fn reference_grant_controls_access() {
    let (api, origin) = (Api::start(), Origin::hello());
    let plane = DataPlane::start(&api);
    let pieces = [
        service("a", "other"),
        slice("a", "other", &origin),
        forward("a", "other"),
        grant(),
    ];
    served_after(&api, &plane, "a", &pieces, "500");
    for _ in 1..MEASUREMENTS {
        let listed = lists(&api);
        api.delete("ReferenceGrant", "other", "grant");
        until(|| plane.answer("a.example").as_deref() == Some("500"));
        assert_eq!(lists(&api), listed);
        served_after(&api, &plane, "a", &pieces[3..], "500");
    }
}

fn handshake(port: u16) -> Option<()> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let name = ServerName::try_from("a.example").unwrap();
    let mut tls = ClientConnection::new(client(&[]), name).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).ok()?;
    }
    Some(())
}

#[test]
fn uses_late_certificate_at_once() {
    let api = Api::start();
    let plane = DataPlane::start(&api);
    let [port] = free_ports();
    plane.wait_for("nothing.example", "404");
    api.apply(&format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: secure, namespace: default}}
spec:
  gatewayClassName: portcullis
  listeners:
  - {{name: https, port: {port}, protocol: HTTPS, tls: {{certificateRefs: [{{name: certificate}}]}}}}
"
    ));
    api.apply(&route("a", "one"));
    plane.wait_for("a.example", "https://one/");
    let certificate = Certificate::new(&["a.example"]);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "certificate", "namespace": "default"},
        "stringData": {"tls.crt": certificate.pem, "tls.key": certificate.key},
    });
    for _ in 0..MEASUREMENTS {
        eventually(|| handshake(port), Option::is_none);
        let listed = lists(&api);
        api.put(secret.clone());
        until(|| handshake(port).is_some());
        assert_eq!(lists(&api), listed);
        api.delete("Secret", "default", "certificate");
    }
}

#[test]
fn publishes_repeated_events_once() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let watching = Watching::start(&api);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 1);
    let object = api.object("HTTPRoute", "default", "a");
    api.replay(&object, 1000);
    for number in 0..100 {
        let mut changed = object.clone();
        changed["status"] = json!({"parents": [{"generation": number}]});
        changed["metadata"]["managedFields"] = json!([{"manager": number.to_string()}]);
        api.put(changed);
    }
    api.apply(&route("b", "two"));
    watching.wait_for(|load| load.snapshot.http_routes.len() == 2);
    assert_eq!(watching.history().len(), 2);
}
