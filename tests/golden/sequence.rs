//! Incremental translation: after every change of a long random sequence, a translator gives the same result as a new
//! translation. The changes mix the objects of a few goldens: objects are added, deleted, and get parts of others.

use std::collections::{BTreeMap, BTreeSet};

use portcullis::api::Key;
use portcullis::api::object::Kind;
use portcullis::ir::{Hostname, Ir, ListenerKey, ObjectRef};
use portcullis::snapshot::Snapshot;
use portcullis::status::{Condition, ConditionType};
use portcullis::translate::{
    CONTROLLER_NAME, Mode, Options, Translation, Translator, shadowed, translate,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::properties::{corpus, corpus_of, decode};
use crate::scale::scaled;
use crate::shown::{difference, shown, yaml};

/// A change of one object.
#[derive(Clone, Debug)]
enum Step {
    /// Adds the object as written, or deletes it if it exists.
    Toggle,
    /// Applies the object again, replacing the one with its name.
    Apply,
    /// Replaces a part by that of another object of its kind.
    Borrow(Index, Vec<Index>),
    /// Changes its labels.
    Label(u8),
    /// Changes its generation.
    Renew(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let path = vec(any::<Index>(), 2..8);
    prop_oneof![
        4 => Just(Step::Toggle),
        3 => Just(Step::Apply),
        4 => (any::<Index>(), path).prop_map(|(other, path)| Step::Borrow(other, path)),
        1 => (0_u8..3).prop_map(Step::Label),
        1 => any::<u8>().prop_map(Step::Renew),
    ]
}

/// The objects of a few goldens, and those of them that exist.
struct World {
    values: Vec<Value>,
    snapshot: Snapshot,
}

impl World {
    fn new<'a>(goldens: impl Iterator<Item = &'a Vec<Value>>, mode: Mode) -> Self {
        let mut values: Vec<Value> = goldens.flatten().cloned().collect();
        if mode != Mode::Standalone {
            values.push(json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "GatewayClass",
                "metadata": {"name": "portcullis"},
                "spec": {"controllerName": CONTROLLER_NAME},
            }));
        }
        for value in &mut values {
            let is_namespaced = value["kind"] != "Namespace" && value["kind"] != "GatewayClass";
            if is_namespaced && value["metadata"].get("namespace").is_none() {
                value["metadata"]["namespace"] = json!("default");
            }
        }
        let mut world = Self {
            values,
            snapshot: Snapshot::default(),
        };
        (0..world.values.len()).for_each(|index| world.apply(index));
        world
    }

    fn take(&mut self, step: &Step, index: usize) {
        match step {
            Step::Toggle if self.remove(index) => return,
            Step::Toggle | Step::Apply => {}
            Step::Label(label) => {
                let labels = json!({"env": label.to_string()});
                self.values[index]["metadata"]["labels"] = labels;
            }
            Step::Renew(generation) => {
                self.values[index]["metadata"]["generation"] = json!(generation);
            }
            Step::Borrow(other, path) => self.borrow(index, other, path),
        }
        self.apply(index);
    }

    fn borrow(&mut self, index: usize, other: &Index, path: &[Index]) {
        let kind = &self.values[index]["kind"];
        let others = self.values.iter().filter(|value| value["kind"] == *kind);
        let other = other.get(&others.collect::<Vec<_>>()).to_owned();
        let mut place = String::new();
        let mut part = other;
        for step in path {
            let name = match part {
                Value::Object(fields) if !fields.is_empty() => {
                    let names: Vec<_> = fields.keys().collect();
                    step.get(&names).to_string()
                }
                Value::Array(items) if !items.is_empty() => step.index(items.len()).to_string(),
                _ => break,
            };
            place = format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
            part = other.pointer(&place).unwrap_or(&Value::Null);
        }
        let (part, identity) = (part.clone(), ["/apiVersion", "/kind"]);
        if identity.contains(&place.as_str()) {
            return;
        }
        if let Some(target) = self.values[index].pointer_mut(&place) {
            *target = part;
        }
    }

    /// Inserts an object into the snapshot, unless it cannot be decoded.
    fn apply(&mut self, index: usize) {
        if let Some(object) = decode(&self.values[index]) {
            self.snapshot.insert(object);
        }
    }

    fn remove(&mut self, index: usize) -> bool {
        let value = &self.values[index];
        let text = |place: &str| {
            value
                .pointer(place)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let key = Key::new(text("/metadata/namespace"), text("/metadata/name"));
        Kind::find(text("/apiVersion"), text("/kind")).is_some_and(|kind| {
            self.snapshot
                .remove(&kind.object_ref(&key.namespace, &key.name))
        })
    }
}

/// Applies the steps and compares after each `burst` of steps.
fn follow(world: &mut World, options: &Options, steps: &[(Index, Step)], burst: usize) {
    let mut translator = Translator::new(options.clone());
    let mut served = Ir::default();
    for steps in steps.chunks(burst) {
        for (index, step) in steps {
            world.take(step, index.index(world.values.len()));
        }
        let snapshot = &world.snapshot;
        let followed = translator.translate(snapshot, Some(&served));
        let expected = translate(snapshot, Some(&served), options);
        if followed != expected {
            let text = |translation| yaml(&shown(translation, &None));
            let difference = difference(&text(&expected), &text(&followed));
            panic!("after {steps:?}:\n{difference}");
        }
        assert_conditions_tell_shadowed_matches(&followed);
        served = followed.ir;
    }
}

