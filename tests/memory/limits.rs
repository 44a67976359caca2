//! A million keys of limits in a process, which clients make by ever new values of a header.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use super::{MIB, Running, TEST_TIMEOUT, gateway, ports, routes};

const POLICIES: usize = 100;
/// Rules of each policy, so that a request is a key of as many limits.
const RULES: usize = 8;
const REQUESTS: usize = 1_000_000 / RULES;
/// Requests that are sent at once.
const PIPELINED: usize = 50;
/// What keys of all limits may take, and what else the process takes for the requests.
const LIMIT: u64 = (64 + 16) * MIB;

/// A policy for each route, which permits one request of a key.
fn policies() -> String {
    let mut text = String::new();
    for policy in 0..POLICIES {
        write!(
            text,
            "---
apiVersion: portcullis.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: limits-{policy}, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: route-{policy}}}]
  rules:
"
        )
        .unwrap();
        for rule in 0..RULES {
            writeln!(
                text,
                "  - {{name: rule-{rule}, key: [{{type: Header, name: X-Key}}], limit: {{requests: 1, per: Day}}}}"
            )
            .unwrap();
        }
    }
    text
}

/// Sends requests with these keys, each to a route by its number, and fails unless all of them get a status. Responses to `HEAD`
/// have no body.
fn send(client: &mut TcpStream, keys: &[usize], status: u16) {
    let mut requests = String::new();
    for key in keys {
        let route = key % POLICIES;
        write!(
            requests,
            "HEAD /route-{route} HTTP/1.1\r\nHost: a.test\r\nX-Key: key-{key}\r\n\r\n"
        )
        .unwrap();
    }
    client.write_all(requests.as_bytes()).unwrap();
    let mut responses = String::new();
    while responses.matches("\r\n\r\n").count() < keys.len() {
        let mut part = [0; 16 * 1024];
        let count = client.read(&mut part).unwrap();
        assert_ne!(count, 0, "the connection ended");
        responses.push_str(std::str::from_utf8(&part[..count]).unwrap());
    }
    let status = format!("HTTP/1.1 {status} ");
    assert_eq!(
        responses.matches(&status).count(),
        keys.len(),
        "{responses}"
    );
}

#[test]
#[ignore = "takes longer: cargo test --test memory -- --ignored"]
fn million_keys_of_a_hundred_policies_take_64_mib() {
    let directory = tempfile::tempdir().unwrap();
    let [port] = ports::free_ports();
    let objects = gateway(port) + &routes(POLICIES) + &policies();
    fs::write(directory.path().join("all.yaml"), objects).unwrap();
    let mut running = Running::start(directory.path());
    running.served();
    let before = running.heap();
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    client.set_nodelay(true).unwrap();
    let keys: Vec<_> = (0..REQUESTS).collect();
    let mut most = 0;
    for (part, keys) in keys.chunks(PIPELINED).enumerate() {
        send(&mut client, keys, 301);
        // Tables grow by turns: what they take meanwhile counts, too.
        if part.is_multiple_of(100) {
            most = most.max(running.heap());
        }
    }
    most = most.max(running.heap());
    // Each limit knows its last key.
    for keys in keys[REQUESTS - POLICIES..].chunks(PIPELINED) {
        send(&mut client, keys, 429);
    }
    let taken = most.saturating_sub(before);
    println!("{REQUESTS} requests and {POLICIES} policies of {RULES} limits: {taken} bytes");
    assert!(taken <= LIMIT, "{taken} bytes, not at most {LIMIT}");
}
