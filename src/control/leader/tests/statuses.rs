//! When the leader releases statuses, and what it says of changes that pods do not serve.

use super::*;
use crate::control::confirmation::START_HOLD;
use crate::status::{Condition, ConditionStatus, ConditionType, Reason};

fn route(name: &str, generation: u64) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": "infra", "generation": generation},
        "spec": {"parentRefs": [{"name": "edge-0"}]},
    })
}

/// A leader with one Gateway, which has two pods.
struct Scene {
    leader: Leader,
    inputs: Inputs,
    statuses: Statuses,
    now: Instant,
}

impl Scene {
    fn new() -> Self {
        let edge = Gateway {
            is_ours: true,
            has_parameters: false,
            is_deleted: false,
            note: 0,
        };
        let mut inputs = Inputs::new();
        inputs.apply(Step::Gateway(0, Some(edge)));
        inputs.apply(Step::Service(0, Some((0, false))));
        inputs.apply(Step::Slice(0, false, Some(vec![1, 2])));
        Self {
            leader: Leader::new(options()),
            inputs,
            statuses: Statuses::default(),
            now: Instant::now(),
        }
    }

    /// Changes a route: the change is in this revision.
    fn change(&mut self, name: &str, revision: u64) {
        self.inputs.put(true, &route(name, revision));
        self.inputs.apply(Step::Revision(0, revision));
        self.publish(&[]);
    }

    /// Publishes the objects. The last versions of these wait for policies, and have done so for too long.
    fn publish(&mut self, waiting: &[Value]) {
        let waiting = waiting.iter().map(|object| {
            let text = |name: &str| object[name].as_str().unwrap();
            let kind = Kind::find(text("apiVersion"), text("kind")).unwrap();
            kind.decode(object).unwrap()
        });
        let waiting: Vec<_> = waiting.collect();
        let problems = waiting.iter().map(|object| {
            Problem::of_object(name_of(object), object.meta().generation, "it waits")
        });
        let load = Load {
            snapshot: Arc::new(self.inputs.snapshot.clone()),
            problems: problems.collect(),
            waiting,
            ..Load::default()
        };
        let published = Arc::new(Published {
            load: Arc::new(load),
            revisions: self.inputs.revisions.clone(),
        });
        let endpoint = Some(StreamEndpoint::default());
        let changed = self.leader.follow(&published, &pods(), endpoint);
        self.evaluate(changed);
    }

    /// Both pods report a revision.
    fn confirm(&mut self, revision: u64) {
        self.inputs.apply(Step::Reports(0, Some(revision)));
        self.evaluate(None);
    }

    /// One pod reports a revision, and the other one reports nothing any more.
    fn confirm_by_one(&mut self, revision: u64) {
        self.confirm_by(&[("edge-0-1", revision)]);
    }

    fn confirm_by(&mut self, pods: &[(&str, u64)]) {
        let report =
            |(pod, revision): &(&str, u64)| ((*pod).to_owned(), PodReport::of_revision(*revision));
        let reports: BTreeMap<_, _> = pods.iter().map(report).collect();
        let known = &mut self.inputs.seen.reports;
        known.insert(name(0), Arc::new(reports));
        self.evaluate(None);
    }

    /// Lets time pass, until nothing is waited for.
    fn wait(&mut self) {
        self.now += START_HOLD;
        self.evaluate(None);
    }

    fn evaluate(&mut self, changed: Option<Changes>) {
        let (events, _publisher) = events::channel("test");
        let seen = self.inputs.seen.clone();
        let statuses = self.leader.evaluate_at(self.now, changed, seen, &events);
        if let Some(statuses) = statuses {
            self.statuses = statuses;
        }
    }

    /// What `Accepted` of a route says, which is True.
    fn message(&self, name: &str) -> &str {
        let route = ObjectRef::gateway_api("HTTPRoute", "infra", name);
        let conditions = &self.statuses.report.routes[&route][0].conditions;
        let accepted = conditions
            .iter()
            .find(|it| it.kind == ConditionType::Accepted);
        let accepted = accepted.unwrap();
        assert_eq!(accepted.status, ConditionStatus::True);
        &accepted.message
    }

    /// What is wrong with a route, by the names of its parents.
    fn faults(&self, name: &str) -> Vec<(&str, &Condition)> {
        let route = ObjectRef::gateway_api("HTTPRoute", "infra", name);
        let parents = self.statuses.report.routes.get(&route).into_iter();
        let parents = parents.flat_map(|parents| &**parents);
        let faults = parents.flat_map(|parent| {
            let faults = parent.conditions.iter().filter(|it| it.is_problem());
            faults.map(move |it| (&*parent.parent_ref.name, it))
        });
        faults.collect()
    }

