//! Routes at run time, each with its rules, found again in the previous table where they still hold. Knows nothing of
//! listeners or of how a request comes to a rule.

use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use super::build::Backends;
use super::rule::Rule;
use crate::ir;
use crate::ir::{Ir, ObjectRef};

/// A route, shared by all listeners that it is attached to.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) ir: Arc<ir::Route>,
    pub(super) rules: Box<[Arc<Rule>]>,
}

impl Route {
    /// Whether the rules, of the previous table, would get the same backends again.
    fn is_current(&self, backends: &Backends) -> bool {
        backends.are_those_before() || self.rules.iter().all(|rule| rule.keeps_its(backends))
    }
}

/// The routes of the table under construction, by the nodes of the IR.
pub(super) struct Routes(FxHashMap<*const ir::Route, Arc<Route>>);

/// Routes by name. A name has more than one only while differing versions of one route are attached to different
/// listeners.
type Namesakes<'a> = FxHashMap<&'a ObjectRef, Vec<Arc<Route>>>;

impl Routes {
    /// Nodes of `previous` that were made from the very same IR are kept without a look inside; only the others are
    /// compared by value, with what is left of their name.
    pub(super) fn new(
        wanted: &[&Arc<ir::Route>],
        previous: &[Arc<Route>],
        backends: &Backends,
    ) -> Self {
        let mut left: FxHashMap<_, _> = previous
            .iter()
            .map(|node| (Arc::as_ptr(&node.ir), node))
            .collect();
        let mut routes = FxHashMap::with_capacity_and_hasher(wanted.len(), FxBuildHasher);
        let mut changed = Vec::new();
        for ir in wanted {
            let address = Arc::as_ptr(ir);
            match left.get(&address) {
                Some(node) if node.is_current(backends) => {
                    routes.insert(address, Arc::clone(node));
                    left.remove(&address);
                }
                _ => changed.push(*ir),
            }
        }
        let mut namesakes = Namesakes::default();
        for node in left.into_values() {
            let same_name = namesakes.entry(&node.ir.object).or_default();
            same_name.push(node.clone());
        }
        for ir in changed {
            let known = namesakes.entry(&ir.object).or_default();
            let node = renew(ir, known, backends);
            known.push(node.clone());
            routes.insert(Arc::as_ptr(ir), node);
        }
        Self(routes)
    }

    /// The node of a route.
    pub(super) fn of(&self, ir: &Arc<ir::Route>) -> Option<&Arc<Route>> {
        self.0.get(&Arc::as_ptr(ir))
    }
}

/// The distinct routes of an IR, in order of its listeners.
pub(super) fn distinct(ir: &Ir, about: usize) -> Vec<&Arc<ir::Route>> {
    let mut seen = FxHashSet::with_capacity_and_hasher(about, FxBuildHasher);
    let listeners = ir.ports.iter().flat_map(|port| &port.listeners);
    let routes = listeners
        .flat_map(|listener| &listener.routes)
        .map(|attached| &attached.route);
    routes
        .filter(|route| seen.insert(Arc::as_ptr(route)))
        .collect()
}

/// A node for `ir`, with all that can be used again of the nodes of this name.
fn renew(ir: &Arc<ir::Route>, namesakes: &[Arc<Route>], backends: &Backends) -> Arc<Route> {
    let same = |node: &&Arc<Route>| node.ir == *ir && node.is_current(backends);
    if let Some(node) = namesakes.iter().find(same) {
        return node.clone();
    }
    let known = namesakes.iter().flat_map(|node| &node.rules);
    let rule = |ir_rule: &Arc<ir::Rule>| {
        let same_id: Vec<_> = known
            .clone()
            .filter(|rule| rule.ir.id == ir_rule.id)
            .collect();
        let mut current = same_id
            .iter()
            .filter(|rule| rule.is_current(ir_rule, ir, backends));
        if let Some(rule) = current.next() {
            return Arc::clone(rule);
        }
        let state = same_id
            .first()
            .map(|rule| rule.state.clone())
            .unwrap_or_default();
        Arc::new(Rule::new(ir_rule.clone(), ir, state, backends))
    };
    let rules = ir.rules.iter().map(rule).collect();
    Arc::new(Route {
        ir: ir.clone(),
        rules,
    })
}
