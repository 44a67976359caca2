//! Random backends of a small cluster, and references to them.

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::objects::{metadata, named, other_namespace, secret_ref};

pub(crate) fn backend() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![8 => Just("Service"), 1 => Just("Secret"), 1 => Just("ConfigMap")];
    let name = prop_oneof![6 => named("v"), 1 => named("s")];
    let parts = (
        kind,
        name,
        other_namespace(),
        select(vec![80, 81]),
        0..3_u32,
    );
    let of_cluster = parts.prop_map(|(kind, name, namespace, port, weight)| {
        json!({"kind": kind, "name": name, "namespace": namespace, "port": port, "weight": weight})
    });
    let port = of(select(vec![80, 81]));
    let external = (named("x"), other_namespace(), port).prop_map(|(name, namespace, port)| {
        let group = "gateway.networking.x-k8s.io";
        json!({"group": group, "kind": "XBackend", "name": name, "namespace": namespace, "port": port})
    });
    let import = (named("v"), other_namespace(), select(vec![80, 81]));
    let import = import.prop_map(|(name, namespace, port)| {
        let group = "multicluster.x-k8s.io";
        json!({"group": group, "kind": "ServiceImport", "name": name, "namespace": namespace, "port": port})
    });
    let releases = (named("rb"), other_namespace(), select(vec![80, 81]));
    let releases = releases.prop_map(|(name, namespace, port)| {
        let group = "portcullis.dev";
        json!({"group": group, "kind": "ReleaseBackend", "name": name, "namespace": namespace, "port": port})
    });
    let pool = (named("ip"), other_namespace(), of(select(vec![80, 81])));
    let pool = pool.prop_map(|(name, namespace, port)| {
        let group = "inference.networking.k8s.io";
        json!({"group": group, "kind": "InferencePool", "name": name, "namespace": namespace, "port": port})
    });
    prop_oneof![3 => of_cluster, 1 => external, 1 => import, 2 => releases, 2 => pool]
}

pub(crate) fn xbackend() -> impl Strategy<Value = Value> {
    let authority = named("cm");
    let authority =
        authority.prop_map(|name| json!([{"group": "", "kind": "ConfigMap", "name": name}]));
    let protocol = of(select(vec!["HTTP", "HTTP2", "TCP"]));
    let hostname = select(vec!["x.example", "y.example", "label"]);
    let parts = (
        metadata("x"),
        hostname,
        protocol,
        of((of(authority), of(secret_ref()))),
    );
    parts.prop_map(|(metadata, hostname, protocol, tls)| {
        let tls = tls.map(|(authorities, client)| {
            let validation = authorities.map(|it| json!({"hostname": "h", "caCertificateRefs": it}));
            let mode = client.as_ref().map_or("ServerOnly", |_| "ClientAndServer");
            json!({"mode": mode, "clientCertificateRef": client, "validation": validation})
        });
        json!({
            "apiVersion": "gateway.networking.x-k8s.io/v1alpha1", "kind": "XBackend", "metadata": metadata,
            "spec": {
                "type": "ExternalHostname", "externalHostname": {"hostname": hostname}, "port": {"port": 80},
                "protocol": protocol, "tls": tls,
            },
        })
    })
}

pub(crate) fn service() -> impl Strategy<Value = Value> {
    let kind = prop_oneof![6 => Just("ClusterIP"), 1 => Just("ExternalName")];
    let protocol = of(select(vec!["kubernetes.io/h2c", "https"]));
    let selector = select(vec![
        json!({}),
        json!({"app": "a"}),
        json!({"app": "a", "release": "r0"}),
    ]);
    let target = of(select(vec![json!(8080), json!("web")]));
    let mark = weighted(0.3, Just(json!({"shipper-lb": "production"})));
    let parts = (metadata("v"), kind, protocol, selector, target, mark);
    parts.prop_map(|(mut metadata, kind, protocol, selector, target, mark)| {
        metadata["labels"] = mark.unwrap_or_else(|| json!({}));
        let ports = json!([{"port": 80, "appProtocol": protocol, "targetPort": target}, {"name": "o", "port": 81}]);
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"type": kind, "ports": ports, "selector": selector},
        })
    })
}

pub(crate) fn service_import() -> impl Strategy<Value = Value> {
    let protocol = of(select(vec!["kubernetes.io/h2c", "https"]));
    (metadata("v"), protocol).prop_map(|(metadata, protocol)| {
        json!({
            "apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ServiceImport", "metadata": metadata,
            "spec": {"type": "ClusterSetIP", "ports": [{"port": 80, "appProtocol": protocol}]},
        })
    })
}

