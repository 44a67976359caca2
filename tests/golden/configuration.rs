//! The form of an IR and of data planes in goldens: without what an ordinary listener, route or backend has.

use std::sync::LazyLock;

use serde_json::{Map, Value, json};

use crate::differing::differing;

/// Stands for the name of a rule that has only its place as a name.
const PLACE: &str = "place";

/// Values that are not shown, by the field that holds the object and their field in it. Everywhere else null is not shown.
static DEFAULTS: LazyLock<Value> = LazyLock::new(|| {
    let changes = json!({"add": {}, "remove": [], "set": {}});
    // Certificates of goldens are valid until the year 4096.
    let certificate = json!({"not_after": 67_090_118_400_i64});
    json!({
        "dataPlane": {"addresses": [], "parameters": {}},
        "parameters": {"drain": {}, "log": {}, "metrics": {}, "service": {}, "timeouts": {}, "workload": {}},
        "ir": {"backends": {}, "ports": []},
        "listeners": {"hostname": "*", "protocol": "Http", "routes": []},
        "Https": {"ciphers": "Default", "min_version": "Tls12"},
        "certificates": certificate,
        "routes": {"hostnames": ["*"]},
        "rules": {"filters": [], "id": PLACE, "matches": [{"path": {"Prefix": ""}}], "timeouts": {}},
        "matches": {"headers": [], "query": []},
        "Forward": {"filters": [], "weight": 1},
        "RequestHeaders": changes,
        "ResponseHeaders": changes,
        "backend": {"protocol": "Http1"},
        "tls": {"min_version": "Tls12"},
        "Picker": {"timeouts": {"answer": {"nanos": 0, "secs": 300}, "connect": {"nanos": 0, "secs": 1}}},
        "client_certificate": certificate,
    })
});

/// Returns the field that names an object, if one does, and the field that is its content, by the field that holds the
/// object. An object with nothing else is shown as `name: content`.
fn form(holder: &str) -> Option<(&'static str, &'static str)> {
    match holder {
        "ports" => Some(("bind", "listeners")),
        "listeners" => Some(("key", "routes")),
        "routes" => Some(("object", "rules")),
        "rules" => Some(("", "action")),
        "Forward" => Some(("", "target")),
        "target" => Some(("", "Backend")),
        "backend" => Some(("", "endpoints")),
        _ => None,
    }
}

/// Shortens an IR.
pub(crate) fn short_ir(ir: &Value) -> Value {
    let mut ir = ir.clone();
    for port in items(&mut ir, "ports") {
        let gateway = port["gateway"].clone();
        for listener in items(port, "listeners") {
            name_listener(listener, &gateway);
            items(listener, "routes").for_each(flatten_route);
        }
        if let (Some(bind), Some(gateway)) = (port["bind"].as_str(), gateway.as_str()) {
            port["bind"] = json!(format!("{bind} of {gateway}"));
            port.as_object_mut()
                .and_then(|fields| fields.remove("gateway"));
        }
    }
    shorten(&ir, "ir")
}

/// Shortens data planes by the name of their Gateway.
pub(crate) fn short_data_planes(planes: &Value) -> Value {
    shorten(planes, "dataPlanes")
}

fn items<'a>(value: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    let items = value.get_mut(field).and_then(Value::as_array_mut);
    items.into_iter().flatten()
}

/// Names a listener of the port's Gateway by its name, and one of another object by both.
fn name_listener(listener: &mut Value, gateway: &Value) {
    let key = &listener["key"];
    let (Some(origin), Some(name)) = (key["origin"].as_str(), key["name"].as_str()) else {
        return;
    };
    if *key == json!({"origin": origin, "name": name}) && !name.contains(' ') {
        listener["key"] = match key["origin"] == *gateway {
            true => json!(name),
            false => json!(format!("{origin} listener {name}")),
        };
    }
}

/// Puts the fields of the route beside those of its attachment.
fn flatten_route(attached: &mut Value) {
    let object = attached["route"]["object"].clone();
    if let Some(route) = attached.get_mut("route") {
        for (index, rule) in items(route, "rules").enumerate() {
            name_rule(rule, index, &object);
        }
    }
    let route = attached["route"].as_object().cloned();
    if let (Some(route), Some(fields)) = (route, attached.as_object_mut())
        && route.keys().all(|name| !fields.contains_key(name))
    {
        fields.remove("route");
        fields.extend(route);
    }
}

/// Names a rule of the route by index and name.
fn name_rule(rule: &mut Value, place: usize, route: &Value) {
    let (index, name) = (&rule["id"]["index"], &rule["id"]["name"]);
    if rule["id"] != json!({"index": index, "name": name, "route": route}) {
        return;
    }
    match name {
        Value::Null if *index == place => rule["id"] = json!(PLACE),
        Value::Null => rule["id"] = index.clone(),
        Value::String(name) => rule["id"] = json!(format!("{index} {name}")),
        _ => {}
    }
}

fn shorten(value: &Value, holder: &str) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| shorten(item, holder)).collect(),
        Value::Object(fields) => shorten_fields(fields, holder),
        leaf => leaf.clone(),
    }
}

fn shorten_fields(fields: &Map<String, Value>, holder: &str) -> Value {
    let shorten_field = |(name, value): (&String, &Value)| {
        let holder_of_value = match holder {
            "backends" => "backend",
            "dataPlanes" => "dataPlane",
            _ => name,
        };
        (name.clone(), shorten(value, holder_of_value))
    };
    let mut left: Map<_, _> = fields.iter().map(shorten_field).collect();
    if left.contains_key("source") {
        // The keys of certificates are generated for each run.
        left.remove("sha256");
    }
    let left = differing(left, &DEFAULTS[holder]);
    match form(holder) {
        Some((title, content)) => named(left, title, content),
        None => Value::Object(left),
    }
}

/// Shows the text in the field `title` as the name of the others, or of the field `content` where that is the only one.
fn named(mut fields: Map<String, Value>, title: &str, content: &str) -> Value {
    let name = fields.get(title).and_then(Value::as_str);
    let name = name.map(str::to_owned);
    if name.is_some() {
        fields.remove(title);
    }
    let is_empty = fields.is_empty();
    let is_only = fields.len() == 1 && fields.get(content).is_some_and(is_distinct);
    let others = match is_only {
        true => fields[content].clone(),
        false => Value::Object(fields),
    };
    match name {
        Some(name) if is_empty => json!(name),
        Some(name) => json!({name: others}),
        None => others,
    }
}

/// Reports whether a content cannot be mistaken for an object with fields: it is none, or a variant such as
/// `Forward: []`. Only variants have names in upper case.
fn is_distinct(content: &Value) -> bool {
    let is_variant = |name: &String| name.starts_with(char::is_uppercase);
    match content {
        Value::Object(fields) => fields.len() == 1 && fields.keys().all(is_variant),
        _ => true,
    }
}
