//! Each status is held exactly until its Gateways have reached the revision of its own last change.

use proptest::prelude::*;

use super::*;
use crate::api::xbackend::EXPERIMENTAL_GROUP;
use crate::status::{
    AncestorStatus, ConditionType, GatewayStatus, ListenerSetStatus, ListenerStatus, ParentStatus,
    Reason, ReleaseBackendStatus, StatusMap,
};

fn name(kind: &str, name: &str) -> ObjectRef {
    ObjectRef::gateway_api(kind, "shop", name)
}

fn gateway(gateway: &str) -> ObjectRef {
    name("Gateway", gateway)
}

fn route(route: &str) -> ObjectRef {
    name("HTTPRoute", route)
}

fn conditions(generation: i64) -> Vec<Condition> {
    vec![Condition::holds(
        ConditionType::Accepted,
        Reason::Accepted,
        generation,
    )]
}

fn parents(parents: &[ObjectRef], generation: i64) -> Arc<Vec<ParentStatus>> {
    let parent = |parent: &ObjectRef| ParentStatus {
        parent_ref: ParentRef::to(parent),
        controller_name: "example.com/ours".into(),
        conditions: conditions(generation),
    };
    Arc::new(parents.iter().map(parent).collect())
}

fn gateway_status(attached_routes: usize) -> Arc<GatewayStatus> {
    let listener = ListenerStatus {
        name: "http".into(),
        attached_routes,
        supported_kinds: Arc::default(),
        conditions: Arc::new(conditions(1)),
        port: 80,
        hostname: crate::ir::Hostname::Any,
        binds: Vec::new(),
    };
    Arc::new(GatewayStatus {
        conditions: conditions(1),
        listeners: vec![listener],
        ..GatewayStatus::default()
    })
}

/// The inputs of a leader, from one report to the next.
#[derive(Default)]
struct Scene {
    statuses: HeldStatuses,
    report: StatusReport,
    parents: OrdMap<ObjectRef, Arc<ObjectRef>>,
    awaited: BTreeMap<ObjectRef, Awaited>,
}

impl Scene {
    /// Sets the status of a route for these parents, and the latest revision of the Gateway `edge`.
    fn change(&mut self, name: &str, to: &[ObjectRef], generation: i64, wanted: u64) {
        let status = parents(to, generation);
        self.report.routes.insert(route(name), status);
        let edge = self.awaited.entry(gateway("edge"));
        let edge = edge.or_insert(Awaited {
            wanted,
            reached: None,
        });
        edge.wanted = wanted;
        self.follow(&[]);
    }

    /// Makes the pods of the Gateway `edge` reach a revision, and returns the names of the objects that are held.
    fn reach(&mut self, revision: u64) -> Vec<String> {
        self.await_at("edge", u64::MAX, Some(revision));
        self.follow(&[])
    }

    fn await_at(&mut self, name: &str, wanted: u64, reached: Option<u64>) {
        let awaited = Awaited { wanted, reached };
        self.awaited.insert(gateway(name), awaited);
    }

    fn follow(&mut self, changed: &[ObjectRef]) -> Vec<String> {
        let (report, parents, awaited) = (&self.report, &self.parents, &self.awaited);
        let held = self.statuses.follow(report, parents, changed, awaited);
        held.keys().map(|object| object.name.to_string()).collect()
    }

    fn is_empty(&self) -> bool {
        let waiting = &self.statuses.waiting;
        waiting.by_object.is_empty() && waiting.by_gateway.is_empty()
    }
}

/// A report in which each object is of the Gateway `edge`.
fn full() -> StatusReport {
    let ancestor = AncestorStatus {
        ancestor_ref: ParentRef::to(&gateway("edge")),
        controller_name: "example.com/ours".into(),
        conditions: conditions(1),
    };
    let backend = ReleaseBackendStatus {
        conditions: conditions(1),
        gateways: vec![gateway("edge")],
        ..ReleaseBackendStatus::default()
    };
    let set = ListenerSetStatus {
        conditions: conditions(1),
        ..ListenerSetStatus::default()
    };
    let routes = [
        (route("direct"), parents(&[gateway("edge")], 1)),
        (
            route("through-set"),
            parents(&[name("ListenerSet", "set")], 1),
        ),
    ];
    StatusReport {
        gateway_classes: StatusMap::unit(name("GatewayClass", "class"), conditions(1).into()),
        gateways: StatusMap::unit(gateway("edge"), gateway_status(1)),
        listener_sets: StatusMap::unit(name("ListenerSet", "set"), set.into()),
        routes: routes.into_iter().collect(),
        policies: StatusMap::unit(name("BackendTLSPolicy", "tls"), [ancestor].into()),
        release_backends: StatusMap::unit(name("ReleaseBackend", "app"), backend.into()),
        ..StatusReport::default()
    }
}

