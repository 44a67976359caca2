//! Routes with policies of every kind that protects, on every level, at random.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::dice::Dice;
use crate::access_policy::{access, gateway};
use crate::client_policy::clients;
use crate::credentials::{BCRYPT, api_key, basic, keys, users};
use crate::harness::origin::Origin;
use crate::harness::tls::Certificate;
use crate::issuer::jwt;
use crate::mirror::mirror;
use crate::rate_limit_policy::limits;
use crate::route_policy::policy as defaults;
use crate::scene::{Objects, http, https, route, secret};

pub(super) const HOSTS: [&str; 2] = ["a.example.com", "b.example.com"];
pub(super) const METHODS: [&str; 3] = ["GET", "POST", "DELETE"];
/// More than the requests of a configuration. It is for a day, so that none of them is free again during the test.
const LIMIT: u32 = 100;

/// Which paths a listener takes for the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct SamePaths {
    pub(super) with_more_slashes: bool,
    pub(super) with_dot_segments: bool,
}

/// Where requests go.
pub(super) struct Origins {
    pub(super) backend: Origin,
    pub(super) mirror: Origin,
    /// An authorization server that permits everything.
    pub(super) server: Origin,
}

impl Origins {
    pub(super) fn new() -> Self {
        Self {
            backend: Origin::hello(),
            mirror: Origin::hello(),
            server: Origin::hello(),
        }
    }
}

pub(super) struct Configuration {
    pub(super) objects: Objects,
    /// The rules whose requests are mirrored, as responses tell them.
    pub(super) mirrored: BTreeSet<String>,
    /// On the port of HTTP, and on that of HTTPS.
    pub(super) same_paths: [SamePaths; 2],
}

impl Configuration {
    /// `key` verifies tokens. `more` decides about other carriers, so that `dice` decides about the rest as without them.
    pub(super) fn new([dice, more]: [&mut Dice; 2], origins: &Origins, key: &Value) -> Self {
        let listeners = [
            http("plain", 80, ""),
            https("tls", 443, "", &["certificate"]),
        ];
        let names: Vec<_> = (0..1 + dice.below(4))
            .map(|n| format!("rule-{n}"))
            .collect();
        let mut own: Vec<_> = names.iter().map(|name| rule(dice, "route", name)).collect();
        if dice.chance(80) {
            own.push(rest("route"));
        }
        let mut other = [rule(dice, "other", "rule-0"), rest("other")];
        let all = own.iter_mut().chain(&mut other);
        let mirrored = all.filter_map(|rule| more.chance(20).then(|| mirror_rule(rule)));
        let mirrored = mirrored.collect();
        let objects = Objects::gateway(&listeners)
            .with(secret("certificate", &Certificate::new(&HOSTS)))
            .service("origin", &[origins.backend.address])
            .service("mirror", &[origins.mirror.address])
            .service("server", &[origins.server.address])
            .with(route("route", &[], &own))
            .with(route("other", &HOSTS[1..], &other))
            .with(users(&[("alice", BCRYPT)]))
            .with(keys());
        let mut policies = Vec::new();
        for (number, target) in targets(&names).iter().enumerate() {
            if dice.chance(30) {
                let mut spec = access_spec(dice, key);
                let is_asked = more.chance(60);
                let has = |name: &str| spec.get(name).is_some();
                if is_asked && !["basic", "apiKey", "jwt"].into_iter().any(has) {
                    spec["external"] = json!({
                        "protocol": "HTTP", "backendRef": {"name": "server", "port": 80},
                        "http": {"allowedHeaders": ["X-Team", "X-Env", "Cookie"]},
                    });
                }
                policies.push(access(&format!("access-{number}"), target, &spec));
            }
            if dice.chance(25) {
                let rules: Vec<_> = (0..1 + dice.below(2)).map(|n| limit(dice, n)).collect();
                let response = json!({"headers": "Draft"});
                let name = format!("limits-{number}");
                policies.push(limits(&name, target, &rules.into(), Some(response)));
            }
            if dice.chance(12) {
                let changes = json!({"set": [{"name": "X-Env", "value": "by-policy"}], "remove": ["X-Debug"]});
                let spec = json!({"requestHeaders": changes, "requestBody": {"maxSize": "1Ki"}});
                policies.push(defaults(&format!("defaults-{number}"), target, &spec));
            }
        }
        let mut of_clients = [
            client_spec(dice, 60),
            client_spec(dice, 30),
            client_spec(dice, 30),
        ];
        for spec in of_clients.iter_mut().flatten() {
            if let Some(source) = spec.pointer_mut("/clientIP/xForwardedFor")
                && more.chance(50)
            {
                *source = json!({"trustedHops": 1 + more.below(2)});
            }
        }
        let [above, plain, tls] = &of_clients;
        let same_paths = [plain, tls].map(|own| same_paths(own, above));
        let places = [gateway(), listener("plain"), listener("tls")];
        for ((number, spec), target) in of_clients.iter().enumerate().zip(&places) {
            if let Some(spec) = spec {
                policies.push(clients(&format!("clients-{number}"), target, spec));
            }
        }
        Self {
            objects: policies.into_iter().fold(objects, Objects::with),
            mirrored,
            same_paths,
        }
    }
}

