//! Budgets of credentials over random clusters with many policies on few targets and with Secrets that change their size.

use std::cell::Cell;
use std::collections::BTreeMap;

use portcullis::api::Resource;
use portcullis::snapshot::Snapshot;
use portcullis::status::{Condition, Reason};
use portcullis::translate::closure::Closures;
use portcullis::translate::{Translation, Translator};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};

use crate::inherited_policies::access_policy;
use crate::objects::{self, CONTROLLER, metadata};
use crate::properties::{
    Step, apply, check, check_translations, closures, options, run, runner, take,
};
use crate::snapshot;

/// Number of random clusters.
const CASES: u32 = 40;
/// What a namespace may bring to a Gateway, in bytes.
const LIMIT: usize = 4 << 20;
/// The namespace whose Secrets policies of another one may name, too.
const GRANTING: &str = "a";
/// Size of what listeners may use of the same Secrets, in bytes.
const CERTIFICATES: usize = 64 << 10;

fn object(kind: &str, namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
        "metadata": {"namespace": namespace, "name": name}, "spec": spec,
    })
}

/// A class, and Gateways, ListenerSets and routes that are admitted, so that most policies have an effect.
fn admitted() -> Vec<Value> {
    let all = json!({"namespaces": {"from": "All"}});
    let listener = |name: &str, hostname: &str| json!({"name": name, "port": 80, "protocol": "HTTP", "hostname": hostname, "allowedRoutes": all});
    let class = json!({"controllerName": CONTROLLER});
    let mut objects = vec![object("GatewayClass", "", "ours", &class)];
    for name in ["g0", "g1"] {
        let listeners = [listener("l0", "a.example"), listener("l1", "*.test")];
        let spec =
            json!({"gatewayClassName": "ours", "listeners": listeners, "allowedListeners": all});
        objects.push(object("Gateway", "a", name, &spec));
    }
    for (namespace, name, gateway) in [
        ("a", "set0", "g0"),
        ("b", "set0", "g1"),
        ("b", "set1", "g0"),
    ] {
        let parent = json!({"name": gateway, "namespace": "a"});
        let listeners = [listener("l0", &format!("{name}.{namespace}.example"))];
        let spec = json!({"parentRef": parent, "listeners": listeners});
        objects.push(object("ListenerSet", namespace, name, &spec));
    }
    for (namespace, name) in [
        ("a", "r0"),
        ("a", "r1"),
        ("b", "r0"),
        ("b", "r1"),
        ("c", "r0"),
    ] {
        let gateway = |name: &str| json!({"name": name, "namespace": "a"});
        let set = json!({"kind": "ListenerSet", "name": "set0", "namespace": "b"});
        let parents = match name {
            "r0" => vec![gateway("g0"), set],
            _ => vec![gateway("g0"), gateway("g1")],
        };
        let rule = json!({"name": "l0", "backendRefs": [{"name": "v0", "port": 80}]});
        let spec = json!({"parentRefs": parents, "rules": [rule]});
        objects.push(object("HTTPRoute", namespace, name, &spec));
    }
    objects.push(object(
        "ReferenceGrant",
        GRANTING,
        "credentials",
        &json!({
            "from": [{"group": "portcullis.dev", "kind": "AccessPolicy", "namespace": "b"}],
            "to": [{"group": "", "kind": "Secret"}],
        }),
    ));
    objects
}

/// A Secret with credentials, some of which do not fit together, or not at all.
fn secret() -> impl Strategy<Value = Value> {
    let sizes = select(vec![1, LIMIT / 3, LIMIT / 2, LIMIT - 1_000, LIMIT]);
    let key = select(vec!["auth", "secret", "client-secret", "acme"]);
    (metadata("s"), sizes, key).prop_map(|(metadata, size, key)| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque",
            "stringData": {key: "x".repeat(size)},
        })
    })
}

/// Changes of a cluster, most of which are about credentials.
fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => access_policy().prop_map(Step::Put),
        3 => secret().prop_map(Step::Put),
        2 => objects::object().prop_map(Step::Put),
        2 => any::<Index>().prop_map(Step::Delete),
    ]
}

/// Returns how many policies do not fit on a Gateway.
fn refused(translation: &Translation) -> usize {
    let statuses = translation.report.policies.iter();
    let conditions = statuses.flat_map(|(_, of_policy)| of_policy.iter().map(|it| &it.conditions));
    let exceeds = |it: &Condition| it.reason == Reason::CredentialLimitExceeded;
    conditions.filter(|it| it.iter().any(exceeds)).count()
}

/// Checks how much of the Secrets of each namespace closures have.
fn check_sizes(cluster: &Snapshot, closures: &Closures) {
    for gateway in cluster.gateways.iter() {
        let Some(closure) = closures.get(&gateway.object_ref()) else {
            continue;
        };
        let mut of_namespaces = BTreeMap::new();
        for secret in closure.secrets.iter() {
            let size: usize = secret.sizes().map(|(key, size)| key.len() + size).sum();
            let namespace = secret.metadata.namespace.to_string();
            *of_namespaces.entry(namespace).or_insert(0) += size;
        }
        for (namespace, size) in of_namespaces {
            let naming = if namespace == GRANTING { 2 } else { 1 };
            let limit = naming * LIMIT + CERTIFICATES;
            assert!(size <= limit, "{size} bytes of {namespace}");
        }
    }
}

#[test]
fn closures_have_the_credentials_that_translations_of_the_cluster_admit() {
    let exceeding = Cell::new(0);
    let parts = (
        vec(access_policy(), 4..16),
        vec(secret(), 2..7),
        vec(objects::object(), 0..20),
        vec(step(), 0..12),
    );
    let result = runner(CASES).run(&parts, |(policies, secrets, others, steps)| {
        let all = [others, admitted(), policies, secrets].concat();
        let mut cluster = snapshot(all);
        let (mut closures, mut copies) = (closures(), BTreeMap::new());
        let mut translator = Translator::new(options());
        apply(&mut copies, closures.follow(&cluster));
        check_translations(&cluster, &closures);
        check_sizes(&cluster, &closures);
        translator.translate(&cluster, None);
        for steps in steps.chunks(3) {
            steps.iter().for_each(|step| take(&mut cluster, step));
            apply(&mut copies, closures.follow(&cluster));
            check(&cluster, &closures, &copies);
            check_sizes(&cluster, &closures);
            let after_changes = translator.translate(&cluster, None);
            let anew = run(&cluster);
            assert_eq!(after_changes.report, anew.report);
            assert_eq!(after_changes.ir, anew.ir);
        }
        check_translations(&cluster, &closures);
        exceeding.set(exceeding.get() + usize::from(refused(&run(&cluster)) > 0));
        Ok(())
    });
    result.unwrap();
    let exceeding = exceeding.get();
    assert!(exceeding > 0, "policies fit in each of {CASES} clusters");
}
