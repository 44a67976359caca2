//! What objects may take on each Gateway: per namespace, and in all. Older objects come first, and no namespace can take the
//! share of another one. Depends only on the objects, not on the order in which they came. Must not know what they take.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::ir::ObjectRef;
use crate::ir::Time;
use crate::ir::sharing::Text;

/// The limits of each Gateway, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Maximum for the objects of one namespace.
    pub(super) of_namespace: usize,
    /// Maximum for all objects. Namespaces share it evenly when it does not suffice for all; what one does not need is for the
    /// others.
    pub(super) of_gateway: usize,
}

/// The objects that take something, on their Gateways.
pub(super) struct Budgets {
    limits: Limits,
    demands: FxHashMap<ObjectRef, Demand>,
    gateways: BTreeMap<ObjectRef, OfGateway>,
    /// Gateways whose objects have changed.
    changed: BTreeSet<ObjectRef>,
}

/// What an object takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Demand {
    /// Creation time; `None` counts as oldest.
    pub(super) created: Option<Time>,
    /// What it takes on each of its Gateways, in bytes.
    pub(super) cost: usize,
    /// Its Gateways, each once.
    pub(super) gateways: Vec<ObjectRef>,
}

/// The objects of one Gateway.
#[derive(Default)]
struct OfGateway {
    namespaces: BTreeMap<Text, OfNamespace>,
    /// Those that exceed a limit.
    refused: BTreeMap<ObjectRef, Exceeded>,
}

/// Costs of the objects of a namespace, the oldest first, then by name.
type OfNamespace = BTreeMap<(Option<Time>, ObjectRef), usize>;

/// A limit that an object exceeds, together with older ones of its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exceeded {
    Namespace,
    /// The even share of a namespace, in bytes.
    Share(usize),
}

impl Budgets {
    /// Creates budgets with these limits, of which nothing is taken.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            demands: FxHashMap::default(),
            gateways: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Replaces the demand of an object; `None` if it takes nothing.
    pub(super) fn replace(&mut self, object: &ObjectRef, demand: Option<Demand>) {
        if self.demands.get(object) == demand.as_ref() {
            return;
        }
        if let Some(previous) = self.demands.remove(object) {
            let rank = (previous.created, object.clone());
            for gateway in previous.gateways {
                if let Some(of_gateway) = self.gateways.get_mut(&gateway)
                    && let Some(costs) = of_gateway.namespaces.get_mut(&object.namespace)
                {
                    costs.remove(&rank);
                    if costs.is_empty() {
                        of_gateway.namespaces.remove(&object.namespace);
                    }
                }
                self.changed.insert(gateway);
            }
        }
        let Some(demand) = demand else {
            return;
        };
        for gateway in &demand.gateways {
            let of_gateway = self.gateways.entry(gateway.clone()).or_default();
            let namespace = object.namespace.clone();
            let costs = of_gateway.namespaces.entry(namespace).or_default();
            costs.insert((demand.created, object.clone()), demand.cost);
            self.changed.insert(gateway.clone());
        }
        self.demands.insert(object.clone(), demand);
    }

    /// Decides again which objects exceed a limit. Returns those for which that has changed.
    pub(super) fn decide(&mut self) -> BTreeSet<ObjectRef> {
        let mut differ = BTreeSet::new();
        for name in std::mem::take(&mut self.changed) {
            let Some(gateway) = self.gateways.get_mut(&name) else {
                continue;
            };
            let refused = gateway.refusals(self.limits);
            let previous = std::mem::replace(&mut gateway.refused, refused);
            let now = &gateway.refused;
            let either = previous.keys().chain(now.keys());
            let changed = either.filter(|object| previous.get(*object) != now.get(*object));
            differ.extend(changed.cloned());
            if gateway.namespaces.is_empty() {
                self.gateways.remove(&name);
            }
        }
        // A deleted object needs no new decision.
        differ.retain(|object| self.demands.contains_key(object));
        differ
    }

    /// Returns what an object takes, and the limit of a Gateway that it exceeds, if it does.
    pub(super) fn exceeded(
        &self,
        object: &ObjectRef,
        gateway: &ObjectRef,
    ) -> Option<(usize, Exceeded)> {
        let exceeded = self.gateways.get(gateway)?.refused.get(object)?;
        Some((self.demands.get(object)?.cost, *exceeded))
    }
}

impl OfGateway {
    fn refusals(&self, limits: Limits) -> BTreeMap<ObjectRef, Exceeded> {
        let mut refused = BTreeMap::new();
        let mut demands = Vec::with_capacity(self.namespaces.len());
        for costs in self.namespaces.values() {
            let limit = (limits.of_namespace, Exceeded::Namespace);
            demands.push(admit(costs, limit, &mut refused));
        }
        if demands.iter().sum::<usize>() <= limits.of_gateway {
            return refused;
        }
        let share = even_share(limits.of_gateway, &mut demands.clone());
        for (costs, demand) in self.namespaces.values().zip(demands) {
            if demand > share {
                let limit = (share, Exceeded::Share(share));
                admit(costs, limit, &mut refused);
            }
        }
        refused
    }
}

/// Admits objects up to a limit and refuses the others. Returns what the admitted ones take.
fn admit(
    costs: &OfNamespace,
    (limit, exceeded): (usize, Exceeded),
    refused: &mut BTreeMap<ObjectRef, Exceeded>,
) -> usize {
    let mut total = 0;
    for ((_, object), cost) in costs {
        if total + cost <= limit {
            total += cost;
        } else {
            refused.entry(object.clone()).or_insert(exceeded);
        }
    }
    total
}

