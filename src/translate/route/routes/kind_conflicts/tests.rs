//! Decisions compared with the text of the API, after random changes, and what a change reports.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::ir::{Hostname, Time};

const HOSTS: [&str; 9] = [
    "",
    "*.test",
    "*.a.test",
    "*.x.a.test",
    "a.test",
    "x.a.test",
    "y.x.a.test",
    "b.test",
    "other",
];

/// A route: its claim on each of two listeners, by indices of [`HOSTS`].
#[derive(Clone, Debug)]
struct Candidate {
    kind: RouteKind,
    name: usize,
    usability: Usability,
    created: Option<Time>,
    hosts: [Vec<&'static str>; 2],
}

fn listener(index: usize) -> Arc<ListenerKey> {
    Arc::new(ListenerKey {
        origin: ObjectRef::gateway_api("Gateway", "infra", "edge"),
        name: format!("l{index}").into(),
    })
}

fn hostnames(hosts: &[&str]) -> Hostnames {
    let hosts = hosts.iter().map(|host| Hostname::new(host));
    Arc::new(hosts.collect())
}

impl Candidate {
    fn name(&self) -> ObjectRef {
        let kind = match self.kind {
            RouteKind::Http => "HTTPRoute",
            _ => "GRPCRoute",
        };
        ObjectRef::gateway_api(
            kind,
            ["app", "app-x"][self.name % 2],
            &format!("r{}", self.name),
        )
    }

    fn claim(&self) -> Option<Claim> {
        let listeners = self.hosts.iter().enumerate();
        let listeners = listeners.filter(|(_, hosts)| !hosts.is_empty());
        let listeners: Hosts = listeners
            .map(|(index, hosts)| (listener(index), hostnames(hosts)))
            .collect();
        (!listeners.is_empty()).then_some(Claim {
            kind: self.kind,
            usability: self.usability,
            created: self.created,
            listeners,
        })
    }
}

fn candidate() -> impl Strategy<Value = Candidate> {
    let kind = select(vec![RouteKind::Http, RouteKind::Grpc]);
    let usability = prop_oneof![
        6 => Just(Usability::Usable),
        1 => Just(Usability::WithoutRules),
        1 => Just(Usability::Unusable),
    ];
    let created = prop_oneof![1 => Just(None), 4 => (0..4_i64).prop_map(|second| Some(Time::from_second(second)))];
    let hosts = || vec(select(HOSTS.to_vec()), 0..3);
    (kind, 0..12_usize, usability, created, [hosts(), hosts()]).prop_map(
        |(kind, name, usability, created, hosts)| Candidate {
            kind,
            name,
            usability,
            created,
            hosts,
        },
    )
}

/// The routes that exist, each with the last version.
fn existing(steps: &[(Candidate, bool)]) -> BTreeMap<ObjectRef, Candidate> {
    let mut routes = BTreeMap::new();
    for (candidate, is_deleted) in steps {
        match is_deleted {
            true => routes.remove(&candidate.name()),
            false => routes.insert(candidate.name(), candidate.clone()),
        };
    }
    routes
}

/// Decides about all routes from the text of the API: the winner for each route that lost on a listener.
fn expected(routes: &BTreeMap<ObjectRef, Candidate>) -> BTreeMap<(usize, ObjectRef), ObjectRef> {
    let mut losses = BTreeMap::new();
    for index in 0..2 {
        let mut order: Vec<_> = routes.values().collect();
        order.sort_by_key(|it| {
            let name = it.name();
            let text = format!("{}/{}", name.namespace, name.name);
            (it.usability, it.created, text, name.kind.clone())
        });
        let mut accepted: Vec<&Candidate> = Vec::new();
        for route in order {
            let hosts = hostnames(&route.hosts[index]);
            let conflicts = |other: &&&Candidate| {
                let theirs = hostnames(&other.hosts[index]);
                let intersects =
                    |one: &Hostname| theirs.iter().any(|it| one.intersection(it).is_some());
                other.kind != route.kind && hosts.iter().any(intersects)
            };
            match accepted.iter().find(conflicts) {
                Some(winner) => drop(losses.insert((index, route.name()), winner.name())),
                None => accepted.push(route),
            }
        }
    }
    losses
}

fn losses(conflicts: &KindConflicts) -> BTreeMap<(usize, ObjectRef), (ObjectRef, Hostname)> {
    let mut losses = BTreeMap::new();
    for index in 0..2 {
        let Some(listener) = conflicts.listeners.get(&listener(index)) else {
            continue;
        };
        for route in conflicts.claims.keys() {
            if let Some(loss) = listener.loss(route) {
                let loss = (loss.winner().clone(), loss.hostname.clone());
                losses.insert((index, route.clone()), loss);
            }
        }
    }
    losses
}

#[test]
fn decisions_depend_only_on_the_routes() {
    let steps = (
        vec((candidate(), proptest::bool::weighted(0.2)), 1..60),
        1..8_usize,
    );
    proptest!(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }, |((steps, burst) in steps)| {
        let mut conflicts = KindConflicts::default();
        for (number, part) in steps.chunks(burst).enumerate() {
            let before = losses(&conflicts);
            for (candidate, is_deleted) in part {
                let claim = candidate.claim().filter(|_| !is_deleted);
                conflicts.replace(&candidate.name(), claim);
            }
            let differ = conflicts.decide();
            let routes = existing(&steps[..((number + 1) * burst).min(steps.len())]);
            let now = losses(&conflicts);
            let winners: BTreeMap<_, _> = now.iter().map(|(at, (winner, _))| (at.clone(), winner.clone())).collect();
            prop_assert_eq!(&winners, &expected(&routes));
            // Every other result is reported.
            let changed = before.keys().chain(now.keys()).filter(|at| before.get(*at) != now.get(*at));
            for (_, route) in changed {
                prop_assert!(differ.contains(route), "{route}");
            }
            let mut anew = KindConflicts::default();
            for (name, candidate) in routes.iter().rev() {
                anew.replace(name, candidate.claim());
            }
            anew.decide();
            prop_assert_eq!(losses(&anew), now);
            prop_assert!(conflicts.decide().is_empty());
        }
        for (candidate, _) in &steps {
            conflicts.replace(&candidate.name(), None);
        }
        conflicts.decide();
        prop_assert!(conflicts.listeners.is_empty() && conflicts.claims.is_empty());
    });
}

