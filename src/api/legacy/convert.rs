//! Conversion of former shapes into released ones. Best effort: values that cannot be converted stay as they are,
//! because the result is only shown.

use serde_json::{Map, Value, json};

/// Fields that named a backend before the entry of `backendRefs` itself did.
pub(super) const BACKEND_NAMES: [&str; 3] = ["backendRef", "serviceName", "backendName"];

/// Converts an entry of `forwardTo` into one of `backendRefs`.
pub(super) fn backend(target: &Value) -> Value {
    let Value::Object(target) = target else {
        return json!({"name": target, "port": 80});
    };
    let mut entry = Map::new();
    if let Some(Value::Object(reference)) = target.get("backendRef") {
        entry.extend(reference.clone());
    }
    // A `serviceName` took precedence over a `backendRef`.
    for name in ["backendName", "serviceName"] {
        if let Some(service) = target.get(name) {
            entry.retain(|key, _| key == "port");
            entry.insert("name".to_owned(), service.clone());
        }
    }
    for (key, value) in target
        .iter()
        .filter(|(key, _)| !BACKEND_NAMES.contains(&key.as_str()))
    {
        entry.insert(key.clone(), value.clone());
    }
    // `service` in lower case was proposed as the default kind.
    if entry.get("kind").and_then(Value::as_str) == Some("service") {
        entry.remove("kind");
    }
    Value::Object(entry)
}

/// Converts the list `allowedListeners` into the object.
pub(super) fn allowed_listeners(entries: &[Value]) -> Value {
    let first = entries.first();
    let namespaces = first
        .and_then(|entry| entry.get("namespaces"))
        .filter(|namespaces| !namespaces.is_null());
    let from = first.and_then(|entry| entry.get("from"));
    match (namespaces, from) {
        (Some(namespaces), _) => json!({"namespaces": namespaces}),
        (None, Some(from)) => json!({"namespaces": {"from": from}}),
        // The proposal's default.
        (None, None) => json!({"namespaces": {"from": "Same"}}),
    }
}

/// Converts a listener's `routes` into `allowedRoutes`.
pub(super) fn allowed_routes(routes: &Value) -> Value {
    let mut allowed = Map::new();
    if let Some(kind) = routes.get("kind").or_else(|| routes.get("routeType")) {
        allowed.insert("kinds".to_owned(), json!([{"kind": route_kind(kind)}]));
    }
    let namespaces = routes
        .get("namespaces")
        .cloned()
        .unwrap_or_else(|| json!({"from": "Same"}));
    allowed.insert("namespaces".to_owned(), namespaces);
    Value::Object(allowed)
}

/// Returns the present name of a route kind.
pub(super) fn route_kind(kind: &Value) -> Value {
    let Some(name) = kind.as_str() else {
        return json!("HTTPRoute");
    };
    let name = name.to_ascii_lowercase();
    let known = ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"];
    let same = |known: &&&str| {
        name.starts_with(&known.to_ascii_lowercase()[..known.len() - "Route".len()])
    };
    json!(known.iter().find(same).unwrap_or(&"HTTPRoute"))
}

/// Converts a route's `gateways` into `parentRefs`.
pub(super) fn parents(gateways: &Value) -> Value {
    match gateways.get("gatewayRefs") {
        Some(references @ Value::Array(_)) => references.clone(),
        _ => json!([{"name": "gateway"}]),
    }
}

/// Converts a policy's target. Omits fields that the released policy does not have.
pub(super) fn policy_target(target: &Value) -> Value {
    let mut entry = json!({"group": "", "kind": "Service"});
    if let (Value::Object(entry), Some(target)) = (&mut entry, target.as_object()) {
        let known = ["group", "kind", "name", "namespace", "sectionName", "from"];
        entry.extend(
            target
                .iter()
                .filter(|(key, _)| known.contains(&key.as_str()))
                .map(|(k, v)| (k.clone(), v.clone())),
        );
    }
    entry
}

/// Converts a policy's `tls` into `validation`.
pub(super) fn validation(tls: &Value) -> Value {
    let Value::Object(tls) = tls else {
        return json!({"hostname": "example.com", "wellKnownCACertificates": "System"});
    };
    let renamed = |key: &str| match key {
        "caCertRefs" => "caCertificateRefs".to_owned(),
        "wellKnownCACerts" => "wellKnownCACertificates".to_owned(),
        other => other.to_owned(),
    };
    Value::Object(
        tls.iter()
            .map(|(key, value)| (renamed(key), value.clone()))
            .collect(),
    )
}

/// Converts a map of headers into a list.
pub(super) fn headers(headers: &Value) -> Value {
    let Value::Object(headers) = headers else {
        return json!([]);
    };
    headers
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect()
}

/// Converts `{type, values}` into a list of conditions.
pub(super) fn conditions(conditions: &Value) -> Value {
    let kind = conditions
        .get("type")
        .and_then(Value::as_str)
        .filter(|kind| *kind != "Exact");
    let Value::Array(mut list) = headers(conditions.get("values").unwrap_or(conditions)) else {
        return json!([]);
    };
    for entry in &mut list {
        if let (Some(kind), Value::Object(entry)) = (kind, entry) {
            entry.insert("type".to_owned(), json!(kind));
        }
    }
    Value::Array(list)
}
