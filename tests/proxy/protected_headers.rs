//! Headers that only the proxy may say, in every spelling and place: what a client says of them reaches no backend.

mod carriers;
mod decisions;
mod receiver;

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::access_policy::{access, gateway, of_route};
use crate::client_policy::clients;
use crate::credentials::{BCRYPT, api_key, authorization, basic, keys, users};
use crate::harness::client::Client;
use crate::harness::origin::{Origin, Request};
use crate::issuer::{Issuer, bearer, claims, jwt};
use crate::mirror::with_filters;
use crate::rate_limit_policy::{limits, per_hour};
use crate::route_policy::policy as defaults;
use crate::scene::{Objects, Scene, to};

/// Sends a request with these lines in its head and in its trailers, as they are written, and returns what the backend got.
fn sent(address: SocketAddr, origin: &Origin, head: &[&str], trailers: &[&str]) -> Request {
    let lines = |lines: &[&str]| {
        lines
            .iter()
            .map(|line| format!("{line}\r\n"))
            .collect::<String>()
    };
    let (head, trailers) = (lines(head), lines(trailers));
    let request = format!(
        "POST / HTTP/1.1\r\nHost: a.com\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n{head}\r\n1\r\na\r\n0\r\n{trailers}\r\n"
    );
    let response = Client::connect(address).round_trip(request);
    assert_eq!(response.status, 200, "{head}");
    origin.until("the body", |origin| origin.last().body.complete);
    origin.last()
}

/// The names of lines with the value `forged` in head and trailers.
fn forged(request: &Request) -> Vec<String> {
    let lines = request.fields.0.iter().chain(&request.body.trailers.0);
    let lines = lines.filter(|(_, value)| value.contains("forged"));
    lines.map(|(name, _)| name.to_ascii_lowercase()).collect()
}

/// A line for each spelling of a header.
fn spellings(name: &str) -> Vec<String> {
    let names = ["-", "_", ".", "!", "~"].map(|symbol| name.replace('-', symbol));
    let upper = names.clone().map(|name| name.to_ascii_uppercase());
    let names = names.into_iter().chain(upper);
    names.map(|name| format!("{name}: forged")).collect()
}

/// Serves objects, and checks that no spelling of a header reaches the backend of a request with these credentials.
fn check(case: &str, origin: &Origin, objects: &Objects, (name, credentials): (&str, &[&str])) {
    let scene = Scene::start(objects);
    let (own, other) = (spellings(name), spellings("X-Other"));
    let lines: Vec<&str> = own.iter().chain(&other).map(String::as_str).collect();
    let request = sent(
        scene.at(80),
        origin,
        &[&lines[..], credentials].concat(),
        &lines,
    );
    let found = forged(&request);
    let is_other = |found: &String| found.starts_with("x") && found.ends_with("other");
    assert!(found.iter().all(is_other), "{case}: {found:?}");
    // Names that the proxy does not say are those of the application.
    assert!(found.contains(&"x_other".to_owned()), "{case}: {found:?}");
    assert!(!request.body.trailers.all("x.other").is_empty(), "{case}");
}

fn modifier(changes: &Value) -> Value {
    json!({"type": "RequestHeaderModifier", "requestHeaderModifier": changes})
}

#[tokio::test]
async fn no_spelling_of_a_header_that_the_proxy_says_reaches_a_backend() {
    let origin = Origin::hello();
    let policy = |spec: &Value, others: &[String]| {
        let policy = access("a", &gateway(), spec);
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.route("route", &[to("origin")]).with(policy);
        others.iter().cloned().fold(objects, Objects::with)
    };
    let alice = format!("Authorization: {}", authorization("alice", "password"));
    let users = users(&[("alice", BCRYPT)]);
    let objects = policy(&basic(), &[users]);
    check("basic", &origin, &objects, ("X-User", &[&alice]));
    let key = "X-API-Key: key-of-shop";
    let objects = policy(&api_key(), &[keys()]);
    check("apiKey", &origin, &objects, ("X-Client", &[key]));
    let issuer = Issuer::new("one", jsonwebtoken::Algorithm::ES256);
    let token = bearer(&issuer.token(&claims(&json!({}))));
    let token = format!("Authorization: {token}");
    let objects = policy(&jwt(&[issuer.jwk()]), &[]);
    for name in ["X-User", "X-Groups", "X-Roles"] {
        check("jwt", &origin, &objects, (name, &[&token]));
    }
    for changes in [
        json!({"set": [{"name": "X-User", "value": "fixed"}]}),
        json!({"remove": ["X-User"]}),
    ] {
        let rules = [with_filters("/", "origin", &[modifier(&changes)])];
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.route("route", &rules);
        check("filter", &origin, &objects, ("X-User", &[]));
        let mut rule = to("origin");
        rule["backendRefs"][0]["filters"] = json!([modifier(&changes)]);
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.route("route", &[rule]);
        check("filter of a backendRef", &origin, &objects, ("X-User", &[]));
        let spec = json!({"requestHeaders": changes});
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.route("route", &[to("origin")]);
        let objects = objects.with(defaults("a", &gateway(), &spec));
        check("RoutePolicy", &origin, &objects, ("X-User", &[]));
    }
}

