//! The provider with a slow, unresponsive, overloaded, lagging or inconsistent API server: known
//! objects stay published, and changes follow once the server recovers.

use std::time::{Duration, Instant};

use kube::Config;
use portcullis::provider::{Load, Timing};

use crate::api::{Api, Fault, Request};
use crate::plane::DataPlane;
use crate::watching::{SHORT_TIMING, Watching};
use crate::{TEST_TIMEOUT, eventually, route};

fn with_short_timeouts(api: &Api) -> Watching {
    Watching::start_with(Config::new(api.url().parse().unwrap()), |provider| {
        provider.timed(SHORT_TIMING)
    })
}

/// Returns where the route of a host redirects to.
fn target(load: &Load, host: &str) -> Option<String> {
    let route = load.snapshot.http_routes.get("default", host)?;
    let text = format!("{:?}", route.spec.rules);
    let targets = ["one", "two", "three"].into_iter();
    let mut found = targets.filter(|target| text.contains(&format!("\"{target}\"")));
    found.next().map(str::to_owned)
}

fn is_at(load: &Load, host: &str, wanted: &str) -> bool {
    target(load, host).as_deref() == Some(wanted)
}

fn routes(api: &Api, count: usize) {
    for number in 0..count {
        api.apply(&route(&format!("r{number}"), "one"));
    }
}

#[test]
fn reads_paged_lists() {
    let api = Api::start();
    routes(&api, 10_000);
    let watching = Watching::start(&api);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 10_000);
    assert_eq!(watching.history().len(), 1);
    assert_eq!(requests(&api, false).len(), 20);
}

/// The requests for HTTPRoutes that watch or list them.
fn requests(api: &Api, watch: bool) -> Vec<Request> {
    let requests = api.requests("/httproutes?").into_iter();
    requests
        .filter(|request| request.target.contains("watch=true") == watch)
        .collect()
}

fn watches(api: &Api) -> Vec<Request> {
    requests(api, true)
}

#[test]
fn retries_hanging_page() {
    let api = Api::start();
    routes(&api, 1200);
    api.hang("HTTPRoute", Some(2));
    let watching = with_short_timeouts(&api);
    eventually(
        || api.requests("/httproutes?").len(),
        |requests| *requests >= 6,
    );
    assert!(watching.history().is_empty());
    api.hang("HTTPRoute", None);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 1200);
    // A list that hangs later does not affect known objects.
    api.hang("HTTPRoute", Some(1));
    api.delete_unseen("HTTPRoute", "default", "r0");
    let before = api.requests("/httproutes?").len();
    eventually(
        || api.requests("/httproutes?").len(),
        |requests| *requests >= before + 4,
    );
    assert_eq!(watching.history().len(), 1);
    api.hang("HTTPRoute", None);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 1199);
}

#[test]
fn relists_expired_pages_without_an_empty_snapshot() {
    let api = Api::start();
    routes(&api, 1200);
    api.expire_pages(1);
    let watching = Watching::start(&api);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 1200);
    api.expire_pages(1);
    api.delete_unseen("HTTPRoute", "default", "r0");
    watching.wait_for(|load| load.snapshot.http_routes.len() == 1199);
    assert_eq!(watching.history().len(), 2);
}

#[test]
fn detects_silent_watch() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let watching = with_short_timeouts(&api);
    watching.wait_for(|load| is_at(load, "a", "one"));
    let start = Instant::now();
    api.mute();
    api.apply(&route("a", "two"));
    watching.wait_for(|load| is_at(load, "a", "two"));
    let noticed = start.elapsed();
    assert!(
        noticed > Duration::from_secs(3),
        "it was not silent: {noticed:?}"
    );
    assert!(Timing::default().watch + 5 <= 60);
}

#[test]
fn times_out_hanging_watch_request() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let watching = with_short_timeouts(&api);
    watching.wait_for(|load| is_at(load, "a", "one"));
    let seen = watches(&api).len();
    api.fail("HTTPRoute", Some(Fault::Silence));
    eventually(|| watches(&api).len(), |watches| *watches > seen);
    api.fail("HTTPRoute", None);
    api.apply(&route("a", "two"));
    watching.wait_for(|load| is_at(load, "a", "two"));
}

/// Number of requests of which the times are compared.
const TRIES: usize = 5;

/// Asserts that longer and longer waits are between requests: at least 50, 100 and 200 ms. One may come at once.
fn assert_backs_off(requests: &[Request]) {
    let took = requests[TRIES - 1].at - requests[0].at;
    assert!(took >= Duration::from_millis(350), "{requests:?}");
}

