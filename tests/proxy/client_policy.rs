//! ClientPolicies: where the addresses of clients come from, and the timeouts and limits of their connections.

use std::net::SocketAddr;

use http::Method;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::access_policy::{access, before, connect_from, gateway};
use crate::admin::metric;
use crate::client::{Answer, Client, connect, whole, write_text};
use crate::harness::TEST_TIMEOUT;
use crate::origin::{Origin, empty};
use crate::scene::{Objects, Scene, route, to};

/// A ClientPolicy on a target.
pub(crate) fn clients(name: &str, target: &Value, spec: &Value) -> String {
    access(name, target, spec).replace("AccessPolicy", "ClientPolicy")
}

/// A policy that permits one network of documentation.
fn documentation() -> String {
    let rules = json!({"ipRules": {"allow": ["192.0.2.0/24"]}});
    access("policy", &gateway(), &rules)
}

async fn ask(address: SocketAddr, fields: &[(&str, &str)]) -> Answer {
    Client::http1(address)
        .await
        .get_with("a.com", "/", fields)
        .await
}

/// The status of a request with several headers of one name.
async fn status(address: SocketAddr, name: &str, values: &[&str]) -> u16 {
    let fields: Vec<_> = values.iter().map(|value| (name, *value)).collect();
    ask(address, &fields).await.status
}

/// The client is 192.0.2.1, and 198.51.100.0/24 are addresses that others claim.
#[tokio::test]
async fn no_address_is_the_choice_of_the_client() {
    let origin = Origin::echo("origin").await;
    let list = |source: Value| json!({"clientIP": {"xForwardedFor": source}});
    let cidrs = list(json!({"trustedCIDRs": ["127.0.0.0/8"]}));
    let others = list(json!({"trustedCIDRs": ["10.0.0.0/8"]}));
    let (one, two) = (
        list(json!({"trustedHops": 1})),
        list(json!({"trustedHops": 2})),
    );
    for (name, source, values, expected) in [
        ("of a proxy", &cidrs, &["192.0.2.1"][..], 200),
        ("untrusted connection", &others, &["192.0.2.1"], 403),
        (
            "claim to the left",
            &cidrs,
            &["192.0.2.1, 198.51.100.1"],
            403,
        ),
        (
            "several headers",
            &cidrs,
            &["192.0.2.1", "198.51.100.1"],
            403,
        ),
        (
            "several headers of proxies",
            &cidrs,
            &["192.0.2.1", "127.0.0.9"],
            200,
        ),
        ("not an address", &cidrs, &["192.0.2.1, unknown"], 403),
        ("empty elements", &cidrs, &["192.0.2.1,, ,"], 200),
        (
            "IPv4-mapped",
            &cidrs,
            &["::ffff:192.0.2.1, ::ffff:127.0.0.9"],
            200,
        ),
        (
            "ports and brackets",
            &cidrs,
            &["[::ffff:192.0.2.1]:99, 127.0.0.9:1"],
            200,
        ),
        ("one hop", &one, &["198.51.100.1, 192.0.2.1"], 200),
        (
            "claim before the hop",
            &one,
            &["192.0.2.1, 198.51.100.1"],
            403,
        ),
        (
            "two hops",
            &two,
            &["198.51.100.1, 192.0.2.1", "198.51.100.2"],
            200,
        ),
        ("short chain", &two, &["192.0.2.1"], 403),
        ("short chain of empty elements", &two, &["192.0.2.1,,"], 403),
    ] {
        let policy = clients("clients", &gateway(), source);
        let scene = Scene::start(&before(&origin, &[documentation(), policy]));
        let found = status(scene.at(80), "x-forwarded-for", values).await;
        assert_eq!(found, expected, "{name}");
    }
}

#[tokio::test]
async fn header_counts_on_connections_of_proxies() {
    let origin = Origin::echo("origin").await;
    let from = |cidr: &str| {
        let header = json!({"name": "CF-Connecting-IP", "trustedCIDRs": [cidr]});
        clients(
            "clients",
            &gateway(),
            &json!({"clientIP": {"header": header}}),
        )
    };
    let trusted = before(&origin, &[documentation(), from("127.0.0.1")]);
    let mut scene = Scene::start(&trusted);
    let name = "cf-connecting-ip";
    for (values, expected) in [
        (&["192.0.2.1"][..], 200),
        (&["[::ffff:192.0.2.1]:80"], 200),
        (&["192.0.2.1", "192.0.2.1"], 403),
        (&["192.0.2.1, 192.0.2.2"], 403),
        (&[], 403),
    ] {
        let found = status(scene.at(80), name, values).await;
        assert_eq!(found, expected, "{values:?}");
    }
    let received = ask(scene.at(80), &[(name, "192.0.2.1")]).await.received();
    assert_eq!(
        received["headers"]["x-forwarded-for"],
        "192.0.2.1, 127.0.0.1"
    );
    // A backend does not see what others claim.
    scene.replace(&before(&origin, &[from("10.0.0.0/8")])).await;
    let received = ask(scene.at(80), &[(name, "192.0.2.1")]).await.received();
    assert_eq!(received["headers"][name], Value::Null);
    assert_eq!(received["headers"]["x-forwarded-for"], "127.0.0.1");
}