#[tokio::test]
async fn header_with_the_address_has_one_spelling() {
    let origin = Origin::hello();
    for cidr in ["127.0.0.0/8", "10.0.0.0/8"] {
        let header = json!({"name": "CF-Connecting-IP", "trustedCIDRs": [cidr]});
        let policy = clients("a", &gateway(), &json!({"clientIP": {"header": header}}));
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.route("route", &[to("origin")]).with(policy);
        let scene = Scene::start(&objects);
        let lines = ["CF_Connecting_IP: forged", "cf.connecting-ip: forged"];
        let head = ["CF-Connecting-IP: 192.0.2.1", lines[0], lines[1]];
        let trailers = ["CF-Connecting-IP: forged", lines[0], lines[1]];
        let request = sent(scene.at(80), &origin, &head, &trailers);
        assert!(
            forged(&request).is_empty(),
            "{cidr}: {:?}",
            forged(&request)
        );
        let is_trusted = cidr == "127.0.0.0/8";
        let address = request.fields.get("cf-connecting-ip");
        assert_eq!(address.is_some(), is_trusted, "{cidr}");
    }
}

/// A backend must not read another value than the one that was verified or counted.
#[tokio::test]
async fn headers_that_policies_decide_by_have_one_spelling() {
    let origin = Origin::hello();
    let mut keep = api_key();
    keep["apiKey"]["keep"] = json!(true);
    let mut rule = per_hour("tenant", 100);
    rule["key"] = json!([{"type": "Header", "name": "X-Tenant"}]);
    let debug = json!({"name": "debug", "action": "Deny", "match": {"headers": [{"name": "X-Debug", "value": "1"}]}});
    keep["authorization"] = json!({"default": "Allow", "rules": [debug]});
    let objects = Objects::http().service("origin", &[origin.address]);
    let objects = objects.route("route", &[to("origin")]).with(keys());
    let objects = objects.with(access("a", &gateway(), &keep));
    let objects = objects.with(limits("l", &of_route(), &json!([rule]), None));
    let scene = Scene::start(&objects);
    let others = ["X_API_Key: forged", "X.Tenant: forged", "x_debug: forged"];
    let own = ["X-API-Key: key-of-shop", "X-Tenant: one"];
    let request = sent(scene.at(80), &origin, &[&own[..], &others].concat(), &[]);
    assert!(forged(&request).is_empty(), "{:?}", forged(&request));
    assert_eq!(request.fields.get("x-api-key"), Some("key-of-shop"));
    assert_eq!(request.fields.get("x-tenant"), Some("one"));
    // Several lines are one value, and a backend that reads one of them alone finds nothing else.
    let lines = ["X-Tenant: one", "X-Debug: 1", "X-Debug: 0", "X-Tenant: two"];
    let request = sent(
        scene.at(80),
        &origin,
        &[&lines[..], &own[..1]].concat(),
        &[],
    );
    assert_eq!(request.fields.all("x-debug"), ["1,0"]);
    assert_eq!(request.fields.all("x-tenant"), ["one,two"]);
}

