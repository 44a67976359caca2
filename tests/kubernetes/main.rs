//! A data plane that watches a cluster: the program, an API server that fails in every way that one can, and what a
//! client of the data plane sees of it.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod api;
mod faults;
mod namespaces;
mod plane;
mod secrets;
mod serving;
mod watching;

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again and again until what is seen is as wanted.
fn eventually<T: Debug>(look: impl Fn() -> T, wanted: impl Fn(&T) -> bool) {
    let start = Instant::now();
    loop {
        let seen = look();
        if wanted(&seen) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "still {seen:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A route that redirects `host`.example to `target`.
fn route(host: &str, target: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {host}, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  hostnames: [{host}.example]
  rules: [{{filters: [{{type: RequestRedirect, requestRedirect: {{scheme: https, hostname: {target}, statusCode: 302}}}}]}}]
"
    )
}
