//! Builds a table from an IR and the previous table, bottom-up: backends, routes, listeners, ports. Reuses a node when
//! its IR is equal and everything below it is the same node. Must not know how a node is searched.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Table;
use super::backends::Backends;
use super::listener::{Changes, Listener, Port};
use super::node::same_nodes;
use super::route::Routes;
use crate::ir;
use crate::ir::{Bind, Ir, ListenerKey};
use crate::tls::ServerConfigs;

impl Table {
    /// Indexes `ir`. `previous` must be the table that was built last: its nodes are reused where their IR is equal.
    /// Backends keep their identity while their endpoints change, so new endpoints take effect at once, in both tables.
    pub fn build(ir: Arc<Ir>, previous: Option<&Self>) -> Self {
        match previous {
            Some(previous) => build(ir, previous),
            None => build(ir, &Self::empty()),
        }
    }
}

fn build(ir: Arc<Ir>, previous: &Table) -> Table {
    let backends = Backends::new(&ir, &previous.ir, &previous.backends);
    let generation = previous.generation + 1;
    if backends.are_those_before() && same_nodes(&ir.ports, &previous.ir.ports) {
        return Table {
            generation,
            ports: previous.ports.clone(),
            routes: previous.routes.clone(),
            backends: backends.nodes,
            server_configs: previous.server_configs.clone(),
            new_patterns: Vec::new(),
            ir,
        };
    }
    let server_configs = server_configs(&ir, previous);
    let mut routes = previous.routes.clone();
    let ports = ports(&ir, previous, &backends, &server_configs, &mut routes);
    Table {
        generation,
        ports,
        new_patterns: routes.take_new_patterns(),
        routes,
        backends: backends.nodes,
        server_configs,
        ir,
    }
}

fn tls(ir: &Ir) -> impl Iterator<Item = &Arc<ir::ServerTls>> {
    let listeners = ir.ports.iter().flat_map(|port| &port.listeners);
    listeners.filter_map(|listener| listener.tls())
}

fn server_configs(ir: &Ir, previous: &Table) -> Arc<ServerConfigs> {
    let same = |(new, old)| Arc::ptr_eq(new, old);
    if tls(ir).count() == tls(&previous.ir).count() && tls(ir).zip(tls(&previous.ir)).all(same) {
        return previous.server_configs.clone();
    }
    Arc::new(ServerConfigs::build(tls(ir), &previous.server_configs))
}

fn ports(
    ir: &Ir,
    previous: &Table,
    backends: &Backends,
    server_configs: &ServerConfigs,
    routes: &mut Routes,
) -> Arc<[Arc<Port>]> {
    let old_listeners: FxHashMap<(Bind, &ListenerKey), &Arc<Listener>> = previous
        .ports
        .iter()
        .flat_map(|port| port.listeners().iter().map(|node| (port.bind(), node)))
        .map(|(bind, node)| ((bind, &node.ir.key), node))
        .collect();
    let outdated = routes.outdated(backends);
    let (mut detached, mut continued) = (Vec::new(), FxHashSet::default());
    let mut listener = |bind: Bind, ir: &Arc<ir::Listener>| {
        let config = ir.tls().and_then(|tls| server_configs.get(tls));
        let old = old_listeners.get(&(bind, &ir.key)).copied();
        continued.extend(old.map(Arc::as_ptr));
        let changes = Changes::new(ir, old, &outdated);
        match old.filter(|node| changes.is_empty() && node.is_current(ir, config)) {
            Some(node) => node.clone(),
            None => {
                let attach = |ir: &Arc<ir::Route>| routes.attach(ir, backends);
                let node = Listener::new(ir.clone(), config.cloned(), &changes, old, attach);
                detached.extend(changes.detached().cloned());
                Arc::new(node)
            }
        }
    };
    let mut port = |ir: &Arc<ir::Port>| {
        let nodes = ir.listeners.iter().map(|node| listener(ir.bind, node));
        let listeners: Box<[Arc<Listener>]> = nodes.collect();
        let old = previous.port(&ir.bind);
        match old.filter(|node| node.is_current(ir, &listeners)) {
            Some(node) => node.clone(),
            None => Arc::new(Port::new(ir.clone(), listeners)),
        }
    };
    let mut ports: Vec<_> = ir.ports.iter().map(&mut port).collect();
    ports.sort_by_key(|port| port.bind());
    let gone = old_listeners.values();
    let gone = gone.filter(|listener| !continued.contains(&Arc::as_ptr(listener)));
    let gone = gone.flat_map(|listener| listener.routes());
    // Attach before detach, so that the state of a rule survives when its route moves from one listener to another.
    detached
        .iter()
        .chain(gone)
        .for_each(|node| routes.detach(node));
    ports.into()
}
