//! All conditions of a report in one list, each with its object and its place in the object's status. `check`, the status
//! page and the log take them from here.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::condition::{Condition, ConditionType};
use super::release_backend::ReleaseBackendStatus;
use super::report::{
    AncestorStatus, GatewayStatus, ListenerSetStatus, ListenerStatus, ParentStatus, Released,
    StatusReport,
};
use super::status_map::{StatusMap, changed_since, names_changed_since};
use crate::api::reference::ParentRef;
use crate::ir::ObjectRef;

/// Conditions of an object, or of a part of its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlacedConditions<'a> {
    /// The object.
    pub object: &'a ObjectRef,
    /// The part of its status.
    pub place: StatusPart<'a>,
    /// The conditions.
    pub conditions: &'a [Condition],
}

/// A part of an object's status that has conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusPart<'a> {
    /// The object itself; shown as an empty text.
    Object,
    /// A listener of a Gateway or ListenerSet.
    Listener(&'a ListenerStatus),
    /// The Gateway or ListenerSet for which a route, a policy or a backend has the conditions.
    Parent(&'a ParentRef),
}

impl StatusReport {
    /// Returns the conditions of all objects that this controller manages. Those of one object follow each other, its own
    /// first.
    pub fn conditions(&self) -> Vec<PlacedConditions<'_>> {
        self.conditions_unlike(&Self::default())
    }

    /// Returns the conditions of the objects whose status differs from that in another report. Skips what both share.
    pub(super) fn conditions_unlike(&self, other: &Self) -> Vec<PlacedConditions<'_>> {
        let maps = self.maps(other).into_iter();
        maps.flat_map(|map| map.conditions()).collect()
    }

    /// Returns the conditions of an object, each with its place.
    pub(super) fn conditions_of(&self, object: &ObjectRef) -> Vec<(String, &[Condition])> {
        let maps = self.maps(self).into_iter();
        maps.flat_map(|map| map.conditions_of(object)).collect()
    }

    /// Returns the names of all objects whose status differs from that in another report, also of those that this
    /// controller does not manage. Skips what both reports share.
    pub fn objects_unlike(&self, other: &Self) -> Vec<ObjectRef> {
        let Released {
            gateways,
            listener_sets,
        } = &self.released;
        let maps = self.maps(other).into_iter();
        let mut names: Vec<_> = maps.flat_map(|map| map.names()).collect();
        names.extend(names_changed_since(gateways, &other.released.gateways));
        names.extend(names_changed_since(
            listener_sets,
            &other.released.listener_sets,
        ));
        names
    }

    /// Returns all maps with conditions of objects that this controller manages, each with that of another report.
    fn maps<'a: 'o, 'o>(&'a self, other: &'o Self) -> [Box<dyn Difference<'a> + 'o>; 7] {
        // Destructured, so that a new map fails to compile until it is here.
        let Self {
            gateway_classes,
            gateways,
            listener_sets,
            routes,
            policies,
            backends,
            release_backends,
            // Of objects that this controller does not manage.
            released: _,
            // Not conditions.
            notes: _,
            unattached: _,
        } = self;
        [
            Box::new((gateway_classes, &other.gateway_classes)),
            Box::new((gateways, &other.gateways)),
            Box::new((listener_sets, &other.listener_sets)),
            Box::new((routes, &other.routes)),
            Box::new((policies, &other.policies)),
            Box::new((backends, &other.backends)),
            Box::new((release_backends, &other.release_backends)),
        ]
    }
}

impl<'a> PlacedConditions<'a> {
    /// Returns the conditions that are problems, each message once: Accepted and Programmed often fail for the same cause.
    pub fn problems(&self) -> Vec<&'a Condition> {
        let mut problems: Vec<&Condition> = Vec::new();
        for condition in self.conditions.iter().filter(|it| self.is_problem(it)) {
            if !problems.iter().any(|it| it.message == condition.message) {
                problems.push(condition);
            }
        }
        problems
    }

    /// Reports whether one of the conditions is a problem.
    pub fn is_problem(&self, condition: &Condition) -> bool {
        // `Programmed` of a ReleaseBackend repeats other conditions, or only says that nothing refers to it yet.
        let repeats =
            &*self.object.kind == "ReleaseBackend" && condition.kind == ConditionType::Programmed;
        condition.is_problem() && !repeats
    }
}

