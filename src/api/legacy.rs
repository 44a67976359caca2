//! Shapes of proposals and earlier releases that the released API has replaced. Each is an error that shows the
//! released shape. Must not know the rules of the released shapes.

mod convert;

#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use super::object::Kind;
use super::violation::Violation;
use crate::ir::object_ref::{GATEWAY_GROUP, group_and_version};

/// Former and present groups of the Gateway API.
const PAST_GROUPS: [&str; 3] = [
    "networking.x-k8s.io",
    "gateway.networking.x-k8s.io",
    GATEWAY_GROUP,
];

/// Renamed kinds, with their present names.
const RENAMED: [(&str, &str); 2] = [
    ("ReferencePolicy", "ReferenceGrant"),
    ("BackendPolicy", "BackendTLSPolicy"),
];

/// Maximum length of the snippet in a message.
const MAX_SNIPPET: usize = 4000;

/// Returns findings on an object of a former kind or version; none if it never was one.
pub(super) fn kind(api_version: &str, kind: &str, value: &Map<String, Value>) -> Vec<Violation> {
    let (group, _) = group_and_version(api_version);
    if !PAST_GROUPS.contains(&group) {
        return Vec::new();
    }
    let today = RENAMED
        .iter()
        .find(|(past, _)| *past == kind)
        .map_or(kind, |(_, today)| today);
    let Some(released) = Kind::all()
        .iter()
        .find(|known| known.group == GATEWAY_GROUP && known.kind == today)
    else {
        return Vec::new();
    };
    let snippet = json!({"apiVersion": released.api_version(), "kind": released.kind});
    let what = format!("{kind} of {api_version} is not part of the released API");
    let mut findings = vec![instead("apiVersion", &what, &snippet)];
    findings.extend(shapes(released, value));
    findings
}

/// Returns findings on former fields in an object of a released kind.
pub(super) fn shapes(kind: &Kind, value: &Map<String, Value>) -> Vec<Violation> {
    let mut findings = Vec::new();
    if kind.group != GATEWAY_GROUP {
        return findings;
    }
    let empty = Map::new();
    let spec = value
        .get("spec")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    match kind.kind {
        "GatewayClass" => gateway_class(spec, &mut findings),
        "Gateway" => gateway(spec, &mut findings),
        "ListenerSet" => listener_set(spec, &mut findings),
        "BackendTLSPolicy" => backend_tls_policy(spec, value, &mut findings),
        name if name.ends_with("Route") => route(spec, &mut findings),
        _ => {}
    }
    findings
}

/// Returns an error that shows the released equivalent.
fn instead(field: &str, what: &str, snippet: &Value) -> Violation {
    let yaml = serde_saphyr::to_string(snippet).unwrap_or_default();
    let mut lines = String::new();
    for line in yaml.lines() {
        if lines.len() + line.len() > MAX_SNIPPET {
            lines.push_str("\n  # and so on");
            break;
        }
        lines.push_str("\n  ");
        lines.push_str(line);
    }
    Violation {
        rule: "legacy shape".to_owned(),
        ..Violation::error(field, format!("{what}; write instead:{lines}"))
    }
}

fn gateway_class(spec: &Map<String, Value>, findings: &mut Vec<Violation>) {
    if let Some(controller) = spec.get("controller") {
        let snippet = json!({"controllerName": controller});
        findings.push(instead(
            "spec.controller",
            "controller is called controllerName",
            &snippet,
        ));
    }
}

fn gateway(spec: &Map<String, Value>, findings: &mut Vec<Violation>) {
    if let Some(Value::Array(entries)) = spec.get("allowedListeners") {
        let snippet = json!({"allowedListeners": convert::allowed_listeners(entries)});
        let what =
            "allowedListeners is an object, not a list; without it no ListenerSet may attach";
        findings.push(instead("spec.allowedListeners", what, &snippet));
    }
    listeners(spec, findings);
}

fn listener_set(spec: &Map<String, Value>, findings: &mut Vec<Violation>) {
    if let Some(parents) = spec.get("parentRefs") {
        let parent = match parents {
            Value::Array(parents) => parents
                .first()
                .cloned()
                .unwrap_or_else(|| json!({"name": "gateway"})),
            parent => parent.clone(),
        };
        let what = "a ListenerSet has one parent, in parentRef";
        findings.push(instead(
            "spec.parentRefs",
            what,
            &json!({"parentRef": parent}),
        ));
    }
    listeners(spec, findings);
}

fn listeners(spec: &Map<String, Value>, findings: &mut Vec<Violation>) {
    for (index, listener) in objects(spec.get("listeners")) {
        let field = format!("spec.listeners[{index}]");
        if let Some(routes) = listener.get("routes") {
            let snippet = json!({"allowedRoutes": convert::allowed_routes(routes)});
            let what = "routes became allowedRoutes, and routes name their Gateway in parentRefs";
            findings.push(instead(&format!("{field}.routes"), what, &snippet));
        }
        let nested = listener
            .get("allowedRoutes")
            .and_then(|routes| Some(("allowedRoutes.", routes.get("routeType")?)));
        if let Some((place, kind)) = nested.or_else(|| Some(("", listener.get("routeType")?))) {
            let snippet =
                json!({"allowedRoutes": {"kinds": [{"kind": convert::route_kind(kind)}]}});
            let what = "routeType became allowedRoutes.kinds";
            findings.push(instead(
                &format!("{field}.{place}routeType"),
                what,
                &snippet,
            ));
        }
        let tls = listener.get("tls").and_then(Value::as_object);
        if let Some(reference) = tls.and_then(|tls| tls.get("certificateRef")) {
            let snippet = json!({"tls": {"certificateRefs": [reference]}});
            let what = "certificateRef became the list certificateRefs";
            findings.push(instead(
                &format!("{field}.tls.certificateRef"),
                what,
                &snippet,
            ));
        }
    }
}

