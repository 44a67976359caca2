//! Backends with releases: shares, the cookie of a release, counters, and changes under load. The
//! releases are set in the cell of the served table's endpoints.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use http::{HeaderName, Method};
use portcullis::ir::{Endpoints, Release, Releases};
use portcullis::table::{Backend, ReleaseStats, UpstreamFault};
use serde_json::{Value, json};

use crate::client::{Client, read_until, write_text};
use crate::harness::tls::{self, Certificate};
use crate::origin::{Origin, empty};
use crate::scene::{Objects, Scene, http, https, secret, to};

const REQUESTS: usize = 4000;

/// Releases by name with weight and endpoints; the token of `v1` is `t1`.
fn releases(cookie: Option<&str>, releases: &[(&str, u64, &[SocketAddr])]) -> Endpoints {
    let release = |(name, weight, addresses): &(&str, u64, &[SocketAddr])| {
        let mut addresses = addresses.to_vec();
        addresses.sort();
        Release {
            name: (*name).into(),
            weight: *weight,
            token: name.replace('v', "t").into(),
            addresses,
        }
    };
    Endpoints::Releases(Releases {
        cookie: cookie.map(Into::into),
        releases: releases.iter().map(release).collect(),
    })
}

/// Returns the only backend.
fn backend(scene: &Scene) -> Arc<Backend> {
    let table = scene.state().table.load_full();
    let backend = table.backends().next();
    backend.expect("a backend").clone()
}

/// Counters of a release of the only backend.
fn stats(scene: &Scene, name: &str) -> Arc<ReleaseStats> {
    let backend = backend(scene);
    let endpoints = backend.endpoints();
    let mut releases = endpoints.releases().expect("releases").iter();
    let release = releases.find(|release| &*release.stats.name == name);
    release.expect("the release").stats.clone()
}

/// Starts a scene whose requests go to a backend with this configuration.
fn start(rule: Value, endpoints: &Endpoints) -> Scene {
    let objects = Objects::http()
        .service("backend", &[])
        .route("route", &[rule]);
    let scene = Scene::start(&objects);
    backend(&scene).configure_endpoints(endpoints);
    scene
}

async fn count(client: &mut Client, headers: &[(&str, &str)]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..REQUESTS {
        let name = client.get_with("a.com", "/", headers).await.name();
        *counts.entry(name).or_default() += 1;
    }
    counts
}

/// Six standard deviations, as in the tests of weights.
fn assert_share(counts: &BTreeMap<String, usize>, name: &str, share: f64) {
    let all = REQUESTS as f64;
    let count = counts.get(name).copied().unwrap_or_default() as f64;
    let tolerance = 6.0 * (all * share * (1.0 - share)).sqrt();
    let difference = (count - all * share).abs();
    assert!(difference <= tolerance, "{name}: {counts:?}");
}

#[tokio::test]
async fn splits_traffic_by_weight_of_releases_not_by_endpoints() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let (other, idle) = (Origin::echo("one").await, Origin::echo("idle").await);
    let v1: &[SocketAddr] = &[one.address, other.address];
    let scene = start(
        to("backend"),
        &releases(
            None,
            &[
                ("v1", 75, v1),
                ("v2", 20, &[two.address]),
                ("v3", 0, &[idle.address]),
                ("v4", 5, &[]),
            ],
        ),
    );
    let counts = count(&mut Client::http1(scene.at(80)).await, &[]).await;
    assert_share(&counts, "one", 0.75);
    assert_share(&counts, "two", 0.2);
    assert_share(&counts, "503", 0.05);
    assert_eq!(counts.len(), 3, "{counts:?}");
    assert_eq!(idle.requests(), 0);
    assert!(one.requests() > 0 && other.requests() > 0);

    let by_class = |name| stats(&scene, name).classes();
    scene.until("all requests are counted", |_| {
        ["v1", "v2", "v4"]
            .iter()
            .flat_map(|name| by_class(name))
            .sum::<u64>()
            == REQUESTS as u64
    });
    let successes = counts["one"] as u64;
    assert_eq!(by_class("v1"), [0, successes, 0, 0, 0]);
    let failures = counts["503"] as u64;
    assert_eq!(by_class("v4"), [0, 0, 0, 0, failures]);
    assert_eq!(
        stats(&scene, "v4").faults(UpstreamFault::NoEndpoint),
        failures
    );
    assert_eq!(by_class("v3"), [0; 5]);
}