impl fmt::Display for StatusPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object => Ok(()),
            Self::Listener(listener) => write!(f, "listener {}", listener.name),
            Self::Parent(parent) => write!(f, "for {parent}"),
        }
    }
}

impl Serialize for StatusPart<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A status with conditions.
trait Status {
    /// Returns the conditions of each place, those of the object first.
    fn places(&self) -> Vec<(StatusPart<'_>, &[Condition])>;
}

impl Status for [Condition] {
    fn places(&self) -> Vec<(StatusPart<'_>, &[Condition])> {
        vec![(StatusPart::Object, self)]
    }
}

impl Status for GatewayStatus {
    fn places(&self) -> Vec<(StatusPart<'_>, &[Condition])> {
        with_listeners(&self.conditions, &self.listeners)
    }
}

impl Status for ListenerSetStatus {
    fn places(&self) -> Vec<(StatusPart<'_>, &[Condition])> {
        with_listeners(&self.conditions, &self.listeners)
    }
}

impl Status for Vec<ParentStatus> {
    fn places(&self) -> Vec<(StatusPart<'_>, &[Condition])> {
        let places = self.iter();
        places
            .map(|it| (StatusPart::Parent(&it.parent_ref), &*it.conditions))
            .collect()
    }
}

impl Status for [AncestorStatus] {
    fn places(&self) -> Vec<(StatusPart<'_>, &[Condition])> {
        let places = self.iter();
        places
            .map(|it| (StatusPart::Parent(&it.ancestor_ref), &*it.conditions))
            .collect()
    }
}

impl Status for ReleaseBackendStatus {
    fn places(&self) -> Vec<(StatusPart<'_>, &[Condition])> {
        vec![(StatusPart::Object, &self.conditions)]
    }
}

fn with_listeners<'a>(
    own: &'a [Condition],
    listeners: &'a [ListenerStatus],
) -> Vec<(StatusPart<'a>, &'a [Condition])> {
    let listeners = listeners.iter();
    let listeners = listeners.map(|it| (StatusPart::Listener(it), &**it.conditions));
    [(StatusPart::Object, own)]
        .into_iter()
        .chain(listeners)
        .collect()
}

/// What a map of statuses has that another one has not.
trait Difference<'a> {
    /// Returns the conditions of the objects whose status differs.
    fn conditions(&self) -> Vec<PlacedConditions<'a>>;

    /// Returns the names of the objects whose status differs.
    fn names(&self) -> Vec<ObjectRef>;

    /// Returns the conditions of an object, each with its place, whether they differ or not.
    fn conditions_of(&self, object: &ObjectRef) -> Vec<(String, &'a [Condition])>;
}

