//! Translations that goldens cannot cover: certificates of the previous IR, values that no API server would store, and
//! inputs that are too large to write down.

mod bodies;
mod listener_names;
mod listener_sets;
mod namespaces;
mod policy_servers;
mod unknown_fields;

use std::fmt::Write;
use std::sync::Arc;

use serde_json::{Value, json};

use super::input::Options;
use super::{Translation, Translator, translate};
use crate::api::Kind;
use crate::ir::{Certificate, Ir};
use crate::snapshot::Snapshot;
use crate::status::{Address, Condition, ConditionType, Reason};

fn snapshot(objects: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for object in objects {
        let text = |name: &str| object[name].as_str().unwrap();
        let kind = Kind::find(text("apiVersion"), text("kind")).unwrap();
        snapshot.insert(kind.decode(object).unwrap());
    }
    snapshot
}

fn run(objects: &[Value], previous: Option<&Ir>) -> Translation {
    translate(&snapshot(objects), previous, &Options::default())
}

fn object(api_version: &str, kind: &str, name: &str, rest: &Value) -> Value {
    let mut object = json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
    });
    let fields = object.as_object_mut().unwrap();
    fields.extend(rest.as_object().unwrap().clone());
    object
}

fn gateway(spec: &Value) -> Value {
    let mut object = object("gateway.networking.k8s.io/v1", "Gateway", "web", &json!({}));
    object["spec"] = json!({
        "gatewayClassName": "portcullis",
        "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}],
    });
    let fields = object["spec"].as_object_mut().unwrap();
    fields.extend(spec.as_object().unwrap().clone());
    object
}

fn https(namespace: &str) -> Value {
    let reference = json!({"name": "cert", "namespace": namespace});
    gateway(&json!({"listeners": [{
        "name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [reference]},
    }]}))
}

fn route(rule: &Value) -> Value {
    let spec = json!({"parentRefs": [{"name": "web"}], "rules": [rule]});
    object(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        "r",
        &json!({"spec": spec}),
    )
}

fn pair(name: &str) -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    (
        parameters.self_signed(&key).unwrap().pem(),
        key.serialize_pem(),
    )
}

fn secret(namespace: &str, certificate: &str, key: &str) -> Value {
    let data = json!({"tls.crt": certificate, "tls.key": key});
    let mut secret = object(
        "v1",
        "Secret",
        "cert",
        &json!({"type": "kubernetes.io/tls", "stringData": data}),
    );
    secret["metadata"]["namespace"] = json!(namespace);
    secret
}

fn served(translation: &Translation) -> Vec<Arc<Certificate>> {
    let ports = translation.ir.ports.iter();
    ports
        .flat_map(|port| port.certificates())
        .cloned()
        .collect()
}

fn listener_condition(translation: &Translation, kind: ConditionType) -> Condition {
    let gateway = translation.report.gateways.values().next().unwrap();
    let mut conditions = gateway.listeners[0].conditions.iter();
    conditions
        .find(|condition| condition.kind == kind)
        .unwrap()
        .clone()
}

fn route_condition(translation: &Translation, kind: ConditionType) -> Condition {
    let parents = translation.report.routes.values().next().unwrap();
    let mut conditions = parents[0].conditions.iter();
    conditions
        .find(|condition| condition.kind == kind)
        .unwrap()
        .clone()
}

#[test]
fn keeps_last_good_certificate_of_secret_that_becomes_invalid() {
    let (certificate, key) = pair("a.example.com");
    let (_, other_key) = pair("a.example.com");
    let good = run(
        &[https("default"), secret("default", &certificate, &key)],
        None,
    );
    let bad_key = [
        https("default"),
        secret("default", &certificate, &other_key),
    ];

    let kept = run(&bad_key, Some(&good.ir));
    let listener = |translation: &Translation| translation.ir.ports[0].listeners[0].clone();
    assert_eq!(listener(&kept).tls(), listener(&good).tls());
    assert!(Arc::ptr_eq(&served(&kept)[0], &served(&good)[0]));
    let kept_listener = listener(&kept);
    let termination = kept_listener.protocol.termination().unwrap();
    assert_eq!(termination.held_over, [served(&good)[0].source.clone()]);
    let resolved = listener_condition(&kept, ConditionType::ResolvedRefs);
    assert_eq!(resolved.reason, Reason::InvalidCertificateRef);
    assert!(
        resolved.message.contains("does not belong"),
        "{}",
        resolved.message
    );
    assert!(
        resolved.message.contains("keeps serving"),
        "{}",
        resolved.message
    );
    assert!(!listener_condition(&kept, ConditionType::Programmed).is_problem());

    let again = run(&bad_key, Some(&kept.ir));
    assert_eq!(
        again, kept,
        "the last good certificate survives any number of translations"
    );
    assert!(served(&run(&bad_key, None)).is_empty());
}