/// Some proxies forward the `Connection` of their clients.
#[tokio::test]
async fn client_does_not_remove_the_header_with_its_address() {
    let origin = Origin::echo("origin").await;
    let header = json!({"name": "CF-Connecting-IP", "trustedCIDRs": ["127.0.0.1"]});
    let policy = clients(
        "clients",
        &gateway(),
        &json!({"clientIP": {"header": header}}),
    );
    let deny = json!({"ipRules": {"deny": ["192.0.2.0/24"]}});
    let deny = access("policy", &gateway(), &deny);
    let scene = Scene::start(&before(&origin, &[deny, policy]));
    let sent = async |address: &str, connection: &str| {
        let fields = [
            ("cf-connecting-ip", address),
            ("x-other", "1"),
            ("connection", connection),
        ];
        ask(scene.at(80), &fields).await
    };
    for connection in [
        "keep-alive",
        "CF-Connecting-IP",
        "x-other, cf-connecting-ip",
    ] {
        let answer = sent("192.0.2.1", connection).await;
        assert_eq!(answer.status, 403, "{connection}");
    }
    let answer = sent("198.51.100.1", "X-Other, CF-Connecting-IP").await;
    let received = answer.received();
    assert_eq!(received["headers"]["cf-connecting-ip"], "198.51.100.1");
    assert_eq!(received["headers"]["x-other"], Value::Null);
}

#[tokio::test]
async fn forwarding_headers_of_a_short_chain_do_not_count() {
    let origin = Origin::echo("origin").await;
    let two = json!({"clientIP": {"xForwardedFor": {"trustedHops": 2}}});
    let policy = clients("clients", &gateway(), &two);
    let scene = Scene::start(&before(&origin, &[policy]));
    let proto = ("x-forwarded-proto", "https");
    for (list, chain, expected) in [
        ("192.0.2.1", "127.0.0.1", "http"),
        (
            "192.0.2.1, 198.51.100.1",
            "192.0.2.1, 198.51.100.1, 127.0.0.1",
            "https",
        ),
    ] {
        let answer = ask(scene.at(80), &[("x-forwarded-for", list), proto]).await;
        let headers = &answer.received()["headers"];
        assert_eq!(headers["x-forwarded-for"], chain);
        assert_eq!(headers["x-forwarded-proto"], expected);
    }
}

/// A policy supersedes the trusted proxies of the process, in its scope alone.
#[tokio::test]
async fn policy_of_a_listener_leaves_its_neighbours_alone() {
    let origin = Origin::echo("origin").await;
    let listeners = ["one", "two"]
        .map(|name| format!("{{name: {name}, port: 80, protocol: HTTP, hostname: {name}.com}}"));
    let one = json!({"kind": "Gateway", "name": "gateway", "sectionName": "one"});
    let objects = Objects::gateway(&listeners)
        .service("origin", &[origin.address])
        .with(route("route", &["one.com", "two.com"], &[to("origin")]))
        .with(documentation())
        .with(clients("clients", &one, &json!({"clientIP": {}})));
    let scene = Scene::with(&objects, |settings| {
        settings.trusted_proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    });
    let mut client = Client::http1(scene.at(80)).await;
    for (host, expected) in [("two.com", 200), ("one.com", 403), ("two.com", 200)] {
        let claim = [("x-forwarded-for", "192.0.2.1")];
        let answer = client.get_with(host, "/", &claim).await;
        assert_eq!(answer.status, expected, "{host}");
    }
}

/// A policy that the API server would refuse fails closed only where addresses decide.
#[tokio::test]
async fn broken_source_of_addresses_refuses_what_depends_on_them() {
    let origin = Origin::echo("origin").await;
    let admin = json!({"kind": "HTTPRoute", "name": "route", "sectionName": "admin"});
    let rules = json!({"ipRules": {"allow": ["127.0.0.0/8"]}});
    let broken = json!({"clientIP": {"xForwardedFor": {"trustedCIDRs": ["10.0.0.0/99"]}}});
    let policies = [
        access("policy", &admin, &rules),
        clients("clients", &gateway(), &broken),
    ];
    let mut scene = Scene::start(&before(&origin, &policies));
    let mut client = Client::http1(scene.at(80)).await;
    assert_eq!(client.get("a.com", "/").await.status, 200);
    assert_eq!(client.get("a.com", "/admin").await.status, 500);
    scene.replace(&before(&origin, &policies[..1])).await;
    assert_eq!(client.get("a.com", "/admin").await.status, 200);
}

/// Whoever locks what depends on addresses locks where they come from.
#[tokio::test]
async fn listener_cannot_escape_locked_ip_rules() {
    let origin = Origin::echo("origin").await;
    let one = json!({"kind": "Gateway", "name": "gateway", "sectionName": "http"});
    let hops = json!({"clientIP": {"xForwardedFor": {"trustedHops": 1}}});
    let rules = |strategy: &str| {
        let rules = json!({"ipRules": {"allow": ["192.0.2.0/24"]}, "strategy": strategy});
        access("policy", &gateway(), &rules)
    };
    for (strategy, expected) in [("Defaults", 200), ("Overrides", 403)] {
        let policies = [rules(strategy), clients("clients", &one, &hops)];
        let scene = Scene::start(&before(&origin, &policies));
        let found = status(scene.at(80), "x-forwarded-for", &["192.0.2.1"]).await;
        assert_eq!(found, expected, "{strategy}");
    }
}

