//! Which changes of a published object, and which deletions, let requests in, or lead them to backends, that are not before:
//! policies may have been written for these before. Must not know what has arrived.

use super::deferral::is_policy;
use crate::api::annotation::PRIORITY;
use crate::api::core::{BUNDLE, Secret, Service, TLS_TYPE};
use crate::api::filter::HttpFilter;
use crate::api::gateway::{Gateway, ListenerSet};
use crate::api::grpc_route::GrpcRule;
use crate::api::http_route::HttpRule;
use crate::api::l4_route::L4Rule;
use crate::api::reference::{BackendRef, Role};
use crate::api::release_backend::ReleaseBackendSpec;
use crate::api::route::{RouteResource, RouteSpec};
use crate::api::{Object, ObjectRef, Resource};

/// Reports whether a version of an object may have something that policies can protect and that the published one, if there is
/// one, lacks. The object is of a kind that waits.
pub(super) fn adds(published: Option<&Object>, new: &Object) -> bool {
    if is_policy(new.kind()) {
        let known = published.map(asked_by).unwrap_or_default();
        return asked_by(new).iter().any(|backend| !known.contains(backend));
    }
    published.is_none_or(|published| changes_reach(published, new))
}

/// Reports whether listeners may end with an object: it has their certificate, or the authorities of their clients, or permits
/// them to refer to these. Other listeners, such as one for all names of a domain, take their requests then.
pub(super) fn ends_listeners(deleted: &Object) -> bool {
    match deleted {
        Object::Secret(secret) => {
            let has_authorities =
                secret.data.get(BUNDLE).is_some() || secret.string_data.get(BUNDLE).is_some();
            secret.kind == TLS_TYPE || has_authorities
        }
        Object::ConfigMap(map) => map.data.contains_key(BUNDLE),
        Object::ReferenceGrant(grant) => {
            let mut from = grant.spec.from.iter();
            from.any(|from| [Gateway::KIND, ListenerSet::KIND].contains(&&*from.kind))
        }
        _ => false,
    }
}

/// Returns the backends that a policy sends requests of its own to, each with its port: pages of errors, spans.
fn asked_by(policy: &Object) -> Vec<(ObjectRef, Option<u16>)> {
    let mut asked = Vec::new();
    policy.references(&mut |field| {
        if field.role == Role::Server {
            asked.push((field.object_ref(&policy.meta().namespace), field.port));
        }
    });
    asked
}

/// Reports whether two versions may differ in which requests are let in, and where they go. What changes often and decides
/// neither is left out. Any other change may.
fn changes_reach(published: &Object, new: &Object) -> bool {
    match (published, new) {
        (Object::HttpRoute(one), Object::HttpRoute(other)) => differ(&**one, &**other, http_reach),
        (Object::GrpcRoute(one), Object::GrpcRoute(other)) => differ(&**one, &**other, grpc_reach),
        (Object::TlsRoute(one), Object::TlsRoute(other)) => differ(&**one, &**other, l4_reach),
        (Object::TcpRoute(one), Object::TcpRoute(other)) => differ(&**one, &**other, l4_reach),
        (Object::UdpRoute(one), Object::UdpRoute(other)) => differ(&**one, &**other, l4_reach),
        (Object::Namespace(one), Object::Namespace(other)) => {
            one.metadata.labels != other.metadata.labels
        }
        (Object::Service(one), Object::Service(other)) => is_other_service(one, other),
        (Object::ReleaseBackend(one), Object::ReleaseBackend(other)) => {
            releases(&one.spec) != releases(&other.spec)
        }
        (Object::Secret(one), Object::Secret(other)) => {
            // Credentials that are revoked are accepted no longer, at once.
            [one, other].iter().any(|secret| secret.kind == TLS_TYPE)
                || authorities(one) != authorities(other)
        }
        (Object::ConfigMap(one), Object::ConfigMap(other)) => {
            one.data.get(BUNDLE) != other.data.get(BUNDLE)
        }
        _ => true,
    }
}

fn differ<T: RouteResource>(one: &T, other: &T, reach: fn(&T::Rule) -> T::Rule) -> bool
where
    T::Rule: PartialEq,
{
    // Of two routes with the same match, these say which one gets the requests.
    let precedence = |route: &T| {
        let metadata = route.meta();
        let priority = metadata.annotations.get(PRIORITY).cloned();
        // Requests of rules with such fields are refused.
        let unknown = metadata.unknown_fields.clone();
        (priority, metadata.creation_timestamp, unknown)
    };
    let RouteSpec {
        parent_refs,
        use_default_gateways,
        hostnames,
        rules,
    } = one.spec();
    let of_other = other.spec();
    let is_same_place = *parent_refs == of_other.parent_refs
        && *use_default_gateways == of_other.use_default_gateways
        && *hostnames == of_other.hostnames
        && precedence(one) == precedence(other);
    !(is_same_place && rules.iter().map(reach).eq(of_other.rules.iter().map(reach)))
}

