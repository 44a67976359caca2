//! The intermediate representation: the whole configuration of a data plane as plain, validated values. Must not know
//! Kubernetes objects, sockets or clocks. Equal IRs serve traffic in the same way.

pub mod authentication;
pub mod authorization;
pub mod backend;
pub mod backend_policy;
pub mod cidr;
pub mod client;
pub mod compression;
pub mod cors;
pub mod external_auth;
pub mod filter;
pub mod fingerprint;
pub mod grpc;
pub mod hex;
pub mod hop_by_hop;
mod key_place;
pub mod limit;
pub mod listener;
pub mod object_ref;
pub mod path_rewrite;
pub mod pattern;
pub mod policy;
pub mod precedence;
pub mod request_match;
pub mod route;
pub mod route_defaults;
mod scheme;
pub mod session;
pub mod sharing;
mod target;
pub mod telemetry;
pub mod time;
pub mod tls;
pub mod token;
pub mod traffic;
mod transport;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

pub use backend::{
    Backend, BackendId, Endpoints, Fallback, Release, Releases, TlsUse, UpstreamProtocol,
};
pub use filter::Filter;
pub use listener::{
    AttachedRoute, AttachedRoutes, Bind, BindReport, Hostname, Hostnames, Listener, ListenerKey,
    Port, PortProtocol, Protocol, TlsTermination,
};
pub use object_ref::ObjectRef;
pub use pattern::Pattern;
pub use precedence::Precedence;
pub use route::{Route, RouteKind, Rule, RuleId};
pub use telemetry::Tracing;
pub use time::Time;
pub use tls::{Certificate, ClientTls, ServerTls};
pub use transport::Transport;

/// One whole configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Ir {
    /// The ports, in order of [`Bind`].
    pub ports: Vec<Arc<Port>>,
    /// Every backend that a rule refers to, in order of identity: [`Self::backend`] searches by it.
    #[serde(serialize_with = "by_id")]
    pub backends: Arc<[Arc<Backend>]>,
    /// What is traced of the requests through each Gateway that has a policy for it.
    #[serde(serialize_with = "by_gateway", skip_serializing_if = "is_empty")]
    pub tracing: Arc<BTreeMap<ObjectRef, Arc<Tracing>>>,
}

impl Ir {
    /// Returns the backend of this identity.
    pub fn backend(&self, id: &BackendId) -> Option<&Arc<Backend>> {
        let at = self.backends.binary_search_by(|one| one.id.cmp(id)).ok()?;
        self.backends.get(at)
    }
}

fn is_empty(tracing: &BTreeMap<ObjectRef, Arc<Tracing>>) -> bool {
    tracing.is_empty()
}

fn by_gateway<S: Serializer>(
    tracing: &BTreeMap<ObjectRef, Arc<Tracing>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(
        tracing
            .iter()
            .map(|(gateway, one)| (gateway.to_string(), one)),
    )
}

fn by_id<S: Serializer>(backends: &[Arc<Backend>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(backends.iter().map(|one| (one.id.to_string(), one)))
}