#[test]
fn objects_of_an_awaited_gateway_are_held_until_it_has_reached_their_revision() {
    for (awaited, is_held) in [("edge", true), ("other", false)] {
        let mut scene = Scene {
            report: full(),
            parents: OrdMap::unit(name("ListenerSet", "set"), Arc::new(gateway("edge"))),
            ..Scene::default()
        };
        let all = ["app", "direct", "edge", "set", "through-set", "tls"];
        let expected = if is_held { &all[..] } else { &[] };
        for reached in [None, Some(6)] {
            scene.await_at(awaited, 7, reached);
            let mut held = scene.follow(&[]);
            held.sort();
            assert_eq!(held, expected);
        }
        scene.await_at(awaited, 8, Some(7));
        scene.follow(&[]);
        assert!(scene.is_empty());
    }
}

#[test]
fn route_of_an_experimental_listener_set_is_held() {
    let mut to_set = parents(&[name("ListenerSet", "set")], 1);
    for parent in Arc::make_mut(&mut to_set) {
        parent.parent_ref.group = EXPERIMENTAL_GROUP.into();
        parent.parent_ref.kind = "XListenerSet".into();
    }
    let mut scene = Scene {
        parents: OrdMap::unit(name("ListenerSet", "set"), Arc::new(gateway("edge"))),
        ..Scene::default()
    };
    scene.report.routes.insert(route("experimental"), to_set);
    scene.await_at("edge", 7, None);
    assert_eq!(scene.follow(&[]), ["experimental"]);
}

#[test]
fn later_revision_holds_only_what_it_changes() {
    let mut scene = Scene::default();
    scene.change("a", &[gateway("edge")], 1, 2);
    scene.change("b", &[gateway("edge")], 1, 3);
    assert_eq!(scene.reach(1), ["a", "b"]);
    assert_eq!(scene.reach(2), ["b"]);
    assert!(scene.reach(3).is_empty());
}

#[test]
fn second_change_of_an_object_waits_for_its_own_revision() {
    let mut scene = Scene::default();
    scene.change("a", &[gateway("edge")], 1, 2);
    scene.change("a", &[gateway("edge")], 2, 3);
    assert_eq!(scene.reach(2), ["a"]);
    assert!(scene.reach(3).is_empty() && scene.is_empty());
}

#[test]
fn object_with_the_same_status_waits_for_its_change() {
    let mut scene = Scene::default();
    scene.change("a", &[gateway("edge")], 1, 2);
    assert!(scene.reach(2).is_empty());
    // It was deleted and created again, so that it has the same generation.
    scene.await_at("edge", 4, Some(2));
    assert_eq!(scene.follow(&[route("a")]), ["a"]);
    assert_eq!(scene.reach(3), ["a"]);
    assert!(scene.reach(4).is_empty());
}

#[test]
fn removed_object_leaves_nothing_behind() {
    let mut scene = Scene::default();
    scene.change("a", &[gateway("edge")], 1, 2);
    scene.report.routes.remove(&route("a"));
    assert!(scene.follow(&[route("a")]).is_empty());
    assert!(scene.is_empty());
}

#[test]
fn gateway_that_is_not_awaited_holds_nothing() {
    let mut scene = Scene::default();
    scene.change("a", &[gateway("edge")], 1, 2);
    scene.awaited.clear();
    assert!(scene.follow(&[]).is_empty());
    assert!(scene.is_empty());
}

