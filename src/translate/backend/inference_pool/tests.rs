//! The effect of changes of an InferencePool, of its pods and of its picker, and of routes to it.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::api::{Kind, admit};
use crate::ir::{Backend, Choice, Endpoints, FailureMode, ObjectRef};
use crate::snapshot::Snapshot;
use crate::status::{Condition, ConditionStatus, Reason};
use crate::translate::input::Options;
use crate::translate::{Translation, Translator, translate};

const POOL: &str = "InferencePool default/llm:8000";
const PICKER: &str = "Service default/epp:9002 by InferencePool default/llm for gRPC";

/// The example of the documentation, translated after each change.
struct Scene {
    objects: Vec<Value>,
    snapshot: Snapshot,
    translator: Translator,
}

impl Scene {
    fn new() -> Self {
        let page = include_str!("../../../../docs/inference.md");
        let example = page.split("```yaml\n").nth(1).unwrap();
        let example = example.split("```").next().unwrap();
        let objects: Vec<Value> = serde_saphyr::from_multiple(example).unwrap();
        let mut scene = Self {
            objects,
            snapshot: Snapshot::default(),
            translator: Translator::new(Options::default()),
        };
        let class = json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass",
            "metadata": {"name": "portcullis"}, "spec": {"controllerName": "portcullis.dev/gateway-controller"},
        });
        for object in scene.objects.clone().into_iter().chain([class]) {
            scene.put(object);
        }
        scene
    }

    fn put(&mut self, object: Value) {
        let admission = admit(object);
        assert!(admission.findings.is_empty(), "{:?}", admission.findings);
        self.snapshot.insert(admission.object.unwrap());
    }

    /// Puts the first object of a kind with a change.
    fn change(&mut self, kind: &str, change: impl FnOnce(&mut Value)) {
        let mut objects = self.objects.iter_mut();
        let object = objects.find(|it| it["kind"] == kind).unwrap();
        change(object);
        let object = object.clone();
        self.put(object);
    }

    /// Translates the changes. The result equals that of a new start.
    fn translate(&mut self) -> Translation {
        let translation = self.translator.translate(&self.snapshot, None);
        let anew = translate(&self.snapshot, None, &Options::default());
        assert_eq!(translation, anew);
        translation
    }
}

fn backend<'a>(translation: &'a Translation, id: &str) -> &'a Backend {
    let mut backends = translation.ir.backends.iter();
    let found = backends.find(|it| it.id.to_string() == id);
    found.unwrap_or_else(|| panic!("no {id} in {:?}", translation.ir.backends))
}

