//! Random objects of a small cluster. There are few names, so that references often match.

use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::backends::{
    backend, inference_pool, pod, release_backend, service, service_import, slice, xbackend,
};
use crate::filters::referring_filters;

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";
pub(crate) const CONTROLLER: &str = "portcullis.dev/gateway-controller";

/// Certificates with their keys, generated once because that is slow.
static CERTIFICATES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let certificate = |name: &str| {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    };
    ["a.example", "b.example"].map(certificate).into()
});

/// An object of any kind. Kinds that affect others are more frequent.
pub(crate) fn object() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => class(),
        4 => gateway(),
        3 => listener_set(),
        6 => http_route(),
        2 => grpc_route(),
        2 => l4_route(),
        3 => grant(),
        2 => namespace(),
        2 => parameters(),
        3 => service(),
        3 => slice(),
        2 => policy(),
        3 => tls_override(),
        2 => crate::traffic_policies::traffic_policy(),
        2 => crate::traffic_policies::backend_policy(),
        2 => crate::telemetry_policies::telemetry_policy(),
        4 => crate::inherited_policies::access_policy(),
        2 => crate::inherited_policies::rate_limit_policy(),
        2 => crate::inherited_policies::client_policy(),
        2 => crate::inherited_policies::route_policy(),
        2 => crate::filters::route_filter(),
        3 => xbackend(),
        4 => release_backend(),
        4 => inference_pool(),
        6 => pod(),
        2 => service_import(),
        3 => secret(),
        2 => config_map(),
    ]
}

pub(crate) fn named(prefix: &'static str) -> impl Strategy<Value = String> {
    (0..3).prop_map(move |number| format!("{prefix}{number}"))
}

pub(crate) fn namespace_name() -> impl Strategy<Value = String> {
    select(vec!["a", "b", "c"]).prop_map(str::to_owned)
}

/// The namespace of a reference, mostly that of the object itself.
pub(crate) fn other_namespace() -> impl Strategy<Value = Option<String>> {
    weighted(0.4, namespace_name())
}

fn class_name() -> impl Strategy<Value = &'static str> {
    select(vec!["ours", "ours", "ours-too", "foreign"])
}

fn class() -> impl Strategy<Value = Value> {
    let controller = prop_oneof![5 => Just(CONTROLLER), 1 => Just("example.com/other")];
    let reference = of((parameters_kind(), named("p"), of(namespace_name())));
    (class_name(), controller, reference).prop_map(|(name, controller, reference)| {
        let controller = if name == "foreign" {
            "example.com/other"
        } else {
            controller
        };
        let reference = reference.map(|(kind, name, namespace)| {
            json!({"group": "portcullis.dev", "kind": kind, "name": name, "namespace": namespace})
        });
        json!({
            "apiVersion": GATEWAY_API, "kind": "GatewayClass", "metadata": {"name": name},
            "spec": {"controllerName": controller, "parametersRef": reference},
        })
    })
}

fn parameters_kind() -> impl Strategy<Value = &'static str> {
    prop_oneof![6 => Just("GatewayParameters"), 1 => Just("Secret")]
}

pub(crate) fn metadata(prefix: &'static str) -> impl Strategy<Value = Value> {
    (namespace_name(), named(prefix), 1..4_i64, 0..3_u8).prop_map(|(namespace, name, generation, age)| {
        let created = format!("2026-01-0{}T00:00:00Z", age + 1);
        json!({"namespace": namespace, "name": name, "generation": generation, "creationTimestamp": created})
    })
}

/// A selection of namespaces.
fn namespaces() -> impl Strategy<Value = Option<Value>> {
    of(prop_oneof![
        Just(json!({"from": "All"})),
        Just(json!({"from": "Same"})),
        Just(json!({"from": "None"})),
        Just(json!({"from": "Selector", "selector": {"matchLabels": {"env": "x"}}})),
        Just(
            json!({"from": "Selector", "selector": {"matchExpressions": [
                {"key": "env", "operator": "NotIn", "values": ["x"]},
            ]}})
        ),
    ])
}

pub(crate) fn secret_ref() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![9 => Just("Secret"), 1 => Just("ConfigMap")];
    (kind, named("s"), other_namespace()).prop_map(
        |(kind, name, namespace)| json!({"kind": kind, "name": name, "namespace": namespace}),
    )
}

