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

/// Maximum time until the last object takes effect.
const MAX_DELAY: Duration = Duration::from_millis(100);
/// Maximum time until revoked access ends.
const MAX_REVOCATION_DELAY: Duration = Duration::from_secs(1);
/// Number of measurements. The median is used, since other tests share the cores.
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

fn assert_middle(mut times: Vec<Duration>, limit: Duration) {
    times.sort();
    assert!(times[MEASUREMENTS / 2] <= limit, "{times:?}");
}

/// Applies objects in the given order; returns the time from the last one until the host is served.
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
    api.apply(last);
    until(|| plane.answer(&host).as_deref() == Some("200"))
}

#[test]
fn serves_route_at_once_in_any_order_of_objects() {
    let (api, origin) = (Api::start(), Origin::hello());
    let plane = DataPlane::start(&api);
    plane.wait_for("nothing.example", "404");
    // The response before the last object arrives.
    let orders: [([usize; 3], &str); 4] = [
        ([0, 1, 2], "503"),
        ([0, 2, 1], "500"),
        ([1, 2, 0], "404"),
        ([2, 1, 0], "404"),
    ];
    for (name, (order, before)) in orders.into_iter().enumerate() {
        let times = (0..MEASUREMENTS).map(|time| {
            let host = format!("h{name}-{time}");
            let pieces = [
                forward(&host, "default"),
                service(&host, "default"),
                slice(&host, "default", &origin),
            ];
            let pieces = order.map(|piece| pieces[piece].clone());
            served_after(&api, &plane, &host, &pieces, before)
        });
        assert_middle(times.collect(), MAX_DELAY);
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
    let mut begins = vec![served_after(&api, &plane, "a", &pieces, "500")];
    while begins.len() < MEASUREMENTS {
        api.delete("ReferenceGrant", "other", "grant");
        let ended = until(|| plane.answer("a.example").as_deref() == Some("500"));
        assert!(ended < MAX_REVOCATION_DELAY, "{ended:?}");
        begins.push(served_after(&api, &plane, "a", &pieces[3..], "500"));
    }
    assert_middle(begins, MAX_DELAY);
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
    let times = (0..MEASUREMENTS).map(|_| {
        eventually(|| handshake(port), Option::is_none);
        api.put(secret.clone());
        let live = until(|| handshake(port).is_some());
        api.delete("Secret", "default", "certificate");
        live
    });
    assert_middle(times.collect(), MAX_DELAY);
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
