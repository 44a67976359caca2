//! A data plane that watches a cluster: the program, an API server with every kind of failure, and a client of the data
//! plane. `serving`, `order`, `protecting`, `invalid` and `later` test the program. `events`, `faults`, `namespaces` and `secrets` test
//! what the provider publishes. `backend_kinds` tests both.
//! | fault | tests |
//! |---|---|
//! | the API server is unreachable, also at startup | `serving::keeps_serving_while_the_api_server_is_unreachable` |
//! | one kind is never listed, has many pages, or hangs between them | `serving::serves_nothing_before_every_kind_is_listed`, `faults::reads_paged_lists`, `faults::retries_hanging_page` |
//! | 410 to a watch, or between pages | `serving::applies_deletions_missed_by_watches`, `faults::relists_expired_pages_*` |
//! | a watch goes silent | `faults::detects_silent_watch`, `faults::times_out_hanging_watch_request` |
//! | resets, 429, 503, 504, HTML pages, `Retry-After` | `faults::survives_*`, `faults::backs_off_when_watches_end_early`, `faults::honors_retry_after`, `faults::bounds_retry_after` |
//! | the plugin of a kubeconfig fails, and its credential expires or is refused | `credentials` |
//! | 401 and a new token, 403 for one kind | `credentials::reloads_rotated_token_*` (takes most of a minute), `faults::forbidden_kind_*`, `serving::forbidden_kind_*` |
//! | repeated events, updates without changes | `order::publishes_repeated_events_once`, `secrets::unreferenced_secrets_*` |
//! | objects in any order, revoked grants | `order` |
//! | Secrets and ConfigMaps of objects that protect, which are not fetched yet | `protecting` |
//! | kinds of policies that disappear | `protecting::policies_stay_in_force_*` |
//! | stale lists and events, lists that lack most objects, kinds that disappear | the last seven of `faults` |
//! | events that are large, invalid, of unknown objects or without an object | `events` |
//! | an object that cannot be parsed | `serving::invalid_object_keeps_its_last_version` |
//! | objects that no CRD would admit | `invalid` |
//! | CRDs of a later version than the program | `later`, `protecting::policy_with_a_section_of_a_later_version_*` |
//! | the cluster serves XListenerSets instead of ListenerSets, or an older version of a kind | `experimental` |
//! | the CRD of a backend kind is missing, or the kind is disabled | `backend_kinds` |
//! | the Pods of a ReleaseBackend cannot be listed | `pods` |
//! | kinds that are not served or forbidden, and pages that expire, for commands that list once | `once` |
//! | pods of a Gateway that are stale or do not run, for `portcullis status` | `fleet` |
//! | pods of a Gateway whose port is forwarded, refused or not listened on, for `config`, `explain`, `tap` and `top` | `asked_pods` |

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../api_server/mod.rs"]
mod api;
mod asked_pods;
mod backend_kinds;
mod credentials;
mod events;
mod experimental;
mod faults;
mod fleet;
#[path = "../harness/mod.rs"]
mod harness;
mod invalid;
mod later;
mod namespaces;
mod once;
mod order;
mod plane;
mod pods;
mod protecting;
mod secrets;
mod serving;
mod watching;

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of any wait on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Polls until `look` returns the wanted value.
fn eventually<T: Debug>(look: impl Fn() -> T, wanted: impl Fn(&T) -> bool) {
    let start = Instant::now();
    loop {
        let seen = look();
        if wanted(&seen) {
            return;
        }
        // A minute or more.
        assert!(start.elapsed() < TEST_TIMEOUT, "still {seen:?}");
        // What is looked at has no change notification.
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns a route that redirects `host`.example to `target`.
fn route(host: &str, target: &str) -> String {
    let redirect = format!("{{scheme: https, hostname: {target}, statusCode: 302}}");
    route_with(
        host,
        &format!("{{filters: [{{type: RequestRedirect, requestRedirect: {redirect}}}]}}"),
    )
}

/// Returns a route of `host`.example with one rule.
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