fn backend_tls_policy(
    spec: &Map<String, Value>,
    root: &Map<String, Value>,
    findings: &mut Vec<Violation>,
) {
    for (field, target) in [
        ("spec.targetRef", spec.get("targetRef")),
        ("targetRef", root.get("targetRef")),
    ] {
        if let Some(target) = target {
            let snippet = json!({"spec": {"targetRefs": [convert::policy_target(target)]}});
            let what = "targetRef became the list spec.targetRefs, each entry with group and kind";
            findings.push(instead(field, what, &snippet));
        }
    }
    if let Some(tls) = spec.get("tls") {
        let snippet = json!({"validation": convert::validation(tls)});
        findings.push(instead("spec.tls", "tls became validation", &snippet));
    }
}

fn route(spec: &Map<String, Value>, findings: &mut Vec<Violation>) {
    if let Some(gateways) = spec.get("gateways") {
        let snippet = json!({"parentRefs": convert::parents(gateways)});
        findings.push(instead(
            "spec.gateways",
            "gateways became parentRefs",
            &snippet,
        ));
    }
    for (index, rule) in objects(spec.get("rules")) {
        let field = format!("spec.rules[{index}]");
        if let Some(targets) = rule.get("forwardTo") {
            let targets = targets
                .as_array()
                .cloned()
                .unwrap_or_else(|| vec![targets.clone()]);
            let backends: Vec<_> = targets.iter().map(convert::backend).collect();
            let what = "forwardTo became backendRefs, with the backend's name in the entry itself";
            findings.push(instead(
                &format!("{field}.forwardTo"),
                what,
                &json!({"backendRefs": backends}),
            ));
        }
        for (position, backend) in objects(rule.get("backendRefs")) {
            backend_ref(
                &format!("{field}.backendRefs[{position}]"),
                backend,
                findings,
            );
        }
        for (position, matched) in objects(rule.get("matches")) {
            route_match(&format!("{field}.matches[{position}]"), matched, findings);
        }
        filters(&field, rule, findings);
    }
}

fn backend_ref(field: &str, backend: &Map<String, Value>, findings: &mut Vec<Violation>) {
    if let Some(name) = convert::BACKEND_NAMES
        .iter()
        .find(|name| backend.contains_key(**name))
    {
        let snippet = json!({"backendRefs": [convert::backend(&Value::Object(backend.clone()))]});
        let what = format!("{name} was folded into the entry of backendRefs");
        findings.push(instead(&format!("{field}.{name}"), &what, &snippet));
    }
    filters(field, backend, findings);
}

fn filters(parent: &str, holder: &Map<String, Value>, findings: &mut Vec<Violation>) {
    for (index, filter) in objects(holder.get("filters")) {
        let field = format!("{parent}.filters[{index}]");
        let mirror = filter.get("requestMirror").and_then(Value::as_object);
        if let Some(mirror) = mirror
            .filter(|mirror| mirror.contains_key("serviceName") || mirror.contains_key("port"))
        {
            let target = convert::backend(&Value::Object(mirror.clone()));
            let snippet = json!({"requestMirror": {"backendRef": target}});
            findings.push(instead(
                &format!("{field}.requestMirror"),
                "a mirror's target is one backendRef",
                &snippet,
            ));
        }
        for modifier in ["requestHeaderModifier", "responseHeaderModifier"] {
            let Some(changes) = filter.get(modifier).and_then(Value::as_object) else {
                continue;
            };
            for (action, headers) in changes.iter().filter(|(_, headers)| headers.is_object()) {
                let what = format!("{action} is a list of names and values");
                let snippet = json!({modifier: {action: convert::headers(headers)}});
                findings.push(instead(
                    &format!("{field}.{modifier}.{action}"),
                    &what,
                    &snippet,
                ));
            }
        }
    }
}

fn route_match(field: &str, matched: &Map<String, Value>, findings: &mut Vec<Violation>) {
    for name in ["headers", "queryParams"] {
        if let Some(conditions @ Value::Object(_)) = matched.get(name) {
            let what = format!("{name} is a list of names and values");
            findings.push(instead(
                &format!("{field}.{name}"),
                &what,
                &json!({name: convert::conditions(conditions)}),
            ));
        }
    }
    let Some(path) = matched.get("path").and_then(Value::as_object) else {
        return;
    };
    if path.get("type").and_then(Value::as_str) == Some("Prefix") {
        let snippet = json!({"path": {"type": "PathPrefix", "value": path.get("value").cloned().unwrap_or(json!("/"))}});
        findings.push(instead(
            &format!("{field}.path.type"),
            "the type Prefix became PathPrefix",
            &snippet,
        ));
    }
}

/// Returns the objects of a list, with their indices.
fn objects(list: Option<&Value>) -> impl Iterator<Item = (usize, &Map<String, Value>)> {
    let items = list
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    items
        .iter()
        .enumerate()
        .filter_map(|(index, item)| Some((index, item.as_object()?)))
}
