//! Which changes of a published object let requests in, or lead them to backends, that its previous version does not: policies
//! may have been written for these before. Must not know what has arrived.

use crate::api::Object;
use crate::api::filter::HttpFilter;
use crate::api::grpc_route::GrpcRule;
use crate::api::http_route::HttpRule;
use crate::api::l4_route::L4Rule;
use crate::api::reference::BackendRef;
use crate::api::route::RouteSpec;

/// Reports whether a version of an object may have something that policies can protect and that another version lacks. Routes
/// are changed often: their filters, timeouts and shares of backends add nothing. Any other change may.
pub(super) fn adds(published: &Object, new: &Object) -> bool {
    match (published, new) {
        (Object::HttpRoute(one), Object::HttpRoute(other)) => {
            differ(&one.spec, &other.spec, http_reach)
        }
        (Object::GrpcRoute(one), Object::GrpcRoute(other)) => {
            differ(&one.spec, &other.spec, grpc_reach)
        }
        (Object::TlsRoute(one), Object::TlsRoute(other)) => {
            differ(&one.spec, &other.spec, l4_reach)
        }
        (Object::TcpRoute(one), Object::TcpRoute(other)) => {
            differ(&one.spec, &other.spec, l4_reach)
        }
        (Object::UdpRoute(one), Object::UdpRoute(other)) => {
            differ(&one.spec, &other.spec, l4_reach)
        }
        _ => true,
    }
}

fn differ<R: PartialEq>(one: &RouteSpec<R>, other: &RouteSpec<R>, reach: fn(&R) -> R) -> bool {
    let RouteSpec {
        parent_refs,
        use_default_gateways,
        hostnames,
        rules,
    } = one;
    let is_same_place = *parent_refs == other.parent_refs
        && *use_default_gateways == other.use_default_gateways
        && *hostnames == other.hostnames;
    !(is_same_place && rules.iter().map(reach).eq(other.rules.iter().map(reach)))
}

/// Returns a rule without what does not decide which requests it takes, and to which backends they go.
fn http_reach(rule: &HttpRule) -> HttpRule {
    HttpRule {
        filters: mirrors(&rule.filters).collect(),
        backend_refs: backends(&rule.backend_refs).collect(),
        timeouts: None,
        retry: None,
        session_persistence: None,
        ..rule.clone()
    }
}

fn grpc_reach(rule: &GrpcRule) -> GrpcRule {
    GrpcRule {
        filters: mirrors(&rule.filters).collect(),
        backend_refs: backends(&rule.backend_refs).collect(),
        session_persistence: None,
        ..rule.clone()
    }
}

fn l4_reach(rule: &L4Rule) -> L4Rule {
    L4Rule {
        backend_refs: backends(&rule.backend_refs).collect(),
        ..rule.clone()
    }
}

/// Backends, of which those without a share get no request.
fn backends(refs: &[BackendRef<HttpFilter>]) -> impl Iterator<Item = BackendRef<HttpFilter>> {
    refs.iter().map(|backend| BackendRef {
        weight: backend.weight.min(1),
        filters: mirrors(&backend.filters).collect(),
        ..backend.clone()
    })
}

/// Filters that send requests to other backends.
fn mirrors(filters: &[HttpFilter]) -> impl Iterator<Item = HttpFilter> {
    let sends =
        |filter: &&HttpFilter| filter.request_mirror.is_some() || filter.external_auth.is_some();
    filters.iter().filter(sends).cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::Kind;

    fn route(kind: &str, changes: &Value) -> Object {
        let mut rule = json!({
            "name": "rule",
            "backendRefs": [{"name": "a", "port": 80, "weight": 9}, {"name": "b", "port": 80, "weight": 0}],
        });
        let mut spec = json!({"hostnames": ["a.example"], "parentRefs": [{"name": "web"}]});
        for (field, value) in changes.as_object().unwrap() {
            let place = if ["hostnames", "parentRefs"].contains(&&**field) {
                &mut spec
            } else {
                &mut rule
            };
            place[field] = value.clone();
        }
        spec["rules"] = json!([rule]);
        let kind = Kind::all().iter().find(|it| it.kind == kind).unwrap();
        let object = json!({
            "apiVersion": kind.api_version(), "kind": kind.kind,
            "metadata": {"name": "a", "namespace": "default"}, "spec": spec,
        });
        kind.decode(&object).unwrap()
    }

    fn weights(a: u32, b: u32) -> Value {
        json!([{"name": "a", "port": 80, "weight": a}, {"name": "b", "port": 80, "weight": b}])
    }

    #[test]
    fn what_takes_more_requests_or_leads_elsewhere_adds() {
        let mirror = json!([{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "m", "port": 80}}}]);
        let none = route("HTTPRoute", &json!({}));
        for changes in [
            json!({"hostnames": ["b.example"]}),
            json!({"parentRefs": [{"name": "other"}]}),
            json!({"name": "other"}),
            json!({"matches": [{"path": {"type": "PathPrefix", "value": "/admin"}}]}),
            json!({"filters": mirror}),
            json!({"backendRefs": weights(9, 1)}),
            json!({"backendRefs": [{"name": "other", "port": 80}]}),
        ] {
            assert!(adds(&none, &route("HTTPRoute", &changes)), "{changes}");
        }
    }

    #[test]
    fn what_changes_the_same_requests_does_not() {
        let header = json!([{"type": "ResponseHeaderModifier", "responseHeaderModifier": {"remove": ["x"]}}]);
        for kind in ["HTTPRoute", "GRPCRoute", "TCPRoute"] {
            let none = route(kind, &json!({}));
            let mut changes = vec![json!({}), json!({"backendRefs": weights(1, 0)})];
            if kind != "TCPRoute" {
                changes.push(json!({"filters": header}));
            }
            if kind == "HTTPRoute" {
                changes.push(json!({"timeouts": {"request": "1s"}}));
            }
            for changes in changes {
                assert!(!adds(&none, &route(kind, &changes)), "{kind}: {changes}");
            }
        }
    }

    #[test]
    fn any_change_of_another_kind_may_add() {
        let gateway = Kind::all().iter().find(|it| it.kind == "Gateway").unwrap();
        let object = json!({
            "apiVersion": gateway.api_version(), "kind": "Gateway",
            "metadata": {"name": "a", "namespace": "default"},
            "spec": {"gatewayClassName": "portcullis", "listeners": []},
        });
        let object = gateway.decode(&object).unwrap();
        assert!(adds(&object, &object));
    }
}
