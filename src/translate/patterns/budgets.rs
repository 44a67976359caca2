//! What the regular expressions of routes may take in memory on each Gateway: per namespace, and in all. Older routes come
//! first, and no namespace can take the share of another one. Depends only on the routes, not on the order in which they
//! came.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::ir::ObjectRef;
use crate::ir::Time;
use crate::ir::sharing::Text;
use crate::translate::reason::{Fault, Reason};

/// Maximum memory for the patterns of the routes of one namespace on one Gateway, in bytes.
const MAX_OF_NAMESPACE: usize = 8 << 20;
/// Maximum memory for the patterns of all routes of one Gateway, in bytes. Namespaces share it evenly when it does not
/// suffice for all; what one does not need is for the others.
const MAX_OF_GATEWAY: usize = 32 << 20;

/// The routes with patterns, on the Gateways that they attach to.
#[derive(Default)]
pub(in crate::translate) struct PatternBudgets {
    demands: FxHashMap<ObjectRef, Demand>,
    gateways: BTreeMap<ObjectRef, OfGateway>,
    /// Gateways whose routes have changed.
    changed: BTreeSet<ObjectRef>,
}

/// What a route takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::translate) struct Demand {
    /// Creation time; `None` counts as oldest.
    pub(in crate::translate) created: Option<Time>,
    /// Upper bound for the memory of its patterns, in bytes.
    pub(in crate::translate) cost: usize,
    /// The Gateways that it attaches to, each once.
    pub(in crate::translate) gateways: Vec<ObjectRef>,
}

/// The routes of one Gateway.
#[derive(Default)]
struct OfGateway {
    namespaces: BTreeMap<Text, OfNamespace>,
    /// Those that exceed a limit, which is in bytes.
    refused: BTreeMap<ObjectRef, Exceeded>,
}

/// Costs of the routes of a namespace, the oldest first, then by name.
type OfNamespace = BTreeMap<(Option<Time>, ObjectRef), usize>;

/// A limit that a route exceeds, together with older ones of its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exceeded {
    Namespace,
    /// The even share of a namespace, in bytes.
    Share(usize),
}

