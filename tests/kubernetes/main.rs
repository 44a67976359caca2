//! A data plane that watches a cluster: the program, an API server that fails in every way that one can, and what a
//! client of the data plane sees of it. `serving`, `order` and `invalid` look at the program, `faults`, `namespaces` and
//! `secrets` at what the provider publishes, `backend_kinds` at both.
//!
//! | fault | tests |
//! |---|---|
//! | the API server goes away, or is away at the start | `serving::an_api_server_that_is_away_stops_nothing` |
//! | one kind is never listed, comes in many pages, or hangs between them | `serving::nothing_is_served_before_every_kind_is_listed`, `faults::many_pages_*`, `faults::a_page_that_never_comes_*` |
//! | 410 to a watch, or between pages | `serving::deletions_that_no_watch_told_of_*`, `faults::pages_that_expire_*` |
//! | a watch goes silent | `faults::a_watch_that_goes_silent_*`, `faults::a_watch_whose_beginning_*` |
//! | resets, 429, 503, 504, pages for people, `Retry-After` | `faults::*_borne`, `faults::a_watch_that_is_cut_*`, `faults::who_asks_to_be_left_alone_*` |
//! | 401 and a new token, 403 for one kind | `serving::a_token_*` (takes most of a minute), `faults::a_kind_that_is_forbidden_*`, `serving::a_kind_that_is_forbidden_*` |
//! | the same event again and again, updates of nothing | `order::what_comes_again_and_again_*`, `secrets::secrets_that_nobody_refers_to_*` |
//! | pieces in any order, grants that end | `order` |
//! | older lists and events, lists that lose most, kinds that vanish | the last seven of `faults` |
//! | an object that cannot be read | `serving::an_object_that_cannot_be_read_*` |
//! | objects that no definition would let through | `invalid` |
//! | a kind of backend has no definition, or is not enabled | `backend_kinds` |

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../api_server/mod.rs"]
mod api;
mod backend_kinds;
mod faults;
#[path = "../harness/mod.rs"]
mod harness;
mod invalid;
mod namespaces;
mod order;
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
    eventually_within(PATIENCE, look, wanted);
}

fn eventually_within<T: Debug>(
    patience: Duration,
    look: impl Fn() -> T,
    wanted: impl Fn(&T) -> bool,
) {
    let start = Instant::now();
    loop {
        let seen = look();
        if wanted(&seen) {
            return;
        }
        assert!(start.elapsed() < patience, "still {seen:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A route that redirects `host`.example to `target`.
fn route(host: &str, target: &str) -> String {
    let redirect = format!("{{scheme: https, hostname: {target}, statusCode: 302}}");
    route_with(
        host,
        &format!("{{filters: [{{type: RequestRedirect, requestRedirect: {redirect}}}]}}"),
    )
}

/// A route of `host`.example with one rule.
fn route_with(host: &str, rule: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {host}, namespace: default}}
spec:
  parentRefs: [{{name: edge}}]
  hostnames: [{host}.example]
  rules: [{rule}]
"
    )
}
