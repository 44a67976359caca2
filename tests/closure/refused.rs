//! A closure contains nothing of routes and ListenerSets that the Gateway refuses.

use portcullis::translate::{Mode, Options, translate};
use serde_json::{Value, json};

use crate::contents::{
    Followed, class, gateway, http, https, namespace, object, route, secret, service,
};

fn external() -> Value {
    json!({"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "x"})
}

/// An XBackend with an Opaque Secret, and one with a certificate.
fn shop() -> [Value; 3] {
    let mut opaque = object("Secret", "shop", "db", Value::Null);
    opaque["data"] = json!({"tls.key": "aw=="});
    let spec = json!({
        "type": "ExternalHostname", "externalHostname": {"hostname": "x.example"}, "port": {"port": 443},
        "tls": {"mode": "ClientAndServer", "clientCertificateRef": {"name": "db"}},
    });
    [
        object("XBackend", "shop", "x", spec),
        opaque,
        service("shop", "app"),
    ]
}

fn without_objects(followed: &Followed) {
    let none: [&str; 0] = [];
    assert_eq!(followed.of("g"), none);
}

#[test]
fn closure_excludes_backends_that_cannot_forward_datagrams() {
    let all = json!({"namespaces": {"from": "All"}});
    let listener = |protocol: &str| json!([{"name": "l", "port": 80, "protocol": protocol, "allowedRoutes": all}]);
    let kind = |kind: &str| {
        let mut route = route("shop", "r", "g", external());
        route["kind"] = kind.into();
        route
    };
    let mut followed = Followed::new([class(), gateway("g", listener("UDP")), kind("UDPRoute")]);
    for object in shop() {
        followed.put(&object);
    }
    assert_eq!(followed.of("g"), ["UDPRoute shop/r"]);
    followed.put(&gateway("g", listener("TCP")));
    followed.put(&kind("TCPRoute"));
    assert_eq!(
        followed.of("g"),
        ["Secret shop/db", "TCPRoute shop/r", "XBackend shop/x"]
    );
}

#[test]
fn closure_excludes_routes_that_listeners_do_not_allow() {
    let own_only = gateway("g", json!([{"name": "l", "port": 80, "protocol": "HTTP"}]));
    let mut followed = Followed::new([class(), own_only, route("shop", "r", "g", external())]);
    for object in shop() {
        followed.put(&object);
    }
    without_objects(&followed);
    // The Gateway accepts it from now on.
    followed.put(&http("g"));
    assert_eq!(
        followed.of("g"),
        ["HTTPRoute shop/r", "Secret shop/db", "XBackend shop/x"]
    );
    followed.put(&gateway(
        "g",
        json!([{"name": "l", "port": 80, "protocol": "TCP"}]),
    ));
    without_objects(&followed);
}

#[test]
fn closure_excludes_routes_without_matching_listener_or_hostname() {
    let listener = json!([{
        "name": "l", "port": 80, "protocol": "HTTP", "hostname": "*.example.com",
        "allowedRoutes": {"namespaces": {"from": "All"}},
    }]);
    let mut refused = route("shop", "r", "g", external());
    let mut followed = Followed::new([class(), gateway("g", listener)]);
    for object in shop() {
        followed.put(&object);
    }
    for (field, value) in [
        ("sectionName", json!("other")),
        ("port", json!(81)),
        ("group", json!("x")),
    ] {
        let mut refused = refused.clone();
        refused["spec"]["parentRefs"][0][field] = value;
        assert!(followed.put(&refused).is_empty(), "{field}");
    }
    for hostname in ["shop.example.org", "-"] {
        refused["spec"]["hostnames"] = json!([hostname]);
        assert!(followed.put(&refused).is_empty(), "{hostname}");
    }
    refused["spec"]["hostnames"] = json!(["shop.example.com"]);
    assert_eq!(followed.put(&refused).len(), 1);
    assert_eq!(followed.of("g").len(), 3);
}

#[test]
fn closure_follows_the_namespaces_that_a_selector_allows() {
    let selector = json!({"from": "Selector", "selector": {"matchLabels": {"env": "x"}}});
    let listener = json!([{
        "name": "l", "port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": selector},
    }]);
    let mut followed = Followed::new([
        class(),
        gateway("g", listener),
        route("shop", "r", "g", json!({"name": "app", "port": 80})),
        service("shop", "app"),
        namespace("shop", "y"),
    ]);
    without_objects(&followed);
    let change = "g: +Namespace shop +Service shop/app +HTTPRoute shop/r";
    assert_eq!(followed.put(&namespace("shop", "x")), [change]);
    followed.put(&namespace("shop", "y"));
    without_objects(&followed);
}

#[test]
fn backends_of_a_route_without_usable_rules_are_not_in_the_closure() {
    let mut broken = route("shop", "r", "g", external());
    let filter = json!({"group": "example.com", "kind": "Nothing", "name": "n"});
    broken["spec"]["rules"][0]["filters"] =
        json!([{"type": "ExtensionRef", "extensionRef": filter}]);
    let mut followed = Followed::new([class(), http("g"), broken]);
    for object in shop() {
        followed.put(&object);
    }
    // The route itself is: its requests get 500.
    assert_eq!(followed.of("g"), ["HTTPRoute shop/r"]);
}

#[test]
fn closure_excludes_routes_whose_patterns_exceed_the_limit_of_their_namespace() {
    let patterns = |number: i64| {
        let mut route = route(
            "shop",
            &format!("r{number}"),
            "g",
            json!({"name": "app", "port": 80}),
        );
        route["metadata"]["creationTimestamp"] =
            json!(format!("2026-01-{:02}T00:00:00Z", 20 - number));
        let matches: Vec<_> = ["a", "b", "c", "d"]
            .iter()
            .map(|id| json!({"path": {"type": "RegularExpression", "value": format!("/{number}{id}\\w{{12}}")}}))
            .collect();
        route["spec"]["rules"][0]["matches"] = matches.into();
        route
    };
    let mut followed = Followed::new([class(), http("g"), service("shop", "app")]);
    for number in 0..10 {
        followed.put(&patterns(number));
    }
    // Each takes almost 1 MiB. The namespace has 8, and the older ones come first.
    let mut expected: Vec<_> = (2..10)
        .map(|number| format!("HTTPRoute shop/r{number}"))
        .collect();
    expected.push("Service shop/app".to_owned());
    assert_eq!(followed.of("g"), expected);
    let options = Options {
        mode: Mode::Dedicated,
        ..Options::default()
    };
    let whole = translate(followed.cluster(), None, &options);
    let alone = translate(followed.snapshot("g"), None, &options);
    assert_eq!(alone.ir, whole.ir);
    for (route, parents) in whole.report.routes.iter() {
        let accepted = &parents[0].conditions[0];
        let is_refused = ["r0", "r1"].contains(&&*route.name);
        assert_eq!(
            accepted.reason.to_string() == "PatternLimitExceeded",
            is_refused,
            "{accepted}"
        );
        assert_eq!(alone.report.routes.contains_key(route), !is_refused);
    }
    // A place that is free again goes to the oldest of the others.
    let change = "g: -HTTPRoute shop/r9 +HTTPRoute shop/r1";
    let mut changes = followed.delete(&patterns(9));
    changes.iter_mut().for_each(|it| *it = sorted(it));
    assert_eq!(changes, [sorted(change)]);
}

#[test]
fn closure_excludes_routes_that_lose_their_hostname_to_a_route_of_another_kind() {
    let aged = |mut route: Value, kind: &str, day: u8, hostname: &str| {
        route["kind"] = json!(kind);
        route["metadata"]["creationTimestamp"] = json!(format!("2026-01-0{day}T00:00:00Z"));
        route["spec"]["hostnames"] = json!([hostname]);
        route
    };
    let of_shop = route("shop", "r", "g", external());
    let of_shop = |day, hostname| aged(of_shop.clone(), "GRPCRoute", day, hostname);
    let of_web = |name, day, hostname| {
        let route = route("web", name, "g", json!({"name": "app", "port": 80}));
        aged(route, "HTTPRoute", day, hostname)
    };
    let mut followed = Followed::new([class(), http("g"), of_web("a", 2, "a.test")]);
    for object in shop() {
        followed.put(&object);
    }
    followed.put(&of_shop(3, "*.test"));
    assert_eq!(followed.of("g"), ["HTTPRoute web/a"]);
    // It blocks no younger one.
    followed.put(&of_web("b", 4, "b.test"));
    assert_eq!(followed.of("g"), ["HTTPRoute web/a", "HTTPRoute web/b"]);
    let options = Options {
        mode: Mode::Dedicated,
        ..Options::default()
    };
    let whole = translate(followed.cluster(), None, &options);
    let alone = translate(followed.snapshot("g"), None, &options);
    assert_eq!(alone.ir, whole.ir);
    // When the older one leaves the hostname, it takes the place of the younger one.
    let change = "g: -HTTPRoute web/b +GRPCRoute shop/r +XBackend shop/x +Secret shop/db";
    let changes = followed.put(&of_web("a", 2, "other"));
    assert_eq!(changes.len(), 1);
    assert_eq!(
        sorted(&changes[0]),
        sorted(&format!("{change} +HTTPRoute web/a"))
    );
}

/// Returns a shown change with its parts in order.
fn sorted(change: &str) -> String {
    let mut parts: Vec<_> = change.split([':', '+', '-']).map(str::trim).collect();
    parts.sort_unstable();
    parts.join(", ")
}

/// What a namespace that a Gateway does not admit writes reaches no pod.
#[test]
fn refused_listener_set_brings_nothing() {
    let parent = json!({"name": "g", "namespace": "infra"});
    let spec = json!({"parentRef": parent, "listeners": https("key", None)});
    let target =
        json!({"group": "gateway.networking.k8s.io", "kind": "ListenerSet", "name": "set"});
    let users = json!({"targetRefs": [target], "basic": {"secretRef": {"name": "users"}}});
    let mut followed = Followed::new([
        class(),
        http("g"),
        object("ListenerSet", "team", "set", spec),
        secret("team", "key"),
        secret("team", "users"),
        object("AccessPolicy", "team", "p", users),
    ]);
    assert_eq!(followed.of("g"), [""; 0]);
    let mut gateway = http("g");
    gateway["spec"]["allowedListeners"] = json!({"namespaces": {"from": "All"}});
    let all = followed.put(&gateway).join(" ");
    for name in [
        "ListenerSet team/set",
        "AccessPolicy team/p",
        "Secret team/users",
    ] {
        assert!(all.contains(&format!("+{name}")), "{all}");
    }
}