fn listener(name: &str) -> Value {
    json!({"kind": "Gateway", "name": "gateway", "sectionName": name})
}

/// From general to specific.
fn targets(rules: &[String]) -> Vec<Value> {
    let of_route = |name: &str| json!({"kind": "HTTPRoute", "name": name});
    let mut targets = vec![gateway(), listener("plain"), listener("tls")];
    targets.extend(["route", "other"].map(of_route));
    targets.extend(rules.iter().map(|rule| {
        let mut target = of_route("route");
        target["sectionName"] = json!(rule);
        target
    }));
    targets
}

/// A filter that tells which rule it was.
fn named(route: &str, rule: &str) -> Value {
    let set = json!({"set": [{"name": "x-rule", "value": format!("{route} {rule}")}]});
    json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": set})
}

/// Adds a mirror to a rule. Returns the name of the rule, as the response tells it.
fn mirror_rule(rule: &mut Value) -> String {
    let filters = rule["filters"].as_array_mut().expect("filters");
    filters.push(mirror("mirror"));
    let name = &filters[0]["responseHeaderModifier"]["set"][0]["value"];
    name.as_str().expect("a name").to_owned()
}

fn rest(route: &str) -> Value {
    json!({"name": "rest", "filters": [named(route, "rest")], "backendRefs": [{"name": "origin", "port": 80}]})
}

fn path_condition(dice: &mut Dice) -> Value {
    match dice.one(&["Exact", "PathPrefix", "PathPrefix", "RegularExpression"]) {
        "RegularExpression" => json!({"type": "RegularExpression", "value": "/adm[i]n(/.*)?"}),
        kind => json!({"type": kind, "value": dice.path()}),
    }
}

fn header_condition(dice: &mut Dice, name: &str) -> Value {
    json!([{"name": name, "value": dice.one(&["red", "blue", "red,green", "red, green"])}])
}

fn rule(dice: &mut Dice, route: &str, name: &str) -> Value {
    let path = path_condition(dice);
    let mut filters = vec![named(route, name)];
    if path["type"] == "PathPrefix" && dice.chance(20) {
        let to = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/x"});
        filters.push(json!({"type": "URLRewrite", "urlRewrite": {"path": to}}));
    }
    if dice.chance(15) {
        let changes = json!({"set": [{"name": "X-Tenant", "value": "by-filter"}]});
        filters.push(json!({"type": "RequestHeaderModifier", "requestHeaderModifier": changes}));
    }
    let mut condition = json!({"path": path});
    if dice.chance(25) {
        condition["headers"] = header_condition(dice, "X-Env");
    }
    if dice.chance(15) {
        condition["method"] = json!(dice.one(&METHODS));
    }
    if dice.chance(15) {
        condition["queryParams"] = json!([{"name": "q", "value": "one"}]);
    }
    let mut rule = rest(route);
    rule["name"] = json!(name);
    rule["matches"] = json!([condition]);
    rule["filters"] = filters.into();
    rule
}

