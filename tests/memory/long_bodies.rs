//! Bodies of any length pass through without being kept: the heap of the program stays as it is while one is uploaded and
//! another one is downloaded, under a limit of the size of bodies.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use super::{MIB, Running, TEST_TIMEOUT, gateway, ports};

const PART: usize = 64 * 1024;
/// What bodies in both directions may take at the same time, in buffers of the program.
const LIMIT: u64 = 8 * MIB;

/// A route to a backend, with a limit of bodies that none of them reaches.
fn route(backend: u16) -> String {
    format!(
        "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: route, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{backendRefs: [{{name: app, port: 80}}]}}]
---
apiVersion: portcullis.dev/v1alpha1
kind: RoutePolicy
metadata: {{name: bodies, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: route}}]
  requestBody: {{maxSize: 20Gi}}
---
apiVersion: v1
kind: Service
metadata: {{name: app, namespace: default}}
spec: {{ports: [{{name: http, port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: app, namespace: default, labels: {{kubernetes.io/service-name: app}}}}
addressType: IPv4
ports: [{{name: http, port: {backend}}}]
endpoints: [{{addresses: [127.0.0.1]}}]
"
    )
}

/// Reads a head, byte by byte.
fn read_head(stream: &mut TcpStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
}

fn write_body(stream: &mut TcpStream, bytes: u64) {
    let part = vec![b'x'; PART];
    for _ in 0..bytes / PART as u64 {
        stream.write_all(&part).unwrap();
    }
}

fn read_body(stream: &mut TcpStream, bytes: u64) {
    let mut part = vec![0; PART];
    for _ in 0..bytes / PART as u64 {
        stream.read_exact(&mut part).unwrap();
    }
}

/// Sends a body of this length, and then receives one.
fn exchange(mut client: TcpStream, bytes: u64) {
    client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let head = format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {bytes}\r\n\r\n");
    client.write_all(head.as_bytes()).unwrap();
    write_body(&mut client, bytes);
    read_head(&mut client);
    read_body(&mut client, bytes);
}

/// The same on the other side.
fn respond(mut backend: TcpStream, bytes: u64) {
    backend.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    read_head(&mut backend);
    read_body(&mut backend, bytes);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
    backend.write_all(head.as_bytes()).unwrap();
    write_body(&mut backend, bytes);
}

fn check(bytes: u64) {
    let directory = tempfile::tempdir().unwrap();
    let [port] = ports::free_ports();
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let objects = gateway(port) + &route(backend.local_addr().unwrap().port());
    fs::write(directory.path().join("objects.yaml"), objects).unwrap();
    let mut running = Running::start(directory.path());
    running.served();
    let before = running.heap();
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let client = thread::spawn(move || exchange(client, bytes));
    let (stream, _) = backend.accept().unwrap();
    let backend = thread::spawn(move || respond(stream, bytes));
    let mut most = 0;
    while !client.is_finished() {
        most = most.max(running.heap());
        // The pace of the measurements.
        thread::sleep(Duration::from_millis(5));
    }
    client.join().unwrap();
    backend.join().unwrap();
    let taken = most.saturating_sub(before);
    assert!(taken < LIMIT, "{bytes} bytes take {taken} bytes");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
fn long_bodies_take_no_memory() {
    check(256 * MIB);
}

#[test]
#[ignore = "takes longer: cargo test --test memory -- --ignored"]
fn bodies_of_10_gibibytes_take_no_memory() {
    check(10 * 1024 * MIB);
}
