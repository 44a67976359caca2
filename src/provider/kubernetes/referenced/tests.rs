//! The counted references, compared with those of all objects.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api::{Kind, Object};

fn decoded(object: &Value) -> Object {
    let mut kinds = Kind::all().iter();
    let kind = kinds.find(|kind| object["kind"] == kind.kind).unwrap();
    kind.decode(object).unwrap()
}

fn put(referenced: &mut Referenced, object: &Value) {
    let object = decoded(object);
    let key = object.meta();
    let name = object.kind().object_ref(&key.namespace, &key.name);
    referenced.replace(&name, References::of(&object), None);
    referenced.drop_unreferenced();
}

fn gateway(certificate: &str) -> Value {
    json!({
        "kind": "Gateway", "metadata": {"namespace": "default", "name": "edge"},
        "spec": {"gatewayClassName": "c", "listeners": [
            {"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": certificate}]}}
        ]},
    })
}

/// Returns the objects to fetch, with the namespaces that refer to them.
fn wanted(referenced: &mut Referenced) -> BTreeMap<String, Vec<Text>> {
    referenced.recheck();
    let changes = referenced.take_wanted(|_| true).into_iter();
    let wanted = changes.filter(|(_, of)| !of.is_empty());
    wanted.map(|(name, of)| (name.to_string(), of)).collect()
}

fn names(referenced: &mut Referenced) -> Vec<String> {
    wanted(referenced).into_keys().collect()
}

fn secret(name: &str) -> ObjectRef {
    ObjectRef::core("Secret", "default", name)
}

/// A RoutePolicy and a RouteFilter with texts in ConfigMaps.
fn with_texts() -> [Value; 2] {
    let routes = json!({
        "kind": "RoutePolicy", "metadata": {"namespace": "default", "name": "r"},
        "spec": {"targetRefs": [], "errorPages": [{"codes": [404], "configMapRef": {
            "name": "pages", "keys": [{"key": "a", "mediaType": "text/html"}],
        }}]},
    });
    let filter = json!({
        "kind": "RouteFilter", "metadata": {"namespace": "apps", "name": "f"},
        "spec": {"directResponse": {"status": 404, "configMapRef": {"name": "texts", "key": "a"}}},
    });
    [routes, filter]
}

#[test]
fn finds_references_in_every_field() {
    let authority = |kind: &str, name: &str| json!({"validation": {"caCertificateRefs": [{"group": "", "kind": kind, "name": name}]}});
    let mut edge = gateway("listener");
    edge["spec"]["tls"] = json!({
        "backend": {"clientCertificateRef": {"name": "client", "namespace": "other"}},
        "frontend": {
            "default": authority("ConfigMap", "authority"),
            "perPort": [{"port": 443, "tls": authority("Secret", "port")}, {"port": 80, "tls": authority("Service", "no")}],
        },
    });
    let set = |name: &str, parent: &str| {
        json!({
            "kind": "ListenerSet", "metadata": {"namespace": "apps", "name": name},
            "spec": {"parentRef": {"name": parent, "namespace": "default"}, "listeners": [
                {"name": "l", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": name}]}}
            ]},
        })
    };
    let policy = json!({
        "kind": "BackendTLSPolicy", "metadata": {"namespace": "default", "name": "p"},
        "spec": {"targetRefs": [], "validation": {"hostname": "h", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "backend"}]}},
    });
    let external = json!({
        "kind": "XBackend", "metadata": {"namespace": "default", "name": "x"},
        "spec": {"type": "ExternalHostname", "port": {"port": 443}, "tls": {
            "mode": "ClientAndServer",
            "clientCertificateRef": {"name": "external"},
            "validation": {"hostname": "h", "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "external"}]},
        }},
    });
    let access = json!({
        "kind": "AccessPolicy", "metadata": {"namespace": "apps", "name": "a"},
        "spec": {
            "targetRefs": [], "basic": {"secretRef": {"name": "users"}},
            "apiKey": {"secretRefs": [{"name": "keys", "namespace": "default"}], "from": []},
        },
    });
    let sets = [set("set", "edge"), set("foreign", "other")];
    let others = [edge, policy, external, access];
    let objects = sets.into_iter().chain(others).chain(with_texts());
    let objects: Vec<_> = objects.collect();
    let expected = [
        "ConfigMap apps/texts",
        "ConfigMap default/authority",
        "ConfigMap default/backend",
        "ConfigMap default/external",
        "ConfigMap default/pages",
        "Secret apps/set",
        "Secret apps/users",
        "Secret default/external",
        "Secret default/keys",
        "Secret default/listener",
        "Secret default/port",
        "Secret other/client",
    ];
    let mut all = Referenced::default();
    let mut of_apps = Referenced::within(BTreeSet::from(["apps".to_owned()]));
    for object in &objects {
        put(&mut all, object);
        put(&mut of_apps, object);
    }
    assert_eq!(names(&mut all), expected);
    assert_eq!(
        wanted(&mut all)["Secret other/client"],
        [Text::from("default")]
    );
    assert_eq!(
        names(&mut of_apps),
        [
            "ConfigMap apps/texts",
            "Secret apps/set",
            "Secret apps/users"
        ]
    );
}

