//! The backends of a table under construction. Reuses the nodes of the previous table. Must not know routes or
//! listeners.

use std::cmp::Ordering;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::backend::{Backend, Picker, Transport};
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
    /// Builds the backends of `ir`. `previous_nodes` are those of the previous table, which `previous_ir` describes. Requests
    /// that hold the previous table share the nodes of this one, but reach through them nothing that this one opens: only its
    /// policies decide about that.
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
                        && old.policy == ir.policy
                        && !ir.endpoints.open_more_than(&old.endpoints) =>
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
        backends.set_pickers(ir);
        backends
    }

    /// Sets the pickers of all backends: after all nodes exist, since the server of a picker is one of them.
    fn set_pickers(&self, ir: &Ir) {
        for (ir, node) in ir.backends.iter().zip(&*self.nodes) {
            let Some(picker) = ir.choice.picker() else {
                if node.has_picker() {
                    node.set_picker(None);
                }
                continue;
            };
            let server = picker.server.backend().and_then(|id| self.get(id));
            let is_known = node.picker().is_some_and(|known| {
                known.ir == *picker
                    && known.server.as_ref().map(Arc::as_ptr) == server.map(Arc::as_ptr)
            });
            if !is_known {
                node.set_picker(Some(Picker {
                    ir: picker.clone(),
                    server: server.cloned(),
                }));
            }
        }
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::ir::backend_policy::BackendPolicy;
    use crate::ir::route::BackendTarget;
    use crate::ir::{Choice, FailureMode, ObjectRef, PickerRef, PickerTimeouts};

    fn backend(name: &str) -> ir::Backend {
        let mut backend = ir::Backend::plain(vec![([127, 0, 0, 1], 1).into()].into());
        backend.id.object = ObjectRef::core("Service", "ns", name);
        backend
    }

    fn configuration(server: ir::Backend, choice: Choice) -> Ir {
        let pool = ir::Backend {
            choice,
            ..backend("pool")
        };
        Ir {
            backends: [server, pool].map(Arc::new).into(),
            ..Ir::default()
        }
    }

    /// Reports whether a node is the server of the picker of a pool.
    fn is_asked(server: &Arc<Backend>, pool: &Backend) -> bool {
        let picker = pool.picker();
        let asked = picker.as_ref().and_then(|picker| picker.server.as_ref());
        asked.is_some_and(|asked| Arc::ptr_eq(asked, server))
    }

    fn with_endpoints(endpoints: ir::Endpoints) -> Ir {
        let backend = ir::Backend {
            endpoints,
            ..backend("one")
        };
        Ir {
            backends: [Arc::new(backend)].into(),
            ..Ir::default()
        }
    }

    /// Builds the backends of a configuration and then of another one. Returns the addresses that requests of the first one
    /// reach afterwards, and whether both have one node.
    fn change(before: ir::Endpoints, after: ir::Endpoints) -> (Vec<u16>, bool) {
        let (before, after) = (with_endpoints(before), with_endpoints(after));
        let first = Backends::new(&before, &Ir::default(), &Backends::default().nodes);
        let second = Backends::new(&after, &before, &first.nodes);
        let endpoints = first.nodes[0].endpoints();
        let reached = endpoints.iter().chain(&*endpoints.unready);
        let is_same = Arc::ptr_eq(&first.nodes[0], &second.nodes[0]);
        assert_eq!(second.are_those_before(), is_same);
        (reached.map(|it| it.address.port()).collect(), is_same)
    }

    fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
        let address = |port: &u16| ([127, 0, 0, 1], *port).into();
        ports.iter().map(address).collect()
    }

    fn releases(weight: u64, ports: &[u16]) -> ir::Endpoints {
        let release = |name: &str, weight, ports| ir::Release {
            name: name.into(),
            weight,
            token: "".into(),
            addresses: addresses(ports),
        };
        ir::Endpoints::Releases(ir::Releases {
            cookie: None,
            releases: vec![release("blue", 1, &[1]), release("green", weight, ports)],
        })
    }

    /// A policy that was written before the endpoints is in the new table only.
    #[test]
    fn requests_of_the_previous_table_reach_no_endpoints_that_the_new_one_opens() {
        let plain = |ports: &[u16]| ir::Endpoints::from(addresses(ports));
        let unready = |ports: &[u16], unready: &[u16]| ir::Endpoints::Unready {
            addresses: addresses(ports),
            unready: addresses(unready),
        };
        let name = |hostname: &str| ir::Endpoints::Hostname {
            hostname: hostname.into(),
            port: 1,
        };
        let opened = [
            (plain(&[]), plain(&[1]), vec![]),
            (plain(&[1, 2]), plain(&[3]), vec![1, 2]),
            (unready(&[1], &[2]), unready(&[1], &[2, 3]), vec![1, 2]),
            (unready(&[], &[]), plain(&[1]), vec![]),
            (releases(0, &[2]), releases(1, &[2]), vec![1, 2]),
            (releases(1, &[]), releases(1, &[2]), vec![1]),
            (plain(&[1]), releases(1, &[2]), vec![1]),
            (name("a.example"), name("b.example"), vec![]),
            (plain(&[1]), name("a.example"), vec![1]),
        ];
        for (before, after, reached) in opened {
            let text = format!("{before:?} {after:?}");
            assert_eq!(change(before, after), (reached, false), "{text}");
        }
    }

    #[test]
    fn endpoints_that_join_or_leave_others_change_without_another_node() {
        let plain = |ports: &[u16]| ir::Endpoints::from(addresses(ports));
        assert_eq!(change(plain(&[1]), plain(&[1, 2])), (vec![1, 2], true));
        assert_eq!(change(plain(&[1, 2]), plain(&[2])), (vec![2], true));
        assert_eq!(change(plain(&[1]), plain(&[])), (vec![], true));
        let joined = change(releases(1, &[2]), releases(9, &[2, 3]));
        assert_eq!(joined, (vec![1, 2, 3], true));
    }

    #[test]
    fn picker_changes_without_another_node_of_its_pool() {
        let asked = Choice::Picker(Arc::new(PickerRef {
            server: BackendTarget::Backend(backend("picker").id),
            failure_mode: FailureMode::Close,
            timeouts: PickerTimeouts::default(),
        }));
        let before = configuration(backend("picker"), asked.clone());
        let first = Backends::new(&before, &Ir::default(), &Backends::default().nodes);
        let [server, pool] = &*first.nodes else {
            panic!("{:?}", first.nodes)
        };
        assert!(is_asked(server, pool) && !server.has_picker());

        // Another policy makes another node of the server.
        let policy = BackendPolicy::without_settings(ObjectRef::core("Policy", "ns", "one"));
        let other = ir::Backend {
            policy: Some(Arc::new(policy)),
            ..backend("picker")
        };
        let after = configuration(other, asked);
        let second = Backends::new(&after, &before, &first.nodes);
        assert!(Arc::ptr_eq(&second.nodes[1], pool));
        assert!(is_asked(&second.nodes[0], pool) && !is_asked(server, pool));

        let balanced = configuration(backend("picker"), Choice::Balance);
        let third = Backends::new(&balanced, &after, &second.nodes);
        assert!(Arc::ptr_eq(&third.nodes[1], pool) && !pool.has_picker());
    }
}
