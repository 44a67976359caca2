//! What the rows of the table are about, and what is kept of an object's unknown fields.

use serde_json::json;

use super::*;
use crate::api::decode_whole;
use crate::api::gateway::{Gateway, ListenerSet, ReferenceGrant};
use crate::api::http_route::HttpRoute;
use crate::api::l4_route::TcpRoute;
use crate::api::route_filter::RouteFilter;
use crate::api::xbackend::XBackend;

/// Returns an object with a field at this path, in which lists have three items.
fn with(path: &str) -> Value {
    let mut value = json!("a");
    for segment in path.rsplit('.') {
        let (name, is_list) = match segment.strip_suffix("[]") {
            Some(name) => (name, true),
            None => (segment, false),
        };
        let inner = match is_list {
            true => json!([{}, {}, value]),
            false => value,
        };
        value = json!({});
        value[name] = inner;
    }
    value
}

/// Returns the fields of an object's spec that the schema of its kind lacks.
fn unknown(kind: &Kind, object: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let visited =
        schema::unknown_fields(kind, &object["spec"], &mut |field| found.push(field.path()));
    visited.unwrap();
    found
}

#[test]
fn rows_name_paths_of_the_schemas_and_none_hides_another() {
    for kind in Kind::all() {
        let rows = rows(kind.name).unwrap_or_default();
        for (path, effect) in rows {
            let field = format!("{path}.later");
            let found = unknown(kind, &with(&field));
            let expected = field.replace("[]", "[2]");
            assert_eq!(found, [expected.as_str()], "{}", kind.kind);
            let (part, decided) = decide(rows, &expected);
            assert_eq!((part, decided), (&*path.replace("[]", "[2]"), *effect));
        }
        // Every field is below a row.
        assert!(rows.is_empty() || rows.iter().any(|(path, _)| *path == WHOLE));
    }
}

/// Returns the field that refuses a part of an object with this unknown field.
fn refusal<T: Resource>(
    of: impl Fn(&Object) -> Option<&T>,
    object: &Value,
    part: &str,
) -> Option<String> {
    let mut kinds = Kind::all().iter();
    let kind = kinds.find(|it| (it.group, it.kind) == (T::GROUP, T::KIND));
    let decoded = decode_whole(kind.unwrap(), object).unwrap();
    refusing(of(&decoded).unwrap(), part).map(str::to_owned)
}

macro_rules! of {
    ($type:ident) => {
        |object: &Object| match object {
            Object::$type(it) => Some(&**it),
            _ => None,
        }
    };
}

#[test]
fn rule_is_refused_for_what_may_narrow_it() {
    for (rule, is_refused) in [
        (json!({}), false),
        (json!({"matches": [{"later": {}}]}), true),
        (
            json!({"matches": [{"path": {"type": "Exact", "value": "/", "later": false}}]}),
            true,
        ),
        (
            json!({"filters": [{"type": "CORS", "cors": {"later": []}}]}),
            true,
        ),
        (json!({"backendRefs": [{"name": "a", "later": ""}]}), true),
        (
            json!({"backendRefs": [{"name": "a", "filters": [{"type": "a", "later": 0}]}]}),
            true,
        ),
        (json!({"later": 1}), true),
        (json!({"later": null}), false),
        (json!({"timeouts": {"later": "1s"}}), false),
        (json!({"retry": {"later": {"deeper": 1}}}), false),
        (
            json!({"sessionPersistence": {"cookieConfig": {"later": 1}}}),
            false,
        ),
    ] {
        let object = json!({"metadata": {"name": "a"}, "spec": {"rules": [{}, rule, {}]}});
        let field = |part| refusal::<HttpRoute>(of!(HttpRoute), &object, part);
        assert_eq!(field("spec.rules[1]").is_some(), is_refused, "{rule}");
        for other in ["spec.rules[0]", "spec.rules[2]", "spec.rules[10]", "spec"] {
            assert_eq!(field(other), None, "{rule}");
        }
    }
}

