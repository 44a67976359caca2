//! ClientPolicies: paths are normalized as the policy of their listener says.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::access_policy::{access, before, gateway};
use crate::client::{Answer, Client};
use crate::client_policy::clients;
use crate::origin::Origin;
use crate::scene::{Objects, Scene, prefix, route, to};

async fn client(address: SocketAddr, is_http2: bool) -> Client {
    match is_http2 {
        true => Client::http2(address).await,
        false => Client::http1(address).await,
    }
}

/// What the backend got, or else the status.
fn outcome(answer: &Answer) -> String {
    match answer.status {
        200 => answer.received()["path"]
            .as_str()
            .expect("a path")
            .to_owned(),
        307 => format!("to {}", answer.header("location")),
        status => status.to_string(),
    }
}

/// Two listeners of one port, with a policy on the first.
fn objects(origin: &Origin, spec: &Value) -> Objects {
    let listeners = ["one", "two"]
        .map(|name| format!("{{name: {name}, port: 80, protocol: HTTP, hostname: {name}.com}}"));
    let one = json!({"kind": "Gateway", "name": "gateway", "sectionName": "one"});
    Objects::gateway(&listeners)
        .service("origin", &[origin.address])
        .with(route("route", &["one.com", "two.com"], &[to("origin")]))
        .with(clients("clients", &one, &json!({"path": spec})))
}

#[tokio::test]
async fn paths_are_those_of_the_policy_of_a_listener() {
    let origin = Origin::echo("origin").await;
    let normalize = json!({"dotSegments": "Normalize"});
    let keep = json!({"dotSegments": "Keep", "mergeSlashes": false});
    let reject = json!({"escapedSlashes": "Reject"});
    let merge = json!({"mergeSlashes": true});
    let decode = json!({"escapedSlashes": "Decode", "dotSegments": "Normalize"});
    let decode_only = json!({"escapedSlashes": "Decode", "mergeSlashes": false});
    let mut scene = Scene::start(&objects(&origin, &decode_only));
    for (spec, rows) in [
        (
            &normalize,
            &[
                ("/a/../b?c=/../d", "/b?c=/../d"),
                ("/a//./b/", "/a/b/"),
                ("/a/%2e%2e/b", "/b"),
                ("/../b", "/b"),
                ("/a%2fb", "/a%2fb"),
                ("/a%2f..", "400"),
                ("/a/..;b/c", "400"),
                ("/%zz", "400"),
            ][..],
        ),
        (
            &keep,
            &[
                ("/a/../b", "/a/../b"),
                ("//a//b", "//a//b"),
                ("/a/%2E%2e/b?c", "/a/%2E%2e/b?c"),
                ("/%00", "400"),
            ],
        ),
        (
            &reject,
            &[
                ("/a%2fb", "400"),
                ("/a%5Cb", "400"),
                ("/a\\b", "400"),
                ("/a%252fb", "/a%252fb"),
            ],
        ),
        (
            &decode,
            &[
                ("/a%2Fb?c=%2f", "to /a/b?c=%2f"),
                ("/a%5cb", "to /a/b"),
                ("/%2f%2fevil.com", "to /evil.com"),
                ("/a%2f..%2fb", "to /b"),
                ("/a%252fb", "/a%252fb"),
                ("/a//b", "/a//b"),
            ],
        ),
        (
            &merge,
            &[
                ("/a//b///?c=//d", "/a/b/?c=//d"),
                ("//%61%2f//b", "/%61%2f/b"),
                ("/a/../b", "400"),
            ],
        ),
        (
            &decode_only,
            &[
                // Two slashes at the beginning would name another host.
                ("/%2fevil.com", "to /.//evil.com"),
                ("/a%2f..%2fb", "400"),
            ],
        ),
    ] {
        scene.replace(&objects(&origin, spec)).await;
        for is_http2 in [false, true] {
            for (path, expected) in rows {
                // A request that is refused may end its connection.
                let answer = client(scene.at(80), is_http2)
                    .await
                    .get("one.com", path)
                    .await;
                assert_eq!(outcome(&answer), *expected, "{spec} {path} {is_http2}");
            }
            for (path, expected) in [("/a//b", "/a//b"), ("/a/../b", "400"), ("/a%2fb", "/a%2fb")] {
                let answer = client(scene.at(80), is_http2)
                    .await
                    .get("two.com", path)
                    .await;
                assert_eq!(outcome(&answer), expected, "the neighbour of {spec} {path}");
            }
        }
    }
}

#[tokio::test]
async fn calls_with_escaped_slashes_are_not_redirected() {
    let origin = Origin::echo("origin").await;
    let scene = Scene::start(&objects(&origin, &json!({"escapedSlashes": "Decode"})));
    let mut client = Client::http2(scene.at(80)).await;
    let call = [("content-type", "application/grpc")];
    let answer = client.get_with("one.com", "/a%2fb/c", &call).await;
    assert_eq!(answer.status, 200);
    // INTERNAL, as for other malformed requests.
    assert_eq!(answer.header("grpc-status"), "13");
    assert_eq!(answer.header("location"), "");
}

/// The path that a lenient backend reads: decoded, with merged slashes and without dot segments.
fn read(path: &str) -> String {
    let bytes = path.as_bytes();
    let (mut decoded, mut at) = (String::new(), 0);
    while at < bytes.len() {
        let escape = (bytes[at] == b'%').then(|| &path[at + 1..at + 3]);
        let byte = escape.map_or(bytes[at], |it| {
            u8::from_str_radix(it, 16).expect("an escape")
        });
        decoded.push(char::from(byte));
        at += if escape.is_some() { 3 } else { 1 };
    }
    let mut kept = Vec::new();
    for segment in decoded.split(['/', '\\']) {
        match segment.split(';').next() {
            None | Some("" | ".") => {}
            Some("..") => drop(kept.pop()),
            Some(name) => kept.push(name.to_owned()),
        }
    }
    format!("/{}", kept.join("/"))
}

