//! Of Secrets and ConfigMaps a closure contains only what is used.

use serde_json::{Value, json};

use crate::contents::{Followed, class, http, object, route};
use crate::objects::UNUSED;

/// A Secret with a certificate, its key, an authority and a password.
fn secret(name: &str, kind: &str) -> Value {
    let mut secret = object("Secret", "infra", name, Value::Null);
    secret["type"] = kind.into();
    secret["metadata"]["annotations"] = json!({"example.com/copy": UNUSED});
    secret["data"] =
        json!({"tls.crt": "Yw==", "tls.key": "aw==", "ca.crt": "YQ==", "password": UNUSED});
    secret["stringData"] = json!({"token": UNUSED});
    secret
}

/// A Gateway with a listener for each protocol, all of which name Secrets.
fn gateway(listeners: &Value, tls: &Value) -> Value {
    let spec = json!({"gatewayClassName": "ours", "listeners": listeners, "tls": tls});
    object("Gateway", "infra", "g", spec)
}

fn listener(name: &str, protocol: &str, port: u16, secret: &str) -> Value {
    let tls = json!({"certificateRefs": [{"name": secret}]});
    json!({"name": name, "port": port, "protocol": protocol, "tls": tls})
}

fn passthrough(secret: &str) -> Value {
    let mut listener = listener("passthrough", "TLS", 8443, secret);
    listener["tls"]["mode"] = json!("Passthrough");
    listener
}

/// Returns the Secrets in the closure of a Gateway, each with its keys.
pub(crate) fn secrets(followed: &Followed, gateway: &str) -> Vec<String> {
    let secrets = followed.snapshot(gateway).secrets.iter();
    secrets
        .map(|secret| {
            let keys: Vec<_> = secret
                .data
                .keys()
                .chain(secret.string_data.keys())
                .collect();
            assert!(secret.metadata.annotations.is_empty());
            format!("{}: {}", secret.metadata.name, keys.join(" "))
        })
        .collect()
}

#[test]
fn closure_includes_certificates_only_of_accepted_listeners_that_terminate_tls() {
    let followed = Followed::new([
        class(),
        gateway(
            &json!([
                listener("https", "HTTPS", 443, "used"),
                listener("http", "HTTP", 80, "plain"),
                listener("tls", "TLS", 8444, "terminated"),
                passthrough("passed"),
                listener("no-port", "HTTPS", 0, "rejected"),
                listener("one", "HTTPS", 9443, "conflict"),
                listener("two", "HTTPS", 9443, "conflict"),
            ]),
            &json!({}),
        ),
        secret("used", "kubernetes.io/tls"),
        secret("plain", "kubernetes.io/tls"),
        secret("terminated", "kubernetes.io/tls"),
        secret("passed", "kubernetes.io/tls"),
        secret("rejected", "kubernetes.io/tls"),
        secret("conflict", "kubernetes.io/tls"),
    ]);
    let expected = ["terminated: tls.crt tls.key", "used: tls.crt tls.key"];
    assert_eq!(secrets(&followed, "g"), expected);
}

#[test]
fn closure_includes_no_value_of_a_secret_of_another_type() {
    let followed = Followed::new([
        class(),
        gateway(
            &json!([listener("https", "HTTPS", 443, "opaque")]),
            &json!({}),
        ),
        secret("opaque", "Opaque"),
    ]);
    assert_eq!(secrets(&followed, "g"), ["opaque: "]);
}

#[test]
fn closure_includes_only_the_authority_of_a_secret_that_clients_are_verified_by() {
    let authority = |kind: &str| json!({"group": "", "kind": kind, "name": "ca"});
    let validation = |authorities: Value| json!({"frontend": {"default": {"validation": {"caCertificateRefs": authorities}}}});
    let tls = validation(json!([authority("Secret"), authority("ConfigMap")]));
    let mut map = object("ConfigMap", "infra", "ca", Value::Null);
    map["data"] = json!({"ca.crt": "", "notes": UNUSED});
    map["metadata"]["annotations"] = json!({"example.com/copy": UNUSED});
    let mut followed = Followed::new([
        class(),
        gateway(&json!([listener("https", "HTTPS", 443, "used")]), &tls),
        secret("used", "kubernetes.io/tls"),
        secret("ca", "kubernetes.io/tls"),
        map,
    ]);
    let both = ["ca: ca.crt", "used: tls.crt tls.key"];
    assert_eq!(secrets(&followed, "g"), both);
    let maps: Vec<_> = followed.snapshot("g").config_maps.iter().collect();
    assert_eq!(maps[0].data.keys().collect::<Vec<_>>(), ["ca.crt"]);
    assert!(maps[0].metadata.annotations.is_empty());
    // One Secret may serve both purposes; which keys are sent follows each change.
    let listeners = json!([listener("https", "HTTPS", 443, "ca")]);
    let change = "g: +Secret infra/ca -Secret infra/used +Gateway infra/g";
    assert_eq!(followed.put(&gateway(&listeners, &tls)), [change]);
    assert_eq!(secrets(&followed, "g"), ["ca: ca.crt tls.crt tls.key"]);
    let plain = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
    followed.put(&gateway(&plain, &tls));
    assert!(secrets(&followed, "g").is_empty());
}