#[test]
fn fetches_referenced_object_until_known() {
    let mut referenced = Referenced::default();
    let a = secret("a");
    assert!(!referenced.accept_watched(&a, Some(1)));
    put(&mut referenced, &gateway("a"));
    assert!(referenced.is_waiting() && !referenced.is_known(&a));
    assert_eq!(names(&mut referenced), ["Secret default/a"]);
    assert!(referenced.accept_watched(&a, Some(1)));
    assert!(referenced.is_known(&a));
    assert!(names(&mut referenced).is_empty());
    put(&mut referenced, &gateway("b"));
    assert!(!referenced.has(&a));
    assert_eq!(names(&mut referenced), ["Secret default/b"]);
}

#[test]
fn newest_of_watched_and_fetched_version_wins() {
    let mut referenced = Referenced::default();
    let a = secret("a");
    put(&mut referenced, &gateway("a"));
    assert!(referenced.accept_fetched(&a, Some(5)));
    assert!(!referenced.accept_watched(&a, Some(4)));
    assert!(!referenced.accept_watched(&a, Some(5)));
    assert!(referenced.accept_watched(&a, Some(6)));
    assert!(!referenced.accept_fetched(&a, Some(5)));
    assert!(referenced.record_unlisted(&a));
    assert!(referenced.is_waiting() && referenced.accept_fetched(&a, None));
    assert!(referenced.accept_watched(&a, Some(7)));
}

#[test]
fn change_of_one_object_reports_only_its_own_references() {
    let mut referenced = Referenced::default();
    put(&mut referenced, &gateway("a"));
    let mut other = gateway("a");
    other["metadata"]["namespace"] = "other".into();
    put(&mut referenced, &other);
    referenced.take_wanted(|_| true);
    put(&mut referenced, &gateway("b"));
    let mut changes = referenced.take_wanted(|_| true);
    changes.sort();
    let default: Text = "default".into();
    let expected = [(secret("a"), vec![]), (secret("b"), vec![default])];
    assert_eq!(changes, expected);
    put(&mut referenced, &gateway("b"));
    assert!(referenced.take_wanted(|_| true).is_empty());
}

/// A change of one of a few Gateways and ListenerSets.
#[derive(Clone, Debug)]
enum Step {
    /// Stores a version with these certificates, and may keep the one before.
    Put(ObjectRef, Vec<u8>, Option<ObjectRef>, Option<Earlier>),
    /// Keeps the stored version, which is deleted.
    Keep(ObjectRef, Earlier),
    PublishNext(ObjectRef),
    ForgetEarlier(ObjectRef),
    Delete(ObjectRef),
    Watched(u8),
    Drop,
}