impl<'a, T: Status + Eq + ?Sized> Difference<'a> for (&'a StatusMap<T>, &StatusMap<T>) {
    fn conditions(&self) -> Vec<PlacedConditions<'a>> {
        let (now, other) = *self;
        let changed = changed_since(now, other).into_iter();
        let placed = changed.flat_map(|(object, status)| {
            let places = Arc::as_ref(status).places().into_iter();
            places.map(move |(place, conditions)| PlacedConditions {
                object,
                place,
                conditions,
            })
        });
        placed.collect()
    }

    fn names(&self) -> Vec<ObjectRef> {
        let (now, other) = *self;
        names_changed_since(now, other)
    }

    fn conditions_of(&self, object: &ObjectRef) -> Vec<(String, &'a [Condition])> {
        let (now, _) = *self;
        let status = now.get(object).into_iter();
        let places = status.flat_map(|status| Arc::as_ref(status).places());
        let texts = places.map(|(place, conditions)| (place.to_string(), conditions));
        texts.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::status::{Note, Reason};

    fn name(kind: &str) -> ObjectRef {
        ObjectRef::gateway_api(kind, "shop", "one")
    }

    fn failed() -> Vec<Condition> {
        vec![Condition::fails(
            ConditionType::Accepted,
            Reason::Invalid,
            "why",
            1,
        )]
    }

    fn to_gateway() -> ParentRef {
        ParentRef {
            group: "".into(),
            kind: "Gateway".into(),
            namespace: Some("infra".into()),
            name: "edge".into(),
            section_name: Some("http".into()),
            port: Some(80),
        }
    }

    /// A report with one failed condition in every place that can have one. Without defaults, so that a new map fails to
    /// compile until it is here.
    fn full() -> StatusReport {
        let listeners = || {
            vec![ListenerStatus {
                name: "http".into(),
                attached_routes: 1,
                supported_kinds: Arc::default(),
                conditions: Arc::new(failed()),
                port: 80,
                hostname: crate::ir::Hostname::Any,
                binds: Vec::new(),
            }]
        };
        let parents = || -> Arc<Vec<ParentStatus>> {
            Arc::new(vec![ParentStatus {
                parent_ref: to_gateway(),
                controller_name: "example.com/ours".into(),
                conditions: failed(),
            }])
        };
        let ancestor = AncestorStatus {
            ancestor_ref: to_gateway(),
            controller_name: "example.com/ours".into(),
            conditions: failed(),
        };
        let gateway = GatewayStatus {
            conditions: failed(),
            listeners: listeners(),
            ..GatewayStatus::default()
        };
        let set = ListenerSetStatus {
            conditions: failed(),
            listeners: listeners(),
        };
        let release_backend = ReleaseBackendStatus {
            conditions: failed(),
            ..ReleaseBackendStatus::default()
        };
        StatusReport {
            gateway_classes: StatusMap::unit(name("GatewayClass"), failed().into()),
            gateways: StatusMap::unit(name("Gateway"), gateway.into()),
            listener_sets: StatusMap::unit(name("ListenerSet"), set.into()),
            routes: StatusMap::unit(name("HTTPRoute"), parents()),
            policies: StatusMap::unit(name("BackendTLSPolicy"), [ancestor].into()),
            backends: StatusMap::unit(name("XBackend"), parents()),
            release_backends: StatusMap::unit(name("ReleaseBackend"), release_backend.into()),
            released: Released {
                gateways: StatusMap::unit(name("Gateway"), GatewayStatus::default().into()),
                listener_sets: StatusMap::new(),
            },
            unattached: StatusMap::new(),
            notes: vec![Note {
                object: name("Service"),
                message: "a note".to_owned(),
            }]
            .into(),
        }
    }

    #[test]
    fn every_condition_is_listed_with_its_place_and_is_a_problem() {
        let report = full();
        let places: Vec<_> = report
            .conditions()
            .iter()
            .map(|it| format!("{}: {}", it.object.kind, it.place))
            .collect();
        let expected = [
            "GatewayClass: ",
            "Gateway: ",
            "Gateway: listener http",
            "ListenerSet: ",
            "ListenerSet: listener http",
            "HTTPRoute: for Gateway infra/edge listener http port 80",
            "BackendTLSPolicy: for Gateway infra/edge listener http port 80",
            "XBackend: for Gateway infra/edge listener http port 80",
            "ReleaseBackend: ",
        ];
        assert_eq!(places, expected);
        let found = report.objects_unlike(&StatusReport::default());
        // The released Gateway has the name of the other one.
        let found: BTreeSet<_> = found.iter().collect();
        let found = found.iter().flat_map(|it| report.conditions_of(it));
        assert_eq!(found.count(), expected.len());
        assert_eq!(report.problems().count(), expected.len() + 1);
        let changes = report.problem_changes(&StatusReport::default());
        assert_eq!(changes.increase, expected.len() as isize + 1);
        assert!(changes.resolved.is_empty());
    }

    #[test]
    fn every_object_of_another_status_is_named() {
        let names = full().objects_unlike(&StatusReport::default());
        let kinds: Vec<_> = names.iter().map(|name| &*name.kind).collect();
        let expected = [
            "GatewayClass",
            "Gateway",
            "ListenerSet",
            "HTTPRoute",
            "BackendTLSPolicy",
            "XBackend",
            "ReleaseBackend",
            "Gateway",
        ];
        assert_eq!(kinds, expected);
        assert!(full().objects_unlike(&full()).is_empty());
    }

    #[test]
    fn messages_are_problems_once() {
        let mut conditions = failed();
        conditions.push(Condition {
            kind: ConditionType::Programmed,
            ..conditions[0].clone()
        });
        let name = name("Gateway");
        let placed = PlacedConditions {
            object: &name,
            place: StatusPart::Object,
            conditions: &conditions,
        };
        assert_eq!(placed.problems(), [&conditions[0]]);
    }
}
