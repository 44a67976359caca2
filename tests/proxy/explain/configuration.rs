//! A configuration with every kind of match, filter, backend and refusal, for requests whose explanation is compared with
//! what the proxy does.

use serde_json::{Value, json};

use crate::access_policy::{access, ip_rules};
use crate::credentials::keys;
use crate::grpc::grpc_route;
use crate::harness::tls::Certificate;
use crate::origin::Origin;
use crate::scene::{Objects, http, https, route, route_of, secret};

/// Value of every header that a filter sets or adds.
pub(super) const BY_FILTER: &str = "by-filter";

/// Names of Services whose endpoints are echoes.
pub(super) const ECHOES: [&str; 3] = ["stable", "canary", "spare"];

/// The routes with the number of their rules.
pub(super) const RULES: [(&str, usize); 9] = [
    ("HTTPRoute default/paths", 9),
    ("HTTPRoute default/changes", 11),
    ("HTTPRoute default/broken", 7),
    ("HTTPRoute default/denied", 1),
    ("HTTPRoute default/allowed", 1),
    ("HTTPRoute default/keyed", 2),
    ("HTTPRoute default/of-only", 1),
    ("GRPCRoute default/calls", 5),
    ("GRPCRoute default/denied-calls", 1),
];

fn backend(name: &str, weight: u32) -> Value {
    json!({"name": name, "port": 80, "weight": weight})
}

/// A rule with one match.
fn rule(condition: &Value, filters: &[Value], backends: &[Value]) -> Value {
    let mut rule = json!({"matches": [condition], "filters": filters});
    if !backends.is_empty() {
        rule["backendRefs"] = json!(backends);
    }
    rule
}

fn path(kind: &str, value: &str) -> Value {
    json!({"path": {"type": kind, "value": value}})
}

fn prefix(value: &str) -> Value {
    path("PathPrefix", value)
}

/// A match of a path prefix and what else is given.
fn narrowed(value: &str, others: &Value) -> Value {
    let mut condition = prefix(value);
    for (name, other) in others.as_object().into_iter().flatten() {
        condition[name] = other.clone();
    }
    condition
}

/// Rules of which several match one path.
fn paths() -> Vec<Value> {
    let to = |name: &str| [backend(name, 1)];
    let version = json!([{"name": "x-version", "value": "two"}]);
    let id = json!([{"name": "x-id", "type": "RegularExpression", "value": "[0-9]{2}"}]);
    let query = json!([{"name": "q", "value": "1"}]);
    let page = json!([{"name": "page", "type": "RegularExpression", "value": "[0-9]+"}]);
    let deep = json!({"method": "GET", "headers": version, "queryParams": query});
    let shares = [
        backend("stable", 3),
        backend("canary", 1),
        backend("spare", 0),
    ];
    let narrow = |others: &Value, name: &str| rule(&narrowed("/prefix", others), &[], &to(name));
    vec![
        rule(&path("Exact", "/exact"), &[], &to("stable")),
        rule(&prefix("/prefix"), &[], &shares),
        rule(
            &path("RegularExpression", "/item/[0-9]+"),
            &[],
            &to("canary"),
        ),
        narrow(&json!({"method": "POST"}), "canary"),
        narrow(&json!({"headers": version}), "canary"),
        narrow(&json!({"headers": id}), "stable"),
        narrow(&json!({"queryParams": query}), "canary"),
        narrow(&json!({"queryParams": page}), "stable"),
        rule(&narrowed("/prefix/deep", &deep), &[], &to("stable")),
    ]
}

fn filter_ref(name: &str) -> Value {
    let reference = json!({"group": "portcullis.dev", "kind": "RouteFilter", "name": name});
    json!({"type": "ExtensionRef", "extensionRef": reference})
}

fn route_filter(name: &str, spec: &Value) -> String {
    let filter = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "RouteFilter",
        "metadata": {"name": name}, "spec": spec,
    });
    filter.to_string()
}

fn request_headers(changes: &Value) -> Value {
    json!({"type": "RequestHeaderModifier", "requestHeaderModifier": changes})
}

/// Rules whose filters respond, or change what backends and clients get.
fn changes() -> Vec<Value> {
    let redirect = |path: &str, to: Value| {
        let filter = json!({"type": "RequestRedirect", "requestRedirect": to});
        rule(&prefix(path), &[filter], &[])
    };
    let forward =
        |path: &str, filters: &[Value]| rule(&prefix(path), filters, &[backend("stable", 1)]);
    let rewrite = |to: Value| json!({"type": "URLRewrite", "urlRewrite": to});
    let prefix_to = |to: &str| json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": to});
    let full = |to: &str| json!({"type": "ReplaceFullPath", "replaceFullPath": to});
    let header = |name: &str| json!([{"name": name, "value": BY_FILTER}]);
    let modifies = request_headers(
        &json!({"set": header("x-version"), "add": header("x-id"), "remove": ["x-secret"]}),
    );
    let responds = json!({"set": header("x-answer")});
    let responds = json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": responds});
    let (mut one, mut two) = (backend("stable", 1), backend("canary", 1));
    one["filters"] = json!([request_headers(&json!({"set": header("x-share")}))]);
    two["filters"] = json!([request_headers(&json!({"remove": ["x-secret"]}))]);
    vec![
        redirect(
            "/redirect/scheme",
            json!({"scheme": "https", "statusCode": 301}),
        ),
        redirect(
            "/redirect/host",
            json!({"hostname": "other.example.org", "port": 8443, "statusCode": 307}),
        ),
        redirect("/redirect/prefix", json!({"path": prefix_to("/moved")})),
        redirect(
            "/redirect/full",
            json!({"path": full("/all"), "statusCode": 308}),
        ),
        forward(
            "/rewrite/prefix",
            &[rewrite(json!({"path": prefix_to("/")}))],
        ),
        forward(
            "/rewrite/full",
            &[rewrite(
                json!({"hostname": "inside.example.org", "path": full("/fixed")}),
            )],
        ),
        forward("/rewrite/regex", &[filter_ref("swap")]),
        forward("/respond", &[filter_ref("respond")]),
        forward("/nothing", &[filter_ref("nothing")]),
        forward("/headers", &[modifies, responds]),
        rule(&prefix("/split"), &[], &[one, two]),
    ]
}

