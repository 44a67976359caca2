//! What routes say of a Gateway that does not serve their last change, from one report to the next.

use super::*;
use crate::api::reference::ParentRef;
use crate::status::Reason;

fn name(kind: &str, name: &str) -> ObjectRef {
    ObjectRef::gateway_api(kind, "shop", name)
}

fn route() -> ObjectRef {
    name("HTTPRoute", "late")
}

/// A route whose last change is in revision 2 of the Gateway `edge`, for which the time has passed.
struct Scene {
    late: LateRoutes,
    confirmed: StatusReport,
    parents: OrdMap<ObjectRef, Arc<ObjectRef>>,
    /// The revision that the Gateway has reached.
    reached: u64,
}

impl Scene {
    fn new(parent: &ObjectRef) -> Self {
        let mut scene = Self {
            late: LateRoutes::default(),
            confirmed: StatusReport::default(),
            parents: OrdMap::unit(
                name("ListenerSet", "set"),
                Arc::new(name("Gateway", "edge")),
            ),
            reached: 1,
        };
        scene.confirm(parent, 1);
        let status = scene.follow(&[route()]);
        let late = "not all ready replicas of Gateway shop/edge serve this generation: see its condition Programmed";
        assert_eq!(message(&status), late);
        scene
    }

    /// Sets the status of the route.
    fn confirm(&mut self, parent: &ObjectRef, generation: i64) {
        let (kind, reason) = (ConditionType::Accepted, Reason::Accepted);
        let status = ParentStatus {
            parent_ref: ParentRef::to(parent),
            controller_name: "example.com/ours".into(),
            conditions: vec![Condition::holds(kind, reason, generation)],
        };
        (self.confirmed.routes).insert(route(), Arc::new(vec![status]));
    }

    fn follow(&mut self, changed: &[ObjectRef]) -> Arc<Vec<ParentStatus>> {
        let progress = Awaited {
            wanted: 2,
            reached: Some(self.reached),
        };
        let (awaited, mut lagging) = (BTreeMap::new(), BTreeMap::new());
        lagging.insert(name("Gateway", "edge"), progress);
        let unconfirmed = Unconfirmed {
            awaited: &awaited,
            lagging: &lagging,
        };
        let mut report = self.confirmed.clone();
        (self.late).follow(&mut report, &self.parents, changed, unconfirmed);
        report.routes[&route()].clone()
    }
}

fn message(status: &[ParentStatus]) -> &str {
    &status[0].conditions[0].message
}

#[test]
fn reports_share_the_status_of_a_late_route_until_it_changes() {
    let edge = name("Gateway", "edge");
    let mut scene = Scene::new(&edge);
    let first = scene.follow(&[]);
    assert!(Arc::ptr_eq(&first, &scene.follow(&[])));
    scene.confirm(&edge, 2);
    let second = scene.follow(&[]);
    assert_eq!(message(&second), message(&first));
    assert_eq!(second[0].conditions[0].observed_generation, 2);
}

#[test]
fn route_says_nothing_of_the_gateway_that_its_listener_set_has_left() {
    let set = name("ListenerSet", "set");
    let mut scene = Scene::new(&set);
    scene
        .parents
        .insert(set, Arc::new(name("Gateway", "other")));
    assert_eq!(message(&scene.follow(&[])), "");
}

#[test]
fn route_that_is_served_leaves_nothing_behind() {
    let mut scene = Scene::new(&name("Gateway", "edge"));
    scene.reached = 2;
    assert_eq!(message(&scene.follow(&[])), "");
    let late = &scene.late;
    assert!(late.waiting.by_object.is_empty() && late.waiting.by_gateway.is_empty());
    assert!(late.late_until.is_empty() && late.explained.is_empty());
}