#[test]
fn translator_follows_the_served_ir_while_a_secret_is_invalid() {
    let (certificate, key) = pair("a.example.com");
    let (_, other_key) = pair("a.example.com");
    let good = [https("default"), secret("default", &certificate, &key)];
    let bad = [
        https("default"),
        secret("default", &certificate, &other_key),
    ];
    let served = run(&good, None).ir;
    let mut translator = Translator::new(Options::default());
    for previous in [Some(&served), None, Some(&served), None] {
        let followed = translator.translate(&snapshot(&bad), previous);
        assert_eq!(followed, run(&bad, previous));
    }
}

#[test]
fn translator_keeps_nodes_of_unchanged_routes() {
    let other = |name: &str| {
        let mut route = route(&json!({"backendRefs": [{"name": "app", "port": 80}]}));
        route["metadata"]["name"] = json!(name);
        route
    };
    let before = [gateway(&json!({})), other("a"), other("b")];
    let mut translator = Translator::new(Options::default());
    let first = translator.translate(&snapshot(&before), None);
    let same = translator.translate(&snapshot(&before), Some(&first.ir));
    assert!(Arc::ptr_eq(&first.ir.ports[0], &same.ir.ports[0]));
    assert!(first.report.routes.ptr_eq(&same.report.routes));

    let mut changed = other("b");
    changed["spec"]["hostnames"] = json!(["b.example.com"]);
    let after = [gateway(&json!({})), other("a"), changed];
    let second = translator.translate(&snapshot(&after), Some(&first.ir));
    let routes = |translation: &Translation| {
        let routes = translation.ir.ports[0].listeners[0].routes.iter();
        routes.cloned().collect::<Vec<_>>()
    };
    let (old, new) = (routes(&first), routes(&second));
    assert!(Arc::ptr_eq(&old[0], &new[0]));
    assert!(!Arc::ptr_eq(&old[1], &new[1]));
    assert!(Arc::ptr_eq(&old[1].route, &new[1].route));
    let name = &old[0].route.object;
    assert!(Arc::ptr_eq(
        &first.report.routes[name],
        &second.report.routes[name]
    ));
}

#[test]
fn stops_serving_certificate_of_deleted_or_revoked_secret() {
    let (certificate, key) = pair("a.example.com");
    let grant = json!({
        "from": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "default"}],
        "to": [{"group": "", "kind": "Secret"}],
    });
    let mut grant = object(
        "gateway.networking.k8s.io/v1",
        "ReferenceGrant",
        "g",
        &json!({"spec": grant}),
    );
    grant["metadata"]["namespace"] = json!("certs");
    let secret = secret("certs", &certificate, &key);
    let good = run(&[https("certs"), secret.clone(), grant.clone()], None);
    assert_eq!(served(&good).len(), 1);

    let revoked = run(&[https("certs"), secret], Some(&good.ir));
    assert!(served(&revoked).is_empty());
    let resolved = listener_condition(&revoked, ConditionType::ResolvedRefs);
    assert_eq!(resolved.reason, Reason::RefNotPermitted);

    let gone = run(&[https("certs"), grant], Some(&good.ir));
    assert!(served(&gone).is_empty());
}

#[test]
fn replaces_renewed_certificate() {
    let (old, new) = (pair("a.example.com"), pair("a.example.com"));
    let before = run(&[https("default"), secret("default", &old.0, &old.1)], None);
    let after = run(
        &[https("default"), secret("default", &new.0, &new.1)],
        Some(&before.ir),
    );
    assert_ne!(
        served(&after)[0].fingerprint,
        served(&before)[0].fingerprint
    );
    assert_eq!(
        after,
        run(&[https("default"), secret("default", &new.0, &new.1)], None)
    );
}

