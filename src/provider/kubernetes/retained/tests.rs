//! Which versions stay in force, and how many.

use serde_json::json;

use super::*;

fn version(generation: usize) -> Object {
    version_with(generation, "192.0.2.1")
}

fn version_with(generation: usize, denied: &str) -> Object {
    let target = format!("route-{generation}");
    let policy = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
        "metadata": {"name": "one", "namespace": "shop", "generation": generation},
        "spec": {
            "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": target}],
            "ipRules": {"deny": [denied]},
        },
    });
    let kind = Kind::find("portcullis.dev/v1alpha1", "AccessPolicy").unwrap();
    kind.decode(&policy).unwrap()
}

fn name_of(namespace: &str, number: usize) -> ObjectRef {
    let name = number.to_string();
    ObjectRef::new("portcullis.dev", "AccessPolicy", namespace, &name)
}

#[test]
fn author_who_changes_a_policy_often_keeps_all_targets_in_few_versions() {
    let name = ObjectRef::new("portcullis.dev", "AccessPolicy", "shop", "one");
    let mut retained = Retained::new(Timing::default());
    for generation in 0..100 {
        retained.add(name.clone(), version(generation));
    }
    assert_eq!(retained.all[&name.namespace][&name].len(), MAX_VERSIONS);
    assert_eq!(retained.count(&name.namespace), 100);
    let mut snapshot = Snapshot::default();
    retained.restore(&mut snapshot);
    let policy = snapshot.access_policies.iter().next().unwrap();
    assert_eq!(policy.spec.target_refs.len(), 100);
}

#[test]
fn targets_that_had_other_rules_keep_them() {
    let name = ObjectRef::new("portcullis.dev", "AccessPolicy", "shop", "one");
    let mut retained = Retained::new(Timing::default());
    for generation in 0..20 {
        let denied = format!("192.0.2.{generation}");
        retained.add(name.clone(), version_with(generation, &denied));
    }
    // The target has other rules since.
    retained.add(name.clone(), version_with(7, "192.0.2.77"));
    let mut snapshot = Snapshot::default();
    retained.restore(&mut snapshot);
    let policies = snapshot.access_policies.iter();
    let rules: BTreeSet<_> = policies
        .map(|policy| {
            let rules = policy.spec.ip_rules.as_ref().unwrap();
            let targets = policy.spec.target_refs.iter();
            let targets: Vec<_> = targets.map(|it| &*it.name).collect();
            format!("{} {}", targets.join(" "), rules.deny.join(" "))
        })
        .collect();
    let expected = (0..20).map(|generation| match generation {
        7 => "route-7 192.0.2.77".to_owned(),
        other => format!("route-{other} 192.0.2.{other}"),
    });
    assert_eq!(rules, expected.collect());
    assert_eq!(retained.count(&name.namespace), 20);
}

/// Returns an object of a kind of the Gateway API, or of the core.
fn object(api_version: &str, kind: &str, namespace: &str, name: &str) -> Object {
    let value = json!({
        "apiVersion": api_version, "kind": kind,
        "metadata": {"name": name, "namespace": namespace}, "spec": {},
    });
    let kind = Kind::find(api_version, kind).unwrap();
    kind.decode(&value).unwrap()
}

/// Returns what is refused of a snapshot with a route and a Service each in two namespaces.
fn refused(retained: &Retained) -> (Vec<String>, Vec<String>) {
    let mut snapshot = Snapshot::default();
    for namespace in ["shop", "other"] {
        let route = "gateway.networking.k8s.io/v1";
        snapshot.insert(object(route, "HTTPRoute", namespace, "r"));
        snapshot.insert(object("v1", "Service", namespace, "s"));
    }
    retained.restore(&mut snapshot);
    let access = snapshot.access_policies.iter();
    let access = access.filter(|it| it.unreadable.is_some());
    let routes = access.flat_map(|policy| {
        let namespace = &policy.metadata.namespace;
        let targets = policy.spec.target_refs.iter();
        targets.map(move |it| format!("{} {namespace}/{}", it.kind, it.name))
    });
    let tls = snapshot.backend_tls_overrides.iter();
    let services = tls.flat_map(|policy| {
        let sender = &policy.metadata.namespace;
        let targets = policy.spec.target_refs.iter();
        targets.map(move |it| format!("{sender} to {}/{}", it.namespace.as_ref().unwrap(), it.name))
    });
    (routes.collect(), services.collect())
}

/// While a kind of policies cannot be listed, no moment passes.
#[test]
fn namespace_with_too_many_deleted_policies_is_refused_until_they_would_have_ended() {
    let mut retained = Retained::new(Timing::default());
    for number in 0..MAX_RETAINED {
        retained.add(name_of("shop", number), version(number));
    }
    assert_eq!(refused(&retained), (Vec::new(), Vec::new()));
    for number in MAX_RETAINED..MAX_RETAINED + 9 {
        retained.add(name_of("shop", number), version(number));
        assert!(retained.all.is_empty() && !retained.is_empty());
    }
    let (routes, services) = refused(&retained);
    assert_eq!(routes, ["HTTPRoute shop/r"]);
    assert_eq!(services, ["shop to other/s", "shop to shop/s"]);
    // Others have their own.
    retained.add(name_of("other", 0), version(0));
    assert_eq!(retained.all.len(), 1);
    let kinds: Vec<_> = Kind::all().iter().collect();
    let scopes = Scope::all(&kinds, None, &BTreeSet::new());
    let mut moments = Moments::of(&scopes);
    let deferred = Deferrals::new(Timing::default().fetch_wait);
    let later = Instant::now() + Timing::default().removal_wait;
    let mut release =
        |moments: &mut Moments| retained.release(later, moments, &deferred, |_| false);
    let released = release(&mut moments);
    assert!(released.is_changed && released.names.len() == MAX_RETAINED + 9);
    let moment = moments.take().unwrap();
    for scope in moments.scopes().collect::<Vec<_>>() {
        moments.listed(scope, None);
        moments.answered(scope, moment, None);
    }
    assert!(release(&mut moments).is_changed);
    assert!(retained.is_empty());
}