#[test]
fn route_waits_for_the_gateway_that_its_listener_set_moves_to() {
    let set = name("ListenerSet", "set");
    let mut scene = Scene::default();
    (scene.parents).insert(set.clone(), Arc::new(gateway("edge")));
    scene.change("a", std::slice::from_ref(&set), 1, 2);
    scene.parents.insert(set, Arc::new(gateway("other")));
    scene.await_at("other", 5, Some(4));
    assert_eq!(scene.reach(2), ["a"]);
    scene.await_at("other", 6, Some(5));
    assert!(scene.follow(&[]).is_empty());
}

#[test]
fn counts_of_routes_need_no_confirmation() {
    let mut scene = Scene::default();
    scene
        .report
        .gateways
        .insert(gateway("edge"), gateway_status(1));
    scene.await_at("edge", 2, Some(1));
    assert_eq!(scene.follow(&[]), ["edge"]);
    scene
        .report
        .gateways
        .insert(gateway("edge"), gateway_status(2));
    scene.await_at("edge", 3, Some(2));
    assert!(scene.follow(&[]).is_empty());
}

/// A step of a leader. Numbers select one of two Gateways and one of four routes.
#[derive(Clone, Debug)]
enum Step {
    /// The Gateways of a route, which is removed if there are none.
    Change(usize, Vec<usize>),
    /// All replicas of a Gateway reach this many more revisions.
    Reach(usize, u64),
    /// A Gateway is not awaited any more, or again.
    Await(usize, bool),
}

const GATEWAYS: [&str; 2] = ["edge", "other"];
const ROUTES: [&str; 4] = ["a", "b", "c", "d"];

fn step() -> impl Strategy<Value = Step> {
    let gateways = proptest::sample::subsequence(vec![0, 1], 0..=2);
    prop_oneof![
        4 => (0..4_usize, gateways).prop_map(|(route, gateways)| Step::Change(route, gateways)),
        4 => (0..2_usize, 1..4_u64).prop_map(|(gateway, by)| Step::Reach(gateway, by)),
        1 => (0..2_usize, any::<bool>()).prop_map(|(gateway, is)| Step::Await(gateway, is)),
    ]
}

proptest! {
    #[test]
    fn is_held_exactly_until_its_own_revision_is_reached(
        rounds in proptest::collection::vec(proptest::collection::vec(step(), 0..4), 1..30),
    ) {
        let mut scene = Scene::default();
        let (mut wanted, mut reached, mut is_awaited) = ([0_u64; 2], [0_u64; 2], [true; 2]);
        let mut generation = 0;
        // The revision that each route waits for.
        let mut waits = [[0_u64; 2]; 4];
        for steps in rounds {
            let mut changed: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Change(route, gateways) => {
                        gateways.iter().for_each(|it| wanted[*it] += 1);
                        changed.insert(route, gateways);
                    }
                    Step::Reach(gateway, by) => reached[gateway] = wanted[gateway].min(reached[gateway] + by),
                    Step::Await(gateway, is) => is_awaited[gateway] = is,
                }
            }
            for (number, gateways) in changed {
                generation += 1;
                waits[number] = [0, 1].map(|it| if gateways.contains(&it) { wanted[it] } else { 0 });
                let to: Vec<_> = gateways.iter().map(|it| gateway(GATEWAYS[*it])).collect();
                let route = route(ROUTES[number]);
                match to.is_empty() {
                    true => drop(scene.report.routes.remove(&route)),
                    false => drop(scene.report.routes.insert(route, parents(&to, generation))),
                }
            }
            scene.awaited.clear();
            for (it, name) in GATEWAYS.into_iter().enumerate() {
                if is_awaited[it] && reached[it] < wanted[it] {
                    scene.await_at(name, wanted[it], Some(reached[it]));
                } else {
                    waits.iter_mut().for_each(|waits| waits[it] = 0);
                }
            }
            let is_held = |waits: &[u64; 2]| waits[0] > reached[0] || waits[1] > reached[1];
            let expected = ROUTES.iter().zip(&waits).filter(|(_, waits)| is_held(waits));
            let expected: Vec<_> = expected.map(|(route, _)| (*route).to_owned()).collect();
            prop_assert_eq!(scene.follow(&[]), expected);
        }
    }
}