fn route(kind: RouteKind, name: usize, created: i64, host: &'static str) -> Candidate {
    Candidate {
        kind,
        name,
        usability: Usability::Usable,
        created: Some(Time::from_second(created)),
        hosts: [vec![host], Vec::new()],
    }
}

#[test]
fn change_reports_only_routes_with_another_result() {
    let mut conflicts = KindConflicts::default();
    let mut put = |routes: &[Candidate]| {
        for route in routes {
            conflicts.replace(&route.name(), route.claim());
        }
        conflicts.decide()
    };
    let every_host = route(RouteKind::Grpc, 9, 5, "");
    assert_eq!(put(&[route(RouteKind::Http, 1, 1, "a.test")]), [].into());
    assert_eq!(
        put(std::slice::from_ref(&every_host)),
        [every_host.name()].into()
    );
    // Another route that would be accepted instead, but not the first one.
    assert_eq!(put(&[route(RouteKind::Http, 2, 2, "b.test")]), [].into());
    // The same claim again.
    assert_eq!(put(&[route(RouteKind::Http, 1, 1, "a.test")]), [].into());
    // The first one leaves the hostname; the message names the next one from now on.
    let elsewhere = route(RouteKind::Http, 1, 3, "a.test");
    assert_eq!(put(&[elsewhere]), [every_host.name()].into());
    conflicts.replace(&route(RouteKind::Http, 1, 0, "").name(), None);
    conflicts.replace(&route(RouteKind::Http, 2, 0, "").name(), None);
    assert_eq!(conflicts.decide(), [every_host.name()].into());
    assert!(losses(&conflicts).is_empty());
}