#[test]
fn refuses_oversized_certificates() {
    let (certificate, key) = pair("a.example.com");
    let padded = format!("{certificate}{}", "\n".repeat(257 * 1024));
    let cases = [
        (certificate.repeat(32), None),
        (certificate.repeat(33), Some("more than 32 certificates")),
        (padded, Some("more than 256 KiB")),
    ];
    for (certificate, problem) in cases {
        let translation = run(
            &[https("default"), secret("default", &certificate, &key)],
            None,
        );
        let resolved = listener_condition(&translation, ConditionType::ResolvedRefs);
        assert_eq!(served(&translation).is_empty(), problem.is_some());
        assert!(
            resolved.message.contains(problem.unwrap_or_default()),
            "{}",
            resolved.message
        );
    }
}

#[test]
fn serves_every_supported_kind_of_key() {
    let kinds = [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_ED25519,
        &rcgen::PKCS_RSA_SHA256,
    ];
    for kind in kinds {
        let key = rcgen::KeyPair::generate_for(kind).unwrap();
        let parameters = rcgen::CertificateParams::new(vec!["A.example.com".to_owned()]).unwrap();
        let certificate = parameters.self_signed(&key).unwrap().pem();
        let secret = secret("default", &certificate, &key.serialize_pem());
        let translation = run(&[https("default"), secret], None);
        let certificates = served(&translation);
        assert_eq!(
            *certificates[0].names,
            [Box::from("a.example.com")],
            "{kind:?}"
        );
        let shown = serde_json::to_string(&translation.ir).unwrap();
        assert!(!shown.contains("PRIVATE"), "keys are never shown");
    }
}

#[test]
fn reports_invalid_address_and_serves_on_the_others() {
    let addresses = json!([{"type": "IPAddress", "value": "300.1.1.1"}, {"type": "IPAddress", "value": "127.0.0.1"}]);
    let translation = run(&[gateway(&json!({"addresses": addresses}))], None);
    let status = translation.report.gateways.values().next().unwrap();
    let programmed = status
        .conditions
        .iter()
        .find(|one| one.kind == ConditionType::Programmed);
    assert_eq!(programmed.unwrap().reason, Reason::AddressNotUsable);
    assert_eq!(
        status.addresses,
        [Address::IPAddress("127.0.0.1".parse().unwrap())]
    );
    assert_eq!(translation.ir.ports.len(), 1);

    let addresses = json!([{"type": "IPAddress", "value": "nonsense"}]);
    let translation = run(&[gateway(&json!({"addresses": addresses}))], None);
    assert!(translation.ir.ports.is_empty());
    assert!(listener_condition(&translation, ConditionType::Programmed).is_problem());
}