/// An EndpointSlice of a Service, of a ServiceImport, of both or of neither.
pub(crate) fn slice() -> impl Strategy<Value = Value> {
    let owners = (weighted(0.8, named("v")), weighted(0.4, named("v")));
    (metadata("slice"), owners, vec((1..9_u8, of(named("pod"))), 0..3)).prop_map(|(mut metadata, owners, hosts)| {
        let (service, import) = owners;
        metadata["labels"] = json!({});
        if let Some(service) = service {
            metadata["labels"]["kubernetes.io/service-name"] = service.into();
        }
        if let Some(import) = import {
            metadata["labels"]["multicluster.kubernetes.io/service-name"] = import.into();
        }
        let addresses: Vec<_> = hosts
            .iter()
            .map(|(host, pod)| {
                let target = pod.as_ref().map(|name| json!({"kind": "Pod", "name": name}));
                json!({"addresses": [format!("10.0.0.{host}")], "targetRef": target})
            })
            .collect();
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "addressType": "IPv4", "endpoints": addresses, "ports": [{"port": 8080}, {"name": "o", "port": 8081}],
        })
    })
}

/// The configuration of a load balancer, mostly a valid one.
fn load_balancer() -> impl Strategy<Value = Value> {
    let selector = prop_oneof![
        3 => Just(json!({})),
        2 => Just(json!({"selector": {"app": "a"}})),
        2 => Just(json!({"removeKeys": ["release"]})),
        1 => Just(json!({"removeKeys": ["app"], "selector": {"app": "a"}})),
    ];
    let named = (named("v"), selector).prop_map(|(name, mut value)| {
        value["name"] = name.into();
        json!({"v1.Service": value})
    });
    prop_oneof![4 => named, 1 => Just(json!({})), 1 => Just(json!({"v1.Other": {}}))]
}

pub(crate) fn release_backend() -> impl Strategy<Value = Value> {
    let releases = select(vec![
        json!([]),
        json!([{"value": "r0", "weight": 9}]),
        json!([{"value": "r0", "weight": 9}, {"value": "r1", "weight": 1}]),
    ]);
    let unlisted = select(vec!["Ignore", "Equal", "Fallback"]);
    let parts = (metadata("rb"), load_balancer(), releases, unlisted);
    parts.prop_map(|(metadata, load_balancer, releases, unlisted)| {
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "ReleaseBackend", "metadata": metadata,
            "spec": {
                "loadBalancer": load_balancer, "splitBy": "release", "releases": releases, "unlisted": unlisted,
            },
        })
    })
}

/// A pool, mostly with a picker that is a Service.
pub(crate) fn inference_pool() -> impl Strategy<Value = Value> {
    let labels = select(vec![
        json!({}),
        json!({"app": "a"}),
        json!({"app": "a", "release": "r0"}),
    ]);
    let ports = select(vec![
        json!([]),
        json!([{"number": 8080}]),
        json!([{"number": 8080}, {"number": 8081}]),
    ]);
    let kind = prop_oneof![6 => Just("Service"), 1 => Just("ConfigMap")];
    let mode = of(select(vec!["FailOpen", "FailClose"]));
    let picker = (kind, named("v"), of(select(vec![80, 81, 82])), mode);
    let picker = picker.prop_map(|(kind, name, port, mode)| {
        let port = port.map(|number| json!({"number": number}));
        json!({"kind": kind, "name": name, "port": port, "failureMode": mode})
    });
    let protocol = of(select(vec!["http", "kubernetes.io/h2c", "other"]));
    let parts = (
        metadata("ip"),
        labels,
        ports,
        weighted(0.8, picker),
        protocol,
    );
    parts.prop_map(|(metadata, labels, ports, picker, protocol)| {
        json!({
            "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool", "metadata": metadata,
            "spec": {
                "selector": {"matchLabels": labels}, "targetPorts": ports, "appProtocol": protocol,
                "endpointPickerRef": picker,
            },
        })
    })
}

pub(crate) fn pod() -> impl Strategy<Value = Value> {
    let labels = (of(select(vec!["a", "b"])), of(named("r")));
    let state = (
        weighted(0.8, 1..9_u8),
        any::<bool>(),
        weighted(0.2, Just("2026-01-01T00:00:00Z")),
    );
    let port = of(select(vec!["web", "other"]));
    let active = weighted(0.2, select(vec!["8080", "8081, x", ""]));
    let parts = (metadata("pod"), labels, state, port, active);
    parts.prop_map(|(mut metadata, labels, state, port, active)| {
        if let Some(ports) = active {
            metadata["annotations"] = json!({"inference.networking.k8s.io/active-ports": ports});
        }
        let (host, is_ready, deleted) = state;
        metadata["labels"] = json!({});
        for (key, value) in [("app", labels.0.map(str::to_owned)), ("release", labels.1)] {
            if let Some(value) = value {
                metadata["labels"][key] = value.into();
            }
        }
        metadata["deletionTimestamp"] = deleted.into();
        let ip = host.map(|host| format!("10.0.0.{host}"));
        let ready = if is_ready { "True" } else { "False" };
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
            "spec": {"containers": [{"ports": [{"name": port, "containerPort": 9090}]}]},
            "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
        })
    })
}
