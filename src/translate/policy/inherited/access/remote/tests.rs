//! Which URIs are permitted, and which key sets policies need.

use serde_json::{Value, json};

use super::*;
use crate::api::{self};
use crate::translate::{Options, wanted_key_sets};

fn policy(namespace: &str, name: &str, created: &str, remotes: &[Value]) -> Value {
    let providers = remotes.iter().enumerate().map(
        |(index, remote)| json!({"issuer": format!("issuer-{index}"), "jwks": {"remote": remote}}),
    );
    let providers: Vec<_> = providers.collect();
    json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": created},
        "spec": {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "web"}],
            "jwt": {"providers": providers},
        },
    })
}

fn snapshot(policies: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for policy in policies {
        let admission = api::admit(policy.clone());
        assert!(admission.findings.is_empty(), "{:?}", admission.findings);
        snapshot.insert(admission.object.unwrap());
    }
    snapshot
}

fn wanted_in(snapshot: &Snapshot) -> WantedKeySets {
    wanted_key_sets(snapshot, &Options::default())
}

#[test]
fn uris_need_https_and_a_name_or_a_loopback_address() {
    for good in [
        "https://login.example.com/keys",
        "https://login.example.com:8443/keys?tenant=a",
        "https://login.example.com",
        "http://127.0.0.1:8080/keys",
        "http://[::1]:8080/keys",
        "http://localhost/keys",
    ] {
        assert!(uri(good).is_ok(), "{good}");
    }
    for bad in [
        "",
        "/keys",
        "login.example.com",
        "https:///keys",
        "ftp://login.example.com/keys",
        "http://login.example.com/keys",
        "http://10.0.0.1/keys",
        "http://127.0.0.1.example.com/keys",
        "http://localhost.example.com/keys",
        "http://localhost@example.com/keys",
        "https://user:secret@login.example.com/keys",
        "https://login.example.com/keys#a",
        "https://169.254.169.254/keys",
        "https://[fd00::1]/keys",
    ] {
        assert!(uri(bad).is_err(), "{bad}");
    }
}

#[test]
fn policies_of_a_namespace_share_key_sets() {
    let remote = |duration: &str| json!({"uri": "https://a.com/keys", "cacheDuration": duration});
    let snapshot = snapshot(&[
        policy("one", "a", "2026-01-01T00:00:00Z", &[remote("10m")]),
        policy(
            "one",
            "b",
            "2026-01-01T00:00:00Z",
            &[remote("1m"), json!({"uri": "https://b.com"})],
        ),
        policy("two", "a", "2026-01-01T00:00:00Z", &[remote("1h")]),
    ]);
    let wanted = wanted_in(&snapshot).into_iter();
    let wanted = wanted.map(|(key, set)| (key.to_string(), set.unwrap().cache_duration.as_secs()));
    let expected = [
        ("one/https://a.com/keys".to_owned(), 60),
        ("one/https://b.com".to_owned(), 300),
        ("two/https://a.com/keys".to_owned(), 3600),
    ];
    assert_eq!(wanted.collect::<Vec<_>>(), expected);
}

#[test]
fn oldest_policies_of_a_namespace_come_first() {
    let remotes = |host: &str, count: usize| -> Vec<Value> {
        let uri = |number| json!({"uri": format!("https://{host}.com/{number}")});
        (0..count).map(uri).collect()
    };
    let snapshot = snapshot(&[
        policy("one", "a", "2026-01-02T00:00:00Z", &remotes("new", 8)),
        policy("one", "b", "2026-01-01T00:00:00Z", &remotes("old", 8)),
        policy("one", "c", "2026-01-01T00:00:00Z", &remotes("also-old", 8)),
        policy("two", "a", "2026-01-03T00:00:00Z", &remotes("new", 8)),
    ]);
    let wanted = wanted_in(&snapshot);
    let refused = wanted.iter().filter(|(_, set)| set.is_err());
    let refused: Vec<_> = refused.map(|(key, _)| key.to_string()).collect();
    assert_eq!(refused.len(), 8);
    assert!(
        refused
            .iter()
            .all(|it| it.starts_with("one/https://new.com/")),
        "{refused:?}"
    );
}

/// A Service with a ready endpoint and one that is not.
fn service(namespace: &str, name: &str) -> [Value; 2] {
    let endpoint = |address: &str, is_ready: bool| json!({"addresses": [address], "conditions": {"ready": is_ready}});
    [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
            "spec": {"ports": [{"name": "http", "port": 80}]},
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-x"), "namespace": namespace,
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
            "endpoints": [endpoint("10.0.0.1", true), endpoint("10.0.0.2", false)],
        }),
    ]
}

