//! Backends that filters refer to are in a closure in the same way as those of backendRefs.

use portcullis::api::filter::HttpFilter;
use portcullis::api::reference::{BackendObjectRef, BackendRef};
use serde_json::{Value, json};

use crate::contents::{Followed, class, grant, http, route, service, slice};

/// Returns the references to backends in these backendRefs and filters of a rule.
pub(crate) fn references<'a>(
    backend_refs: &'a [BackendRef<HttpFilter>],
    filters: &'a [HttpFilter],
) -> impl Iterator<Item = &'a BackendObjectRef> {
    let of_shares = backend_refs.iter();
    let of_rule = filters;
    let filters = of_shares.clone().flat_map(|share| &share.filters);
    let of_filters = filters.chain(of_rule).flat_map(|filter| {
        let mirror = filter.request_mirror.iter();
        let auth = filter.external_auth.iter();
        let mirrored = mirror.map(|mirror| &mirror.backend_ref);
        mirrored.chain(auth.map(|auth| &auth.backend_ref))
    });
    of_shares.map(|share| &share.backend).chain(of_filters)
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
