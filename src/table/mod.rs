//! The immutable table that the proxy serves from, built from the IR: hostnames, rules and backends indexed for
//! look-ups that do not allocate. Building cannot fail, and reuses every node of the previous table whose IR is equal.
//! Must not know Kubernetes, sockets or HTTP connections.

mod alt_svc;
mod authentication;
mod authorization;
mod backend;
mod backend_counts;
mod backend_settings;
mod backends;
mod build;
mod class_counts;
mod connections;
mod default_retry_budget;
mod durations;
mod endpoint;
mod endpoint_fault;
mod endpoints;
mod exemplar;
mod fault;
mod filter;
mod forward_stats;
mod hostname;
mod http3;
mod labelled_durations;
mod limits;
mod listener;
mod matcher;
mod node;
mod optional_cell;
mod outcomes;
mod path_map;
mod policies;
mod protected;
mod releases;
mod request_stats;
mod retry_budget;
mod ring;
mod route;
mod router;
mod rule;
mod sliding_window;
mod staleness;
mod stats;
mod target;
mod template;
mod traffic;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub use authentication::{
    Attempt, Authentication, Claims, Clients, GrantType, IdToken, Logout, LogoutFault, Logouts,
    Oidc, Session, SessionContent, TokenEndpoint, TokenFault, TokenOutcome, Tokens, Users,
    VerifiedToken,
};
pub use authorization::AuthorizedRequest;
pub use backend::{Backend, ClientTls, Picker, TlsIdentity, Transport};
pub use backend_counts::{BackendCounts, ConnectionSlot, Overloaded, PendingSlot, RequestSlot};
pub use backend_settings::BackendSettings;
pub use class_counts::ClassCounts;
pub use connections::{ConnectionLimits, Connections, CountedConnection};
pub use durations::{DURATION_BOUNDS_MICROS, DURATION_BUCKETS, Histogram, quantile};
pub use endpoint::{Endpoint, Health};
pub use endpoint_fault::{EndpointFault, EndpointFaults};
pub use endpoints::Endpoints;
pub use exemplar::Exemplar;
pub use fault::UpstreamFault;
pub use filter::{Filters, draw};
pub use forward_stats::{ForwardStats, ForwardTotals};
pub use http3::SharedHttp3;
pub use limits::{
    Ask, BodySizes, ClientIdentity, CountedRequest, Grant, Group, KeyUsage, LeaseCounts,
    LimitIndex, LimitPhase, LimitedRequest, Limiter, OverLimit, PendingAsk, Pod, Remaining,
    TakenTokens, TokenIdentity, Usage, View, WithinLimits,
};
pub use listener::{Considered, Listener, MatchVerdict, Port, TooManyConnections, Unrouted};
pub use matcher::{Mismatch, RequestView};
pub use outcomes::{KnownMethod, Outcome, Outcomes};
pub use policies::{BrokenPolicy, LimitRefusal, Policies};
pub use releases::{Release, Releases};
pub use request_stats::{ReleaseStats, RuleStats};
pub use ring::{KnownLoad, Ring};
pub use route::CountedRule;
pub use rule::{Draw, Rule, RuleState, WeightedBackend};
pub use staleness::set_stale;
pub use stats::{AuthResult, BackendStats, MirrorResult, PageResult, PickResult, TlsFailure};
pub use target::BackendTarget;
pub use traffic::Traffic;

use self::route::Routes;
use crate::ir;
use crate::ir::{Bind, Ir, Pattern};
use crate::key_requests::KeyRequests;
use crate::runtime::monotonic;
use crate::tls::ServerConfigs;

/// One whole configuration, ready to serve.
#[derive(Debug)]
pub struct Table {
    /// Counts the tables of this process, from 1; the empty table has 0.
    pub generation: u64,
    /// The IR that it was built from.
    pub ir: Arc<Ir>,
    ports: Arc<[Arc<Port>]>,
    routes: Routes,
    /// In order of identity, as in the IR.
    backends: Arc<[Arc<Backend>]>,
    server_configs: Arc<ServerConfigs>,
    /// The ports whose HTTP/3 all pods serve. The same in consecutive tables.
    shared_http3: Arc<SharedHttp3>,
    /// Patterns that the previous table does not have and that are not compiled.
    new_patterns: Vec<Pattern>,
}

impl Table {
    /// Returns the table before the first configuration, which serves nothing.
    pub fn empty() -> Self {
        Self {
            generation: 0,
            ir: Arc::default(),
            ports: Arc::default(),
            routes: Routes::default(),
            backends: Arc::default(),
            server_configs: Arc::default(),
            shared_http3: Arc::default(),
            new_patterns: Vec::new(),
        }
    }

    /// Takes the patterns that this table is the first to use. Requests compile them as they need them; to compile them
    /// before keeps requests from waiting.
    pub fn take_new_patterns(&mut self) -> Vec<Pattern> {
        std::mem::take(&mut self.new_patterns)
    }

    /// Returns the ports, in order of [`Bind`].
    pub fn ports(&self) -> &[Arc<Port>] {
        &self.ports
    }

