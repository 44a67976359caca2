//! Backends that filters refer to are in a closure in the same way as those of backendRefs.

use portcullis::api::filter::HttpFilter;
use portcullis::api::reference::{BackendObjectRef, BackendRef};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::backends::backend;
use crate::contents::{Followed, class, grant, http, object, route, service, slice};
use crate::objects::{metadata, named};

/// Returns the references to backends in these backendRefs and filters of a rule.
pub(crate) fn references<'a>(
    backend_refs: &'a [BackendRef<HttpFilter>],
    filters: &'a [HttpFilter],
) -> impl Iterator<Item = BackendObjectRef> {
    let of_shares = backend_refs.iter();
    let of_rule = filters;
    let filters = of_shares.clone().flat_map(|share| &share.filters);
    let of_filters = filters.chain(of_rule).flat_map(|filter| {
        let mirror = filter.request_mirror.iter();
        let auth = filter.external_auth.iter();
        let mirrored = mirror.map(|mirror| mirror.backend_ref.clone());
        mirrored.chain(auth.map(|auth| auth.backend_ref.clone()))
    });
    of_shares.map(BackendRef::backend).chain(of_filters)
}

/// Filters that refer to backends or to RouteFilters.
pub(crate) fn referring_filters() -> impl Strategy<Value = Value> {
    let reference = |mut backend: Value| {
        if let Some(reference) = backend.as_object_mut() {
            reference.remove("weight");
        }
        backend
    };
    let filter = |(backend, is_auth): (Value, bool)| match is_auth {
        true => json!({"type": "ExternalAuth", "externalAuth": {
            "protocol": "HTTP", "http": {}, "backendRef": backend,
        }}),
        false => json!({"type": "RequestMirror", "requestMirror": {"backendRef": backend}}),
    };
    let sends = (backend().prop_map(reference), any::<bool>()).prop_map(filter);
    let extension = named("f").prop_map(|name| {
        let reference = json!({"group": "portcullis.dev", "kind": "RouteFilter", "name": name});
        json!({"type": "ExtensionRef", "extensionRef": reference})
    });
    vec(prop_oneof![4 => sends, 1 => extension], 1..3).prop_map(Value::from)
}

/// A RouteFilter, which may be broken.
pub(crate) fn route_filter() -> impl Strategy<Value = Value> {
    let spec = select(vec![
        json!({"directResponse": {"status": 404}}),
        json!({"regexRewrite": {"pattern": "^/a", "replacement": "/b"}}),
        json!({"regexRewrite": {"pattern": "(", "replacement": "/b"}}),
    ]);
    let with_body = named("cm").prop_map(|name| {
        let map = json!({"name": name, "key": "ca.crt"});
        json!({"directResponse": {"status": 404, "configMapRef": map}})
    });
    (metadata("f"), prop_oneof![2 => spec, 1 => with_body]).prop_map(|(metadata, spec)| {
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "RouteFilter",
            "metadata": metadata, "spec": spec,
        })
    })
}

fn reference(namespace: &str) -> Value {
    json!({"name": "copy", "namespace": namespace, "port": 80})
}

#[test]
fn closure_includes_granted_backends_of_filters() {
    let mirror = |namespace: &str| {
        let backend = reference(namespace);
        json!([{"type": "RequestMirror", "requestMirror": {"backendRef": backend}}])
    };
    let mut mirrored = route("apps", "r", "g", json!({"name": "app", "port": 80}));
    mirrored["spec"]["rules"][0]["filters"] = mirror("apps");
    let auth = json!({"protocol": "HTTP", "http": {}, "backendRef": reference("other")});
    mirrored["spec"]["rules"][0]["backendRefs"][0]["filters"] =
        json!([{"type": "ExternalAuth", "externalAuth": auth}]);
    let mut followed = Followed::new([
        class(),
        http("g"),
        mirrored,
        service("apps", "copy"),
        slice("apps", "copy", "10.0.0.1"),
        service("other", "copy"),
        slice("other", "copy", "10.0.0.2"),
    ]);
    assert_eq!(
        followed.of("g"),
        [
            "EndpointSlice apps/copy-x",
            "HTTPRoute apps/r",
            "Service apps/copy",
        ]
    );
    let permitted = grant("other", ("HTTPRoute", "apps"), "Service");
    let change = "g: +Service other/copy +EndpointSlice other/copy-x +ReferenceGrant other/HTTPRoute-Service";
    assert_eq!(followed.put(&permitted), [change]);
}

#[test]
fn closure_includes_route_filters_of_its_namespace() {
    let extension = |group: &str, kind: &str| {
        let reference = json!({"group": group, "kind": kind, "name": "filter"});
        json!([{"type": "ExtensionRef", "extensionRef": reference}])
    };
    let mut filtered = route("apps", "r", "g", json!({"name": "app", "port": 80}));
    filtered["spec"]["rules"][0]["filters"] = extension("portcullis.dev", "RouteFilter");
    let mut other = route("apps", "other", "other", json!({"name": "app", "port": 80}));
    other["spec"]["rules"][0]["filters"] = extension("example.com", "RouteFilter");
    let filter = |namespace: &str| {
        object(
            "RouteFilter",
            namespace,
            "filter",
            json!({"directResponse": {"status": 404}}),
        )
    };
    let mut followed = Followed::new([
        class(),
        http("g"),
        http("other"),
        filtered,
        other,
        filter("other"),
    ]);
    assert_eq!(followed.of("g"), ["HTTPRoute apps/r"]);
    let change = "g: +RouteFilter apps/filter";
    assert_eq!(followed.put(&filter("apps")), [change]);
    let change = "g: -RouteFilter apps/filter";
    assert_eq!(followed.delete(&filter("apps")), [change]);
}

#[test]
fn closure_includes_config_maps_with_bodies_of_route_filters() {
    let reference = json!({"group": "portcullis.dev", "kind": "RouteFilter", "name": "filter"});
    let mut filtered = route("apps", "r", "g", json!({"name": "app", "port": 80}));
    filtered["spec"]["rules"][0]["filters"] =
        json!([{"type": "ExtensionRef", "extensionRef": reference}]);
    let map = |namespace: &str, name: &str, key: &str| {
        let mut map = object("ConfigMap", namespace, name, Value::Null);
        map["data"] = json!({key: "text"});
        map
    };
    let response = json!({"status": 404, "configMapRef": {"name": "texts", "key": "a"}});
    let spec = json!({"directResponse": response});
    let mut followed = Followed::new([
        class(),
        http("g"),
        filtered,
        service("apps", "app"),
        object("RouteFilter", "apps", "filter", spec),
        map("other", "texts", "a"),
        map("apps", "others", "a"),
    ]);
    // Without the body, no rule of the route is usable.
    let without = ["HTTPRoute apps/r", "RouteFilter apps/filter"];
    assert_eq!(followed.of("g"), without);
    let change = "g: +ConfigMap apps/texts +Service apps/app";
    assert_eq!(followed.put(&map("apps", "texts", "a")), [change]);
    let change = "g: +ConfigMap apps/texts -Service apps/app";
    assert_eq!(followed.put(&map("apps", "texts", "b")), [change]);
}
