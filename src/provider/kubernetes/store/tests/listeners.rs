//! Deletions of what listeners need: certificates, authorities of clients, permissions to refer to them, and parameters.

use super::order::{answer, change_gateway, published};
use super::*;

/// Returns an object as it is stored, with these fields.
fn stored(kind: &str, fields: &serde_json::Value) -> Change {
    let known = Kind::all().iter().find(|it| it.kind == kind).unwrap();
    let mut object = fields.clone();
    object["metadata"] = json!({"namespace": "default", "name": "a"});
    Change::Applied(ParsedObject {
        content: Content::Parsed(Ok(known.decode(&object).unwrap())),
        ..parsed(kind, "a", &json!({}))
    })
}

/// Another listener, such as one for all names of a domain, may take the requests of one that ends. Where none ends, what is
/// revoked is revoked at once.
#[test]
fn deletion_that_may_end_listeners_waits_for_the_policies_that_were_written_before() {
    let secret = |kind: &str, key: &str| {
        let data = json!({key: "YQ=="});
        json!({"type": kind, "data": data})
    };
    let grant = |kind: &str| {
        let from = json!([{"group": "gateway.networking.k8s.io", "kind": kind, "namespace": "b"}]);
        json!({"spec": {"from": from, "to": []}})
    };
    for (kind, fields, waits) in [
        ("Secret", secret("kubernetes.io/tls", "tls.crt"), true),
        ("Secret", secret("Opaque", "auth"), false),
        ("ReferenceGrant", grant("Gateway"), true),
        ("ReferenceGrant", grant("HTTPRoute"), false),
        ("GatewayParameters", json!({"spec": {}}), true),
    ] {
        let mut store = published();
        change_gateway(&mut store, "a");
        store.apply(index(kind), stored(kind, &fields));
        answer(&mut store);
        assert!(store.release(Instant::now()));
        let known = Kind::all().iter().find(|it| it.kind == kind).unwrap();
        let is_published = |store: &Store| {
            let snapshot = store.load().unwrap().snapshot;
            snapshot.object(&known.object_ref("default", "a")).is_some()
        };
        assert!(is_published(&store), "{kind}");
        assert_eq!(store.apply(index(kind), deleted("a")), !waits, "{fields}");
        assert_eq!(is_published(&store), waits, "{fields}");
        if waits {
            answer(&mut store);
            assert!(store.release(Instant::now()), "{fields}");
        }
        assert!(!is_published(&store) && store.deferred.is_empty());
    }
}

/// The Gateway that is deleted, too, no longer keeps it.
#[test]
fn deleted_certificate_that_nothing_needs_any_more_is_not_published() {
    let mut store = published();
    change_gateway(&mut store, "a");
    let fields = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "YQ=="}});
    store.apply(index("Secret"), stored("Secret", &fields));
    answer(&mut store);
    assert!(store.release(Instant::now()));
    store.apply(index("Gateway"), deleted("edge"));
    store.apply(index("Secret"), deleted("a"));
    assert_eq!(held(&store), ["a"]);
    answer(&mut store);
    assert!(store.release(Instant::now()) && held(&store).is_empty());
    store.drop_unreferenced();
    assert!(store.deferred.is_empty() && store.take_moment().is_none());
}