#[test]
fn route_is_refused_for_what_may_narrow_all_of_it() {
    for spec in [
        json!({"later": 1}),
        json!({"parentRefs": [{"name": "a", "later": 1}]}),
    ] {
        let mut object = json!({"metadata": {"name": "a"}, "spec": spec});
        object["spec"]["rules"] = json!([{}]);
        let field = refusal::<HttpRoute>(of!(HttpRoute), &object, "spec.rules[0]");
        assert!(field.is_some(), "{object}");
        let field = refusal::<TcpRoute>(of!(TcpRoute), &object, "spec.rules[0]");
        assert!(field.is_some(), "{object}");
    }
    // The types of routes are shared, so that this version writes such fields itself.
    let empty = json!({"metadata": {"name": "a"}, "spec": {"hostnames": [], "rules": [{}]}});
    let field = refusal::<TcpRoute>(of!(TcpRoute), &empty, "spec.rules[0]");
    assert_eq!(field, None);
    let used = json!({"metadata": {"name": "a"}, "spec": {"hostnames": ["a"], "rules": [{}]}});
    let field = refusal::<TcpRoute>(of!(TcpRoute), &used, "spec.rules[0]");
    assert_eq!(field.as_deref(), Some("spec.hostnames"));
}

#[test]
fn listener_is_refused_for_what_may_narrow_it() {
    let plain = json!({"name": "a", "port": 80, "protocol": "HTTP"});
    for changes in [
        json!({"later": 1}),
        json!({"tls": {"later": 1}}),
        // A field of earlier versions of the experimental channel.
        json!({"tls": {"frontendValidation": {"caCertificateRefs": []}}}),
        json!({"allowedRoutes": {"namespaces": {"selector": {"later": 1}}}}),
    ] {
        let mut changed = plain.clone();
        let fields = changed.as_object_mut().unwrap();
        fields.extend(changes.as_object().unwrap().clone());
        let listeners = json!([plain, changed]);
        let gateway = json!({"gatewayClassName": "a", "listeners": listeners});
        let gateway = json!({"metadata": {"name": "a"}, "spec": gateway});
        let field = |part| refusal::<Gateway>(of!(Gateway), &gateway, part);
        assert!(field("spec.listeners[1]").is_some(), "{changes}");
        assert_eq!(field("spec.listeners[0]"), None, "{changes}");
        let set = json!({"parentRef": {"name": "a"}, "listeners": listeners});
        let mut set = json!({"metadata": {"name": "a"}, "spec": set});
        let field = |set: &Value, part| refusal::<ListenerSet>(of!(ListenerSet), set, part);
        assert!(field(&set, "spec.listeners[1]").is_some(), "{changes}");
        assert_eq!(field(&set, "spec.listeners[0]"), None, "{changes}");
        set["spec"]["parentRef"]["later"] = json!(1);
        assert!(field(&set, "spec.listeners[0]").is_some(), "{changes}");
    }
}

#[test]
fn parts_of_a_gateway_are_refused_for_what_may_narrow_them() {
    for (changes, refused) in [
        (
            json!({"tls": {"frontend": {"default": {"later": 1}}}}),
            "spec.tls",
        ),
        (json!({"tls": {"later": 1}}), "spec.tls"),
        (json!({"tls": {"backend": {"later": 1}}}), ""),
        (
            json!({"allowedListeners": {"namespaces": {"from": "All", "later": 1}}}),
            "spec.allowedListeners",
        ),
        (json!({"infrastructure": {"later": 1}}), ""),
        (json!({"later": 1}), ""),
    ] {
        let mut spec = changes.clone();
        spec["gatewayClassName"] = json!("a");
        spec["listeners"] = json!([{"name": "a", "port": 80, "protocol": "HTTP"}]);
        let object = json!({"metadata": {"name": "a"}, "spec": spec});
        for part in ["spec.tls", "spec.allowedListeners", "spec.listeners[0]"] {
            let field = refusal::<Gateway>(of!(Gateway), &object, part);
            assert_eq!(field.is_some(), part == refused, "{changes} {part}");
        }
        assert_eq!(
            unknown(
                Kind::find("gateway.networking.k8s.io/v1", "Gateway").unwrap(),
                &object
            )
            .len(),
            1
        );
    }
}