/// The proxy alone says to backends who the client is: what the client says itself in these headers neither permits nor counts anything.
#[tokio::test]
async fn headers_about_identity_decide_nothing() {
    let origin = Origin::hello();
    let admin = json!({"headers": [{"name": "X-User", "value": "admin"}]});
    let rules = json!([{"name": "admin", "action": "Allow", "match": admin}]);
    let mut permitting = basic();
    permitting["authorization"] = json!({"rules": rules});
    let mut rule = per_hour("user", 1);
    rule["key"] = json!([{"type": "Header", "name": "X-User"}]);
    let limit = limits("l", &of_route(), &json!([rule]), None);
    let alice = authorization("alice", "password");
    for (policies, expected) in [
        (&[access("a", &gateway(), &permitting)][..], [403, 403]),
        (&[access("a", &gateway(), &basic()), limit], [200, 429]),
    ] {
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.route("route", &[to("origin")]);
        let objects = objects.with(users(&[("alice", BCRYPT)]));
        let scene = Scene::start(&policies.iter().cloned().fold(objects, Objects::with));
        let statuses = ["admin", "other"].map(|name| {
            let head = format!("Host: a.com\r\nAuthorization: {alice}\r\nX-User: {name}");
            let request = format!("GET / HTTP/1.1\r\n{head}\r\n\r\n");
            Client::connect(scene.at(80)).round_trip(request).status
        });
        assert_eq!(statuses, expected);
    }
}

/// Letters, ports and the dot of an absolute name make no other host, neither for conditions nor for keys of limits.
#[tokio::test]
async fn headers_with_a_host_decide_in_one_spelling() {
    let origin = Origin::hello();
    let intern = json!({"headers": [{"name": "Host", "value": "intern.example.com"}]});
    let rules = json!([{"name": "intern", "action": "Deny", "match": intern}]);
    let policy = json!({"authorization": {"default": "Allow", "rules": rules}});
    let mut rule = per_hour("host", 3);
    rule["key"] = json!([{"type": "Header", "name": "Host"}]);
    let objects = Objects::http().service("origin", &[origin.address]);
    let objects = objects.route("route", &[to("origin")]);
    let objects = objects.with(access("a", &gateway(), &policy));
    let objects = objects.with(limits("l", &of_route(), &json!([rule]), None));
    let scene = Scene::start(&objects);
    let mut client = Client::connect(scene.at(80));
    for (host, expected) in [
        ("intern.example.com", 403),
        ("INTERN.example.com", 403),
        ("intern.example.com.:8080", 403),
        ("a.com", 200),
        ("A.com", 200),
        ("a.com.", 200),
        ("a.com:80", 429),
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(client.round_trip(request).status, expected, "{host}");
    }
}

/// A request of HTTP/1.0 may have no `Host`, but its backend gets one.
#[tokio::test]
async fn host_that_the_proxy_adds_decides() {
    let origin = Origin::hello();
    let objects = Objects::http().service("origin", &[origin.address]);
    let objects = objects.route("route", &[to("origin")]);
    let status = |scene: &Scene| {
        let mut client = Client::connect(scene.at(80));
        client.round_trip("GET / HTTP/1.0\r\n\r\n").status
    };
    assert_eq!(status(&Scene::start(&objects)), 200);
    let got = origin.last();
    let added = got.fields.get("host").expect("a host");
    let added: SocketAddr = added.parse().expect("an address");
    let value = added.ip().to_string();
    let added = json!({"headers": [{"name": "Host", "value": value}]});
    let rules = json!([{"name": "added", "action": "Deny", "match": added}]);
    let policy = json!({"authorization": {"default": "Allow", "rules": rules}});
    let scene = Scene::start(&objects.with(access("a", &gateway(), &policy)));
    assert_eq!(status(&scene), 403);
    let request = "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n";
    let other = Client::connect(scene.at(80)).round_trip(request);
    assert_eq!(other.status, 200);
}

/// No other spelling of a header takes a request past the policy on the rule that the header selects.
#[tokio::test]
async fn headers_that_select_rules_with_policies_have_one_spelling() {
    let origin = Origin::hello();
    let mut beta = to("origin");
    beta["name"] = json!("beta");
    beta["matches"] = json!([{"headers": [{"name": "X-Env", "value": "beta"}]}]);
    let of_beta = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "beta"});
    let nobody = json!({"ipRules": {"allow": ["192.0.2.0/24"]}});
    let objects = Objects::http().service("origin", &[origin.address]);
    let objects = objects.route("route", &[beta, to("origin")]);
    let scene = Scene::start(&objects.with(access("a", &of_beta, &nobody)));
    let request = "GET / HTTP/1.1\r\nHost: a.com\r\nX-Env: beta\r\n\r\n";
    let refused = Client::connect(scene.at(80)).round_trip(request);
    assert_eq!(refused.status, 403);
    let head = ["X_Env: beta", "X-Env: beta", "x.env: beta", "X-Env: other"];
    let request = sent(scene.at(80), &origin, &head, &["X-Env: beta"]);
    assert_eq!(request.fields.all("x-env"), ["beta,other"]);
    let trailers = &request.body.trailers;
    for name in ["x_env", "x.env", "x-env"] {
        let lines = [request.fields.all(name), trailers.all(name)].concat();
        assert!(!lines.contains(&"beta"), "{name}: {lines:?}");
    }
}

