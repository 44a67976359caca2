//! What the regular expressions of routes may take in memory on each Gateway.

use std::collections::BTreeSet;

use crate::ir::ObjectRef;
use crate::translate::budgets::{Budgets, Demand, Exceeded, Limits};
use crate::translate::reason::{Fault, Reason};

/// Maximum memory for the patterns of the routes of one namespace on one Gateway, in bytes.
const MAX_OF_NAMESPACE: usize = 8 << 20;
/// Maximum memory for the patterns of all routes of one Gateway, in bytes.
const MAX_OF_GATEWAY: usize = 32 << 20;

/// The routes with patterns, on the Gateways that they attach to.
pub(in crate::translate) struct PatternBudgets(Budgets);

impl Default for PatternBudgets {
    fn default() -> Self {
        Self(Budgets::new(Limits {
            of_namespace: MAX_OF_NAMESPACE,
            of_gateway: MAX_OF_GATEWAY,
        }))
    }
}

impl PatternBudgets {
    /// Replaces what a route takes; `None` if it has no patterns or no parent.
    pub(in crate::translate) fn replace(&mut self, route: &ObjectRef, demand: Option<Demand>) {
        self.0.replace(route, demand);
    }

    /// Decides again which routes exceed a limit. Returns those for which that has changed.
    pub(in crate::translate) fn decide(&mut self) -> BTreeSet<ObjectRef> {
        self.0.decide()
    }

    /// Returns why a route may not attach to a Gateway, if it may not.
    pub(in crate::translate) fn fault(
        &self,
        route: &ObjectRef,
        gateway: &ObjectRef,
    ) -> Option<Fault> {
        let (cost, exceeded) = self.0.exceeded(route, gateway)?;
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
        let cost = cost.div_ceil(1024);
        let message = format!(
            "its regular expressions take {cost} KiB of memory; with those of older routes, the ones of namespace \
             {namespace} on {gateway} would take more than {limit}; simplify or remove some"
        );
        Some(Fault::new(Reason::PatternLimitExceeded, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_names_the_limit_that_is_exceeded() {
        let gateway = ObjectRef::gateway_api("Gateway", "infra", "edge");
        let mut budgets = PatternBudgets::default();
        let mut put = |namespace: &str, name: &str, cost| {
            let route = ObjectRef::gateway_api("HTTPRoute", namespace, name);
            let demand = Demand {
                created: None,
                cost,
                gateways: vec![gateway.clone()],
            };
            budgets.replace(&route, Some(demand));
            budgets.decide();
            budgets.fault(&route, &gateway).map(|fault| fault.message)
        };
        assert_eq!(put("shop", "a", 8 << 20), None);
        let fault = put("shop", "b", 2000).expect("a fault");
        assert!(fault.starts_with("its regular expressions take 2 KiB of memory"));
        assert!(fault.contains("more than 8192 KiB, the limit for a namespace"));
        for namespace in ["one", "two", "three"] {
            assert_eq!(put(namespace, "a", 8 << 20), None);
        }
        let fault = put("four", "a", 8 << 20).expect("a fault");
        assert!(fault.contains("6553 KiB, its share of the 32768 KiB of the Gateway"));
    }
}