fn access_spec(dice: &mut Dice, key: &Value) -> Value {
    let mut spec = json!({});
    if dice.chance(30) {
        spec["ipRules"] = match dice.below(3) {
            0 => json!({"deny": ["192.0.2.0/24"]}),
            1 => json!({"deny": ["198.51.100.0/24"]}),
            _ => json!({"allow": ["127.0.0.0/8", "192.0.2.7/32"]}),
        };
    }
    let methods = match dice.below(8) {
        0 => vec![basic()],
        1 => vec![api_key()],
        2 => vec![jwt(std::slice::from_ref(key))],
        3 => vec![basic(), api_key()],
        4 => vec![jwt(std::slice::from_ref(key)), api_key()],
        5 => vec![jwt(std::slice::from_ref(key)), basic()],
        _ => Vec::new(),
    };
    if methods.len() > 1 {
        spec["require"] = json!("Any");
    }
    for method in methods {
        for (name, section) in method.as_object().expect("a section") {
            spec[name] = section.clone();
        }
    }
    if spec.get("apiKey").is_some() && dice.chance(30) {
        spec["apiKey"]["keep"] = json!(true);
    }
    if dice.chance(50) || spec.as_object().is_some_and(|it| it.is_empty()) {
        let rules = (0..1 + dice.below(3)).map(|number| decision(dice, &spec, number));
        let rules: Vec<_> = rules.collect();
        let default = dice.one(&["Allow", "Allow", "Deny"]);
        spec["authorization"] = json!({"rules": rules, "default": default});
    }
    spec
}

/// A rule of an authorization, which may ask for what the other sections establish.
fn decision(dice: &mut Dice, spec: &Value, number: usize) -> Value {
    let has = |name: &str| spec.get(name).is_some();
    let mut condition = json!({});
    if dice.chance(60) {
        condition["paths"] = json!([path_condition(dice)]);
    }
    if dice.chance(30) {
        condition["headers"] = header_condition(dice, "X-Team");
    }
    if dice.chance(15) {
        condition["methods"] = json!([dice.one(&METHODS)]);
    }
    if dice.chance(15) {
        condition["cidrs"] = json!(["192.0.2.0/24"]);
    }
    if (has("basic") || has("apiKey")) && dice.chance(30) {
        condition["clients"] = json!([dice.one(&["alice", "shop"])]);
    }
    if has("jwt") && dice.chance(30) {
        condition["claims"] = json!([{"name": "groups", "values": ["staff"]}]);
    }
    let action = dice.one(&["Allow", "Deny", "Deny"]);
    let mut rule = json!({"name": format!("rule-{number}"), "action": action});
    if condition.as_object().is_some_and(|it| !it.is_empty()) {
        rule["match"] = condition;
    }
    rule
}

fn limit(dice: &mut Dice, number: usize) -> Value {
    let limit = json!({"requests": LIMIT, "per": "Day"});
    let mut rule = json!({"name": format!("limit-{number}"), "limit": limit});
    rule["key"] = match dice.below(6) {
        0 | 1 => json!([{"type": "Cookie", "name": "u"}]),
        2 => json!([{"type": "Header", "name": "X-Tenant"}]),
        3 => json!([{"type": "ClientIP"}]),
        4 => json!([{"type": "Hostname"}, {"type": "Header", "name": "X-Tenant"}]),
        _ => json!([{"type": "Client"}]),
    };
    if dice.chance(50) {
        rule["match"] = json!({"path": path_condition(dice)});
    }
    if dice.chance(20) {
        rule["match"]["headers"] = header_condition(dice, "X-Team");
    }
    rule
}

fn client_spec(dice: &mut Dice, percent: u32) -> Option<Value> {
    if !dice.chance(percent) {
        return None;
    }
    let mut spec = json!({});
    if dice.chance(60) {
        let mut path = json!({});
        match dice.below(3) {
            0 => path["mergeSlashes"] = json!(true),
            1 => path["mergeSlashes"] = json!(false),
            _ => {}
        }
        if dice.chance(50) {
            path["dotSegments"] = json!("Normalize");
        }
        if dice.chance(50) {
            path["escapedSlashes"] = json!(dice.one(&["Reject", "Decode"]));
        }
        spec["path"] = path;
    }
    let trusted = json!(["127.0.0.0/8"]);
    match dice.below(3) {
        0 => {
            spec["clientIP"] =
                json!({"header": {"name": "X-Client-Address", "trustedCIDRs": trusted}})
        }
        1 => spec["clientIP"] = json!({"xForwardedFor": {"trustedCIDRs": trusted}}),
        _ => {}
    }
    let is_empty = spec.as_object().is_some_and(|it| it.is_empty());
    (!is_empty).then_some(spec)
}

/// The section `path` of the policy on a listener, or else of that on its Gateway.
fn same_paths(own: &Option<Value>, above: &Option<Value>) -> SamePaths {
    let section = |spec: &Option<Value>| spec.as_ref()?.get("path").cloned();
    let path = section(own).or_else(|| section(above)).unwrap_or_default();
    SamePaths {
        with_more_slashes: path["mergeSlashes"] != false,
        with_dot_segments: path["dotSegments"] == "Normalize",
    }
}