fn listener() -> impl Strategy<Value = Value> {
    let protocol = select(vec!["HTTP", "HTTPS", "HTTPS", "TLS", "TLS", "TCP", "UDP"]);
    let hostname = of(select(vec!["a.example", "*.example", "b.test"]));
    let parts = (
        named("l"),
        select(vec![80, 443]),
        (protocol, any::<bool>()),
        hostname,
        vec(secret_ref(), 0..3),
        namespaces(),
    );
    parts.prop_map(
        |(name, port, (protocol, passes), hostname, secrets, namespaces)| {
            let mut tls =
                (protocol != "HTTP" || port == 80).then(|| json!({"certificateRefs": secrets}));
            if let Some(tls) = tls.as_mut().filter(|_| protocol == "TLS" && passes) {
                tls["mode"] = json!("Passthrough");
            }
            let routes = namespaces.map(|namespaces| json!({"namespaces": namespaces}));
            json!({
                "name": name, "port": port, "protocol": protocol, "hostname": hostname,
                "tls": tls, "allowedRoutes": routes,
            })
        },
    )
}

fn authority() -> impl Strategy<Value = Value> {
    let kind = select(vec!["ConfigMap", "Secret"]);
    let name = prop_oneof![named("s"), named("cm")];
    (kind, name, other_namespace()).prop_map(|(kind, name, namespace)| {
        json!({"group": "", "kind": kind, "name": name, "namespace": namespace})
    })
}

/// Whether a Gateway is a default Gateway, or a route requests default Gateways.
fn default_scope() -> impl Strategy<Value = Option<&'static str>> {
    weighted(0.3, select(vec!["All", "All", "None"]))
}

fn gateway() -> impl Strategy<Value = Value> {
    let parameters = weighted(0.3, (parameters_kind(), named("p")));
    let frontend = weighted(0.1, vec(authority(), 1..3));
    let parts = (
        metadata("g"),
        class_name(),
        vec(listener(), 1..4),
        (namespaces(), default_scope()),
        parameters,
        weighted(0.3, secret_ref()),
        frontend,
    );
    parts.prop_map(|(metadata, class, listeners, (allowed, scope), parameters, client, frontend)| {
        let infrastructure = parameters.map(|(kind, name)| {
            json!({"parametersRef": {"group": "portcullis.dev", "kind": kind, "name": name}})
        });
        let frontend = frontend.map(|authorities| {
            let validation = json!({"validation": {"caCertificateRefs": authorities}});
            json!({"default": {}, "perPort": [{"port": 443, "tls": validation}]})
        });
        json!({
            "apiVersion": GATEWAY_API, "kind": "Gateway", "metadata": metadata,
            "spec": {
                "gatewayClassName": class, "listeners": listeners, "infrastructure": infrastructure,
                "allowedListeners": {"namespaces": allowed}, "defaultScope": scope,
                "tls": {"backend": {"clientCertificateRef": client}, "frontend": frontend},
            },
        })
    })
}

fn listener_set() -> impl Strategy<Value = Value> {
    let parts = (
        metadata("set"),
        named("g"),
        other_namespace(),
        vec(listener(), 1..3),
    );
    parts.prop_map(|(metadata, parent, namespace, listeners)| {
        json!({
            "apiVersion": GATEWAY_API, "kind": "ListenerSet", "metadata": metadata,
            "spec": {"parentRef": {"name": parent, "namespace": namespace}, "listeners": listeners},
        })
    })
}

fn parent() -> impl Strategy<Value = Value> {
    let named = prop_oneof![
        6 => named("g").prop_map(|name| ("Gateway", name)),
        3 => named("set").prop_map(|name| ("ListenerSet", name)),
        1 => named("v").prop_map(|name| ("Service", name)),
    ];
    let parts = (named, other_namespace(), weighted(0.2, named_listener()));
    parts.prop_map(|((kind, name), namespace, section)| {
        json!({"kind": kind, "name": name, "namespace": namespace, "sectionName": section})
    })
}

fn named_listener() -> impl Strategy<Value = String> {
    named("l")
}

fn rule() -> impl Strategy<Value = Value> {
    let path = select(vec!["/", "/a", "/b/c"]);
    let redirect = json!([{"type": "RequestRedirect", "requestRedirect": {"statusCode": 302}}]);
    let broken = json!([{"type": "ExtensionRef", "extensionRef": {"group": "", "kind": "Secret", "name": "s0"}}]);
    let filters = prop_oneof![
        6 => Just(json!([])),
        1 => Just(redirect),
        1 => Just(broken),
        2 => referring_filters(),
    ];
    let backends = vec((backend(), weighted(0.2, referring_filters())), 0..3);
    (path, backends, filters).prop_map(|(path, backends, filters)| {
        let backends = backends.into_iter().map(|(mut backend, filters)| {
            backend["filters"] = filters.unwrap_or_else(|| json!([]));
            backend
        });
        let backends: Vec<_> = backends.collect();
        json!({"matches": [{"path": {"value": path}}], "backendRefs": backends, "filters": filters})
    })
}