impl PatternBudgets {
    /// Replaces the demand of a route; `None` if it has no patterns or no parent.
    pub(in crate::translate) fn replace(&mut self, route: &ObjectRef, demand: Option<Demand>) {
        if self.demands.get(route) == demand.as_ref() {
            return;
        }
        if let Some(previous) = self.demands.remove(route) {
            let rank = (previous.created, route.clone());
            for gateway in previous.gateways {
                if let Some(of_gateway) = self.gateways.get_mut(&gateway)
                    && let Some(routes) = of_gateway.namespaces.get_mut(&route.namespace)
                {
                    routes.remove(&rank);
                    if routes.is_empty() {
                        of_gateway.namespaces.remove(&route.namespace);
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
            let namespace = route.namespace.clone();
            let routes = of_gateway.namespaces.entry(namespace).or_default();
            routes.insert((demand.created, route.clone()), demand.cost);
            self.changed.insert(gateway.clone());
        }
        self.demands.insert(route.clone(), demand);
    }

    /// Decides anew which routes exceed a limit. Returns those for which that has changed.
    pub(in crate::translate) fn decide(&mut self) -> BTreeSet<ObjectRef> {
        let mut differ = BTreeSet::new();
        for name in std::mem::take(&mut self.changed) {
            let Some(gateway) = self.gateways.get_mut(&name) else {
                continue;
            };
            let refused = gateway.refusals();
            let previous = std::mem::replace(&mut gateway.refused, refused);
            let now = &gateway.refused;
            let either = previous.keys().chain(now.keys());
            let changed = either.filter(|route| previous.get(*route) != now.get(*route));
            differ.extend(changed.cloned());
            if gateway.namespaces.is_empty() {
                self.gateways.remove(&name);
            }
        }
        // A deleted route needs no new decision.
        differ.retain(|route| self.demands.contains_key(route));
        differ
    }

    /// Returns why a route may not attach to a Gateway, if it may not.
    pub(in crate::translate) fn fault(
        &self,
        route: &ObjectRef,
        gateway: &ObjectRef,
    ) -> Option<Fault> {
        let exceeded = self.gateways.get(gateway)?.refused.get(route)?;
        let namespace = &route.namespace;
        let limit = match exceeded {
            Exceeded::Namespace => {
                let limit = MAX_OF_NAMESPACE / 1024;
                format!("{limit} KiB, the limit for a namespace")
            }
            Exceeded::Share(share) => {
                let (share, all) = (share / 1024, MAX_OF_GATEWAY / 1024);
                format!("{share} KiB, its share of the {all} KiB of the Gateway")
            }
        };
        let cost = self.demands.get(route)?.cost.div_ceil(1024);
        let message = format!(
            "its regular expressions take {cost} KiB of memory; with those of older routes, the ones of namespace \
             {namespace} on {gateway} would take more than {limit}; simplify or remove some"
        );
        Some(Fault::new(Reason::PatternLimitExceeded, message))
    }
}

impl OfGateway {
    fn refusals(&self) -> BTreeMap<ObjectRef, Exceeded> {
        let mut refused = BTreeMap::new();
        let mut demands = Vec::with_capacity(self.namespaces.len());
        for routes in self.namespaces.values() {
            let limit = (MAX_OF_NAMESPACE, Exceeded::Namespace);
            demands.push(admit(routes, limit, &mut refused));
        }
        if demands.iter().sum::<usize>() <= MAX_OF_GATEWAY {
            return refused;
        }
        let share = even_share(&mut demands.clone());
        for (routes, demand) in self.namespaces.values().zip(demands) {
            if demand > share {
                let limit = (share, Exceeded::Share(share));
                admit(routes, limit, &mut refused);
            }
        }
        refused
    }
}

/// Admits routes up to a limit and refuses the others. Returns what the admitted ones take.
fn admit(
    routes: &OfNamespace,
    (limit, exceeded): (usize, Exceeded),
    refused: &mut BTreeMap<ObjectRef, Exceeded>,
) -> usize {
    let mut total = 0;
    for ((_, route), cost) in routes {
        if total + cost <= limit {
            total += cost;
        } else {
            refused.entry(route.clone()).or_insert(exceeded);
        }
    }
    total
}

/// Returns the most that each namespace may take so that all fit: those that need less leave the rest to the others.
fn even_share(demands: &mut [usize]) -> usize {
    demands.sort_unstable();
    let (mut rest, mut left) = (MAX_OF_GATEWAY, demands.len());
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

    const MIB: usize = 1 << 20;

    fn gateway() -> ObjectRef {
        ObjectRef::gateway_api("Gateway", "infra", "edge")
    }

    fn route(namespace: &str, name: &str) -> ObjectRef {
        ObjectRef::gateway_api("HTTPRoute", namespace, name)
    }

    /// Returns budgets with routes, each of a namespace, a name, a creation time and a cost in MiB.
    fn with(routes: &[(&str, &str, i64, usize)]) -> PatternBudgets {
        let mut budgets = PatternBudgets::default();
        for (namespace, name, created, cost) in routes {
            put(&mut budgets, &route(namespace, name), *created, *cost);
        }
        budgets.decide();
        budgets
    }

    fn put(budgets: &mut PatternBudgets, route: &ObjectRef, created: i64, cost: usize) {
        let demand = Demand {
            created: Some(Time::from_second(created)),
            cost: cost * MIB,
            gateways: vec![gateway()],
        };
        budgets.replace(route, Some(demand));
    }

    fn refused(budgets: &PatternBudgets) -> Vec<String> {
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
        let fault = budgets.fault(&route("shop", "late"), &gateway()).unwrap();
        assert!(
            fault
                .message
                .contains("8192 KiB, the limit for a namespace"),
            "{}",
            fault.message
        );
        // When the oldest goes, the others fit.
        budgets.replace(&route("shop", "old"), None);
        assert_eq!(budgets.decide(), [route("shop", "late")].into());
        assert!(refused(&budgets).is_empty());
        assert_eq!(budgets.fault(&route("shop", "late"), &gateway()), None);
    }

    #[test]
    fn namespaces_keep_their_share_when_a_gateway_is_full() {
        let small = [("small", "s", 100, 3)];
        let large: Vec<_> = ["a", "b", "c", "d", "e"]
            .iter()
            .flat_map(|namespace| [(*namespace, "one", 1, 4), (*namespace, "two", 2, 4)])
            .collect();
        // Of 32 MiB, 3 are for the small namespace, and each of the five others gets a fifth of the rest.
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
        let mut stepwise = PatternBudgets::default();
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
            first.fault(&route(namespace, name), &gateway()).is_none()
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