#[test]
fn refuses_values_that_crd_validation_refuses() {
    let filter =
        |kind: &str, block: &str, value: Value| json!({"filters": [{"type": kind, block: value}]});
    let redirect = |value| filter("RequestRedirect", "requestRedirect", value);
    let rewrite = |value| filter("URLRewrite", "urlRewrite", value);
    let header = |name: &str, value: &str| {
        let set = json!({"set": [{"name": name, "value": value}]});
        filter("RequestHeaderModifier", "requestHeaderModifier", set)
    };
    let path =
        |kind: &str, value: &str| json!({"matches": [{"path": {"type": kind, "value": value}}]});
    let prefix = json!({"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}});
    let mut two_prefixes = rewrite(prefix);
    two_prefixes["matches"] = json!([{"path": {"value": "/a"}}, {"path": {"value": "/b"}}]);
    let cases = [
        (path("Exact", "nope"), "does not begin with /"),
        (path("Glob", "/x"), "type Glob is not supported"),
        (
            json!({"matches": [{"method": "BREW"}]}),
            "\"BREW\" is not supported",
        ),
        (
            json!({"matches": [{"headers": [{"name": "a b", "value": ""}]}]}),
            "is not a header name",
        ),
        (
            json!({"matches": [{"queryParams": [{"name": "a", "type": "Glob", "value": ""}]}]}),
            "type Glob",
        ),
        (
            json!({"timeouts": {"request": "soon"}}),
            "is not a duration",
        ),
        (
            json!({"filters": [{"type": "URLRewrite"}]}),
            "its block is missing",
        ),
        (header("x:y", "a"), "is not a header name"),
        (
            header("x-a", "a\r\nb"),
            "characters that are not allowed in headers",
        ),
        (redirect(json!({"scheme": "ftp"})), "use http or https"),
        (redirect(json!({"statusCode": 200})), "200 is not supported"),
        (redirect(json!({"hostname": "a b"})), "is not a hostname"),
        (
            rewrite(json!({"hostname": "a.example.com:80"})),
            "is not a hostname",
        ),
        (
            rewrite(json!({"path": {"type": "Other"}})),
            "type Other is not supported",
        ),
        (
            rewrite(json!({"path": {"type": "ReplaceFullPath"}})),
            "its member is missing",
        ),
        (two_prefixes, "exactly one match, of type PathPrefix"),
        (
            json!({"filters": [{"type": "URLRewrite", "urlRewrite": {}}, {"type": "RequestRedirect", "requestRedirect": {}}]}),
            "exclude each other",
        ),
    ];
    for (rule, message) in cases {
        let translation = run(&[gateway(&json!({})), route(&rule)], None);
        let accepted = route_condition(&translation, ConditionType::Accepted);
        assert!(accepted.is_problem(), "{rule}");
        assert!(
            accepted.message.contains(message),
            "{rule}: {}",
            accepted.message
        );
        assert!(
            accepted.message.contains("spec.rules[0]"),
            "{rule}: {}",
            accepted.message
        );
    }
}

#[test]
fn refuses_invalid_hostnames_and_ports() {
    for name in ["", "*.", "a..b", "a:80", "*", "a.example.com."] {
        let mut strange = route(&json!({}));
        strange["spec"]["hostnames"] = json!(["a.example.com", name]);
        let translation = run(&[gateway(&json!({})), strange], None);
        let accepted = route_condition(&translation, ConditionType::Accepted);
        assert!(
            accepted.message.contains("spec.hostnames[1]"),
            "{}",
            accepted.message
        );
        let listeners = translation.ir.ports.iter().flat_map(|port| &port.listeners);
        assert!(
            listeners
                .flat_map(|listener| listener.routes.iter())
                .next()
                .is_none()
        );
    }
    for listener in [
        json!({"name": "http", "port": 0, "protocol": "HTTP"}),
        json!({"name": "http", "port": 80, "protocol": "HTTP", "hostname": "*."}),
    ] {
        let translation = run(&[gateway(&json!({"listeners": [listener]}))], None);
        assert!(listener_condition(&translation, ConditionType::Accepted).is_problem());
        assert!(translation.ir.ports.is_empty());
    }
}

#[test]
fn problems_name_the_object_and_state_each_cause_once() {
    let translation = run(
        &[
            https("default"),
            route(&json!({"backendRefs": [{"name": "app", "port": 80}]})),
        ],
        None,
    );
    let mut shown = String::new();
    for (object, problem) in translation.report.problems() {
        writeln!(shown, "{object}: {problem}").unwrap();
    }
    assert_eq!(
        shown,
        "Gateway default/web: listener https: ResolvedRefs is False (InvalidCertificateRef): \
         spec.listeners[https].tls.certificateRefs[0]: Secret default/cert does not exist\n\
         Gateway default/web: listener https: Programmed is False (Invalid): no usable certificate: \
         spec.listeners[https].tls.certificateRefs[0]: Secret default/cert does not exist\n\
         Gateway default/web: Programmed is False (Invalid): none of its listeners can be served: see their conditions\n\
         HTTPRoute default/r: for Gateway web: ResolvedRefs is False (BackendNotFound): \
         spec.rules[0].backendRefs[0]: Service default/app does not exist\n"
    );
}

#[test]
fn translates_many_listeners_in_linear_time() {
    let (certificate, key) = pair("*.example.com");
    let mut objects = vec![secret("default", &certificate, &key)];
    let allowed = json!({"allowedListeners": {"namespaces": {"from": "Same"}}});
    objects.push(gateway(&allowed));
    for index in 0..5_000 {
        let listener = json!({
            "name": "x", "port": 443, "protocol": "HTTPS", "hostname": format!("h{index}.example.com"),
            "tls": {"certificateRefs": [{"name": "cert"}]},
        });
        let spec = json!({"parentRef": {"name": "web"}, "listeners": [listener]});
        let name = format!("set-{index}");
        objects.push(object(
            "gateway.networking.k8s.io/v1",
            "ListenerSet",
            &name,
            &json!({"spec": spec}),
        ));
    }
    let snapshot = snapshot(&objects);
    let began = std::time::Instant::now();
    let translation = translate(&snapshot, None, &Options::default());
    assert!(
        began.elapsed().as_secs() < 120,
        "comparing every pair would take many minutes in this build"
    );
    assert_eq!(translation.ir.ports[1].listeners.len(), 5_000);
    let set = translation.report.listener_sets.values().next().unwrap();
    let overlaps = |one: &Condition| one.reason == Reason::OverlappingCertificates;
    assert!(set.listeners[0].conditions.iter().any(overlaps));
}