/// Rules without a backend that can be used, or with one that is not always.
fn broken() -> Vec<Value> {
    let shares = |path: &str, backends: &[Value]| rule(&prefix(path), &[], backends);
    vec![
        shares("/missing", &[backend("missing", 1)]),
        shares("/half", &[backend("stable", 1), backend("missing", 1)]),
        shares("/zero", &[backend("stable", 0), backend("spare", 0)]),
        shares("/empty", &[backend("empty", 1)]),
        shares("/none", &[]),
        shares("/partly", &[backend("empty", 1), backend("canary", 1)]),
        rule(
            &prefix("/filter"),
            &[filter_ref("missing")],
            &[backend("stable", 1)],
        ),
    ]
}

fn calls() -> Vec<Value> {
    let call = |condition: Value, name: &str| rule(&condition, &[], &[backend(name, 1)]);
    let service = |name: &str| json!({"method": {"service": name}});
    let mut versioned = service("shop.Cart");
    versioned["headers"] = json!([{"name": "x-version", "value": "two"}]);
    let pattern =
        json!({"type": "RegularExpression", "service": "shop\\.[A-M][a-z]*", "method": "List.*"});
    vec![
        call(
            json!({"method": {"service": "shop.Cart", "method": "Get"}}),
            "stable",
        ),
        call(versioned, "canary"),
        call(json!({"method": pattern}), "canary"),
        call(service("shop.Missing"), "missing"),
        call(service("shop.Empty"), "empty"),
    ]
}

fn listeners() -> Vec<String> {
    let mut listeners = vec![http("only", 81, "only.example.org")];
    for (name, hostname) in [
        ("any", ""),
        ("wild", "*.example.com"),
        ("shop", "shop.example.com"),
    ] {
        listeners.push(http(name, 80, hostname));
        if !hostname.is_empty() {
            let name = format!("{name}-tls");
            listeners.push(https(&name, 443, hostname, &["certificate"]));
        }
    }
    listeners
}

/// The objects; `echoes` are the endpoints of [`ECHOES`].
pub(super) fn objects(echoes: &[Origin]) -> Objects {
    let of_route = |kind: &str, name: &str| json!({"kind": kind, "name": name});
    let key = json!({"apiKey": {
        "secretRefs": [{"name": "keys"}],
        "from": [{"type": "Header", "name": "X-API-Key"}, {"type": "Query", "name": "key"}],
        "forwardClient": "X-Client",
    }});
    let (deny, allow) = (
        ip_rules(&[], &["127.0.0.0/8"]),
        ip_rules(&["127.0.0.0/8"], &["192.0.2.0/24"]),
    );
    let all = [rule(&prefix("/"), &[], &[backend("stable", 1)])];
    let keyed = [
        rule(&prefix("/"), &[], &[backend("canary", 1)]),
        rule(&prefix("/missing"), &[], &[backend("missing", 1)]),
    ];
    let call = [rule(&json!({}), &[], &[backend("stable", 1)])];
    let swap = json!({"pattern": "^/rewrite/regex/([^/]+)", "replacement": "/by/$1"});
    let respond = json!({"status": 451, "body": "no"});
    let documents = [
        secret("certificate", &Certificate::new(&["*.example.com"])),
        keys(),
        route("paths", &["shop.example.com"], &paths()),
        // A hostname that those of GRPCRoutes do not overlap.
        route("changes", &["*.web.example.com"], &changes()),
        route("broken", &["broken.example.com"], &broken()),
        route("denied", &["denied.example.com"], &all),
        route("allowed", &["allowed.example.com"], &all),
        route("keyed", &["keyed.example.com"], &keyed),
        route_of("only", &all),
        grpc_route("calls", &["calls.example.com"], &calls()),
        grpc_route("denied-calls", &["denied-calls.example.com"], &call),
        route_filter("swap", &json!({"regexRewrite": swap})),
        route_filter("respond", &json!({"directResponse": respond})),
        route_filter("nothing", &json!({"directResponse": {"status": 204}})),
        access("denied", &of_route("HTTPRoute", "denied"), &deny),
        access("allowed", &of_route("HTTPRoute", "allowed"), &allow),
        access("keyed", &of_route("HTTPRoute", "keyed"), &key),
        access(
            "denied-calls",
            &of_route("GRPCRoute", "denied-calls"),
            &deny,
        ),
    ];
    let services = ECHOES.into_iter().zip(echoes);
    let objects = services.fold(Objects::gateway(&listeners()), |objects, (name, echo)| {
        objects.service(name, &[echo.address])
    });
    let objects = objects.service("empty", &[]);
    documents.into_iter().fold(objects, Objects::with)
}