/// Fails every request for a while. Checks the retry rate and that the provider recovers.
fn survive(fault: Fault) {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "https://one/");
    api.fail_all(Some(fault));
    let start = Instant::now();
    let seen = api.requests("/httproutes?").len();
    api.apply(&route("a", "two"));
    let tries = || api.requests("/httproutes?").split_off(seen);
    while tries().len() < TRIES {
        assert_eq!(plane.answer("a.example").as_deref(), Some("https://one/"));
        assert!(plane.is_ready());
        assert!(start.elapsed() < TEST_TIMEOUT, "{:?}", tries());
    }
    assert_backs_off(&tries());
    let lines = plane.log("HTTPRoute cannot be watched");
    // One for each kind of failure, at most every 5 s.
    let most = 2 + start.elapsed().as_secs() / 5;
    assert!((1..=most).contains(&(lines.len() as u64)), "{lines:#?}");
    assert!(lines[0].len() < 600, "{}", lines[0]);
    api.fail_all(None);
    plane.wait_for("a.example", "https://two/");
}

#[test]
fn survives_connection_resets() {
    survive(Fault::Reset);
}

#[test]
fn survives_status_429() {
    survive(Fault::RetryAfter(429, 1));
}

#[test]
fn survives_status_503() {
    survive(Fault::Status(503));
}

#[test]
fn survives_status_504() {
    survive(Fault::Status(504));
}

#[test]
fn survives_html_error_pages() {
    survive(Fault::Page(502));
}

#[test]
fn backs_off_when_watches_end_early() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let plane = DataPlane::start(&api);
    plane.wait_for("a.example", "https://one/");
    let seen = watches(&api).len();
    let start = Instant::now();
    while watches(&api).len() < seen + 1 + TRIES {
        api.fail("HTTPRoute", None);
        assert_eq!(plane.answer("a.example").as_deref(), Some("https://one/"));
        assert!(start.elapsed() < TEST_TIMEOUT, "{:?}", watches(&api));
    }
    // The first watch was not short.
    assert_backs_off(&watches(&api)[seen + 1..]);
    let lines = plane.log("HTTPRoute");
    // At most every 5 s.
    let most = 4 + start.elapsed().as_secs() / 5;
    assert!(lines.len() as u64 <= most, "{lines:#?}");
    api.apply(&route("a", "two"));
    plane.wait_for("a.example", "https://two/");
}

#[test]
fn honors_retry_after() {
    let api = Api::start();
    let watching = Watching::start(&api);
    watching.wait_for(|_| true);
    let seen = api.requests("/httproutes?").len();
    api.fail("HTTPRoute", Some(Fault::RetryAfter(429, 2)));
    let requests = || api.requests("/httproutes?").split_off(seen);
    eventually(|| requests().len(), |requests| *requests >= 3);
    let requests = requests();
    let pause = requests[2].at - requests[1].at;
    assert!(pause >= Duration::from_secs(2), "{pause:?}");
}

#[test]
fn bounds_retry_after() {
    let api = Api::start();
    let watching = Watching::start(&api);
    watching.wait_for(|_| true);
    api.fail("HTTPRoute", Some(Fault::RetryAfter(503, 3600)));
    api.apply(&route("a", "one"));
    let seen = api.requests("/httproutes?").len();
    eventually(
        || api.requests("/httproutes?").len(),
        |requests| *requests > seen,
    );
    api.fail("HTTPRoute", None);
    // Long before the hour of the response.
    watching.wait_for(|load| is_at(load, "a", "one"));
}

#[test]
fn forbidden_kind_keeps_its_objects_until_allowed() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let watching = Watching::start(&api);
    watching.wait_for(|load| is_at(load, "a", "one"));
    api.fail("HTTPRoute", Some(Fault::Status(403)));
    api.apply(&route("a", "two"));
    api.apply("{apiVersion: v1, kind: Namespace, metadata: {name: other}}");
    let load = watching.wait_for(|load| load.snapshot.namespaces.len() == 1);
    assert!(is_at(&load, "a", "one"));
    api.fail("HTTPRoute", None);
    watching.wait_for(|load| is_at(load, "a", "two"));
}

