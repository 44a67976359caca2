//! Routes as rules with matches, filters and backends.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::policy::Policies;
pub use super::request_match::{
    Conditions, GrpcCall, GrpcMatch, HeaderMatch, Match, OtherConditions, PathMatch, QueryMatch,
    ValueMatch,
};
use super::session::SessionPersistence;
pub use super::target::BackendTarget;
use super::{BackendId, Filter, ObjectRef, Pattern};

/// A route. All listeners that it is attached to share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Route {
    /// Its kind.
    #[serde(skip)]
    pub kind: RouteKind,
    /// The object.
    pub object: ObjectRef,
    /// Creation time in seconds since 1970; `None` counts as oldest.
    pub created: Option<i64>,
    /// Compared before everything that the API compares among matches of one hostname; greater is first.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i16,
    /// Rules, in the object's order.
    pub rules: Vec<Arc<Rule>>,
    /// What policies require of the requests of each rule, in the order of `rules`, if a policy has the route as its
    /// target. It takes the place of what they require on the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<Box<[Arc<Policies>]>>,
}

/// The kind of a route. It decides in which order matches are tried: see [`super::Precedence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// HTTPRoute.
    Http,
    /// GRPCRoute.
    Grpc,
    /// TLSRoute.
    Tls,
    /// TCPRoute.
    Tcp,
    /// UDPRoute.
    Udp,
}

/// The identity of a rule, also used in logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct RuleId {
    /// The route object.
    pub route: ObjectRef,
    /// Index in `spec.rules`.
    pub index: usize,
    /// `name` of the rule.
    pub name: Option<Arc<str>>,
}

impl RuleId {
    /// Returns what the sessions of the rule are valid for. With a name, they survive changes of the rules before it.
    pub fn session_scope(&self) -> String {
        let Self { route, index, name } = self;
        match name {
            Some(name) => format!("{route} {name}"),
            None => format!("{route} [{index}]"),
        }
    }
}

/// A rule: its matches, and what happens to a request that matches. What few rules have is in boxes: a process may hold
/// many thousands of rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Rule {
    /// Its identity.
    pub id: RuleId,
    /// Alternatives; never empty.
    pub matches: Box<[Match]>,
    /// Filters, in order.
    pub filters: Box<[Filter]>,
    /// What happens to a request that passes the filters.
    pub action: Action,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Retries in addition to those that are always safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Box<Retry>>,
    /// Session persistence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<Box<SessionPersistence>>,
}

/// What happens to a matched request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Action {
    /// Forwards it to one of the backends by weight. Responds with 500 if the list is empty or all weights are 0. Of a
    /// TLSRoute, TCPRoute or UDPRoute, it is a connection or a datagram, which is closed or dropped instead.
    Forward(Box<[WeightedBackend]>),
    /// Responds with 500: the rule cannot be served as written, for this reason.
    Invalid(Arc<str>),
}

/// A backend with its share of a rule's requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct WeightedBackend {
    /// Share, 0 to 1,000,000, relative to the sum of all weights.
    pub weight: u32,
    /// Where requests go.
    pub target: BackendTarget,
    /// Filters of requests to this backend only, applied after the rule's.
    pub filters: Box<[Filter]>,
}

impl Rule {
    /// Returns the backends of its backendRefs and of its filters.
    pub fn backends(&self) -> impl Iterator<Item = &BackendId> {
        let shares: &[WeightedBackend] = match &self.action {
            Action::Forward(shares) => shares,
            Action::Invalid(_) => &[],
        };
        let of_shares = shares.iter().flat_map(|share| {
            let of_filters = share.filters.iter().filter_map(Filter::backend);
            share.target.backend().into_iter().chain(of_filters)
        });
        let of_filters = self.filters.iter().filter_map(Filter::backend);
        of_shares.chain(of_filters)
    }
}

/// Timeouts of a rule; `None` is no timeout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Timeouts {
    /// The whole exchange with the client, retries included. When it expires, the client gets 504.
    pub request: Option<Duration>,
    /// One attempt. When it expires, the attempt fails with 504.
    pub backend_request: Option<Duration>,
}

/// Retries of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Retry {
    /// Maximum number of retries of a request, 1 or more.
    pub attempts: u32,
    /// Statuses that are retried, sorted, each once.
    pub codes: Vec<u16>,
    /// Minimum delay before the first retry.
    pub backoff: Duration,
}

impl Route {
    /// Returns the patterns of all matches.
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let matches = self.rules.iter().flat_map(|rule| &rule.matches);
        matches.flat_map(Match::patterns)
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(priority: &i16) -> bool {
    *priority == 0
}