#[tokio::test]
async fn timeouts_and_limits_are_those_of_the_policy() {
    let origin = Origin::echo("origin").await;
    let spec = json!({
        "timeouts": {"header": "1s", "idle": "1h"},
        "headers": {"maxCount": 5},
    });
    let policy = clients("clients", &gateway(), &spec);
    let mut scene = Scene::start(&before(&origin, &[policy]));
    let address = scene.at(80);
    let mut late = connect(address).await;
    write_text(&mut late, "GET / HT").await;
    let mut rest = Vec::new();
    // The default is an hour.
    let closed = timeout(TEST_TIMEOUT, late.read_to_end(&mut rest)).await;
    closed.expect("in time").expect("closed");
    let many: Vec<_> = ["a", "b", "c", "d", "e", "f"]
        .map(|name| (name, "1"))
        .into();
    assert_eq!(ask(address, &many).await.status, 431);
    assert_eq!(ask(address, &many[..1]).await.status, 200);
    scene.replace(&before(&origin, &[])).await;
    assert_eq!(ask(address, &many).await.status, 200);
}

#[tokio::test]
async fn limits_by_address_count_the_client_behind_a_proxy() {
    let origin = Origin::echo("origin").await;
    let rules = json!({"rules": [{
        "name": "one", "key": [{"type": "ClientIP"}], "limit": {"requests": 1, "per": "Day"},
    }]});
    let limit = access("limit", &gateway(), &rules).replace("AccessPolicy", "RateLimitPolicy");
    let one = json!({"clientIP": {"xForwardedFor": {"trustedHops": 1}}});
    let policies = [limit, clients("clients", &gateway(), &one)];
    let scene = Scene::start(&before(&origin, &policies));
    for (list, expected) in [
        ("192.0.2.1", 200),
        ("192.0.2.2", 200),
        ("198.51.100.7, 192.0.2.1", 429),
    ] {
        let found = status(scene.at(80), "x-forwarded-for", &[list]).await;
        assert_eq!(found, expected, "{list}");
    }
}

/// Waits until a new connection gets a response: the end of another one is counted a moment later.
async fn until_served(address: SocketAddr) -> Client {
    let served = async {
        loop {
            if let Some(client) = served(connect(address).await).await {
                return client;
            }
        }
    };
    timeout(TEST_TIMEOUT, served).await.expect("in time")
}

/// Returns the client of a connection that gets a response.
async fn served(stream: TcpStream) -> Option<Client> {
    let mut client = Client::http1_on(stream).await;
    let request = client.request(Method::GET, "a.com", "/");
    let sent = client.send(request.body(empty()).expect("a request")).await;
    let response = sent.ok()?;
    assert_eq!(whole(response).await.status, 200);
    Some(client)
}

#[tokio::test]
async fn connections_over_the_limits_are_closed() {
    let origin = Origin::echo("origin").await;
    let limits = |limits: Value| {
        let policy = clients("clients", &gateway(), &json!({"connections": limits}));
        before(&origin, &[policy])
    };
    let mut scene = Scene::start(&limits(json!({"max": 2})));
    let address = scene.at(80);
    let (first, second) = (until_served(address).await, until_served(address).await);
    assert!(served(connect(address).await).await.is_none(), "the third");
    drop(first);
    let third = until_served(address).await;
    drop((second, third));
    // Another limit of the same port.
    scene.replace(&limits(json!({"maxPerClient": 1}))).await;
    let first = until_served(address).await;
    assert!(
        served(connect(address).await).await.is_none(),
        "of one client"
    );
    let other = connect_from([127, 0, 0, 2], address).await;
    assert!(served(other.expect("connected")).await.is_some());
    let denied = metric(&scene, r#"connections_denied_total{reason="limit"}"#).await;
    assert!(denied >= 2.0, "{denied}");
    scene.replace(&before(&origin, &[])).await;
    assert!(served(connect(address).await).await.is_some());
    drop(first);
}

#[tokio::test]
async fn connection_ends_after_its_last_request() {
    let origin = Origin::echo("origin").await;
    let spec = json!({"connections": {"maxRequests": 2}});
    let scene = Scene::start(&before(&origin, &[clients("clients", &gateway(), &spec)]));
    let mut one = Client::http1(scene.at(80)).await;
    assert_eq!(one.get("a.com", "/").await.header("connection"), "");
    assert_eq!(one.get("a.com", "/").await.header("connection"), "close");
    one.ended().await;
    let mut two = Client::http2(scene.at(80)).await;
    assert_eq!(two.get("a.com", "/").await.status, 200);
    assert_eq!(two.get("a.com", "/").await.status, 200);
    two.ended().await;
}