#[test]
fn stale_list_does_not_roll_back() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    api.apply(&route("b", "one"));
    let past = api.stored_state();
    let watching = Watching::start(&api);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 2);
    api.apply(&route("a", "two"));
    api.delete("HTTPRoute", "default", "b");
    watching.wait_for(|load| is_at(load, "a", "two") && target(load, "b").is_none());
    let (seen, published) = (api.requests("/httproutes?").len(), watching.history().len());
    api.serve_stale_lists(Some(past));
    eventually(
        || api.requests("/httproutes?").len(),
        |requests| *requests >= seen + 5,
    );
    assert_eq!(watching.history().len(), published);
    api.serve_stale_lists(None);
    api.apply(&route("a", "three"));
    watching.wait_for(|load| is_at(load, "a", "three"));
    let later = watching.history().split_off(published);
    assert!(later.iter().all(|load| target(load, "b").is_none()));
}

#[test]
fn accepts_restored_cluster_after_a_timeout() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let past = api.stored_state();
    let watching = with_short_timeouts(&api);
    watching.wait_for(|load| is_at(load, "a", "one"));
    api.apply(&route("a", "two"));
    watching.wait_for(|load| is_at(load, "a", "two"));
    api.serve_stale_lists(Some(past));
    let start = Instant::now();
    watching.wait_for(|load| is_at(load, "a", "one"));
    assert!(start.elapsed() >= SHORT_TIMING.stale_list_timeout);
}

#[test]
fn stale_event_is_ignored() {
    let api = Api::start();
    api.apply(&route("a", "one"));
    let old = api.object("HTTPRoute", "default", "a");
    let watching = Watching::start(&api);
    watching.wait_for(|load| is_at(load, "a", "one"));
    api.apply(&route("a", "two"));
    api.replay(&old, 10);
    api.apply(&route("b", "three"));
    watching.wait_for(|load| is_at(load, "b", "three"));
    let mut targets: Vec<_> = watching
        .history()
        .iter()
        .map(|load| target(load, "a"))
        .collect();
    targets.dedup();
    assert_eq!(targets, [Some("one".to_owned()), Some("two".to_owned())]);
}

#[test]
fn list_that_lacks_most_objects_needs_confirmation() {
    let api = Api::start();
    routes(&api, 30);
    let watching = Watching::start(&api);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 30);
    api.lose_objects_once("HTTPRoute");
    let lists = || requests(&api, false);
    eventually(|| lists().len(), |lists| *lists > 2);
    let lists = lists();
    assert!(lists[2].at - lists[1].at > Duration::from_millis(500));
    api.apply("{apiVersion: v1, kind: Namespace, metadata: {name: other}}");
    watching.wait_for(|load| load.snapshot.namespaces.len() == 1);
    let history = watching.history();
    assert!(
        history
            .iter()
            .all(|load| load.snapshot.http_routes.len() == 30)
    );
}

#[test]
fn confirmed_list_that_lacks_most_objects_is_applied() {
    let api = Api::start();
    routes(&api, 30);
    let watching = Watching::start(&api);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 30);
    for number in 0..30 {
        api.delete_unseen("HTTPRoute", "default", &format!("r{number}"));
    }
    watching.wait_for(|load| load.snapshot.http_routes.is_empty());
}

#[test]
fn deleted_crd_removes_its_objects() {
    let api = Api::start();
    routes(&api, 30);
    let watching = Watching::start(&api);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 30);
    api.set_served("HTTPRoute", false);
    api.fail("HTTPRoute", None);
    watching.wait_for(|load| load.snapshot.http_routes.is_empty());
    assert_eq!(watching.history().len(), 2);
}

#[test]
fn briefly_missing_kind_keeps_its_objects() {
    let api = Api::start();
    routes(&api, 3);
    let watching = Watching::start(&api);
    watching.wait_for(|load| load.snapshot.http_routes.len() == 3);
    api.set_served("HTTPRoute", false);
    let groups = || api.requests("/apis/gateway.networking.k8s.io/v1").len();
    let discoveries = || {
        let all = api.requests("gateway.networking.k8s.io/v1");
        all.iter()
            .filter(|request| request.target.ends_with("/v1"))
            .count()
    };
    let seen = discoveries();
    api.fail("HTTPRoute", None);
    eventually(discoveries, |count| *count > seen);
    api.set_served("HTTPRoute", true);
    let before = groups();
    eventually(groups, |groups| *groups > before);
    api.apply(&route("a", "one"));
    watching.wait_for(|load| is_at(load, "a", "one"));
    assert!(
        watching
            .history()
            .iter()
            .all(|load| load.snapshot.http_routes.len() >= 3)
    );
}