#[test]
fn whole_object_is_refused_where_each_field_may_narrow_it() {
    let named = |spec: Value| json!({"metadata": {"name": "a"}, "spec": spec});
    let grant = json!({"from": [], "to": [{"group": "", "kind": "Secret", "later": 1}]});
    let field = refusal::<ReferenceGrant>(of!(ReferenceGrant), &named(grant), "spec");
    assert_eq!(field.as_deref(), Some("spec.to[0].later"));
    let filter = json!({"regexRewrite": {"pattern": "a", "replacement": "b"}, "later": {}});
    let field = refusal::<RouteFilter>(of!(RouteFilter), &named(filter), "spec");
    assert_eq!(field.as_deref(), Some("spec.later"));
    let backend = json!({"tls": {"mode": "ServerOnly", "validation": {"later": {}}}});
    let field = refusal::<XBackend>(of!(XBackend), &named(backend), "spec");
    assert_eq!(field.as_deref(), Some("spec.tls.validation.later"));
}

/// Returns the unknown fields of a route.
fn kept(spec: &Value) -> Vec<String> {
    let kind = Kind::find("gateway.networking.k8s.io/v1", "HTTPRoute").unwrap();
    let object = json!({"metadata": {"name": "a"}, "spec": spec});
    let object = decode_whole(kind, &object).unwrap();
    let fields = object.meta().unknown_fields.iter();
    fields.map(str::to_owned).collect()
}

#[test]
fn fields_beside_the_spec_and_of_kubernetes_are_not_compared() {
    let later = json!({"name": "a", "later": 1});
    let tls = json!({"certificateRefs": [{"name": "a"}], "options": {"example.com/later": "1"}});
    let listener = json!({"name": "a", "port": 443, "protocol": "HTTPS", "tls": tls});
    let gateway = json!({"gatewayClassName": "a", "listeners": [listener]});
    for (api_version, kind, spec) in [
        ("gateway.networking.k8s.io/v1", "Gateway", gateway),
        ("v1", "Service", json!({"later": 1})),
    ] {
        let object = json!({"metadata": later, "spec": spec, "status": {"later": 1}});
        let kind = Kind::find(api_version, kind).unwrap();
        let object = decode_whole(kind, &object).unwrap();
        let fields: Vec<_> = object.meta().unknown_fields.iter().collect();
        assert!(fields.is_empty(), "{}: {fields:?}", kind.kind);
    }
}

#[test]
fn few_fields_are_kept_and_all_that_refuse() {
    let many: serde_json::Map<_, _> = (0..100)
        .map(|it| (format!("later{it:02}"), json!(1)))
        .collect();
    let rule = json!({"matches": [many, many], "timeouts": many, "retry": many});
    let fields = kept(&json!({"rules": vec![rule; 16]}));
    assert_eq!(fields.len(), 16 + MAX_OTHERS);
    for index in 0..16 {
        let first = format!("spec.rules[{index}].matches[0].later00");
        assert!(fields.contains(&first), "{fields:?}");
    }
    // The order in which an object is written does not matter.
    let reverse: serde_json::Map<_, _> = many.into_iter().rev().collect();
    let rule = json!({"retry": reverse, "timeouts": reverse, "matches": [reverse, reverse]});
    assert_eq!(kept(&json!({"rules": vec![rule; 16]})), fields);
}

#[test]
fn long_and_odd_names_are_shortened_behind_what_they_refuse() {
    let name = "\n".repeat(1000);
    let mut rule = json!({});
    rule[&name] = json!(1);
    let fields = kept(&json!({"rules": [rule]}));
    assert_eq!(fields.len(), 1);
    assert!(fields[0].starts_with("spec.rules[0].??"), "{fields:?}");
    assert_eq!(fields[0].chars().count(), MAX_CHARS + 1);
}

