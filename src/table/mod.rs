//! The immutable table that requests are served from, built from the IR: hostnames, rules and backends indexed for
//! look-ups that do not allocate. Building cannot fail and keeps every node of the previous table whose IR is equal.
//! Must not know Kubernetes, sockets or HTTP connections.

mod backend;
mod build;
mod filter;
mod hostname;
mod listener;
mod matcher;
mod releases;
mod retry_budget;
mod route;
mod router;
mod rule;
mod stats;
mod traffic;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use backend::{Backend, ClientTls, Endpoint, Endpoints, Health, TlsIdentity, Transport};
pub use filter::{Filters, draw};
pub use listener::{Considered, Listener, MatchVerdict, Port};
pub use matcher::{Mismatch, RequestView};
pub use releases::{Release, Releases};
pub use rule::{Draw, Rule, RuleState, Target, WeightedBackend};
pub use stats::{
    AuthResult, BackendStats, DURATION_BOUNDS_MICROS, DURATION_BUCKETS, MirrorResult, ReleaseStats,
    RuleStats, TlsFailure, UpstreamFault,
};
pub use traffic::Traffic;

use self::route::Routes;
use crate::ir;
use crate::ir::{Bind, Ir};
use crate::tls::ServerConfigs;

/// One whole configuration, ready to serve.
#[derive(Debug)]
pub struct Table {
    /// Counts the tables of this process, from 1; the empty table is 0.
    pub generation: u64,
    /// What it was built from.
    pub ir: Arc<Ir>,
    ports: Arc<[Arc<Port>]>,
    routes: Routes,
    /// In order of their identities, as in the IR.
    backends: Arc<[Arc<Backend>]>,
    server_configs: Arc<ServerConfigs>,
}

impl Table {
    /// The table before the first configuration: it serves nothing.
    pub fn empty() -> Self {
        Self {
            generation: 0,
            ir: Arc::default(),
            ports: Arc::default(),
            routes: Routes::default(),
            backends: Arc::default(),
            server_configs: Arc::default(),
        }
    }

    /// Indexes `ir`. Nodes of `previous`, the table built last, that would come out equal are used again, and backends
    /// keep their identity while their endpoints change: new endpoints are in effect at once, in both tables.
    pub fn build(ir: Arc<Ir>, previous: Option<&Self>) -> Self {
        match previous {
            Some(previous) => build::build(ir, previous),
            None => build::build(ir, &Self::empty()),
        }
    }

    /// Ports, in order of [`Bind`].
    pub fn ports(&self) -> &[Arc<Port>] {
        &self.ports
    }

    /// The port of this address.
    #[inline]
    pub fn port(&self, bind: &Bind) -> Option<&Arc<Port>> {
        let at = self.ports.partition_point(|port| port.ir.bind < *bind);
        self.ports.get(at).filter(|port| port.ir.bind == *bind)
    }

    /// Every rule, each once.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.routes.iter().flat_map(|route| &route.rules)
    }

    /// Makes the addresses that `resolve` has for hostnames the endpoints of the backends there. Only one thread may do so
    /// at a time, the one that builds tables.
    pub fn set_addresses<'a>(&self, resolve: impl Fn(&str) -> &'a [IpAddr]) {
        for (ir, node) in self.ir.backends.iter().zip(&*self.backends) {
            if let ir::Endpoints::Hostname { hostname, port } = &ir.endpoints {
                let addresses = resolve(hostname).iter();
                let endpoints = addresses.map(|address| SocketAddr::new(*address, *port));
                node.set_endpoints(&endpoints.collect::<Vec<_>>());
            }
        }
    }

    /// Every backend, in order of its identity.
    pub fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.backends.iter()
    }
}

/// Whether both hold the very same nodes.
fn same_nodes<T>(one: &[Arc<T>], two: &[Arc<T>]) -> bool {
    one.len() == two.len() && one.iter().zip(two).all(|(one, two)| Arc::ptr_eq(one, two))
}
