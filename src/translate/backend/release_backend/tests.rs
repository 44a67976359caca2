//! The effect of changes of a ReleaseBackend, and of the objects that it depends on.

use std::sync::Arc;

use serde_json::Value;

use crate::api::admit;
use crate::ir::{Backend, Endpoints, ObjectRef};
use crate::snapshot::Snapshot;
use crate::translate::input::Options;
use crate::translate::{Translation, Translator};

/// Returns the example of the documentation.
fn scene() -> Vec<Value> {
    let page = include_str!("../../../../docs/release-backend.md");
    let example = page.split("```yaml\n").nth(1).unwrap();
    let example = example.split("```").next().unwrap();
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(example).unwrap();
    objects.push(serde_json::json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
        "metadata": {"name": "portcullis"}, "spec": {"controllerName": "portcullis.dev/gateway-controller"},
    }));
    objects
}

fn put(snapshot: &mut Snapshot, object: Value) {
    let admission = admit(object);
    assert!(admission.findings.is_empty(), "{:?}", admission.findings);
    snapshot.insert(admission.object.unwrap());
}

fn of_kind(objects: &[Value], kind: &str) -> Value {
    objects
        .iter()
        .find(|it| it["kind"] == kind)
        .unwrap()
        .clone()
}

/// Returns the releases of the only backend, as `name weight endpoints`.
fn releases(translation: &Translation) -> Vec<String> {
    let [backend] = &*translation.ir.backends else {
        panic!("{:?}", translation.ir.backends)
    };
    let Endpoints::Releases(releases) = &Backend::clone(backend).endpoints else {
        panic!("{backend:?}")
    };
    let shown = releases.releases.iter();
    shown
        .map(|it| format!("{} {} {:?}", it.name, it.weight, it.addresses))
        .collect()
}

fn percents(translation: &Translation) -> Value {
    let name = ObjectRef::new("portcullis.dev", "ReleaseBackend", "default", "shop");
    let status = &translation.report.release_backends[&name];
    let percents = status.releases.iter().map(|it| it.effective_percent);
    serde_json::to_value(percents.collect::<Vec<_>>()).unwrap()
}

#[test]
fn weights_and_pods_change_only_endpoints() {
    let objects = scene();
    let mut snapshot = Snapshot::default();
    objects.iter().for_each(|it| put(&mut snapshot, it.clone()));
    let mut translator = Translator::new(Options::default());
    let first = translator.translate(&snapshot, None);
    let old = [
        "shop-v41 90 [10.0.0.41:8080]",
        "shop-v42 10 [10.0.0.42:9090]",
    ];
    assert_eq!(releases(&first), old);

    let mut backend = of_kind(&objects, "ReleaseBackend");
    backend["spec"]["releases"][0]["weight"] = 30.into();
    put(&mut snapshot, backend);
    let second = translator.translate(&snapshot, None);
    let shifted = [
        "shop-v41 30 [10.0.0.41:8080]",
        "shop-v42 10 [10.0.0.42:9090]",
    ];
    assert_eq!(releases(&second), shifted);
    assert_eq!(percents(&second), serde_json::json!([75, 25]));

    let mut pod = of_kind(&objects, "Pod");
    pod["status"]["conditions"][0]["status"] = "False".into();
    put(&mut snapshot, pod);
    let third = translator.translate(&snapshot, None);
    let moved = ["shop-v41 0 []", "shop-v42 10 [10.0.0.42:9090]"];
    assert_eq!(releases(&third), moved);
    assert_eq!(percents(&third), serde_json::json!([0, 100]));
    for later in [&second, &third] {
        let ports = first.ir.ports.iter().zip(&later.ir.ports);
        assert!(ports.into_iter().all(|(one, two)| Arc::ptr_eq(one, two)));
    }
}

#[test]
fn release_backend_recovers_with_its_service() {
    let objects = scene();
    let mut snapshot = Snapshot::default();
    objects.iter().for_each(|it| put(&mut snapshot, it.clone()));
    let mut translator = Translator::new(Options::default());
    let whole = translator.translate(&snapshot, None);
    let service = ObjectRef::new("", "Service", "default", "shop-v41");
    assert!(snapshot.remove(&service));
    let without = translator.translate(&snapshot, None);
    assert!(without.ir.backends.is_empty());
    put(&mut snapshot, of_kind(&objects, "Service"));
    assert_eq!(translator.translate(&snapshot, None), whole);
}