/// The parent of a route or a ListenerSet, as it is written.
fn written_parent() -> Value {
    json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "a"})
}

/// Kinds of routes, each with a spec and how that is written.
fn written_routes() -> [(&'static str, Value, Value); 3] {
    let backend = json!({"name": "a"});
    let written_backend =
        json!({"group": "", "kind": "Service", "name": "a", "weight": 1, "filters": []});
    let written =
        |rule: Value| json!({"parentRefs": [written_parent()], "hostnames": [], "rules": [rule]});
    let used = |rule: Value| json!({"parentRefs": [{"name": "a"}], "rules": [rule]});
    let filters = json!([{"type": "a"}]);
    [
        (
            "HTTPRoute",
            used(json!({"matches": [{}], "filters": filters, "backendRefs": [backend]})),
            written(json!({
                "matches": [{"headers": [], "queryParams": []}],
                "filters": filters, "backendRefs": [written_backend],
            })),
        ),
        (
            "GRPCRoute",
            used(
                json!({"matches": [{"method": {}}], "filters": filters, "backendRefs": [backend]}),
            ),
            written(json!({
                "matches": [{"method": {}, "headers": []}],
                "filters": filters, "backendRefs": [written_backend],
            })),
        ),
        (
            "TCPRoute",
            used(json!({"backendRefs": [backend]})),
            written(json!({"backendRefs": [written_backend]})),
        ),
    ]
}

/// Other kinds, likewise.
fn written_others() -> [(&'static str, Value, Value); 5] {
    let listener =
        json!({"name": "a", "port": 80, "protocol": "HTTP", "tls": {}, "allowedRoutes": {}});
    let mut written_listener = listener.clone();
    written_listener["tls"] = json!({"certificateRefs": [], "options": {}});
    written_listener["allowedRoutes"] = json!({"kinds": []});
    let grant = json!({"from": [{"group": "a", "kind": "b", "namespace": "c"}], "to": [{"group": "", "kind": "d"}]});
    [
        (
            "Gateway",
            json!({"gatewayClassName": "a", "listeners": [listener], "allowedListeners": {}, "tls": {}}),
            json!({
                "gatewayClassName": "a", "listeners": [written_listener], "allowedListeners": {}, "tls": {},
                "addresses": [],
            }),
        ),
        (
            "ListenerSet",
            json!({"parentRef": {"name": "a"}, "listeners": [listener]}),
            json!({"parentRef": written_parent(), "listeners": [written_listener]}),
        ),
        ("ReferenceGrant", grant.clone(), grant),
        (
            "RouteFilter",
            json!({"directResponse": {"status": 204}}),
            json!({"directResponse": {"status": 204, "headers": []}}),
        ),
        (
            "XBackend",
            json!({"tls": {"mode": "None", "validation": {}}}),
            json!({
                "type": "", "port": {"port": 0},
                "tls": {
                    "mode": "None",
                    "validation": {
                        "caCertificateRefs": [], "hostname": "", "subjectAltNames": [],
                        "insecureSkipVerify": false, "pins": [],
                    },
                },
            }),
        ),
    ]
}

/// An earlier version refuses a part of an object with a field that it does not know, also where nobody uses the field. So a
/// field that is added is left out while it has no value.
#[test]
fn parts_that_may_be_refused_are_written_without_fields_that_are_not_used() {
    for (kind, used, written) in written_routes().into_iter().chain(written_others()) {
        let mut kinds = Kind::all().iter();
        let kind = kinds.find(|it| it.kind == kind).unwrap();
        let object = json!({"metadata": {"name": "a"}, "spec": used});
        let object = decode_whole(kind, &object).unwrap();
        let read = object.to_value().unwrap();
        assert_eq!(read["spec"], written, "{}", kind.kind);
        let decoded = decode_whole(kind, &read).unwrap();
        assert!(decoded.meta().unknown_fields.is_empty());
    }
}
