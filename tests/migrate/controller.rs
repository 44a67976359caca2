//! Restrictions of the ConfigMap of the controller, which never open either.

use std::collections::BTreeMap;

use portcullis::migrate::{Migration, Outcome, Settings};
use serde_json::{Value, json};

use crate::hostile::{ROOT, annotation, ingress, is_closed};
use crate::{migrated, name, settings};

/// An `http-snippet` that only gives values to variables, counts and logs.
const COUNTING: &str = "
map $http_x_forwarded_proto $scheme_of_client { default $scheme; ~*^https$ https; }
geo $remote_addr $is_office { default 0; 10.0.0.0/8 1; }
limit_req_zone $binary_remote_addr zone=slow:10m rate=1r/s;
limit_conn_zone $binary_remote_addr zone=few:10m;
log_format short '$remote_addr \"$request\"';
proxy_cache_path /tmp/cache keys_zone=cache:10m;
upstream pages { server 10.0.0.1:8080; keepalive 16; }
lua_shared_dict counts 1m;
";

/// Returns the ConfigMap of the controller with this data.
pub(crate) fn controller(data: &[(&str, &str)]) -> String {
    let data: BTreeMap<_, _> = data.iter().copied().collect();
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: controller, namespace: ingress-nginx}}\ndata: {}\n",
        json!(data)
    )
}

/// Keys and values of the ConfigMap of ingress-nginx.
pub(crate) type Data<'a> = &'a [(&'a str, &'a str)];

/// Returns an Ingress and the ConfigMap of the controller with this data.
pub(crate) fn with_controller(annotations: &str, data: &[(&str, &str)]) -> String {
    format!("{}---\n{}", ingress(annotations, ROOT), controller(data))
}

/// Settings that name this ConfigMap.
pub(crate) fn controller_settings() -> Settings {
    Settings {
        controller_config: Some(name("ingress-nginx/controller")),
        ..settings()
    }
}

#[test]
fn addresses_that_the_controller_blocks_are_denied() {
    let data = [
        ("denylist-source-range", "198.51.100.0/24"),
        ("block-cidrs", "192.0.2.0/24, 203.0.113.7"),
    ];
    let text = with_controller("{}", &data);
    let migration = migrated(&text, &controller_settings());
    let denied = json!(["198.51.100.0/24", "192.0.2.0/24", "203.0.113.7"]);
    let mut objects = migration.output.objects();
    assert!(objects.any(|object| object["spec"]["ipRules"]["deny"] == denied));
    assert!(!migration.report.needs_hand());
}

#[test]
fn restrictions_of_the_controller_close_all_routes() {
    let of_own = annotation("auth-url", "http://auth.login.svc/verify");
    let off = annotation("enable-global-auth", "false");
    let settings = controller_settings();
    for (key, value, annotations, expected) in [
        ("global-auth-url", "http://auth.login.svc/", "{}", true),
        ("global-auth-url", "http://auth.login.svc/", &*of_own, false),
        ("global-auth-url", "http://auth.login.svc/", &*off, false),
        ("location-snippet", "deny 192.0.2.0/24;", "{}", true),
        (
            "location-snippet",
            "more_set_headers 'X-A: b';",
            "{}",
            false,
        ),
        ("block-cidrs", "192.0.2.0/24, office", "{}", true),
        ("block-user-agents", "curl/8.0, ~*(bot|spider)", "{}", true),
        ("block-referers", "~*spam\\.example", "{}", true),
        ("block-referers", ", ", "{}", false),
        (
            "http-snippet",
            "server { listen 80 default_server; return 444; }",
            "{}",
            true,
        ),
        ("http-snippet", "deny 192.0.2.0/24;", "{}", true),
        ("http-snippet", "keepalive_timeout 65s;", "{}", false),
        ("http-snippet", COUNTING, "{}", false),
        ("http-snippet", "limit_req zone=slow;", "{}", true),
        ("http-snippet", "auth_basic users;", "{}", true),
        ("http-snippet", "modsecurity on;", "{}", true),
        (
            "http-snippet",
            "map $a $b { default 1; } deny all;",
            "{}",
            true,
        ),
        ("http-snippet", "include /etc/nginx/own.conf;", "{}", true),
    ] {
        let text = with_controller(annotations, &[(key, value)]);
        let migration = migrated(&text, &settings);
        assert_eq!(
            is_closed(&migration, "web"),
            expected,
            "{key} {annotations}"
        );
        assert!(migration.report.needs_hand(), "{key} {annotations}");
    }
}

#[test]
fn addresses_that_are_not_those_of_connections_close_lists_of_addresses() {
    let range = annotation("whitelist-source-range", "10.0.0.0/8");
    let real = "set_real_ip_from 10.0.0.0/8;";
    let forwarded = ("use-forwarded-headers", "true");
    let trusted = ("proxy-real-ip-cidr", "10.0.0.0/8");
    let header = ("forwarded-for-header", "X-Client-IP");
    let cases: [(&[(&str, &str)], bool); 8] = [
        (&[], false),
        (&[forwarded], true),
        (&[forwarded, trusted], false),
        (&[forwarded, trusted, header], true),
        (&[header], false),
        (&[("use-proxy-protocol", "true")], true),
        (&[("enable-real-ip", "true")], true),
        (&[("server-snippet", real)], true),
    ];
    for (data, expected) in cases {
        for (annotations, has_list) in [("{}", false), (range.as_str(), true)] {
            let text = with_controller(annotations, data);
            let migration = migrated(&text, &controller_settings());
            let is_closed = is_closed(&migration, "web");
            assert_eq!(is_closed, expected && has_list, "{data:?} {annotations}");
            assert_eq!(migration.report.faults, Vec::<String>::new(), "{data:?}");
        }
    }
}