    /// Returns the port of this address.
    #[inline]
    pub fn port(&self, bind: &Bind) -> Option<&Arc<Port>> {
        let at = self.ports.partition_point(|port| port.ir.bind < *bind);
        self.ports.get(at).filter(|port| port.ir.bind == *bind)
    }

    /// Returns every rule, each once. Of one that differs between listeners, such as in what policies require there, this is
    /// any version. Those of a route follow each other.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.routes.rules()
    }

    /// Returns all versions of every rule. Those of one rule have its state in common.
    pub fn rule_versions(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.routes.rule_versions()
    }

    /// Returns the counters of every rule, each once, and of those that its route had before. Those of a route follow each
    /// other.
    pub fn counted_rules(&self) -> impl Iterator<Item = CountedRule<'_>> {
        self.routes.counted_rules()
    }

    /// Sets the endpoints of backends with a hostname to the addresses that `resolve` returns. Only the thread that
    /// builds tables may call this.
    pub fn set_addresses<'a>(&self, resolve: impl Fn(&str) -> &'a [IpAddr]) {
        for (ir, node) in self.ir.backends.iter().zip(&*self.backends) {
            if let ir::Endpoints::Hostname { hostname, port } = &ir.endpoints {
                let addresses = resolve(hostname).iter();
                let endpoints = addresses.map(|address| SocketAddr::new(*address, *port));
                node.set_endpoints(&endpoints.collect::<Vec<_>>());
            }
        }
    }

    /// Returns the limits in service, in order of policies and names.
    pub fn limiters(&self) -> Vec<Arc<Limiter>> {
        self.routes.policies.limiters.all()
    }

    /// Gives back memory of keys of limits. All tables of a process have the same.
    pub fn sweep_limits(&self) {
        self.routes.policies.limiters.sweep();
    }

    /// Returns the pods that share limits. All tables of a process have the same.
    pub fn limit_group(&self) -> &Arc<Group> {
        &self.routes.policies.limiters.group
    }

    /// Returns the key sets that tokens lack. All tables of a process share them.
    pub fn key_requests(&self) -> Arc<KeyRequests> {
        self.routes.policies.authenticators.key_requests.clone()
    }

    /// Returns the ports whose HTTP/3 all pods serve. All tables of a process have the same.
    pub fn shared_http3(&self) -> &Arc<SharedHttp3> {
        &self.shared_http3
    }

    /// Returns the sign-ins in service, by policy.
    pub fn sign_ins(&self) -> BTreeMap<ir::ObjectRef, Arc<Oidc>> {
        self.routes.policies.authenticators.sign_ins()
    }

    /// Returns the sign-in of a policy, whose keys may have changed since a request matched it.
    pub fn oidc(&self, policy: &ir::ObjectRef) -> Option<Arc<Oidc>> {
        self.routes.policies.authenticators.oidc(policy)
    }

    /// Returns the logout tokens that the other pods of the Gateway are to hear of. All tables of a process have the same.
    pub fn logouts(&self) -> &Arc<Logouts> {
        &self.routes.policies.authenticators.logouts
    }

    /// Announces to the other pods of the Gateway, if there may be any, a logout token of a policy that has ended sessions at a time,
    /// in microseconds since 1970.
    pub fn announce_logout(&self, policy: &ir::ObjectRef, token: &str, at: u64) {
        if self.limit_group().is_open() {
            let now = monotonic::nanos();
            self.logouts().add(&policy.present(), token, at, now);
        }
    }

    /// Ends sessions by a logout token of the policy of this namespace and name, as another pod has done at a time, in microseconds
    /// since 1970. Returns false if the token may count later.
    pub fn hear_logout(&self, policy: (&str, &str), token: &str, at: u64) -> bool {
        let authenticators = &self.routes.policies.authenticators;
        authenticators.hear_logout(policy, token, at)
    }

    /// Returns the backend of this identity.
    pub fn backend(&self, id: &ir::BackendId) -> Option<&Arc<Backend>> {
        let at = self.backends.binary_search_by(|one| one.id.cmp(id)).ok()?;
        self.backends.get(at)
    }

    /// Returns a server that a policy names, by its place among these, for requests through a Gateway.
    pub fn policy_server(
        &self,
        (policy, index): (&ir::ObjectRef, usize),
        gateway: &ir::ObjectRef,
    ) -> Option<&Arc<Backend>> {
        let servers = self.ir.policy_servers.get(policy)?;
        let server = servers.0.get(gateway)?.get(index)?;
        self.backend(server.backend()?)
    }

    /// Returns the backends of a port of an object: one for each use of it.
    pub fn backends_of(&self, object: &ir::ObjectRef, port: u16) -> &[Arc<Backend>] {
        let key = |one: &Arc<Backend>| (&one.id.object, one.id.port).cmp(&(object, port));
        let start = self.backends.partition_point(|one| key(one).is_lt());
        let end = self.backends.partition_point(|one| key(one).is_le());
        &self.backends[start..end]
    }

    /// Returns every backend, in order of identity.
    pub fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.backends.iter()
    }
}