#[tokio::test]
async fn cookie_keeps_client_on_its_release() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let shared = |weight, second: &[SocketAddr]| {
        let v1: (&str, u64, &[SocketAddr]) = ("v1", 1, &[one.address]);
        releases(Some("rel"), &[v1, ("v2", weight, second)])
    };
    let scene = start(to("backend"), &shared(1, &[two.address]));
    let mut client = Client::http1(scene.at(80)).await;
    let first = client.get("a.com", "/").await;
    let number = if first.name() == "one" { 1 } else { 2 };
    assert_eq!(
        first.header("set-cookie"),
        format!("rel=t{number}; Path=/; HttpOnly; SameSite=Lax")
    );
    for _ in 0..50 {
        let kept = client.get_with("a.com", "/", &[("cookie", "rel=t2")]).await;
        assert_eq!(kept.name(), "two");
        assert_eq!(kept.headers.get("set-cookie"), None);
    }
    // Without a weight or without endpoints the release keeps no client.
    let unusable: [(u64, &[SocketAddr]); 2] = [(0, &[two.address]), (0, &[])];
    for (weight, second) in unusable {
        backend(&scene).configure_endpoints(&shared(weight, second));
        let moved = client.get_with("a.com", "/", &[("cookie", "rel=t2")]).await;
        assert_eq!(moved.name(), "one");
        assert!(moved.header("set-cookie").starts_with("rel=t1; "));
    }
}

#[tokio::test]
async fn local_response_sets_no_cookie() {
    let scene = start(to("backend"), &releases(Some("rel"), &[("v1", 1, &[])]));
    let mut client = Client::http1(scene.at(80)).await;
    let answer = client.get("a.com", "/").await;
    assert_eq!((answer.status, answer.header("set-cookie")), (503, ""));
    assert!(answer.text().contains("release"), "{answer:?}");
}

#[tokio::test]
async fn cookie_is_found_in_unusual_headers() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let scene = start(
        to("backend"),
        // Without a cookie, nearly every request goes to `one`.
        &releases(
            Some("rel"),
            &[("v1", 1 << 40, &[one.address]), ("v2", 1, &[two.address])],
        ),
    );
    let large = format!("{}; rel=t2", "x".repeat(20 << 10));
    let found: [&[&str]; 7] = [
        &["rel=t2"],
        &["a=1; rel=\"t2\"; b=2"],
        &["a=1", "rel=t2"],
        &["rel=gone; rel=t2"],
        &[";;rel;=;rel=t2;"],
        &["rel = t2"],
        &[&large],
    ];
    let ignored: [&[&str]; 7] = [
        &[""],
        &["rel=t3"],
        &["rel t2"],
        &["rel=t2x"],
        &["Rel=t2; xrel=t2"],
        &["x=rel=t2"],
        &["\u{fffd}=\"; rel=\"t2"],
    ];
    let clients = Client::both(scene.at(80)).await;
    for mut client in clients {
        for (name, cases) in [("two", found), ("one", ignored)] {
            for case in cases {
                let mut request = client.request(Method::GET, "a.com", "/");
                for value in case {
                    request = request.header(HeaderName::from_static("cookie"), value.as_bytes());
                }
                let request = request.body(empty()).expect("a request");
                let answer = client.fetch(request).await;
                assert_eq!(answer.name(), name, "{case:?}");
                let is_set = !answer.header("set-cookie").is_empty();
                assert_eq!(is_set, name == "one", "{case:?}");
            }
        }
    }
    // Bytes that no client library sends.
    let mut stream = crate::client::connect(scene.at(80)).await;
    write_text(
        &mut stream,
        b"GET / HTTP/1.1\r\nHost: a.com\r\nCookie: \xff\x80=\xc3;rel=t2\r\n\r\n",
    )
    .await;
    let head = read_until(&mut stream, "\r\n\r\n").await;
    assert!(
        head.starts_with("HTTP/1.1 200") && !head.contains("rel="),
        "{head}"
    );
}

#[tokio::test]
async fn filters_see_the_cookies() {
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let mut rule = to("backend");
    rule["filters"] = json!([
        {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["Set-Cookie"]}},
        {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["Cookie"]}},
    ]);
    let endpoints = releases(
        Some("rel"),
        &[("v1", 1 << 40, &[one.address]), ("v2", 1, &[two.address])],
    );
    let scene = start(rule, &endpoints);
    let mut client = Client::http1(scene.at(80)).await;
    let answer = client.get_with("a.com", "/", &[("cookie", "rel=t2")]).await;
    assert_eq!(
        (answer.name().as_str(), answer.header("set-cookie")),
        ("one", "")
    );
}

