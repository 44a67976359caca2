//! Builds a table from an IR and the previous table, bottom-up: backends, routes, listeners, ports. Reuses a node when
//! its IR is equal and everything below it is the same node. Must not know how a node is searched.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Table;
use super::backends::Backends;
use super::listener::{Changes, Listener, Port};
use super::node::same_nodes;
use super::route::{RouteNode, Routes};
use super::router::MadeRouters;
use crate::ir;
use crate::ir::{Ir, ListenerKey, ObjectRef};
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
            shared_http3: previous.shared_http3.clone(),
            new_patterns: Vec::new(),
            ir,
        };
    }
    let server_configs = server_configs(&ir, previous);
    let mut routes = previous.routes.clone();
    let ports = ports(&ir, previous, &backends, &server_configs, &mut routes);
    if previous.routes.is_empty() {
        routes.pack();
    }
    Table {
        generation,
        ports,
        new_patterns: routes.take_new_patterns(),
        routes,
        backends: backends.nodes,
        server_configs,
        shared_http3: previous.shared_http3.clone(),
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

/// The nodes of listeners under construction.
struct Listeners<'a> {
    server_configs: &'a ServerConfigs,
    /// Whether the TLS configurations are those of the previous table.
    has_same_configs: bool,
    backends: &'a Backends,
    routes: &'a mut Routes,
    routers: MadeRouters,
    /// Routes that need new nodes although their IR may be equal.
    outdated: Vec<ObjectRef>,
    /// Nodes of routes that listeners had.
    detached: Vec<RouteNode>,
}

impl Listeners<'_> {
    /// Returns the node of a listener of a port. `old` is its node in the previous table.
    fn node(
        &mut self,
        (ir, port): (&Arc<ir::Listener>, u16),
        old: Option<&Arc<Listener>>,
    ) -> Arc<Listener> {
        let is_untouched = |node: &&Arc<Listener>| {
            self.has_same_configs && self.outdated.is_empty() && Arc::ptr_eq(&node.ir, ir)
        };
        if let Some(node) = old.filter(is_untouched) {
            return node.clone();
        }
        let config = ir.tls().and_then(|tls| self.server_configs.get(tls));
        let changes = Changes::new(ir, old, &self.outdated);
        match old.filter(|node| changes.is_empty() && node.is_current(ir, config)) {
            Some(node) => node.clone(),
            None => {
                let states = self.routes.policies.clone();
                let attach = |ir: &Arc<ir::Route>| self.routes.attach(ir, self.backends);
                let known = (old, &states, &mut self.routers);
                let node =
                    Listener::new((ir.clone(), port), config.cloned(), &changes, known, attach);
                self.detached.extend(changes.detached().cloned());
                Arc::new(node)
            }
        }
    }

    /// Returns the nodes of the listeners of a port, of which `old` is the node in the previous table.
    fn of_port(&mut self, ir: &ir::Port, old: Option<&Arc<Port>>) -> Box<[Arc<Listener>]> {
        let mut old = old
            .map_or(&[][..], |port| port.listeners())
            .iter()
            .peekable();
        // Both are mostly the same listeners in the same order. After the first difference, keys find them.
        let mut others: FxHashMap<&ListenerKey, &Arc<Listener>> = FxHashMap::default();
        let mut nodes = Vec::with_capacity(ir.listeners.len());
        for listener in &ir.listeners {
            let is_same = |node: &&Arc<Listener>| {
                Arc::ptr_eq(&node.ir, listener) || node.ir.key == listener.key
            };
            let node = old.next_if(is_same).or_else(|| {
                others.extend(old.by_ref().map(|node| (&node.ir.key, node)));
                others.remove(&listener.key)
            });
            nodes.push(self.node((listener, ir.bind.port), node));
        }
        let gone = others.into_values().chain(old);
        let gone = gone.flat_map(|listener| listener.routes().cloned());
        self.detached.extend(gone);
        nodes.into()
    }
}

fn ports(
    ir: &Ir,
    previous: &Table,
    backends: &Backends,
    server_configs: &Arc<ServerConfigs>,
    routes: &mut Routes,
) -> Arc<[Arc<Port>]> {
    let mut listeners = Listeners {
        server_configs,
        has_same_configs: Arc::ptr_eq(server_configs, &previous.server_configs),
        backends,
        outdated: routes.outdated(backends),
        routes,
        routers: MadeRouters::default(),
        detached: Vec::new(),
    };
    let mut port = |ir: &Arc<ir::Port>| {
        let old = find(&previous.ports, ir);
        let nodes = listeners.of_port(ir, old);
        match old.filter(|node| node.is_current(ir, &nodes)) {
            Some(node) => node.clone(),
            None => Arc::new(Port::new(ir.clone(), nodes, old)),
        }
    };
    let mut ports: Vec<_> = ir.ports.iter().map(&mut port).collect();
    ports.sort_by_key(|port| port.bind());
    let is_gone = |old: &&Arc<Port>| find(&ports, &old.ir).is_none();
    let gone = previous.ports.iter().filter(is_gone);
    let gone = gone.flat_map(|port| port.listeners());
    let gone = gone.flat_map(|listener| listener.routes());
    // Attach before detach, so that the state of a rule survives when its route moves from one listener to another.
    let detached = std::mem::take(&mut listeners.detached);
    detached
        .iter()
        .for_each(|node| listeners.routes.detach(node));
    gone.for_each(|node| listeners.routes.detach(node));
    ports.into()
}

/// Returns the node of the same port of the same Gateway. `ports` are in order of [`ir::Bind`].
fn find<'a>(ports: &'a [Arc<Port>], ir: &ir::Port) -> Option<&'a Arc<Port>> {
    let first = ports.partition_point(|port| port.bind() < ir.bind);
    let mut same = ports[first..]
        .iter()
        .take_while(|port| port.bind() == ir.bind);
    same.find(|port| port.ir.gateway == ir.gateway)
}
