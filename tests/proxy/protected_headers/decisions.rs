//! What decides about a request, by a policy, a match or an authorization server, is what its backend reads.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{check, forged, sent};
use crate::access_policy::{access, gateway};
use crate::harness::client::Client;
use crate::harness::origin::Origin;
use crate::mirror::with_filters;
use crate::rate_limit_policy::{limits, per_hour};
use crate::scene::{Objects, Scene, to};

/// A backend reads no other spelling of a header than the one that an authorization server has decided by.
#[tokio::test]
async fn headers_that_authorization_servers_decide_by_have_one_spelling() {
    let (origin, server) = (Origin::hello(), Origin::hello());
    let backend = json!({"name": "auth", "port": 80});
    let http = json!({"allowedHeaders": ["X-Role"]});
    let external = json!({"protocol": "HTTP", "backendRef": backend, "http": http});
    let policy = access("a", &gateway(), &json!({"external": external}));
    let filter = json!({"type": "ExternalAuth", "externalAuth": external});
    for (rule, policies) in [
        (to("origin"), &[policy][..]),
        (with_filters("/", "origin", &[filter]), &[]),
    ] {
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.service("auth", &[server.address]);
        let objects = objects.route("route", &[rule]);
        let scene = Scene::start(&policies.iter().cloned().fold(objects, Objects::with));
        let head = [
            "X-Role: one",
            "X_Role: forged",
            "x.role: forged",
            "X-Role: two",
        ];
        let request = sent(scene.at(80), &origin, &head, &["X-Role: forged"]);
        assert!(forged(&request).is_empty(), "{:?}", forged(&request));
        assert_eq!(request.fields.all("x-role"), ["one,two"]);
        assert_eq!(server.last().fields.all("x-role"), ["one,two"]);
    }
}

/// Servers differ in which value of a parameter they take, and some take a semicolon for the end of one.
#[tokio::test]
async fn query_parameters_that_select_rules_with_policies_have_one_value() {
    let origin = Origin::hello();
    let mut admin = to("origin");
    admin["name"] = json!("admin");
    admin["matches"] = json!([{"queryParams": [{"name": "role", "value": "admin"}]}]);
    let of_admin = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let nobody = json!({"ipRules": {"allow": ["192.0.2.0/24"]}});
    let objects = Objects::http().service("origin", &[origin.address]);
    let objects = objects.route("route", &[admin, to("origin")]);
    let status = |address: SocketAddr, query: &str| {
        let request = format!("GET /?{query} HTTP/1.1\r\nHost: a.com\r\n\r\n");
        Client::connect(address).round_trip(request).status
    };
    let scene = Scene::start(&objects);
    assert_eq!(status(scene.at(80), "role=user&role=admin"), 200);
    let scene = Scene::start(&objects.with(access("a", &of_admin, &nobody)));
    for (query, expected) in [
        ("role=admin", 403),
        ("role=user", 200),
        ("role=user&role=%75ser", 200),
        ("role=user&a=1&a=2;b", 200),
        ("role=user&role=admin", 400),
        ("role=admin&role=user", 400),
        ("role=user&r%6Fle=%61dmin", 400),
        ("a=1;role=admin", 400),
    ] {
        assert_eq!(status(scene.at(80), query), expected, "{query}");
    }
}

/// Frameworks take the method from a header, whatever the first line of a request says.
#[tokio::test]
async fn headers_with_a_method_reach_no_backend_where_methods_decide() {
    let origin = Origin::hello();
    let rules = json!([{"name": "posts", "action": "Allow", "match": {"methods": ["POST"]}}]);
    let posts = access("a", &gateway(), &json!({"authorization": {"rules": rules}}));
    let mut deletions = per_hour("deletions", 1);
    deletions["match"] = json!({"method": "DELETE"});
    let limit = limits("l", &gateway(), &json!([deletions]), None);
    let matching = |condition: &Value| {
        let mut rule = to("origin");
        rule["matches"] = json!([condition]);
        rule
    };
    let post = json!({"method": "POST"});
    for (rule, policies) in [
        (to("origin"), &[posts][..]),
        (to("origin"), &[limit]),
        (matching(&post), &[]),
    ] {
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.route("route", &[rule]);
        let objects = policies.iter().cloned().fold(objects, Objects::with);
        for name in [
            "X-HTTP-Method-Override",
            "X-HTTP-Method",
            "X-Method-Override",
        ] {
            check("method", &origin, &objects, (name, &[]));
        }
    }
    // Elsewhere, and where a rule decides by such a header, it stays.
    let header = json!({"name": "X-HTTP-Method-Override", "value": "PATCH"});
    let named = json!({"method": "POST", "headers": [header]});
    for rule in [to("origin"), matching(&named)] {
        let objects = Objects::http().service("origin", &[origin.address]);
        let scene = Scene::start(&objects.route("route", &[rule]));
        let lines = ["X-HTTP-Method-Override: PATCH"];
        let request = sent(scene.at(80), &origin, &lines, &[]);
        let method = request.fields.get("x-http-method-override");
        assert_eq!(method, Some("PATCH"));
    }
}