#[test]
fn change_of_an_unused_value_reaches_nobody() {
    let mut changed = secret("used", "kubernetes.io/tls");
    let mut followed = Followed::new([
        class(),
        gateway(
            &json!([listener("https", "HTTPS", 443, "used")]),
            &json!({}),
        ),
        changed.clone(),
    ]);
    changed["data"]["password"] = json!("b3RoZXI=");
    assert!(followed.put(&changed).is_empty());
    changed["data"]["tls.key"] = json!("b3RoZXI=");
    assert_eq!(followed.put(&changed), ["g: +Secret infra/used"]);
}

/// An XBackend with a client certificate.
fn xbackend(mode: &str) -> Value {
    object(
        "XBackend",
        "infra",
        "x",
        json!({
            "type": "ExternalHostname", "externalHostname": {"hostname": "x.example"}, "port": {"port": 443},
            "tls": {"mode": mode, "clientCertificateRef": {"name": "client"}},
        }),
    )
}

#[test]
fn closure_includes_client_certificate_of_xbackend_only_while_it_is_presented() {
    let backend = json!({"group": "gateway.networking.x-k8s.io", "kind": "XBackend", "name": "x"});
    let mut followed = Followed::new([
        class(),
        http("g"),
        route("infra", "r", "g", backend),
        xbackend("ServerOnly"),
        secret("client", "kubernetes.io/tls"),
    ]);
    assert!(secrets(&followed, "g").is_empty());
    followed.put(&xbackend("ClientAndServer"));
    assert_eq!(secrets(&followed, "g"), ["client: tls.crt tls.key"]);
}

#[test]
fn closure_includes_no_certificate_of_a_set_that_moves_to_a_gateway_without_permission() {
    let named = |name: &str, from: &str| {
        let mut gateway = gateway(&json!([listener("http", "HTTP", 80, "plain")]), &json!({}));
        gateway["metadata"]["name"] = name.into();
        gateway["spec"]["listeners"][0]["tls"] = Value::Null;
        gateway["spec"]["allowedListeners"] = json!({"namespaces": {"from": from}});
        gateway
    };
    let set = |parent: &str| {
        let listeners = json!([listener("https", "HTTPS", 443, "used")]);
        let spec = json!({"parentRef": {"name": parent}, "listeners": listeners});
        object("ListenerSet", "infra", "set", spec)
    };
    // In both orders of the names.
    for (from, to) in [("a", "g"), ("x", "g")] {
        let mut followed = Followed::new([
            class(),
            named(from, "All"),
            named(to, "None"),
            set(from),
            secret("used", "kubernetes.io/tls"),
        ]);
        followed.put(&set(to));
        assert_eq!(secrets(&followed, "g"), [""; 0], "from {from}");
    }
}

#[test]
fn closure_includes_only_the_credentials_that_policies_name() {
    let target = json!([{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "r"}]);
    let policy = |spec: Value| {
        let mut spec = spec;
        spec["targetRefs"] = target.clone();
        object("AccessPolicy", "infra", "p", spec)
    };
    let opaque = |name: &str| {
        let mut secret = secret(name, "Opaque");
        secret["data"]["auth"] = json!("YTpi");
        secret
    };
    let basic = json!({"basic": {"secretRef": {"name": "users"}}});
    let from = json!([{"type": "Query", "name": "key"}]);
    let keys = |name: &str| json!({"apiKey": {"secretRefs": [{"name": name}], "from": from}});
    let mut followed = Followed::new([
        class(),
        http("g"),
        route("infra", "r", "g", json!({"name": "app", "port": 80})),
        policy(basic),
        opaque("users"),
        opaque("keys"),
        secret("tls", "kubernetes.io/tls"),
    ]);
    assert_eq!(secrets(&followed, "g"), ["users: auth"]);
    followed.put(&policy(keys("keys")));
    let all = "keys: auth ca.crt password tls.crt tls.key token";
    assert_eq!(secrets(&followed, "g"), [all]);
    // Of a Secret of another type, only that it exists.
    followed.put(&policy(keys("tls")));
    assert_eq!(secrets(&followed, "g"), ["tls: "]);
    followed.put(&policy(json!({"ipRules": {"deny": ["10.0.0.0/8"]}})));
    assert!(secrets(&followed, "g").is_empty());
}
