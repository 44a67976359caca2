//! The rules and cases of the conformance tests HTTPRouteRequestMirror, HTTPRouteRequestMultipleMirrors
//! and HTTPRouteRequestPercentageMirror of Gateway API v1.6.1.

use http::Method;
use serde_json::{Value, json};

use crate::client::Client;
use crate::cors::{clients, fetch, gateway, start};
use crate::mirror::{Recorder, mirror, share, until_mirrored, with_filters};
use crate::origin::Origin;
use crate::scene::{Objects, Scene};

/// Headers that a filter of the tests changes, as they are sent and as they are changed.
const NAMES: [&str; 4] = [
    "x-header-set",
    "x-header-add",
    "x-header-add-append",
    "x-header-remove",
];
const SENT: [&str; 4] = ["", "", "append-val-1", "remove-val"];
const MODIFIED: [&str; 4] = [
    "set-overwrites-values",
    "header-val-1",
    "append-val-1,header-val-2",
    "",
];
/// Headers that request and copy have in common.
const KEPT: [&str; 4] = [
    "host",
    "x-request-id",
    "x-forwarded-for",
    "x-forwarded-proto",
];

fn rules() -> [Value; 5] {
    let modify = json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {
        "set": [{"name": "X-Header-Set", "value": "set-overwrites-values"}],
        "add": [
            {"name": "X-Header-Add", "value": "header-val-1"},
            {"name": "X-Header-Add-Append", "value": "header-val-2"},
        ],
        "remove": ["X-Header-Remove"],
    }});
    let (two, three) = (mirror("two"), mirror("three"));
    let rule = |path: &str, filters: &[&Value]| {
        let filters: Vec<_> = filters.iter().map(|filter| (*filter).clone()).collect();
        with_filters(path, "echo", &filters)
    };
    [
        rule("/mirror", &[&two]),
        rule("/mirror-and-modify-headers", &[&modify, &two]),
        rule("/multi-mirror", &[&two, &three]),
        rule(
            "/multi-mirror-and-modify-request-headers",
            &[&modify, &two, &three],
        ),
        // Beyond the conformance test: filters after a mirror do not change its copies.
        rule("/before", &[&two, &modify]),
    ]
}

#[tokio::test]
async fn cases_of_the_conformance_tests() {
    let echo = Origin::echo("echo").await;
    let (mut two, mut three) = (Recorder::new().await, Recorder::new().await);
    let objects = gateway()
        .service("echo", &[echo.address])
        .service("two", &[two.origin.address])
        .service("three", &[three.origin.address]);
    let scene = start(objects.route("route", &rules()));
    for mut client in clients(&scene).await {
        for (path, copies, expected, expected_of_copy) in [
            ("/mirror?a=b", 1, SENT, SENT),
            ("/mirror-and-modify-headers", 1, MODIFIED, MODIFIED),
            ("/multi-mirror", 2, SENT, SENT),
            (
                "/multi-mirror-and-modify-request-headers",
                2,
                MODIFIED,
                MODIFIED,
            ),
            ("/before", 1, MODIFIED, SENT),
        ] {
            let fields = [
                ("x-header-remove", "remove-val"),
                ("x-header-add-append", "append-val-1"),
            ];
            let answer = fetch(&mut client, "GET", path, &fields).await;
            assert_eq!(answer.header("x-mirror"), "");
            let original = answer.received();
            let header = |name: &str| original["headers"][name].as_str().unwrap_or_default();
            assert_eq!(NAMES.map(header), expected, "{path}");
            for mirror in [&mut two, &mut three].into_iter().take(copies) {
                let copy = mirror.next().await;
                assert_eq!((&copy.head.method, copy.body.len()), (&Method::GET, 0));
                let target = copy.head.uri.path_and_query().expect("a path");
                assert_eq!(target.as_str(), path);
                let value = |name: &str| {
                    let value = copy.head.headers.get(name);
                    value.map_or("", |value| value.to_str().expect("text"))
                };
                assert_eq!(NAMES.map(value), expected_of_copy, "{path}");
                for name in KEPT {
                    assert_eq!(value(name), header(name), "{path} {name}");
                    assert!(!value(name).is_empty(), "{path} {name}");
                }
            }
        }
    }
    until_mirrored(&scene, "two", "completed", 10.0).await;
    until_mirrored(&scene, "three", "completed", 4.0).await;
    assert_eq!((two.origin.requests(), three.origin.requests()), (10, 4));
    // The connections of copies are reused.
    assert!(two.origin.connections() < 10);
}

#[tokio::test]
async fn copies_the_configured_share_of_requests() {
    const REQUESTS: usize = 500;
    let echo = Origin::echo("echo").await;
    let names = ["all", "none", "twenty", "half", "third"];
    let mirrors: Vec<_> = {
        let mut mirrors = Vec::new();
        for _ in names {
            mirrors.push(Recorder::new().await);
        }
        mirrors
    };
    let filters = [
        share("all", "percent", json!(100)),
        share("none", "percent", json!(0)),
        share("twenty", "percent", json!(20)),
        share(
            "half",
            "fraction",
            json!({"numerator": 25, "denominator": 50}),
        ),
        share("third", "fraction", json!({"numerator": 33})),
        // The same backend twice.
        share(
            "none",
            "fraction",
            json!({"numerator": 0, "denominator": 7}),
        ),
    ];
    let mut objects = Objects::http().service("echo", &[echo.address]);
    for (name, mirror) in names.iter().zip(&mirrors) {
        objects = objects.service(name, &[mirror.origin.address]);
    }
    let scene = Scene::start(&objects.route("route", &[with_filters("/", "echo", &filters)]));
    let mut client = Client::http1(scene.at(80)).await;
    for _ in 0..REQUESTS {
        assert_eq!(client.get("a.com", "/").await.name(), "echo");
    }
    until_mirrored(&scene, "all", "completed", REQUESTS as f64).await;
    // The copies of a request are sent at the same time, so that the last ones may still be in flight.
    mirrors[0].origin.until_requests(REQUESTS).await;
    for (mirror, expected) in mirrors.iter().zip([1.0, 0.0, 0.2, 0.5, 0.33]) {
        let all = REQUESTS as f64;
        let tolerance = 6.0 * (all * expected * (1.0 - expected)).sqrt();
        let found = mirror.origin.requests() as f64;
        assert!(
            (found - all * expected).abs() <= tolerance,
            "{expected}: {found}"
        );
    }
}