/// The condition `Shadowed` agrees with the warnings of `check`, which are about one hostname of one listener each.
fn assert_conditions_tell_shadowed_matches(translation: &Translation) {
    let mut places: BTreeMap<&ObjectRef, BTreeSet<(&ListenerKey, &Hostname)>> = BTreeMap::new();
    let ports = translation.ir.ports.iter();
    for listener in ports.flat_map(|port| &port.listeners) {
        for attached in listener.routes.iter() {
            let hostnames = attached.hostnames.iter();
            let known = places.entry(&attached.route.object).or_default();
            known.extend(hostnames.map(|hostname| (&listener.key, hostname)));
        }
    }
    let mut warnings: BTreeMap<_, BTreeMap<_, usize>> = BTreeMap::new();
    for shadowed in shadowed(&translation.ir) {
        let of_route = warnings.entry(shadowed.rule.route).or_default();
        let of_match = of_route.entry((shadowed.rule.index, shadowed.index));
        *of_match.or_default() += 1;
    }
    for (route, parents) in &translation.report.routes {
        let is_shadowed = |one: &Condition| one.kind == ConditionType::Shadowed;
        let mut conditions = parents.iter().flat_map(|parent| &parent.conditions);
        let warnings = warnings.get(route).into_iter().flat_map(BTreeMap::values);
        let everywhere = places.get(route).map_or(0, BTreeSet::len);
        if conditions.any(is_shadowed) {
            assert!(warnings.count() > 0, "no warning of {route}");
        } else {
            let mut counts = warnings.copied();
            assert!(
                counts.all(|count| count < everywhere),
                "no condition on {route}"
            );
        }
    }
}

/// Follows sequences of changes in worlds of one of the goldens in `first` and some of the others.
fn follow_sequences(cases: u32, first: &[&Vec<Value>], others: &[Vec<Value>]) {
    let steps = vec((any::<Index>(), step()), 150);
    let goldens = (any::<Index>(), vec(any::<Index>(), 0..4));
    let modes = select(&[Mode::Standalone, Mode::Kubernetes, Mode::Dedicated][..]);
    let worlds = (goldens, steps, 1..4_usize, modes);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: scaled(cases),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    });
    let result = runner.run(&worlds, |((one, more), steps, burst, mode)| {
        let more = more.iter().map(|golden| golden.get(others));
        let goldens = std::iter::once(*one.get(first)).chain(more);
        let mut world = World::new(goldens, mode);
        let options = Options {
            mode,
            ..Options::default()
        };
        follow(&mut world, &options, &steps, burst);
        Ok(())
    });
    result.expect("every step is followed");
}

fn follow_among(cases: u32, corpus: &[Vec<Value>]) {
    follow_sequences(cases, &corpus.iter().collect::<Vec<_>>(), corpus);
}

/// A step may give one object two listeners with one name, which no API server stores.
#[test]
fn conditions_and_warnings_agree_where_two_listeners_have_one_name() {
    let of_group = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": "default"}, "spec": spec,
        })
    };
    let listener = |port: u16, hostname: &str| json!({"name": "http", "port": port, "protocol": "HTTP", "hostname": hostname});
    let gateway = json!({
        "gatewayClassName": "portcullis",
        "listeners": [listener(80, "a.com"), listener(81, "b.com")],
    });
    let route = json!({
        "parentRefs": [{"name": "web"}], "hostnames": ["b.com"],
        "rules": [{"matches": [{"path": {"type": "PathPrefix", "value": "/shop"}}]}],
    });
    let values = vec![
        of_group("Gateway", "web", gateway),
        of_group("HTTPRoute", "first", route.clone()),
        of_group("HTTPRoute", "second", route),
    ];
    let world = World::new(std::iter::once(&values), Mode::Standalone);
    let translation = translate(&world.snapshot, None, &Options::default());
    assert_conditions_tell_shadowed_matches(&translation);
}

#[test]
fn incremental_translation_equals_a_new_one() {
    follow_among(75, &corpus());
}

#[test]
fn changes_of_every_watched_kind_are_translated_incrementally() {
    let corpus = corpus();
    let is_served = |kind: &&Kind| !["TLSRoute", "TCPRoute", "UDPRoute"].contains(&kind.kind);
    for kind in Kind::all().iter().filter(is_served) {
        let is_of_kind = |object: &Value| {
            let text = |name: &str| object[name].as_str().unwrap_or_default();
            Kind::find(text("apiVersion"), text("kind")).is_some_and(|it| it.kind == kind.kind)
        };
        let goldens = corpus.iter().filter(|golden| golden.iter().any(is_of_kind));
        let goldens: Vec<_> = goldens.collect();
        assert!(!goldens.is_empty(), "no golden has a {}", kind.kind);
        follow_sequences(3, &goldens, &corpus);
    }
}

#[test]
fn a_sequence_of_changes_among_shadowed_routes_is_followed_exactly() {
    follow_among(25, &corpus_of("shadow"));
}

#[test]
fn a_sequence_of_changes_among_routes_of_both_kinds_is_followed_exactly() {
    follow_among(25, &corpus_of("kind_conflict"));
}
