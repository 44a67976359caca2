//! Ingresses with gRPC backends: a GRPCRoute where all requests of their hosts are calls, or else an HTTPRoute.

use serde_json::{Value, json};

use super::features::Features;
use super::hosts::{is_grpc, own_hosts};
use super::model::{Backend, Ingress};
use super::paths::HostMode;
use super::report::Outcome::{Converted, NotPossible};
use super::values::Values;
use super::work::Work;

/// Reports whether the routes of an Ingress are GRPCRoutes, which use HTTP/2 to backends.
pub(super) fn fits(work: &mut Work<'_>, ingress: &Ingress, features: &Features) -> bool {
    if !is_grpc(ingress) {
        return false;
    }
    let hosts = own_hosts(ingress);
    let only_calls = hosts.iter().all(|host| {
        let host = work.hosts.get(host);
        host.is_some_and(|host| {
            host.only_grpc && host.mode != HostMode::Regex && host.passthrough.is_none()
        })
    });
    let mut paths = ingress.rules.iter().flat_map(|rule| &rule.paths);
    let are_calls = paths.all(|path| path.path == "/" || call(&path.path).is_some());
    let is_plain = features.cors.is_none()
        && features.redirect.is_none()
        && features.app_root.is_none()
        && features.vhost.is_none()
        && features.unavailable.is_none()
        && features.mirror.is_none()
        && hosts.iter().all(|host| work.hosts.refused(host).is_none());
    if only_calls && are_calls && is_plain {
        work.say(
            ingress,
            "backend-protocol",
            Converted,
            "GRPCRoute, with HTTP/2 to backends",
        );
        return true;
    }
    let protocol = Values(ingress).text("backend-protocol");
    if protocol.is_some_and(|it| it.eq_ignore_ascii_case("GRPCS")) {
        let text = "HTTPRoute, with HTTP/2 to backends by ALPN";
        work.say(ingress, "backend-protocol", Converted, text);
        return false;
    }
    let namespace = &ingress.name.namespace;
    let paths = ingress.rules.iter().flat_map(|rule| &rule.paths);
    let unknown = paths.filter_map(|path| match &path.backend {
        Backend::Service { name, port } => {
            let number = work.source.port(namespace, name, port);
            let declared = number.and_then(|port| work.source.declared(namespace, name, port));
            let protocol = declared.and_then(|port| port.app_protocol.as_deref());
            let speaks = protocol.is_some_and(|it| it.eq_ignore_ascii_case("kubernetes.io/h2c"));
            (!speaks).then(|| name.clone())
        }
        Backend::Resource(_) => None,
    });
    let mut unknown: Vec<String> = unknown.collect();
    unknown.sort();
    unknown.dedup();
    if unknown.is_empty() {
        work.say(
            ingress,
            "backend-protocol",
            Converted,
            "HTTPRoute: appProtocol of the Service says HTTP/2",
        );
    } else {
        let text = format!(
            "an HTTPRoute, since the host has other paths too: set appProtocol kubernetes.io/h2c on the ports of Service {}",
            unknown.join(", ")
        );
        work.say(ingress, "backend-protocol", NotPossible, text);
    }
    false
}

/// Returns service and method of a path such as `/pkg.Service/Method`.
fn call(path: &str) -> Option<(&str, Option<&str>)> {
    let path = path.strip_prefix('/')?.trim_end_matches('/');
    let (service, method) = match path.split_once('/') {
        Some((service, method)) => (service, Some(method)),
        None => (path, None),
    };
    let is_name = |text: &str| {
        !text.is_empty()
            && !text.starts_with(|first: char| first.is_ascii_digit() || first == '.')
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte))
    };
    (is_name(service) && method.is_none_or(|it| is_name(it) && !it.contains('.')))
        .then_some((service, method))
}

/// Converts a rule of an HTTPRoute.
pub(super) fn rule(http: &Value) -> Value {
    let mut rule = http.clone();
    let matches = http["matches"].as_array().into_iter().flatten();
    let mut converted: Vec<Value> = matches.map(condition).collect();
    // One without conditions is for every call.
    if converted.contains(&json!({})) {
        converted.clear();
    }
    rule["matches"] = json!(converted);
    rule
}

/// Converts a match. A path that is no call is `/`, for every call.
fn condition(http: &Value) -> Value {
    let mut condition = json!({});
    let path = http["path"]["value"].as_str();
    if let Some((service, method)) = path.and_then(call) {
        condition["method"] = json!({"service": service});
        if let Some(method) = method {
            condition["method"]["method"] = json!(method);
        }
    }
    if http["headers"].is_array() {
        condition["headers"] = http["headers"].clone();
    }
    condition
}