#[tokio::test]
async fn clients_say_nothing_about_the_origin_of_a_request() {
    let origin = Origin::hello();
    let names = [
        "X-Forwarded-Prefix",
        "X-Forwarded-Ssl",
        "X-Forwarded-Scheme",
        "X-Forwarded-Server",
        "X-Forwarded-Uri",
        "X-Forwarded-Path",
        "X-Forwarded-Method",
        "X-Forwarded-User",
        "X-Forwarded-A-Name-That-Is-Longer-Than-All",
        "X-Forwarded",
        "Forwarded-For",
        "X-Client-IP",
        "X-Cluster-Client-IP",
        "Client-IP",
        "X-Real-IP",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-Scheme",
        "X-Script-Name",
        "Front-End-Https",
    ];
    let lines: Vec<_> = names.iter().flat_map(|name| spellings(name)).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let objects = Objects::http().service("origin", &[origin.address]);
    let objects = objects.route("route", &[to("origin")]);
    let scene = Scene::start(&objects);
    for lines in lines.chunks(50) {
        let request = sent(scene.at(80), &origin, lines, lines);
        assert!(forged(&request).is_empty(), "{:?}", forged(&request));
    }
    // A trusted proxy says them, in one spelling, and no client takes that away.
    let proxies = json!({"xForwardedFor": {"trustedCIDRs": ["127.0.0.0/8"]}});
    let policy = clients("a", &gateway(), &json!({"clientIP": proxies}));
    let scene = Scene::start(&objects.with(policy));
    let connection = "Connection: X-Forwarded-Prefix, close";
    let head = [
        "X-Forwarded-Prefix: /app",
        "X_Forwarded_Prefix: forged",
        connection,
    ];
    let request = sent(scene.at(80), &origin, &head, &[]);
    assert_eq!(request.fields.get("x-forwarded-prefix"), Some("/app"));
    assert!(forged(&request).is_empty(), "{:?}", forged(&request));
}

#[tokio::test]
async fn several_authorization_headers_are_no_credentials() {
    let origin = Origin::hello();
    let issuer = Issuer::new("one", jsonwebtoken::Algorithm::ES256);
    let token = bearer(&issuer.token(&claims(&json!({}))));
    let token = format!("Authorization: {token}");
    let alice = format!("Authorization: {}", authorization("alice", "password"));
    let key = "X-API-Key: key-of-shop";
    let secrets = [users(&[("alice", BCRYPT)]), keys()];
    for (spec, credentials) in [
        (basic(), &*alice),
        (api_key(), key),
        (jwt(&[issuer.jwk()]), &*token),
    ] {
        let all = [&secrets[..], &[access("a", &gateway(), &spec)]].concat();
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.route("route", &[to("origin")]);
        let scene = Scene::start(&all.into_iter().fold(objects, Objects::with));
        sent(scene.at(80), &origin, &[credentials], &[]);
        let before = origin.requests().len();
        for others in [
            &["Authorization: Negotiate a", credentials][..],
            &[credentials, "Authorization: Negotiate a"],
            &[credentials, "Authorization: Basic YTpi", "authorization: x"],
        ] {
            let several = [others, &["Authorization: Basic YTpi"]]
                .concat()
                .join("\r\n");
            let request = format!("GET / HTTP/1.1\r\nHost: a.com\r\n{several}\r\n\r\n");
            let response = Client::connect(scene.at(80)).round_trip(request);
            assert_eq!(response.status, 401, "{several}");
        }
        assert_eq!(origin.requests().len(), before);
    }
}