#[tokio::test]
async fn cookie_is_secure_over_tls_only() {
    let one = Origin::echo("one").await;
    let certificate = Certificate::new(&["a.com"]);
    let objects = Objects::gateway(&[
        http("http", 80, ""),
        https("https", 443, "a.com", &["certificate"]),
    ])
    .with(secret("certificate", &certificate))
    .service("backend", &[])
    .route("route", &[to("backend")]);
    let scene = Scene::start(&objects);
    let endpoints = releases(Some("rel"), &[("v1", 1, &[one.address])]);
    backend(&scene).configure_endpoints(&endpoints);
    for protocol in ["http/1.1", "h2"] {
        let config = tls::client(&[protocol]);
        let mut client = Client::tls(scene.at(443), "a.com", &config).await;
        let set = client.get("a.com", "/").await;
        let expected = "rel=t1; Path=/; HttpOnly; SameSite=Lax; Secure";
        assert_eq!(set.header("set-cookie"), expected, "{protocol}");
    }
    let plain = Client::http1(scene.at(80)).await.get("a.com", "/").await;
    assert!(!plain.header("set-cookie").contains("Secure"));
}

#[tokio::test]
async fn counts_timeout_of_a_hanging_release() {
    let hanging = Origin::new(|_| std::future::pending()).await;
    let mut rule = to("backend");
    rule["timeouts"] = json!({"request": "100ms"});
    let scene = start(rule, &releases(None, &[("v1", 1, &[hanging.address])]));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.status, 504);
    scene.until("the timeout is counted", |_| {
        stats(&scene, "v1").classes() == [0, 0, 0, 0, 1]
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_client_that_disconnects_before_the_response() {
    let hanging = Origin::new(|_| std::future::pending()).await;
    let scene = start(
        to("backend"),
        &releases(None, &[("v1", 1, &[hanging.address])]),
    );
    let mut client = Client::http2(scene.at(80)).await;
    let request = client.request(Method::GET, "a.com", "/").body(empty());
    let request = request.expect("a request");
    let sent = tokio::spawn(async move { client.send(request).await });
    hanging.until_requests(1).await;
    sent.abort();
    scene.until("the disconnect is counted", |_| {
        stats(&scene, "v1").classes() == [0, 0, 0, 1, 0]
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_under_load_fail_no_request() {
    const CHANGES: u64 = 300;
    let (one, two) = (Origin::echo("one").await, Origin::echo("two").await);
    let three = Origin::echo("three").await;
    let both: &[SocketAddr] = &[one.address, three.address];
    let scene = start(
        to("backend"),
        &releases(Some("rel"), &[("v1", 1, both), ("v2", 1, &[two.address])]),
    );
    let address = scene.at(80);
    let is_done = Arc::new(AtomicBool::new(false));
    let load = (0..6).map(|number| {
        let is_done = is_done.clone();
        tokio::spawn(async move {
            let mut client = match number % 2 {
                0 => Client::http1(address).await,
                _ => Client::http2(address).await,
            };
            let cookie: &[(&str, &str)] = match number % 3 {
                0 => &[("cookie", "rel=t1")],
                1 => &[("cookie", "rel=t2")],
                _ => &[],
            };
            let mut requests = 0;
            while !is_done.load(Relaxed) {
                let answer = client.get_with("a.com", "/", cookie).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                requests += 1;
            }
            requests
        })
    });
    let load: Vec<_> = load.collect();
    let backend = backend(&scene);
    let moved: &[SocketAddr] = &[two.address, three.address];
    for change in 0..CHANGES {
        let seen = one.requests() + two.requests() + three.requests();
        backend.configure_endpoints(&match change % 4 {
            0 => releases(Some("rel"), &[("v1", 0, both), ("v2", 1, &[two.address])]),
            1 => releases(Some("rel"), &[("v1", 9, both), ("v3", 1, &[two.address])]),
            2 => releases(Some("rel"), &[("v1", 1, &[one.address]), ("v2", 1, moved)]),
            _ => Endpoints::from(vec![one.address]),
        });
        while one.requests() + two.requests() + three.requests() < seen + 5 {
            tokio::task::yield_now().await;
        }
    }
    is_done.store(true, Relaxed);
    for client in load {
        assert!(client.await.expect("no failed request") > 0);
    }
}