fn step() -> impl Strategy<Value = Step> {
    let edge = |of: u8| ObjectRef::gateway_api("Gateway", &format!("n{}", of % 2), "edge");
    let set = |of: u8| ObjectRef::gateway_api("ListenerSet", &format!("n{}", of % 2), "set");
    let object = (0..4_u8).prop_map(move |of| if of < 2 { edge(of) } else { set(of) });
    let certificates = proptest::collection::vec(0..5_u8, 0..4);
    let earlier = || prop_oneof![Just(Earlier::Published), Just(Earlier::Next)];
    let kept = proptest::option::of(earlier());
    prop_oneof![
        6 => (object.clone(), certificates, 0..2_u8, kept).prop_map(
            move |(object, names, parent, kept)| {
                let parent = (&*object.kind == "ListenerSet").then(|| edge(parent));
                Step::Put(object, names, parent, kept)
            }
        ),
        1 => (object.clone(), earlier()).prop_map(|(object, earlier)| Step::Keep(object, earlier)),
        2 => object.clone().prop_map(Step::PublishNext),
        2 => object.clone().prop_map(Step::ForgetEarlier),
        2 => object.prop_map(Step::Delete),
        1 => (0..5_u8).prop_map(Step::Watched),
        2 => Just(Step::Drop),
    ]
}

/// All versions, as [`Referenced`] should count them.
type Model = BTreeMap<(ObjectRef, Option<Earlier>), (Vec<u8>, Option<ObjectRef>)>;

fn certificate(number: u8) -> ObjectRef {
    secret(&number.to_string())
}

fn apply(referenced: &mut Referenced, model: &mut Model, step: Step) {
    match step {
        Step::Put(object, certificates, parent, kept) => {
            let names = certificates.iter().map(|it| certificate(*it)).collect();
            let former = model.remove(&(object.clone(), None));
            if let Some(former) = former.filter(|_| kept.is_some()) {
                model.insert((object.clone(), kept), former);
            }
            model.insert((object.clone(), None), (certificates, parent.clone()));
            referenced.replace(&object, References { names, parent }, kept);
        }
        Step::Keep(object, earlier) => {
            referenced.keep(&object, earlier);
            if let Some(stored) = model.get(&(object.clone(), None)).cloned() {
                model.insert((object, Some(earlier)), stored);
            }
        }
        Step::PublishNext(object) => {
            referenced.publish_next(&object);
            if let Some(next) = model.remove(&(object.clone(), Some(Earlier::Next))) {
                model.insert((object, Some(Earlier::Published)), next);
            }
        }
        Step::ForgetEarlier(object) => {
            referenced.forget_earlier(&object);
            model.retain(|(of, earlier), _| *of != object || earlier.is_none());
        }
        Step::Delete(object) => {
            referenced.forget(&object);
            model.retain(|(of, _), _| *of != object);
        }
        Step::Watched(number) => drop(referenced.accept_watched(&certificate(number), None)),
        Step::Drop => drop(referenced.drop_unreferenced()),
    }
}

/// Returns the referenced names and the namespaces that refer to them, computed from all versions.
fn naive(model: &Model) -> BTreeMap<ObjectRef, BTreeSet<Text>> {
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for ((object, _), (certificates, parent)) in model {
        let mut parents = parent.iter();
        if parents.all(|parent| model.contains_key(&(parent.clone(), None))) {
            for number in certificates {
                let of = all.entry(certificate(*number)).or_default();
                of.insert(object.namespace.clone());
            }
        }
    }
    all
}

proptest! {
    #[test]
    fn counts_agree_with_all_versions(steps in proptest::collection::vec(step(), 0..60)) {
        let (mut referenced, mut model) = (Referenced::default(), Model::new());
        let mut followed = BTreeMap::new();
        for step in steps {
            apply(&mut referenced, &mut model, step);
            // A watch event is applied only after unreferenced names are dropped.
            referenced.drop_unreferenced();
            let expected = naive(&model);
            let named = referenced.named.iter().map(|(name, entry)| {
                let of = entry.referrers.iter().map(|(of, _)| of.clone());
                (name.clone(), of.collect())
            });
            prop_assert_eq!(named.collect::<BTreeMap<_, BTreeSet<_>>>(), expected.clone());
            for (name, of) in referenced.take_wanted(|_| true) {
                followed.insert(name, of.into_iter().collect::<BTreeSet<_>>());
            }
            followed.retain(|_, of| !of.is_empty());
            let mut unknown = expected;
            unknown.retain(|name, _| !referenced.is_known(name));
            prop_assert_eq!(&followed, &unknown);
        }
    }
}