/// Returns the most that each namespace may take so that all fit: those that need less leave the rest to the others.
fn even_share(of_gateway: usize, demands: &mut [usize]) -> usize {
    demands.sort_unstable();
    let (mut rest, mut left) = (of_gateway, demands.len());
    for demand in demands {
        if *demand > rest / left {
            return rest / left;
        }
        rest -= *demand;
        left -= 1;
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        of_namespace: 8,
        of_gateway: 32,
    };

    fn gateway() -> ObjectRef {
        ObjectRef::gateway_api("Gateway", "infra", "edge")
    }

    fn route(namespace: &str, name: &str) -> ObjectRef {
        ObjectRef::gateway_api("HTTPRoute", namespace, name)
    }

    /// Returns budgets with routes, each of a namespace, a name, a creation time and a cost.
    fn with(routes: &[(&str, &str, i64, usize)]) -> Budgets {
        let mut budgets = Budgets::new(LIMITS);
        for (namespace, name, created, cost) in routes {
            put(&mut budgets, &route(namespace, name), *created, *cost);
        }
        budgets.decide();
        budgets
    }

    fn put(budgets: &mut Budgets, route: &ObjectRef, created: i64, cost: usize) {
        let demand = Demand {
            created: Some(Time::from_second(created)),
            cost,
            gateways: vec![gateway()],
        };
        budgets.replace(route, Some(demand));
    }

    fn refused(budgets: &Budgets) -> Vec<String> {
        let refused = budgets.gateways[&gateway()].refused.keys();
        refused
            .map(|route| format!("{}/{}", route.namespace, route.name))
            .collect()
    }

    #[test]
    fn newest_routes_of_a_namespace_exceed_its_limit() {
        let old = ("shop", "old", 1, 5);
        let mut budgets = with(&[
            ("shop", "new", 3, 2),
            ("shop", "late", 2, 4),
            old,
            ("other", "o", 9, 8),
        ]);
        assert_eq!(refused(&budgets), ["shop/late"]);
        let exceeded = budgets.exceeded(&route("shop", "late"), &gateway());
        assert_eq!(exceeded, Some((4, Exceeded::Namespace)));
        // When the oldest goes, the others fit.
        budgets.replace(&route("shop", "old"), None);
        assert_eq!(budgets.decide(), [route("shop", "late")].into());
        assert!(refused(&budgets).is_empty());
        assert_eq!(budgets.exceeded(&route("shop", "late"), &gateway()), None);
    }

    #[test]
    fn namespaces_keep_their_share_when_a_gateway_is_full() {
        let small = [("small", "s", 100, 3)];
        let large: Vec<_> = ["a", "b", "c", "d", "e"]
            .iter()
            .flat_map(|namespace| [(*namespace, "one", 1, 4), (*namespace, "two", 2, 4)])
            .collect();
        // Of 32, 3 are for the small namespace, and each of the five others gets a fifth of the rest.
        let mut budgets = with(&[large, small.to_vec()].concat());
        assert_eq!(
            refused(&budgets),
            ["a/two", "b/two", "c/two", "d/two", "e/two"]
        );
        for namespace in ["a", "b"] {
            budgets.replace(&route(namespace, "one"), None);
            budgets.replace(&route(namespace, "two"), None);
        }
        let changed = budgets.decide();
        assert_eq!(changed, ["c", "d", "e"].map(|it| route(it, "two")).into());
        assert!(refused(&budgets).is_empty());
    }

    #[test]
    fn decision_does_not_depend_on_the_order_of_changes_and_is_the_same_without_refused_routes() {
        let routes: Vec<_> = (0..200_usize)
            .map(|number| {
                let random = number.wrapping_mul(2_654_435_761) >> 7;
                (
                    ["a", "b", "c", "d", "e", "f"][random % 6],
                    number,
                    random as i64 % 5,
                    random % 3 + 1,
                )
            })
            .collect();
        let names: Vec<_> = routes
            .iter()
            .map(|(_, number, ..)| format!("r{number}"))
            .collect();
        let named = |at: &usize| {
            let (namespace, number, created, cost) = routes[*at];
            (namespace, &*names[number], created, cost)
        };
        let forward: Vec<_> = (0..200).collect();
        let first = with(&forward.iter().map(named).collect::<Vec<_>>());
        let backward = with(&forward.iter().rev().map(named).collect::<Vec<_>>());
        let mut stepwise = Budgets::new(LIMITS);
        for at in &forward {
            let (namespace, name, created, cost) = named(at);
            put(&mut stepwise, &route(namespace, name), created, cost);
            stepwise.decide();
        }
        assert!(!refused(&first).is_empty());
        assert_eq!(refused(&backward), refused(&first));
        assert_eq!(refused(&stepwise), refused(&first));
        let is_admitted = |at: &&usize| {
            let (namespace, name, ..) = named(at);
            first
                .exceeded(&route(namespace, name), &gateway())
                .is_none()
        };
        let admitted = with(
            &forward
                .iter()
                .filter(is_admitted)
                .map(named)
                .collect::<Vec<_>>(),
        );
        assert!(refused(&admitted).is_empty());
    }
}