#[test]
fn key_sets_of_a_service_have_its_endpoints() {
    let remote = |backend: Value| json!({"uri": "http://a.com/keys", "backendRef": backend});
    let wanted = |backend: Value, others: &[Value]| {
        let created = "2026-01-01T00:00:00Z";
        let mut objects = vec![policy("one", "a", created, &[remote(backend)])];
        objects.extend(others.iter().cloned());
        let wanted = wanted_in(&snapshot(&objects)).into_values().next();
        wanted.unwrap().map(|set| set.source.server.unwrap())
    };
    let own = json!({"name": "keys", "port": 80});
    let expected = Ok(KeyServer {
        endpoints: vec!["10.0.0.1:8080".parse().unwrap()],
        tls: None,
    });
    assert_eq!(wanted(own.clone(), &service("one", "keys")), expected);
    let other_port = json!({"name": "keys", "port": 81});
    let foreign = json!({"name": "keys", "port": 80, "namespace": "two"});
    for (backend, others, problem) in [
        (&own, service("one", "others"), "does not exist"),
        (&own, service("two", "keys"), "does not exist"),
        (&other_port, service("one", "keys"), "has no port 81 of TCP"),
        (
            &foreign,
            service("two", "keys"),
            "no ReferenceGrant in namespace two",
        ),
    ] {
        let found = wanted(backend.clone(), &others).unwrap_err();
        assert!(found.contains(problem), "{found}");
    }
    let no_slice = &service("one", "keys")[..1];
    let found = wanted(own, no_slice).unwrap_err();
    assert_eq!(found, "Service one/keys has no ready endpoint");
    let mut others = service("two", "keys").to_vec();
    others.push(grant());
    assert_eq!(wanted(foreign, &others), expected);
}

/// A grant for AccessPolicies of namespace one to name Services of namespace two.
fn grant() -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "ReferenceGrant",
        "metadata": {"name": "g", "namespace": "two"},
        "spec": {
            "from": [{"group": "portcullis.dev", "kind": "AccessPolicy", "namespace": "one"}],
            "to": [{"group": "", "kind": "Service"}],
        },
    })
}

/// A policy on TLS to the Service of keys.
fn tls(kind: &str, namespace: &str, target: Value, spec: Value) -> Value {
    let group = match kind {
        "BackendTLSPolicy" => "gateway.networking.k8s.io/v1",
        _ => "portcullis.dev/v1alpha1",
    };
    let mut target_ref = json!({"group": "", "kind": "Service", "name": "keys"});
    merge(&mut target_ref, target);
    let mut all = json!({"targetRefs": [target_ref]});
    merge(&mut all, spec);
    let metadata = json!({"name": "tls", "namespace": namespace});
    json!({"apiVersion": group, "kind": kind, "metadata": metadata, "spec": all})
}

fn merge(into: &mut Value, from: Value) {
    let Value::Object(fields) = from else {
        panic!("{from} has no fields");
    };
    into.as_object_mut().unwrap().extend(fields);
}

#[test]
fn fetches_follow_the_policies_of_both_namespaces_and_no_others() {
    let to = |hostname: &str| json!({"validation": {"hostname": hostname, "wellKnownCACertificates": "System"}});
    let found = |policies: &[Value]| {
        let reference = json!({"name": "keys", "port": 80, "namespace": "two"});
        let remote = json!({"uri": "http://a.com/keys", "backendRef": reference});
        let mut objects = vec![policy("one", "a", "2026-01-01T00:00:00Z", &[remote])];
        objects.extend(service("two", "keys"));
        objects.push(grant());
        objects.extend(policies.iter().cloned());
        let wanted = wanted_in(&snapshot(&objects)).into_values().next();
        let server = wanted.unwrap().map(|set| set.source.server.unwrap());
        server.map(|server| server.tls.map(|tls| tls.server_name.to_string()))
    };
    let two = || json!({"namespace": "two"});
    let own = |spec| tls("BackendTLSPolicy", "two", json!({}), spec);
    let of_consumer = |target, spec| tls("BackendTLSOverride", "one", target, spec);
    let name = |name: &str| Ok(Some(name.to_owned()));
    assert_eq!(found(&[]), Ok(None));
    assert_eq!(found(&[own(to("two.internal"))]), name("two.internal"));
    let both = [
        own(to("two.internal")),
        of_consumer(two(), to("one.internal")),
    ];
    assert_eq!(found(&both), name("one.internal"));
    let other = tls("BackendTLSOverride", "three", two(), to("three.internal"));
    assert_eq!(found(&[other]), Ok(None));
    let elsewhere = tls("BackendTLSPolicy", "one", json!({}), to("one.internal"));
    assert_eq!(found(&[elsewhere]), Ok(None));
    let other_port = json!({"sectionName": "other"});
    let other_port = tls("BackendTLSPolicy", "two", other_port, to("two.internal"));
    assert_eq!(found(&[other_port]), Ok(None));
    let port = json!({"sectionName": "http"});
    let port = tls("BackendTLSPolicy", "two", port, to("two.internal"));
    assert_eq!(found(&[port]), name("two.internal"));
    // A Gateway sends none of these requests.
    let mut from = two();
    merge(
        &mut from,
        json!({"from": {"kind": "Gateway", "name": "web"}}),
    );
    assert_eq!(found(&[of_consumer(from, to("one.internal"))]), Ok(None));
    let plain = of_consumer(two(), json!({"mode": "None"}));
    assert_eq!(found(&[own(to("two.internal")), plain]), Ok(None));
    let broken =
        || json!({"validation": {"hostname": "10.0.0.1", "wellKnownCACertificates": "System"}});
    let problem = found(&[own(to("two.internal")), of_consumer(two(), broken())]);
    assert_eq!(
        problem.unwrap_err(),
        "backendRef: Service two/keys is not asked: BackendTLSOverride one/tls cannot be applied to it: \
         spec.validation.hostname \"10.0.0.1\" is not a DNS name without wildcard"
    );
}
