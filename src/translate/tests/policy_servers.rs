//! TLS to the servers that policies name, which get requests through all listeners of a Gateway.

use serde_json::{Value, json};

use super::{gateway, object, run, snapshot};
use crate::ir::Ir;
use crate::ir::route::BackendTarget;
use crate::translate::{Options, Translator, translate};

const GATEWAY_API: &str = "gateway.networking.k8s.io/v1";
const OURS: &str = "portcullis.dev/v1alpha1";

/// Returns a Gateway whose policies name Service `auth`, which has TLS by `tls`, and by `override` for requests of `from`.
fn objects(from: &Value) -> Vec<Value> {
    let sets = json!({"allowedListeners": {"namespaces": {"from": "Same"}}});
    let web = json!([{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"}]);
    let service = json!({"group": "", "kind": "Service", "name": "auth"});
    let mut narrowed = service.clone();
    narrowed["from"] = from.clone();
    let validation = json!({"hostname": "auth.example.com", "wellKnownCACertificates": "System"});
    let server = json!({"name": "auth", "port": 80});
    let external = json!({"protocol": "HTTP", "backendRef": server});
    let specs = [
        ("v1", "Service", "auth", json!({"ports": [{"port": 80}]})),
        (
            GATEWAY_API,
            "BackendTLSPolicy",
            "tls",
            json!({"targetRefs": [service], "validation": validation}),
        ),
        (
            OURS,
            "BackendTLSOverride",
            "override",
            json!({"targetRefs": [narrowed], "mode": "None"}),
        ),
        (
            OURS,
            "AccessPolicy",
            "access",
            json!({"targetRefs": web, "external": external}),
        ),
        (
            OURS,
            "TelemetryPolicy",
            "traces",
            json!({"targetRefs": web, "tracing": {"provider": {"backendRef": server}}}),
        ),
    ];
    let specs = specs.into_iter();
    let others = specs
        .map(|(version, kind, name, spec)| object(version, kind, name, &json!({"spec": spec})));
    [gateway(&sets)].into_iter().chain(others).collect()
}

fn set() -> Value {
    let listener =
        json!({"name": "own", "port": 80, "protocol": "HTTP", "hostname": "set.example.com"});
    let spec = json!({"parentRef": {"name": "web"}, "listeners": [listener]});
    object(GATEWAY_API, "ListenerSet", "set", &json!({"spec": spec}))
}

/// Returns the policy on TLS to the authorization server, or why this is not asked.
fn decided(ir: &Ir) -> Result<Option<String>, String> {
    let policies = ir.policy_servers.values();
    let mut servers = policies.flat_map(|servers| servers.0.values().flatten());
    match servers.next().unwrap() {
        BackendTarget::Backend(id) => Ok(id.tls.as_ref().map(|used| used.policy.name.to_string())),
        BackendTarget::Invalid(why) => Err(why.to_string()),
    }
}

#[test]
fn override_for_one_listener_decides_about_no_others() {
    for (kind, name, section, applied) in [
        ("Gateway", "web", Some("http"), None),
        ("ListenerSet", "set", None, None),
        ("ListenerSet", "set", Some("own"), None),
        ("Gateway", "web", None, Some("override")),
        ("Gateway", "elsewhere", Some("http"), Some("tls")),
        ("ListenerSet", "elsewhere", None, Some("tls")),
    ] {
        let mut from = json!({"kind": kind, "name": name});
        if let Some(section) = section {
            from["sectionName"] = json!(section);
        }
        let mut objects = objects(&from);
        objects.push(set());
        let ir = run(&objects, None).ir;
        match (applied, decided(&ir)) {
            (Some(policy), Ok(found)) => assert_eq!(found.as_deref(), Some(policy), "{from}"),
            (None, Err(why)) => assert!(why.contains("name the Gateway alone"), "{from}: {why}"),
            (_, other) => panic!("{from}: {other:?}"),
        }
        assert_eq!(ir.tracing.is_empty(), applied.is_none(), "{from}");
    }
}

#[test]
fn override_for_a_listener_set_counts_once_that_attaches() {
    let mut translator = Translator::new(Options::default());
    let mut objects = objects(&json!({"kind": "ListenerSet", "name": "set"}));
    let before = translator.translate(&snapshot(&objects), None);
    assert_eq!(decided(&before.ir), Ok(Some("tls".to_owned())));
    objects.push(set());
    let attached = translator.translate(&snapshot(&objects), Some(&before.ir));
    assert!(decided(&attached.ir).is_err());
    let whole = translate(&snapshot(&objects), Some(&before.ir), &Options::default());
    assert_eq!(attached, whole);
    objects.pop();
    let detached = translator.translate(&snapshot(&objects), Some(&attached.ir));
    assert_eq!(detached.ir, before.ir);
}