    fn is_held(&self, name: &str) -> bool {
        let route = ObjectRef::gateway_api("HTTPRoute", "infra", name);
        assert!(self.statuses.report.routes.contains_key(&route));
        self.statuses.held.contains_key(&route)
    }
}

#[test]
fn series_of_changes_by_one_author_holds_no_status_of_another() {
    let mut scene = Scene::new();
    scene.change("author", 1);
    scene.confirm(1);
    scene.change("other", 2);
    for revision in 3..40 {
        scene.change("author", revision);
        // The pods never reach the last revision.
        let reached = revision - 1;
        scene.confirm(reached);
        assert!(!scene.is_held("other"), "revision {reached} is reached");
    }
    scene.confirm(39);
    assert!(!scene.is_held("author"));
}

#[test]
fn route_says_that_a_pod_does_not_serve_its_last_change() {
    const LATE: &str = "not all ready replicas of Gateway infra/edge-0 serve this generation: see its condition Programmed";
    let mut scene = Scene::new();
    scene.change("before", 1);
    scene.change("route", 2);
    scene.confirm(2);
    scene.wait();
    scene.change("route", 3);
    scene.confirm_by_one(3);
    assert!(scene.is_held("route"));
    assert_eq!(scene.message("route"), "");
    scene.wait();
    assert!(!scene.is_held("route"));
    assert_eq!(scene.message("route"), LATE);
    // The pod serves it as it is.
    assert_eq!(scene.message("before"), "");
    // What changes meanwhile says so at once.
    scene.change("other", 4);
    scene.confirm_by_one(4);
    assert!(!scene.is_held("other"));
    for name in ["route", "other"] {
        assert_eq!(scene.message(name), LATE);
    }
    // The pod catches up step by step.
    scene.change("third", 5);
    scene.confirm_by(&[("edge-0-1", 5), ("edge-0-2", 3)]);
    assert_eq!(scene.message("route"), "");
    assert_eq!(scene.message("other"), LATE);
    scene.confirm(5);
    for name in ["before", "route", "other", "third"] {
        assert_eq!(scene.message(name), "");
    }
}

#[test]
fn new_leader_does_not_say_of_routes_that_are_served_that_they_are_not() {
    let mut scene = Scene::new();
    scene.change("route", 3);
    scene.confirm_by_one(3);
    scene.wait();
    assert!(!scene.is_held("route"));
    assert_eq!(scene.message("route"), "");
}

fn waits(generation: i64) -> Condition {
    Condition::fails(
        ConditionType::Accepted,
        Reason::PoliciesPending,
        "it waits",
        generation,
    )
}

#[test]
fn new_route_that_waits_for_policies_says_so_for_each_parent_of_this_controller() {
    let mut scene = Scene::new();
    scene.change("other", 1);
    scene.confirm(1);
    let mut new = route("new", 3);
    new["spec"]["parentRefs"] = json!([{"name": "edge-0"}, {"name": "edge-1"}]);
    let why = waits(3);
    // The second Gateway waits, too.
    for (is_ours, parents) in [(false, &["edge-0"][..]), (true, &["edge-0", "edge-1"][..])] {
        let edge = Gateway {
            is_ours,
            has_parameters: false,
            is_deleted: false,
            note: 1,
        };
        let waiting = [gateway(1, &edge), new.clone()];
        scene.publish(&waiting);
        let expected: Vec<_> = parents.iter().map(|name| (*name, &why)).collect();
        assert_eq!(scene.faults("new"), expected);
        assert!(scene.faults("other").is_empty() && !scene.is_held("new"));
        // Nothing is written again.
        let report = scene.statuses.report.clone();
        scene.publish(&waiting);
        assert!(scene.statuses.report.objects_unlike(&report).is_empty());
    }
    scene.change("new", 4);
    scene.confirm(4);
    assert!(scene.faults("new").is_empty());
    assert_eq!(scene.message("new"), "");
}

#[test]
fn route_whose_change_waits_for_policies_is_not_said_to_be_invalid() {
    let mut scene = Scene::new();
    scene.change("route", 1);
    scene.confirm(1);
    scene.publish(&[route("route", 2)]);
    assert_eq!(scene.faults("route"), [("edge-0", &waits(2))]);
    scene.change("route", 2);
    scene.confirm(2);
    assert!(scene.faults("route").is_empty());
}
