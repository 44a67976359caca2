//! Builds a table from an IR and the previous table, bottom-up: backends, rules, listeners, ports. A node is used again
//! when its IR is equal and everything below it is the same node. Knows nothing of how nodes are searched.

use std::sync::Arc;

use rustc_hash::{FxBuildHasher, FxHashMap};

use super::Table;
use super::backend::Backend;
use super::listener::{Listener, Port};
use super::rule::Rule;
use crate::ir;
use crate::ir::{BackendId, Bind, Ir, ListenerKey, RuleId};
use crate::tls::ServerConfigs;

pub(super) fn build(ir: Arc<Ir>, previous: &Table) -> Table {
    let backends = backends(&ir, previous);
    let mut rules = Rules::new(&backends, previous);
    let tls = listeners(&ir).filter_map(|listener| listener.tls.as_ref());
    let server_configs = ServerConfigs::build(tls, &previous.server_configs);
    let ports = ports(&ir, previous, &mut rules, &server_configs);
    let rules = rules.built.into();
    Table {
        generation: previous.generation + 1,
        ports,
        rules,
        backends,
        server_configs,
        ir,
    }
}

fn listeners(ir: &Ir) -> impl Iterator<Item = &Arc<ir::Listener>> {
    ir.ports.iter().flat_map(|port| &port.listeners)
}

fn backends(ir: &Ir, previous: &Table) -> Box<[Arc<Backend>]> {
    let node = |ir: &Arc<ir::Backend>| match find(&previous.backends, &ir.id) {
        Some(node) if node.protocol == ir.protocol => {
            node.set_endpoints(&ir.endpoints);
            node.clone()
        }
        changed => {
            let stats = changed.map(|node| node.stats.clone()).unwrap_or_default();
            Arc::new(Backend::new(ir, stats))
        }
    };
    ir.backends.iter().map(node).collect()
}

fn find<'a>(backends: &'a [Arc<Backend>], id: &BackendId) -> Option<&'a Arc<Backend>> {
    let at = backends.binary_search_by(|node| node.id.cmp(id)).ok()?;
    backends.get(at)
}

/// The rules of the table under construction. A name has more than one rule only while differing versions of one route
/// are attached to different listeners.
struct Rules<'a> {
    backends: &'a [Arc<Backend>],
    previous: RulesByName<'a>,
    by_name: RulesByName<'a>,
    built: Vec<Arc<Rule>>,
}

type RulesByName<'a> = FxHashMap<&'a RuleId, Vec<Arc<Rule>>>;

impl<'a> Rules<'a> {
    fn new(backends: &'a [Arc<Backend>], previous: &'a Table) -> Self {
        let count = previous.rules.len();
        let mut by_name = RulesByName::with_capacity_and_hasher(count, FxBuildHasher);
        for rule in &previous.rules {
            by_name.entry(&rule.ir.id).or_default().push(rule.clone());
        }
        Self {
            backends,
            previous: by_name,
            by_name: RulesByName::with_capacity_and_hasher(count, FxBuildHasher),
            built: Vec::with_capacity(count),
        }
    }

    fn node(&mut self, ir: &'a Arc<ir::Rule>) -> Arc<Rule> {
        let built = self.by_name.entry(&ir.id).or_default();
        if let Some(node) = built.iter().find(|node| node.ir == *ir) {
            return node.clone();
        }
        let backend = |id: &BackendId| find(self.backends, id).cloned();
        let previous = self.previous.get(&ir.id).map_or(&[][..], Vec::as_slice);
        let node = match previous.iter().find(|node| node.is_current(ir, backend)) {
            Some(node) => node.clone(),
            None => {
                let namesake = built.first().or(previous.first());
                let stats = namesake.map(|node| node.stats.clone()).unwrap_or_default();
                Arc::new(Rule::new(ir.clone(), stats, backend))
            }
        };
        built.push(node.clone());
        self.built.push(node.clone());
        node
    }
}

fn ports<'a>(
    ir: &'a Ir,
    previous: &Table,
    rules: &mut Rules<'a>,
    server_configs: &ServerConfigs,
) -> Box<[Arc<Port>]> {
    let old_listeners: FxHashMap<(Bind, &ListenerKey), &Arc<Listener>> = previous
        .ports
        .iter()
        .flat_map(|port| port.listeners().iter().map(|node| (port.bind(), node)))
        .map(|(bind, node)| ((bind, &node.ir.key), node))
        .collect();
    let mut listener = |bind: Bind, ir: &'a Arc<ir::Listener>| {
        let routes = ir.routes.iter().flat_map(|attached| &attached.route.rules);
        let rules: Box<[Arc<Rule>]> = routes.map(|rule| rules.node(rule)).collect();
        let config = ir.tls.as_ref().and_then(|tls| server_configs.get(tls));
        match old_listeners.get(&(bind, &ir.key)) {
            Some(node) if node.is_current(ir, config, &rules) => Arc::clone(node),
            _ => Arc::new(Listener::new(ir.clone(), config.cloned(), rules)),
        }
    };
    let port = |ir: &'a Arc<ir::Port>| {
        let nodes = ir.listeners.iter().map(|node| listener(ir.bind, node));
        let listeners: Box<[Arc<Listener>]> = nodes.collect();
        let old = previous.port(&ir.bind);
        match old.filter(|node| node.is_current(ir, &listeners)) {
            Some(node) => node.clone(),
            None => Arc::new(Port::new(ir.clone(), listeners)),
        }
    };
    let mut ports: Vec<_> = ir.ports.iter().map(port).collect();
    ports.sort_by_key(|port| port.bind());
    ports.into()
}