/// A backend that reads a token or a key in another place than the proxy finds none that the proxy has not verified.
#[tokio::test]
async fn backends_get_no_credentials_beside_those_that_were_verified() {
    let origin = Origin::hello();
    let issuer = Issuer::new("one", jsonwebtoken::Algorithm::ES256);
    let token = issuer.token(&claims(&json!({})));
    let mut tokens = jwt(&[issuer.jwk()]);
    tokens["jwt"]["providers"][0]["from"] = json!([
        {"type": "Header", "name": "Authorization"}, {"type": "Header", "name": "X-Token"},
        {"type": "Cookie", "name": "key"},
    ]);
    let mut kept = api_key();
    kept["apiKey"]["keep"] = json!(true);
    let [mut with_password, mut with_token] = [kept.clone(), kept.clone()];
    with_password["basic"] = basic()["basic"].clone();
    with_password["require"] = json!("Any");
    with_token["jwt"] = tokens["jwt"].clone();
    with_token["jwt"]["providers"][0]["from"][1]["name"] = json!("X-API-Key");
    for (spec, verified, other) in [
        (
            tokens,
            format!("Authorization: {}", bearer(&token)),
            "X-Token: forged",
        ),
        (kept, "X-API-Key: key-of-shop".to_owned(), "Cookie: b=c"),
        (
            with_password,
            format!("Authorization: {}", authorization("alice", "password")),
            "X-API-Key: forged",
        ),
        (
            with_token,
            format!(
                "Authorization: {}\r\nX-API-Key: key-of-shop",
                bearer(&token)
            ),
            "Cookie: b=c",
        ),
    ] {
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.route("route", &[to("origin")]).with(keys());
        let objects = objects.with(users(&[("alice", BCRYPT)]));
        let scene = Scene::start(&objects.with(access("a", &gateway(), &spec)));
        let head = [&*verified, other, "Cookie: a=b; key=forged"];
        let request = sent(scene.at(80), &origin, &head, &[]);
        assert!(forged(&request).is_empty(), "{:?}", forged(&request));
        let lines = request.fields.0.iter();
        let lines: Vec<_> = lines
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        let has = |line: &str| lines.iter().any(|it| it.eq_ignore_ascii_case(line));
        let stay = verified.split("\r\n").all(has);
        let cookies = request.fields.get("cookie").unwrap_or_default();
        assert!(
            stay && cookies.split("; ").any(|it| it == "a=b"),
            "{lines:?}"
        );
    }
}

/// One cookie and one list of a header, however they are written, are one key.
#[tokio::test]
async fn spellings_of_a_value_count_together() {
    let origin = Origin::hello();
    for (kind, name, values) in [
        (
            "Cookie",
            "u",
            &["u=q", "u=\"q\"", "u= q", "u =q", "a=b; u=q "][..],
        ),
        ("Header", "X-Tenant", &["a,b", "a\r\nX-Tenant: b"]),
    ] {
        let mut rule = per_hour("one", 1);
        rule["key"] = json!([{"type": kind, "name": name}]);
        let policy = limits("a", &gateway(), &json!([rule]), None);
        let objects = Objects::http().service("origin", &[origin.address]);
        let objects = objects.route("route", &[to("origin")]).with(policy);
        let scene = Scene::start(&objects);
        let header = if kind == "Cookie" { kind } else { name };
        let mut statuses = Vec::new();
        for value in values {
            let request = format!("GET / HTTP/1.1\r\nHost: a.com\r\n{header}: {value}\r\n\r\n");
            statuses.push(Client::connect(scene.at(80)).round_trip(request).status);
        }
        let over = statuses.iter().skip(1).all(|status| *status == 429);
        assert!(statuses[0] == 200 && over, "{kind}: {statuses:?}");
    }
}

/// Servers differ in which cookie of a name they take, so that a further one must not choose the key.
#[tokio::test]
async fn cookies_of_one_name_choose_no_key() {
    let origin = Origin::hello();
    let mut rule = per_hour("one", 1);
    rule["key"] = json!([{"type": "Cookie", "name": "u"}]);
    let policy = limits("a", &gateway(), &json!([rule]), None);
    let objects = Objects::http().service("origin", &[origin.address]);
    let objects = objects.route("route", &[to("origin")]).with(policy);
    let scene = Scene::start(&objects);
    let status = |cookies: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: a.com\r\n{cookies}\r\n\r\n");
        Client::connect(scene.at(80)).round_trip(request).status
    };
    assert_eq!(status("Cookie: u=q; u=q"), 200);
    assert_eq!(status("Cookie: u=q"), 429);
    assert_eq!(status("Cookie: u=1; u=q"), 200);
    for cookies in [
        "Cookie: u=2; u=q",
        "Cookie: u=q; u=3",
        "Cookie: u=4\r\nCookie: u=q",
        "Accept: */*",
    ] {
        assert_eq!(status(cookies), 429, "{cookies}");
    }
}
