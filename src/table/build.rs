//! Builds a table from an IR and the previous table, bottom-up: backends, routes, listeners, ports. Reuses a node when
//! its IR is equal and everything below it is the same node. Must not know how a node is searched.

use std::cmp::Ordering;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Table;
use super::backend::{Backend, Transport};
use super::listener::{Changes, Listener, Port};
use super::route::Routes;
use super::same_nodes;
use crate::ir;
use crate::ir::{BackendId, Bind, Ir, ListenerKey};
use crate::tls::ServerConfigs;

pub(super) fn build(ir: Arc<Ir>, previous: &Table) -> Table {
    let backends = Backends::new(&ir, previous);
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

/// The backends of the table under construction, and how they differ from those of the previous table.
#[derive(Default)]
pub(super) struct Backends {
    nodes: Arc<[Arc<Backend>]>,
    /// Nodes of the previous table that are not in this one. Addresses identify them safely: `previous` keeps every
    /// node alive while this value exists, so no address is reused.
    gone: FxHashSet<*const Backend>,
    /// Whether this table has nodes that the previous one does not have.
    has_new: bool,
}

impl Backends {
    fn new(ir: &Ir, previous: &Table) -> Self {
        let mut backends = Self {
            nodes: previous.backends.clone(),
            gone: FxHashSet::default(),
            has_new: false,
        };
        if Arc::ptr_eq(&ir.backends, &previous.ir.backends) {
            return backends;
        }
        // Merge join: both IRs are in order of identity, and the nodes of a table are in the order of its IR.
        let mut former = previous
            .ir
            .backends
            .iter()
            .zip(&*previous.backends)
            .peekable();
        let mut nodes = Vec::with_capacity(ir.backends.len());
        for ir in &*ir.backends {
            let mut same_id = None;
            while let Some((old, node)) = former.next_if(|(old, _)| compare_ids(old, ir).is_le()) {
                if compare_ids(old, ir).is_eq() {
                    same_id = Some((old, node));
                    break;
                }
                backends.gone.insert(Arc::as_ptr(node));
            }
            nodes.push(match same_id {
                Some((old, node)) if Arc::ptr_eq(old, ir) => node.clone(),
                Some((old, node)) if node.protocol == ir.protocol && old.tls == ir.tls => {
                    // Keeps the addresses that a hostname has resolved to, unless the hostname changes.
                    if old.endpoints != ir.endpoints {
                        node.configure_endpoints(&ir.endpoints);
                    }
                    node.set_slow_start(ir.slow_start);
                    if old.fallback != ir.fallback {
                        node.set_fallback(ir.fallback.as_ref());
                    }
                    node.set_traffic(ir.traffic.as_ref());
                    node.clone()
                }
                changed => {
                    backends.has_new = true;
                    backends
                        .gone
                        .extend(changed.map(|(_, node)| Arc::as_ptr(node)));
                    let stats = changed.map(|(_, node)| node.stats.clone());
                    let stats = stats.unwrap_or_default();
                    let node = Backend::new(ir, Transport::new(ir.tls.as_ref()), stats);
                    Arc::new(match changed {
                        Some((_, former)) => node.replacing(former, ir),
                        None => node,
                    })
                }
            });
        }
        backends
            .gone
            .extend(former.map(|(_, node)| Arc::as_ptr(node)));
        backends.nodes = nodes.into();
        backends
    }

    /// Returns the backend of this identity.
    pub(super) fn get(&self, id: &BackendId) -> Option<&Arc<Backend>> {
        let at = self.nodes.binary_search_by(|node| node.id.cmp(id)).ok()?;
        self.nodes.get(at)
    }

    /// Reports whether a node of the previous table is missing in this one.
    pub(super) fn is_gone(&self, node: &Arc<Backend>) -> bool {
        self.gone.contains(&Arc::as_ptr(node))
    }

    /// Reports whether all nodes are those of the previous table.
    pub(super) fn are_those_before(&self) -> bool {
        self.gone.is_empty() && !self.has_new
    }
}

fn compare_ids(old: &Arc<ir::Backend>, new: &Arc<ir::Backend>) -> Ordering {
    if Arc::ptr_eq(old, new) {
        Ordering::Equal
    } else {
        old.id.cmp(&new.id)
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