fn http_route() -> impl Strategy<Value = Value> {
    let hostnames = vec(select(vec!["a.example", "b.test", "*.test"]), 0..2);
    let parts = (
        metadata("r"),
        vec(parent(), 0..4),
        hostnames,
        vec(rule(), 0..3),
        default_scope(),
    );
    parts.prop_map(|(metadata, parents, hostnames, rules, scope)| {
        json!({
            "apiVersion": GATEWAY_API, "kind": "HTTPRoute", "metadata": metadata,
            "spec": {"parentRefs": parents, "hostnames": hostnames, "rules": rules, "useDefaultGateways": scope},
        })
    })
}

fn grpc_route() -> impl Strategy<Value = Value> {
    http_route().prop_map(|mut route| {
        route["kind"] = json!("GRPCRoute");
        for rule in route["spec"]["rules"].as_array_mut().into_iter().flatten() {
            rule["matches"] = json!([{"method": {"service": "a.B"}}]);
        }
        route
    })
}

fn l4_route() -> impl Strategy<Value = Value> {
    let kind = select(vec!["TLSRoute", "TCPRoute", "UDPRoute"]);
    let hostname = select(vec!["a.example", "b.test", "*.test"]);
    let parts = (
        kind,
        metadata("r"),
        vec(parent(), 0..3),
        hostname,
        vec(backend(), 1..3),
    );
    parts.prop_map(|(kind, metadata, parents, hostname, backends)| {
        let mut spec = json!({"parentRefs": parents, "rules": [{"backendRefs": backends}]});
        if kind == "TLSRoute" {
            spec["hostnames"] = json!([hostname]);
        }
        json!({"apiVersion": GATEWAY_API, "kind": kind, "metadata": metadata, "spec": spec})
    })
}

fn grant() -> impl Strategy<Value = Value> {
    let from = (
        select(vec![
            "Gateway",
            "ListenerSet",
            "HTTPRoute",
            "GRPCRoute",
            "TCPRoute",
            "XBackend",
            "TelemetryPolicy",
        ]),
        namespace_name(),
    );
    let from = from.prop_map(|(kind, namespace)| {
        let group = match kind {
            "XBackend" => "gateway.networking.x-k8s.io",
            "TelemetryPolicy" => "portcullis.dev",
            _ => "gateway.networking.k8s.io",
        };
        json!({"group": group, "kind": kind, "namespace": namespace})
    });
    let to = prop_oneof![
        of(named("s")).prop_map(|name| ("", "Secret", name)),
        of(named("v")).prop_map(|name| ("", "Service", name)),
        of(named("v")).prop_map(|name| ("multicluster.x-k8s.io", "ServiceImport", name)),
        of(named("rb")).prop_map(|name| ("portcullis.dev", "ReleaseBackend", name)),
        of(named("ip")).prop_map(|name| ("inference.networking.k8s.io", "InferencePool", name)),
        of(named("cm")).prop_map(|name| ("", "ConfigMap", name)),
    ];
    let to = to.prop_map(|(group, kind, name)| json!({"group": group, "kind": kind, "name": name}));
    (metadata("grant"), vec(from, 1..4), vec(to, 1..3)).prop_map(|(metadata, from, to)| {
        json!({
            "apiVersion": GATEWAY_API, "kind": "ReferenceGrant", "metadata": metadata,
            "spec": {"from": from, "to": to},
        })
    })
}

fn namespace() -> impl Strategy<Value = Value> {
    let label = select(vec!["x", "y"]);
    (namespace_name(), label).prop_map(|(name, label)| {
        json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"env": label}},
        })
    })
}

fn parameters() -> impl Strategy<Value = Value> {
    let bounds = (of(1..4), of(1..4));
    (metadata("p"), bounds).prop_map(|(metadata, (min, max))| {
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "GatewayParameters", "metadata": metadata,
            "spec": {"autoscaling": {"minReplicas": min, "maxReplicas": max}},
        })
    })
}

/// Group, kind and name of the target of a policy.
pub(crate) fn target_name() -> impl Strategy<Value = (&'static str, &'static str, String)> {
    prop_oneof![
        6 => named("v").prop_map(|name| ("", "Service", name)),
        2 => named("v").prop_map(|name| ("multicluster.x-k8s.io", "ServiceImport", name)),
        1 => named("rb").prop_map(|name| ("portcullis.dev", "ReleaseBackend", name)),
    ]
}