/// Returns a rule without what does not decide which requests it takes, and to which backends they go.
fn http_reach(rule: &HttpRule) -> HttpRule {
    HttpRule {
        filters: leading(&rule.filters).collect(),
        backend_refs: backends(&rule.backend_refs).collect(),
        timeouts: None,
        retry: None,
        session_persistence: None,
        ..rule.clone()
    }
}

fn grpc_reach(rule: &GrpcRule) -> GrpcRule {
    GrpcRule {
        filters: leading(&rule.filters).collect(),
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
        filters: leading(&backend.filters).collect(),
        ..backend.clone()
    })
}

/// Filters that send requests to other backends, or whose objects may keep them from the rule's.
fn leading(filters: &[HttpFilter]) -> impl Iterator<Item = HttpFilter> {
    let leads = |filter: &&HttpFilter| {
        filter.request_mirror.is_some()
            || filter.external_auth.is_some()
            || filter.extension_ref.is_some()
    };
    filters.iter().filter(leads).cloned()
}

/// Reports whether two versions differ in more than the status.
fn is_other_service(one: &Service, other: &Service) -> bool {
    let Service {
        metadata,
        spec,
        status: _,
    } = one;
    *spec != other.spec
        || metadata.labels != other.metadata.labels
        || metadata.annotations != other.metadata.annotations
}

/// Returns a spec whose releases have the same share, except those without one.
fn releases(spec: &ReleaseBackendSpec) -> ReleaseBackendSpec {
    let mut spec = spec.clone();
    for release in &mut spec.releases {
        release.weight = release.weight.min(1);
    }
    spec
}