/// Returns the values of the path matches of the HTTPRoute of an Ingress.
pub(crate) fn paths(migration: &Migration, name: &str) -> Vec<String> {
    let of_route =
        |object: &&Value| object["kind"] == "HTTPRoute" && object["metadata"]["name"] == name;
    let rules = migration.output.objects().filter(of_route);
    let rules = rules.filter_map(|route| route["spec"]["rules"].as_array());
    let matches = rules
        .flatten()
        .filter_map(|rule| rule["matches"].as_array());
    let values = matches.flatten().map(|it| &it["path"]["value"]);
    values
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

#[test]
fn no_spelling_of_a_path_evades_the_authorization_server_of_the_controller() {
    let path = ROOT.replace(
        "path: /, pathType: Prefix",
        "path: /admin, pathType: ImplementationSpecific",
    );
    let guarded = ingress("{}", &path);
    let open = ingress(&annotation("enable-global-auth", "false"), ROOT);
    let open = open.replace("name: web\n", "name: open\n");
    for (data, expected) in [
        (&[("global-auth-url", "http://auth.login.svc/")][..], true),
        (&[][..], false),
    ] {
        let text = [controller(data), guarded.clone(), open.clone()].join("---\n");
        let migration = migrated(&text, &controller_settings());
        assert_eq!(migration.report.faults, Vec::<String>::new());
        assert_eq!(is_closed(&migration, "web"), expected);
        assert!(!is_closed(&migration, "open"));
        for name in ["web", "open"] {
            let refused = paths(&migration, name);
            let mut refused = refused.iter();
            let is_refused = refused.any(|path| path.contains("%(?:2F)"));
            assert_eq!(is_refused, expected, "escaped slashes of {name}");
        }
        let path = match expected {
            true => "/admin(.*)?",
            false => "/admin",
        };
        assert!(paths(&migration, "web").iter().any(|it| it == path));
    }
}

#[test]
fn headers_that_the_controller_replaces_are_not_those_of_clients() {
    for (value, expected) in [
        (
            "proxy_set_header X-User $remote_user;",
            json!({"remove": ["X-User"]}),
        ),
        ("proxy_set_header X-User '';", json!({"remove": ["X-User"]})),
        (
            "proxy_set_header X-User nobody;",
            json!({"set": [{"name": "X-User", "value": "nobody"}]}),
        ),
    ] {
        let text = with_controller("{}", &[("location-snippet", value)]);
        let migration = migrated(&text, &controller_settings());
        let mut objects = migration.output.objects();
        let route = objects
            .find(|object| object["kind"] == "HTTPRoute")
            .unwrap();
        let filter = &route["spec"]["rules"][0]["filters"][0];
        assert_eq!(filter["requestHeaderModifier"], expected, "{value}");
        assert!(migration.report.needs_hand(), "{value}");
        assert_eq!(migration.report.faults, Vec::<String>::new(), "{value}");
    }
}

#[test]
fn paths_that_the_controller_does_not_redirect_are_served_without_tls() {
    let challenge = "/.well-known/acme-challenge/";
    let key = "no-tls-redirect-locations";
    let cases: [(Data<'_>, &str, bool); 5] = [
        (&[], challenge, true),
        (&[], "/health", false),
        (&[(key, "/ready, /health")], "/health/live", true),
        (&[(key, "/health")], challenge, false),
        (&[(key, "")], challenge, false),
    ];
    for (data, path, expected) in cases {
        let path = ROOT.replace("path: /,", &format!("path: {path},"));
        let tls = "  tls:\n  - {hosts: [a.example.com], secretName: a}\n";
        let text = format!("{}{tls}---\n{}", ingress("{}", &path), controller(data));
        let migration = migrated(&text, &controller_settings());
        let mut objects = migration.output.objects();
        let route = objects.find(|it| it["kind"] == "HTTPRoute" && it["metadata"]["name"] == "web");
        let mut parents = route.unwrap()["spec"]["parentRefs"]
            .as_array()
            .unwrap()
            .iter();
        let is_plain = parents.any(|parent| parent["sectionName"] == "http");
        assert_eq!(is_plain, expected, "{data:?} {path}");
        assert!(!migration.report.needs_hand(), "{data:?} {path}");
    }
}

#[test]
fn redirects_that_do_not_look_at_the_scheme_of_a_proxy_are_said() {
    let data = [
        ("use-forwarded-headers", "true"),
        ("proxy-real-ip-cidr", "10.0.0.0/8"),
    ];
    let migration = migrated(&with_controller("{}", &data), &controller_settings());
    let mut lines = migration.report.lines.iter();
    let is_said = lines.any(|line| {
        line.setting == "use-forwarded-headers" && line.outcome == Outcome::ChangedMeaning
    });
    assert!(is_said);
}