fn policy() -> impl Strategy<Value = Value> {
    let section = of(Just("o"));
    let target = (target_name(), section);
    let target = target.prop_map(|((group, kind, name), section)| {
        json!({"group": group, "kind": kind, "name": name, "sectionName": section})
    });
    let authority = prop_oneof![
        named("cm").prop_map(|name| json!({"group": "", "kind": "ConfigMap", "name": name})),
        named("s").prop_map(|name| json!({"group": "", "kind": "Secret", "name": name})),
    ];
    let parts = (metadata("t"), vec(target, 1..3), vec(authority, 0..3));
    parts.prop_map(|(metadata, targets, authorities)| {
        json!({
            "apiVersion": GATEWAY_API, "kind": "BackendTLSPolicy", "metadata": metadata,
            "spec": {"targetRefs": targets, "validation": {"hostname": "h", "caCertificateRefs": authorities}},
        })
    })
}

/// The sender whose requests an override selects.
pub(crate) fn from() -> impl Strategy<Value = Value> {
    let object = prop_oneof![
        named("g").prop_map(|name| ("Gateway", name)),
        named("set").prop_map(|name| ("ListenerSet", name)),
        named("r").prop_map(|name| ("HTTPRoute", name)),
    ];
    (object, weighted(0.3, named_listener())).prop_map(|((kind, name), section)| {
        let group = "gateway.networking.k8s.io";
        json!({"group": group, "kind": kind, "name": name, "sectionName": section})
    })
}

fn tls_override() -> impl Strategy<Value = Value> {
    let of_target = (other_namespace(), of(Just("o")), of(from()));
    let target = (target_name(), of_target);
    let target = target.prop_map(|((group, kind, name), (namespace, section, from))| {
        json!({
            "group": group, "kind": kind, "namespace": namespace, "name": name, "sectionName": section,
            "from": from,
        })
    });
    let authority = named("cm");
    let authority =
        authority.prop_map(|name| json!([{"group": "", "kind": "ConfigMap", "name": name}]));
    let validation = weighted(0.6, authority);
    (metadata("t"), vec(target, 1..3), validation).prop_map(|(metadata, targets, authorities)| {
        let spec = match authorities {
            None => json!({"mode": "None", "targetRefs": targets}),
            Some(authorities) => json!({
                "targetRefs": targets, "validation": {"hostname": "h", "caCertificateRefs": authorities},
            }),
        };
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "BackendTLSOverride", "metadata": metadata,
            "spec": spec,
        })
    })
}

/// A Secret with a certificate.
pub(crate) fn certificate_secret(namespace: &str, name: &str) -> Value {
    let (chain, key) = &CERTIFICATES[0];
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": namespace, "name": name},
        "type": "kubernetes.io/tls", "stringData": {"tls.crt": chain, "tls.key": key},
    })
}

/// A ConfigMap with an authority.
pub(crate) fn authority_map(namespace: &str, name: &str) -> Value {
    let data = &*CERTIFICATES[0].0;
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name},
        "data": {"ca.crt": data},
    })
}

/// A value that no Gateway uses: a password beside what it uses.
pub(crate) const UNUSED: &str = "aHVudGVyMg==";

fn secret() -> impl Strategy<Value = Value> {
    let certificate = prop_oneof![3 => (0..2_usize).prop_map(Some), 1 => Just(None)];
    let kind = prop_oneof![4 => Just("kubernetes.io/tls"), 2 => Just("Opaque")];
    let parts = (metadata("s"), certificate, kind, any::<(bool, bool)>());
    parts.prop_map(
        |(mut metadata, certificate, kind, (has_authority, is_plain))| {
            let certificate = certificate.map(|index| &CERTIFICATES[index]);
            let (chain, key) = certificate.map_or(("", ""), |(chain, key)| (chain, key));
            let mut values = json!({"tls.crt": chain, "tls.key": key});
            if has_authority {
                values["ca.crt"] = json!(CERTIFICATES[0].0);
            }
            if is_plain {
                values["password"] = json!(UNUSED);
            }
            if kind == "Opaque" {
                values["auth"] = json!("alice:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=");
            }
            metadata["annotations"] = json!({"example.com/copy": UNUSED});
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind,
                "stringData": values, "data": {"password": UNUSED},
            })
        },
    )
}

fn config_map() -> impl Strategy<Value = Value> {
    let data = prop_oneof![
        1 => Just("none"),
        3 => (0..2_usize).prop_map(|index| &*CERTIFICATES[index].0),
    ];
    (metadata("cm"), data).prop_map(|(metadata, data)| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ca.crt": data}})
    })
}
