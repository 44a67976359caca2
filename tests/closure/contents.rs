//! Examples of objects that are in a closure, and of objects that are not.

use portcullis::api::ObjectRef;
use portcullis::settings::permissions::BackendKinds;
use portcullis::snapshot::Snapshot;
use portcullis::translate::Options;
use portcullis::translate::closure::{Closures, Difference, ObjectChange};
use serde_json::{Value, json};

use crate::api_versions::api_version;
use crate::objects::CONTROLLER;
use crate::{decode, snapshot};

pub(crate) fn object(kind: &str, namespace: &str, name: &str, spec: impl Into<Value>) -> Value {
    let version = api_version(kind);
    let metadata = json!({"namespace": namespace, "name": name});
    json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec.into()})
}

pub(crate) fn class() -> Value {
    object(
        "GatewayClass",
        "",
        "ours",
        json!({"controllerName": CONTROLLER}),
    )
}

pub(crate) fn https(secret: &str, namespace: Option<&str>) -> Value {
    let reference = json!({"name": secret, "namespace": namespace});
    json!([{"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [reference]}}])
}

pub(crate) fn gateway(name: &str, listeners: impl Into<Value>) -> Value {
    let spec = json!({"gatewayClassName": "ours", "listeners": listeners.into()});
    object("Gateway", "infra", name, spec)
}

pub(crate) fn http(name: &str) -> Value {
    let all = json!({"namespaces": {"from": "All"}});
    gateway(
        name,
        json!([{"name": "l", "port": 80, "protocol": "HTTP", "allowedRoutes": all}]),
    )
}

pub(crate) fn route(namespace: &str, name: &str, parent: &str, backend: impl Into<Value>) -> Value {
    let parent = json!({"name": parent, "namespace": "infra"});
    let rules = json!([{"backendRefs": [backend.into()]}]);
    object(
        "HTTPRoute",
        namespace,
        name,
        json!({"parentRefs": [parent], "rules": rules}),
    )
}

pub(crate) fn service(namespace: &str, name: &str) -> Value {
    object("Service", namespace, name, json!({"ports": [{"port": 80}]}))
}

pub(crate) fn slice(namespace: &str, service: &str, address: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "namespace": namespace, "name": format!("{service}-x"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4", "endpoints": [{"addresses": [address]}], "ports": [{"port": 8080}],
    })
}

pub(crate) fn secret(namespace: &str, name: &str) -> Value {
    object("Secret", namespace, name, Value::Null)
}

pub(crate) fn grant(namespace: &str, from: (&str, &str), to: &str) -> Value {
    let group = |kind: &str| match kind {
        "XBackend" => "gateway.networking.x-k8s.io",
        "ServiceImport" => "multicluster.x-k8s.io",
        "InferencePool" => "inference.networking.k8s.io",
        "AccessPolicy" | "RoutePolicy" => "portcullis.dev",
        "HTTPRoute" | "Gateway" => "gateway.networking.k8s.io",
        _ => "",
    };
    let source = json!({"group": group(from.0), "kind": from.0, "namespace": from.1});
    let spec = json!({"from": [source], "to": [{"group": group(to), "kind": to}]});
    object(
        "ReferenceGrant",
        namespace,
        &format!("{}-{to}", from.0),
        spec,
    )
}

pub(crate) fn namespace(name: &str, label: &str) -> Value {
    let metadata = json!({"name": name, "labels": {"env": label}});
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
}

/// A cluster with its closures.
pub(crate) struct Followed {
    cluster: Snapshot,
    closures: Closures,
}

impl Followed {
    pub(crate) fn new(objects: impl IntoIterator<Item = Value>) -> Self {
        Self::with(Options::default(), objects)
    }

    pub(crate) fn with(options: Options, objects: impl IntoIterator<Item = Value>) -> Self {
        let mut followed = Self {
            cluster: snapshot(objects),
            closures: Closures::new(options),
        };
        followed.closures.follow(&followed.cluster);
        followed
    }

    /// Applies an object. Returns the changes of closures, as `Gateway: +put -delete`.
    pub(crate) fn put(&mut self, object: &Value) -> Vec<String> {
        self.cluster.insert(decode(object));
        self.follow()
    }

    pub(crate) fn delete(&mut self, object: &Value) -> Vec<String> {
        let object = decode(object);
        let meta = object.meta();
        let name = object.kind().object_ref(&meta.namespace, &meta.name);
        assert!(self.cluster.remove(&name));
        self.follow()
    }

    fn follow(&mut self) -> Vec<String> {
        let differences = self.closures.follow(&self.cluster).into_iter();
        differences
            .map(|(gateway, difference)| format!("{}:{}", gateway.name, shown(difference)))
            .collect()
    }

    pub(crate) fn cluster(&self) -> &Snapshot {
        &self.cluster
    }

    /// Returns the objects in the closure of a Gateway.
    pub(crate) fn snapshot(&self, gateway: &str) -> &Snapshot {
        let name = ObjectRef::gateway_api("Gateway", "infra", gateway);
        self.closures.get(&name).unwrap()
    }

    /// Returns the names of the objects in the closure of a Gateway, without the Gateway and its class.
    pub(crate) fn of(&self, gateway: &str) -> Vec<String> {
        let names = self
            .snapshot(gateway)
            .names_changed_since(&Snapshot::default())
            .into_iter();
        let rest = names.filter(|name| !["Gateway", "GatewayClass"].contains(&&*name.kind));
        let mut names: Vec<_> = rest.map(|name| name.to_string()).collect();
        names.sort();
        names
    }
}

fn shown(difference: Difference) -> String {
    let Difference::Changed(changes) = difference else {
        return " gone".to_owned();
    };
    let changes = changes.into_iter().map(|change| match change {
        ObjectChange::Put(object) => {
            let meta = object.meta();
            format!(
                " +{}",
                object.kind().object_ref(&meta.namespace, &meta.name)
            )
        }
        ObjectChange::Delete(name) => format!(" -{name}"),
    });
    changes.collect()
}

#[test]
fn closure_excludes_objects_of_other_gateways() {
    let backend = |name: &str| json!({"name": name, "port": 80});
    let followed = Followed::new([
        class(),
        gateway("one", https("one", None)),
        gateway("two", https("two", None)),
        secret("infra", "one"),
        secret("infra", "two"),
        secret("infra", "nobody"),
        route("infra", "one", "one", backend("one")),
        route("infra", "two", "two", backend("two")),
        service("infra", "one"),
        service("infra", "two"),
        slice("infra", "two", "10.0.0.1"),
        namespace("infra", "x"),
    ]);
    let one = [
        "HTTPRoute infra/one",
        "Secret infra/one",
        "Service infra/one",
    ];
    assert_eq!(followed.of("one"), one);
    let two = [
        "EndpointSlice infra/two-x",
        "HTTPRoute infra/two",
        "Secret infra/two",
        "Service infra/two",
    ];
    assert_eq!(followed.of("two"), two);
}

#[test]
fn objects_of_other_namespaces_need_a_grant() {
    let foreign = json!({"name": "app", "namespace": "apps", "port": 80});
    let mut followed = Followed::new([
        class(),
        gateway("g", https("key", Some("keys"))),
        secret("keys", "key"),
        route("infra", "r", "g", foreign),
        service("apps", "app"),
        grant("keys", ("HTTPRoute", "infra"), "Secret"),
        grant("keys", ("Gateway", "other"), "Secret"),
    ]);
    assert_eq!(followed.of("g"), ["HTTPRoute infra/r"]);
    let keys = grant("keys", ("Gateway", "infra"), "Secret");
    let change = "g: +Secret keys/key +ReferenceGrant keys/Gateway-Secret";
    assert_eq!(followed.put(&keys), [change]);
    let apps = grant("apps", ("HTTPRoute", "infra"), "Service");
    let change = "g: +Service apps/app +ReferenceGrant apps/HTTPRoute-Service";
    assert_eq!(followed.put(&apps), [change]);
    let change = "g: -Secret keys/key -ReferenceGrant keys/Gateway-Secret";
    assert_eq!(followed.delete(&keys), [change]);
}

#[test]
fn overrides_are_in_closures_of_gateways_of_their_namespace_and_of_their_services() {
    let policy = |namespace: &str, name: &str| {
        let target = json!({"group": "", "kind": "Service", "name": "app", "namespace": "apps"});
        let authority = json!({"group": "", "kind": "ConfigMap", "name": "ca"});
        let validation = json!({"hostname": "h", "caCertificateRefs": [authority]});
        let spec = json!({"targetRefs": [target], "validation": validation});
        object("BackendTLSOverride", namespace, name, spec)
    };
    let authority = |namespace: &str| object("ConfigMap", namespace, "ca", Value::Null);
    let backend = json!({"name": "app", "port": 80});
    let mut followed = Followed::new([
        class(),
        http("one"),
        route("apps", "r", "one", backend),
        service("apps", "app"),
        policy("infra", "consumer"),
        policy("apps", "producer"),
        policy("elsewhere", "stranger"),
        authority("infra"),
        authority("apps"),
        authority("elsewhere"),
    ]);
    let own = ["BackendTLSOverride infra/consumer", "ConfigMap infra/ca"];
    let all = [
        "BackendTLSOverride apps/producer",
        own[0],
        "ConfigMap apps/ca",
        own[1],
        "HTTPRoute apps/r",
        "Service apps/app",
    ];
    assert_eq!(followed.of("one"), all);
    // A new Gateway gets the objects that apply to all Gateways of its namespace.
    followed.put(&http("two"));
    assert_eq!(followed.of("two"), own);
    followed.delete(&policy("infra", "consumer"));
    assert!(followed.of("two").is_empty());
}

fn imported(name: &str) -> Value {
    json!({"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": name, "namespace": "apps", "port": 80})
}

#[test]
fn closure_includes_endpoints_and_policies_of_granted_service_import() {
    let label = json!({"multicluster.kubernetes.io/service-name": "shop"});
    let mut own = slice("apps", "import", "10.0.0.1");
    own["metadata"]["labels"] = label;
    let target =
        json!([{"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "shop"}]);
    let mut followed = Followed::new([
        class(),
        http("one"),
        route("infra", "r", "one", imported("shop")),
        object(
            "ServiceImport",
            "apps",
            "shop",
            json!({"type": "Headless", "ports": [{"port": 80}]}),
        ),
        // A Service with the same name is unrelated.
        service("apps", "shop"),
        slice("apps", "shop", "10.0.0.2"),
        own,
        object(
            "BackendTLSPolicy",
            "apps",
            "p",
            json!({"targetRefs": target, "validation": {"hostname": "h", "wellKnownCACertificates": "System"}}),
        ),
    ]);
    assert_eq!(followed.of("one"), ["HTTPRoute infra/r"]);
    let change = "one: +EndpointSlice apps/import-x +BackendTLSPolicy apps/p +ReferenceGrant apps/HTTPRoute-ServiceImport \
                  +ServiceImport apps/shop";
    let grant = grant("apps", ("HTTPRoute", "infra"), "ServiceImport");
    assert_eq!(followed.put(&grant), [change]);
}

#[test]
fn closure_excludes_backends_of_disabled_kinds() {
    let mut options = Options::default();
    options.permissions.backend_kinds = BackendKinds::Only(["v1.Service"].into());
    let service = json!({"name": "app", "port": 80});
    let followed = Followed::with(
        options,
        [
            class(),
            http("one"),
            route("apps", "r", "one", imported("shop")),
            route("apps", "s", "one", service),
            object(
                "ServiceImport",
                "apps",
                "shop",
                json!({"type": "Headless", "ports": [{"port": 80}]}),
            ),
            self::service("apps", "app"),
        ],
    );
    let expected = ["HTTPRoute apps/r", "HTTPRoute apps/s", "Service apps/app"];
    assert_eq!(followed.of("one"), expected);
}

#[test]
fn closure_includes_authorities_and_client_certificate_of_xbackend() {
    let reference = |namespace: Option<&str>| {
        let group = "gateway.networking.x-k8s.io";
        json!({"group": group, "kind": "XBackend", "name": "x", "namespace": namespace})
    };
    let spec = json!({
        "type": "ExternalHostname", "externalHostname": {"hostname": "x.example"}, "port": {"port": 443},
        "tls": {
            "mode": "ClientAndServer",
            "clientCertificateRef": {"name": "key", "namespace": "keys"},
            "validation": {"hostname": "h", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}]},
        },
    });
    let mut authority = object("ConfigMap", "apps", "ca", Value::Null);
    authority["data"] = json!({});
    let mut followed = Followed::new([
        class(),
        http("one"),
        http("two"),
        route("apps", "r", "one", reference(None)),
        route("infra", "s", "two", reference(Some("apps"))),
        object("XBackend", "apps", "x", spec),
        authority,
        secret("keys", "key"),
        grant("apps", ("HTTPRoute", "infra"), "XBackend"),
    ]);
    let own = ["ConfigMap apps/ca", "HTTPRoute apps/r", "XBackend apps/x"];
    assert_eq!(followed.of("one"), own);
    // GEP-4894: no ReferenceGrant makes it a backend of routes of other namespaces.
    assert_eq!(followed.of("two"), ["HTTPRoute infra/s"]);
    let change = "one: +Secret keys/key +ReferenceGrant keys/XBackend-Secret";
    let keys = grant("keys", ("XBackend", "apps"), "Secret");
    assert_eq!(followed.put(&keys), [change]);
    let change = "one: -Secret keys/key -ReferenceGrant keys/XBackend-Secret";
    assert_eq!(followed.delete(&keys), [change]);
}

#[test]
fn closure_includes_only_secrets_of_gateways_and_listener_sets() {
    let backend = json!({"kind": "Secret", "name": "backend"});
    let authority = |kind: &str| json!({"group": "", "kind": kind, "name": "authority"});
    let policy = json!({
        "targetRefs": [{"group": "", "kind": "Service", "name": "app"}],
        "validation": {"hostname": "h", "caCertificateRefs": [authority("Secret"), authority("ConfigMap")]},
    });
    let mut config_map = object("ConfigMap", "infra", "authority", Value::Null);
    config_map["data"] = json!({});
    let followed = Followed::new([
        class(),
        http("g"),
        route("infra", "r", "g", backend),
        route("infra", "s", "g", json!({"name": "app", "port": 80})),
        service("infra", "app"),
        object("BackendTLSPolicy", "infra", "p", policy),
        config_map,
        secret("infra", "authority"),
        secret("infra", "backend"),
    ]);
    let expected = [
        "BackendTLSPolicy infra/p",
        "ConfigMap infra/authority",
        "HTTPRoute infra/r",
        "HTTPRoute infra/s",
        "Service infra/app",
    ];
    assert_eq!(followed.of("g"), expected);
}

#[test]
fn closure_includes_secrets_of_accepted_listener_set() {
    let parent = json!({"name": "g", "namespace": "infra"});
    let spec = json!({"parentRef": parent, "listeners": https("key", None)});
    let mut gateway = http("g");
    let selector = json!({"from": "Selector", "selector": {"matchLabels": {"env": "x"}}});
    gateway["spec"]["allowedListeners"] = json!({"namespaces": selector});
    let mut followed = Followed::new([
        class(),
        gateway.clone(),
        object("ListenerSet", "team", "set", spec),
        secret("team", "key"),
        namespace("team", "y"),
    ]);
    assert_eq!(followed.of("g"), [""; 0]);
    let taken = followed.put(&namespace("team", "x"));
    let all = "g: +Namespace team +Secret team/key +ListenerSet team/set";
    assert_eq!(taken, [all]);
    gateway["spec"]["allowedListeners"] = json!({"namespaces": {"from": "None"}});
    let change = "g: -Namespace team -Secret team/key +Gateway infra/g -ListenerSet team/set";
    assert_eq!(followed.put(&gateway), [change]);
}

#[test]
fn closure_includes_namespaces_while_a_selector_needs_them() {
    let mut followed = Followed::new([
        class(),
        http("g"),
        route("team", "r", "g", json!({"name": "app", "port": 80})),
        namespace("team", "x"),
    ]);
    assert_eq!(followed.of("g"), ["HTTPRoute team/r"]);
    assert!(followed.put(&namespace("team", "y")).is_empty());
    let mut selecting = http("g");
    let namespaces = json!({"from": "Selector", "selector": {}});
    selecting["spec"]["listeners"][0]["allowedRoutes"] = json!({"namespaces": namespaces});
    let change = "g: +Namespace team +Gateway infra/g";
    assert_eq!(followed.put(&selecting), [change]);
    assert_eq!(
        followed.put(&namespace("team", "x")),
        ["g: +Namespace team"]
    );
    let change = "g: -Namespace team +Gateway infra/g";
    assert_eq!(followed.put(&http("g")), [change]);
}

#[test]
fn change_reaches_only_the_closures_that_contain_the_object() {
    let backend = json!({"name": "app", "port": 80});
    let mut followed = Followed::new([
        class(),
        http("one"),
        http("two"),
        http("three"),
        route("infra", "r1", "one", backend.clone()),
        route("infra", "r2", "two", backend),
        service("infra", "app"),
        slice("infra", "app", "10.0.0.1"),
    ]);
    let changed = followed.put(&slice("infra", "app", "10.0.0.2"));
    let expected = [
        "one: +EndpointSlice infra/app-x",
        "two: +EndpointSlice infra/app-x",
    ];
    assert_eq!(changed, expected);
    assert!(
        followed
            .put(&slice("infra", "other", "10.0.0.1"))
            .is_empty()
    );
    assert!(followed.put(&service("infra", "other")).is_empty());
}

#[test]
fn gateway_has_a_closure_while_its_class_is_ours() {
    let mut followed = Followed::new([class(), http("g")]);
    let foreign = json!({"controllerName": "example.com/other"});
    let foreign = object("GatewayClass", "", "ours", foreign);
    assert_eq!(followed.put(&foreign), ["g: gone"]);
    let all = ["g: +Gateway infra/g +GatewayClass ours"];
    assert_eq!(followed.put(&class()), all);
    assert_eq!(followed.delete(&class()), ["g: gone"]);
    assert_eq!(followed.put(&class()), all);
    assert_eq!(followed.delete(&http("g")), ["g: gone"]);
}