const DISGUISED: [&str; 14] = [
    "/admin",
    "//admin",
    "/admin%2f..",
    "/admin%2f..%2fadmin",
    "/x/../admin",
    "/x//../admin/y",
    "/x/%2e%2e/admin",
    "/x%2f..%2fadmin",
    "/x/..%2fadmin",
    "/x/..;p/admin",
    "/x\\..\\admin",
    "/%61dmin",
    "/a%64%6din/%2e/x",
    "//%61%64%6D%69%6e;p",
];

/// All policies about paths.
fn path_policies() -> Vec<Value> {
    let mut policies = Vec::new();
    for escaped in ["Keep", "Reject", "Decode"] {
        for merge in [json!(true), json!(false), json!(null)] {
            for dots in ["Keep", "Normalize", "Reject"] {
                let mut policy = json!({"escapedSlashes": escaped, "dotSegments": dots});
                if !merge.is_null() {
                    policy["mergeSlashes"] = merge.clone();
                }
                policies.push(policy);
            }
        }
    }
    policies
}

/// Follows redirects. Returns the last answer.
async fn followed(address: SocketAddr, is_http2: bool, path: &str) -> Answer {
    let mut path = path.to_owned();
    for _ in 0..3 {
        let answer = client(address, is_http2).await.get("a.com", &path).await;
        if answer.status != 307 {
            return answer;
        }
        path = answer.header("location").to_owned();
    }
    panic!("redirected without an end to {path}");
}

/// What is refused under /admin is refused for all paths that a backend may take for it: by a rule of an AccessPolicy, and
/// by the policy of the rule of a route.
#[tokio::test]
async fn no_policy_about_paths_opens_a_protected_path() {
    let origin = Origin::echo("origin").await;
    let rules =
        json!([{"name": "admin", "action": "Deny", "match": {"paths": [{"value": "/admin"}]}}]);
    let authorization = json!({"authorization": {"rules": rules, "default": "Allow"}});
    let rule = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let nobody = json!({"ipRules": {"allow": ["192.0.2.0/24"]}});
    for protection in [
        access("policy", &gateway(), &authorization),
        access("policy", &rule, &nobody),
    ] {
        let mut scene = Scene::start(&before(&origin, std::slice::from_ref(&protection)));
        for spec in path_policies() {
            let policy = clients("clients", &gateway(), &json!({"path": spec}));
            let objects = before(&origin, &[protection.clone(), policy]);
            scene.replace(&objects).await;
            for path in DISGUISED {
                for is_http2 in [false, true] {
                    let answer = followed(scene.at(80), is_http2, path).await;
                    let what = format!("{spec} {path}: {}", outcome(&answer));
                    match answer.status {
                        200 => {
                            let received = answer.received()["path"].clone();
                            let received = received.as_str().expect("a path");
                            assert!(!read(received).starts_with("/admin"), "{what}");
                        }
                        status => assert!([400, 403].contains(&status), "{what}"),
                    }
                }
            }
            for path in ["/%61dmi", "/public/x"] {
                let answer = followed(scene.at(80), false, path).await;
                assert_eq!(outcome(&answer), path, "{spec}");
            }
        }
    }
}

/// With a list of permitted paths, no other spelling passes.
#[tokio::test]
async fn permitted_paths_permit_no_other_spelling() {
    let origin = Origin::echo("origin").await;
    let rules =
        json!([{"name": "public", "action": "Allow", "match": {"paths": [{"value": "/public"}]}}]);
    let authorization = json!({"authorization": {"rules": rules}});
    let protection = access("policy", &gateway(), &authorization);
    let mut scene = Scene::start(&before(&origin, std::slice::from_ref(&protection)));
    for spec in path_policies() {
        let policy = clients("clients", &gateway(), &json!({"path": spec}));
        scene
            .replace(&before(&origin, &[protection.clone(), policy]))
            .await;
        for path in [
            "/%61dmin",
            "/public/../admin",
            "/public%2f..%2fadmin",
            "/public/..;/admin",
        ] {
            let answer = followed(scene.at(80), false, path).await;
            assert_ne!(answer.status, 200, "{spec} {path}: {}", outcome(&answer));
        }
        for path in ["/public/x", "/%70ublic/x", "/publi%63"] {
            let answer = followed(scene.at(80), false, path).await;
            assert_eq!(outcome(&answer), path, "{spec}");
        }
    }
}

/// Without a protected path, a kept path passes if all of its readings have the same rule.
#[tokio::test]
async fn kept_paths_need_one_rule() {
    let origin = Origin::echo("origin").await;
    let spec = json!({"path": {"dotSegments": "Keep", "mergeSlashes": false}});
    let objects = Objects::http()
        .service("origin", &[origin.address])
        .route("route", &[to("origin"), prefix("/b", "origin")])
        .with(clients("clients", &gateway(), &spec));
    let scene = Scene::start(&objects);
    for (path, expected) in [
        ("/a/../c", "/a/../c"),
        ("/b/x/../y", "/b/x/../y"),
        ("/b//c", "/b//c"),
        ("/a/../b", "400"),
        ("//b", "400"),
        ("/b/../c", "400"),
    ] {
        let answer = client(scene.at(80), false).await.get("a.com", path).await;
        assert_eq!(outcome(&answer), expected, "{path}");
    }
}
