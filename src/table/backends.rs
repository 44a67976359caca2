//! The backends of a table under construction. Reuses the nodes of the previous table. Must not know routes or
//! listeners.

use std::cmp::Ordering;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::backend::{Backend, Transport};
use crate::ir;
use crate::ir::{BackendId, Ir};

/// The backends of the table under construction, and how they differ from those of the previous table.
#[derive(Default)]
pub(super) struct Backends {
    pub(super) nodes: Arc<[Arc<Backend>]>,
    /// Nodes of the previous table that are not in this one. Addresses identify them safely: the previous table keeps
    /// every node alive while this value exists, so no address is reused.
    gone: FxHashSet<*const Backend>,
    /// Whether this table has nodes that the previous one does not have.
    has_new: bool,
}

impl Backends {
    /// Builds the backends of `ir`. `previous_nodes` are those of the previous table, which `previous_ir` describes.
    pub(super) fn new(ir: &Ir, previous_ir: &Ir, previous_nodes: &Arc<[Arc<Backend>]>) -> Self {
        let mut backends = Self {
            nodes: previous_nodes.clone(),
            gone: FxHashSet::default(),
            has_new: false,
        };
        if Arc::ptr_eq(&ir.backends, &previous_ir.backends) {
            return backends;
        }
        // Merge join: both IRs are in order of identity, and the nodes of a table are in the order of its IR.
        let mut previous = previous_ir
            .backends
            .iter()
            .zip(&**previous_nodes)
            .peekable();
        let mut nodes = Vec::with_capacity(ir.backends.len());
        for ir in &*ir.backends {
            let mut same_id = None;
            while let Some((old, node)) = previous.next_if(|(old, _)| compare_ids(old, ir).is_le())
            {
                if compare_ids(old, ir).is_eq() {
                    same_id = Some((old, node));
                    break;
                }
                backends.gone.insert(Arc::as_ptr(node));
            }
            nodes.push(match same_id {
                Some((old, node)) if Arc::ptr_eq(old, ir) => node.clone(),
                Some((old, node))
                    if node.protocol == ir.protocol
                        && old.tls == ir.tls
                        && old.policy == ir.policy =>
                {
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
                        Some((old, previous)) => node.replacing(previous, ir, old),
                        None => node,
                    })
                }
            });
        }
        backends
            .gone
            .extend(previous.map(|(_, node)| Arc::as_ptr(node)));
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

    /// Reports whether all nodes of the previous table are in this one.
    pub(super) fn have_all_before(&self) -> bool {
        self.gone.is_empty()
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