/// Returns the names of all backends, in order.
fn names(translation: &Translation) -> Vec<String> {
    let backends = translation.ir.backends.iter();
    let mut names: Vec<_> = backends.map(|it| it.id.to_string()).collect();
    names.sort();
    names
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// Returns the conditions for the only Gateway; `None` if the pool has no entry.
fn conditions(translation: &Translation) -> Option<&[Condition]> {
    let group = "inference.networking.k8s.io";
    let pool = ObjectRef::new(group, "InferencePool", "default", "llm");
    let entries = translation.report.backends.get(&pool)?;
    assert_eq!(entries.len(), 1);
    Some(&entries[0].conditions)
}

fn mode(translation: &Translation) -> Option<FailureMode> {
    let picker = backend(translation, POOL).choice.picker();
    picker.map(|picker| picker.failure_mode)
}

#[test]
fn pods_change_only_endpoints() {
    let mut scene = Scene::new();
    let first = scene.translate();
    assert_eq!(names(&first), [POOL, PICKER]);
    assert_eq!(
        backend(&first, POOL).endpoints,
        Endpoints::Unready {
            addresses: vec![address("10.0.0.1:8000")],
            unready: vec![address("10.0.0.2:8000")],
        }
    );
    scene.change("Pod", |pod| {
        pod["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z".into();
    });
    let terminating = scene.translate();
    // While no other pod is ready, it still gets requests.
    assert_eq!(
        backend(&terminating, POOL).endpoints,
        backend(&first, POOL).endpoints
    );
    scene.change("Pod", |pod| pod["metadata"]["labels"] = json!({}));
    let unselected = scene.translate();
    assert_eq!(
        backend(&unselected, POOL).endpoints,
        Endpoints::Unready {
            addresses: vec![],
            unready: vec![address("10.0.0.2:8000")],
        }
    );
    assert_eq!(first.ir.ports, unselected.ir.ports);
}

#[test]
fn pod_that_has_ended_cannot_be_chosen() {
    for (phase, is_ready) in [
        ("Succeeded", "False"),
        ("Failed", "False"),
        ("Failed", "True"),
    ] {
        let mut scene = Scene::new();
        scene.translate();
        scene.change("Pod", |pod| {
            pod["status"]["phase"] = phase.into();
            pod["status"]["conditions"][0]["status"] = is_ready.into();
        });
        let expected = Endpoints::Unready {
            addresses: vec![],
            unready: vec![address("10.0.0.2:8000")],
        };
        assert_eq!(backend(&scene.translate(), POOL).endpoints, expected);
    }
}

#[test]
fn pool_and_picker_are_served_while_a_route_refers_to_the_pool() {
    let mut scene = Scene::new();
    let first = scene.translate();
    assert_eq!(mode(&first), Some(FailureMode::Open));
    assert_eq!(conditions(&first).unwrap().len(), 2);
    scene.change("HTTPRoute", |route| {
        route["spec"]["rules"] = json!([{"backendRefs": [{"name": "epp", "port": 9002}]}]);
    });
    let other = scene.translate();
    assert_eq!(names(&other), ["Service default/epp:9002"]);
    assert_eq!(conditions(&other), None);
    scene.change("HTTPRoute", |route| {
        let reference =
            json!({"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "llm"});
        route["spec"]["rules"] = json!([{"backendRefs": [reference]}]);
    });
    assert_eq!(names(&scene.translate()), [POOL, PICKER]);
}

#[test]
fn picker_follows_its_service_and_the_pool() {
    let mut scene = Scene::new();
    scene.translate();
    scene.change("EndpointSlice", |slice| {
        slice["endpoints"] = json!([{"addresses": ["10.0.1.2"]}]);
    });
    let moved = scene.translate();
    let addresses = backend(&moved, PICKER).endpoints.addresses().into_owned();
    assert_eq!(addresses, [address("10.0.1.2:9002")]);
    scene.change("Service", |service| {
        service["spec"]["ports"][0]["appProtocol"] = "kubernetes.io/h2c".into();
    });
    let plain = scene.translate();
    assert_eq!(names(&plain), [POOL, "Service default/epp:9002"]);
    scene.change("Service", |service| {
        service["spec"]["ports"][0]["port"] = 1.into()
    });
    let missing = scene.translate();
    assert_eq!(names(&missing), [POOL]);
    let refs = &conditions(&missing).unwrap()[1];
    assert_eq!(refs.status, ConditionStatus::False);
    assert_eq!(refs.reason, Reason::InvalidExtensionRef);
    scene.change("InferencePool", |pool| {
        pool["spec"]["endpointPickerRef"] = json!({"name": "epp", "port": {"number": 1}});
    });
    let closed = scene.translate();
    assert_eq!(names(&closed), [POOL, "Service default/epp:1"]);
    assert_eq!(mode(&closed), Some(FailureMode::Close));
    scene.change("InferencePool", |pool| {
        let spec = pool["spec"].as_object_mut().unwrap();
        spec.remove("endpointPickerRef");
    });
    let balanced = scene.translate();
    assert_eq!(names(&balanced), [POOL]);
    assert_eq!(backend(&balanced, POOL).choice, Choice::Balance);
}

#[test]
fn backend_has_another_identity_with_another_first_port() {
    let mut scene = Scene::new();
    scene.translate();
    scene.change("InferencePool", |pool| {
        pool["spec"]["targetPorts"] = json!([{"number": 8001}, {"number": 8000}]);
    });
    let translation = scene.translate();
    let pool = "InferencePool default/llm:8001";
    assert_eq!(names(&translation), [pool, PICKER]);
    assert!(backend(&translation, pool).choice.picker().is_some());
}

#[test]
fn nothing_is_sent_to_a_pool_of_a_later_version() {
    for field in [
        "spec.selector.matchExpressions",
        "spec.endpointPickerRef.audience",
    ] {
        let mut scene = Scene::new();
        let group = "inference.networking.k8s.io";
        let kind = Kind::find(&format!("{group}/v1"), "InferencePool").unwrap();
        let mut objects = scene.objects.iter();
        let mut pool = objects.find(|it| it["kind"] == kind.kind).unwrap().clone();
        pool["metadata"]["namespace"] = "default".into();
        pool["metadata"]["unknownFields"] = json!([field]);
        scene.snapshot.insert(kind.decode(&pool).unwrap());
        let translation = scene.translate();
        assert!(names(&translation).is_empty(), "{field}");
        let accepted = &conditions(&translation).unwrap()[0];
        assert_eq!(accepted.reason, Reason::NotSupportedByParent);
        assert!(accepted.message.starts_with(field), "{accepted}");
    }
}
