//! The intermediate representation: the whole configuration of a data plane as plain, validated values. Must not know
//! Kubernetes objects, sockets or clocks. Equal IRs serve traffic in the same way.

pub mod access_log;
pub mod auth_call;
pub mod authentication;
pub mod authorization;
pub mod backend;
mod backend_id;
pub mod backend_policy;
pub mod canonical_path;
pub mod cidr;
pub mod claim_name;
pub mod client;
pub mod compression;
pub mod cookie;
pub mod cookie_scope;
pub mod cors;
pub mod error_page;
pub mod external_auth;
pub mod filter;
pub mod fingerprint;
pub mod grpc;
pub mod header_list;
pub mod hex;
pub mod hop_by_hop;
pub mod http2;
mod key_place;
pub mod keyed;
pub mod limit;
pub mod listener;
pub(crate) mod named;
pub mod object_map;
pub mod object_ref;
pub mod oidc;
pub mod packed;
pub mod path_normalization;
pub mod path_rewrite;
pub mod pattern;
pub mod picker;
pub mod policy;
mod policy_servers;
pub mod precedence;
pub mod protected_headers;
pub mod request_match;
pub mod request_path;
pub mod route;
pub mod route_defaults;
mod scheme;
mod serialized;
pub mod session;
pub mod sharing;
mod target;
pub mod telemetry;
pub mod time;
pub mod tls;
pub mod tls_parameters;
pub mod token;
pub mod traffic;
mod transport;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Serialize, Serializer};

pub use access_log::GatewayLog;
pub use backend::{Backend, Endpoints, Fallback, Release, Releases};
pub use backend_id::{BackendId, TlsUse, UpstreamProtocol};
pub use filter::Filter;
pub use listener::{
    AttachedRoute, AttachedRoutes, Bind, BindReport, Hostname, Hostnames, Hosts, Listener,
    ListenerKey, Port, PortProtocol, Protocol, TlsTermination,
};
pub use object_ref::ObjectRef;
pub use pattern::Pattern;
pub use picker::{Choice, FailureMode, PickerRef, PickerTimeouts};
pub use policy_servers::PolicyServers;
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
    #[serde(serialize_with = "by_object", skip_serializing_if = "is_empty")]
    pub tracing: Arc<BTreeMap<ObjectRef, Arc<Tracing>>>,
    /// What the access log has of the requests through each Gateway that has a policy for it.
    #[serde(serialize_with = "by_object", skip_serializing_if = "is_empty")]
    pub access_logs: Arc<BTreeMap<ObjectRef, Arc<GatewayLog>>>,
    /// The authorization servers and servers of error pages that policies name.
    #[serde(serialize_with = "by_object", skip_serializing_if = "is_empty")]
    pub policy_servers: Arc<BTreeMap<ObjectRef, Arc<PolicyServers>>>,
}

impl Ir {
    /// Returns the backend of this identity.
    pub fn backend(&self, id: &BackendId) -> Option<&Arc<Backend>> {
        let at = self.backends.binary_search_by(|one| one.id.cmp(id)).ok()?;
        self.backends.get(at)
    }
}

fn is_empty<T>(of_objects: &BTreeMap<ObjectRef, Arc<T>>) -> bool {
    of_objects.is_empty()
}

fn by_object<T: Serialize, S: Serializer>(
    of_objects: &BTreeMap<ObjectRef, Arc<T>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let of_objects = of_objects.iter();
    serializer.collect_map(of_objects.map(|(object, one)| (object.to_string(), one)))
}

fn by_id<S: Serializer>(backends: &[Arc<Backend>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(backends.iter().map(|one| (one.id.to_string(), one)))
}