fn authorities(secret: &Secret) -> impl PartialEq {
    let plain = secret.string_data.get(BUNDLE).cloned();
    (secret.data.get(BUNDLE).cloned(), plain)
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
        object(kind, &json!({"spec": spec}))
    }

    fn weights(a: u32, b: u32) -> Value {
        json!([{"name": "a", "port": 80, "weight": a}, {"name": "b", "port": 80, "weight": b}])
    }

    #[test]
    fn what_takes_more_requests_or_leads_elsewhere_adds() {
        let mirror = json!([{"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "m", "port": 80}}}]);
        let filter = json!({"group": "portcullis.dev", "kind": "RouteFilter", "name": "a"});
        let extension = json!([{"type": "ExtensionRef", "extensionRef": filter}]);
        let none = route("HTTPRoute", &json!({}));
        for changes in [
            json!({"hostnames": ["b.example"]}),
            json!({"parentRefs": [{"name": "other"}]}),
            json!({"name": "other"}),
            json!({"matches": [{"path": {"type": "PathPrefix", "value": "/admin"}}]}),
            json!({"filters": mirror}),
            json!({"filters": extension}),
            json!({"backendRefs": weights(9, 1)}),
            json!({"backendRefs": [{"name": "other", "port": 80}]}),
        ] {
            assert!(
                adds(Some(&none), &route("HTTPRoute", &changes)),
                "{changes}"
            );
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
                let changed = route(kind, &changes);
                assert!(!adds(Some(&none), &changed), "{kind}: {changes}");
            }
        }
    }

    /// Returns an object of a kind in namespace `default`, with these fields.
    fn object(kind: &str, fields: &Value) -> Object {
        let kind = Kind::all().iter().find(|it| it.kind == kind).unwrap();
        let mut object = fields.clone();
        object["apiVersion"] = kind.api_version().into();
        object["kind"] = kind.kind.into();
        object["metadata"]["name"] = "a".into();
        object["metadata"]["namespace"] = "default".into();
        kind.decode(&object).unwrap()
    }

    #[test]
    fn what_moves_a_route_before_or_behind_others_adds() {
        for kind in ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"] {
            let with = |metadata: Value| object(kind, &json!({"metadata": metadata, "spec": {}}));
            let none = with(json!({}));
            let priority = with(json!({"annotations": {"portcullis.dev/priority": "1"}}));
            let anew = with(json!({"creationTimestamp": "2026-01-01T00:00:00Z"}));
            let other = with(json!({"annotations": {"other": "1"}, "labels": {"a": "b"}}));
            assert!(adds(Some(&none), &priority) && adds(Some(&priority), &none));
            assert!(adds(Some(&none), &anew) && !adds(Some(&none), &other));
            // Its requests are served where it has lost a field that this version does not know.
            let refused = with(json!({"unknownFields": ["spec.rules[0].later"]}));
            assert!(adds(Some(&refused), &none));
        }
    }

    #[test]
    fn policy_adds_the_backends_that_it_asks() {
        let pages = |name: &str| {
            let page = json!({"codes": [500], "backendRef": {"name": name, "port": 80}});
            object(
                "RoutePolicy",
                &json!({"spec": {"targetRefs": [], "errorPages": [page]}}),
            )
        };
        let traces = |name: &str| {
            let provider = json!({"backendRef": {"name": name, "port": 80}});
            let tracing = json!({"provider": provider});
            object(
                "TelemetryPolicy",
                &json!({"spec": {"targetRefs": [], "tracing": tracing}}),
            )
        };
        let limits = json!({"targetRefs": [], "requestBody": {"maxSize": "1Ki"}});
        let limits = object("RoutePolicy", &json!({"spec": limits}));
        assert!(!adds(None, &limits) && !adds(Some(&pages("a")), &limits));
        assert!(adds(None, &pages("a")) && adds(Some(&limits), &pages("a")));
        assert!(adds(Some(&pages("b")), &pages("a")) && !adds(Some(&pages("a")), &pages("a")));
        assert!(adds(None, &traces("a")) && !adds(Some(&traces("a")), &traces("a")));
    }

    #[test]
    fn what_changes_often_and_opens_nothing_does_not_add() {
        let cases = [
            (
                "Namespace",
                "metadata",
                json!({"annotations": {"a": "b"}}),
                json!({"labels": {"a": "b"}}),
            ),
            (
                "Service",
                "status",
                json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}),
                json!(null),
            ),
            (
                "Service",
                "metadata",
                json!({"uid": "b"}),
                json!({"labels": {"a": "b"}}),
            ),
            (
                "Service",
                "spec",
                json!(null),
                json!({"ports": [{"port": 80}]}),
            ),
            ("ReleaseBackend", "spec", releases(1), releases(0)),
            (
                "Secret",
                "data",
                json!({"auth": "Yg=="}),
                json!({"ca.crt": "Yg=="}),
            ),
            (
                "ConfigMap",
                "data",
                json!({"page": "b"}),
                json!({"ca.crt": "b"}),
            ),
        ];
        for (kind, field, same, other) in cases {
            let base = match kind {
                "ReleaseBackend" => json!({"spec": releases(9)}),
                _ => json!({}),
            };
            let with = |value: &Value| {
                let mut fields = base.clone();
                if !value.is_null() {
                    fields[field] = value.clone();
                }
                object(kind, &fields)
            };
            let base = object(kind, &base);
            assert!(!adds(Some(&base), &with(&same)), "{kind}: {same}");
            assert!(
                other.is_null() || adds(Some(&base), &with(&other)),
                "{kind}: {other}"
            );
            assert!(adds(None, &base), "{kind}");
        }
    }

    fn releases(weight: u32) -> Value {
        json!({"splitBy": "version", "releases": [{"value": "1", "weight": weight}]})
    }

    #[test]
    fn renewed_certificate_adds() {
        let certificate = |key: &str| {
            object(
                "Secret",
                &json!({"type": "kubernetes.io/tls", "data": {"tls.key": key}}),
            )
        };
        assert!(adds(Some(&certificate("YQ==")), &certificate("Yg==")));
    }

    #[test]
    fn listeners_end_with_their_certificate_their_authorities_and_their_permission() {
        let secret = |kind: &str, key: &str| {
            let data = json!({key: "YQ=="});
            object("Secret", &json!({"type": kind, "data": data}))
        };
        let map = |key: &str| object("ConfigMap", &json!({"data": {key: "a"}}));
        let grant = |kind: &str| {
            let from =
                json!([{"group": "gateway.networking.k8s.io", "kind": kind, "namespace": "a"}]);
            object("ReferenceGrant", &json!({"spec": {"from": from, "to": []}}))
        };
        let ending = [
            secret("kubernetes.io/tls", "tls.crt"),
            secret("Opaque", "ca.crt"),
            map("ca.crt"),
            grant("Gateway"),
            grant("ListenerSet"),
        ];
        let others = [
            secret("Opaque", "auth"),
            map("page"),
            grant("HTTPRoute"),
            object("Service", &json!({})),
        ];
        assert!(ending.iter().all(ends_listeners));
        assert!(!others.iter().any(ends_listeners));
    }

    #[test]
    fn any_change_of_another_kind_may_add() {
        let spec = json!({"gatewayClassName": "portcullis", "listeners": []});
        let gateway = object("Gateway", &json!({"spec": spec}));
        assert!(adds(Some(&gateway), &gateway));
    }
}
