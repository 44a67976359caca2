//! Routes as rules with matches, filters and backends.

use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, Serializer};
use thin_vec::ThinVec;

use super::policy::Policies;
pub use super::request_match::{
    Conditions, GrpcCall, GrpcMatch, HeaderMatch, Match, OtherConditions, PathMatch, QueryMatch,
    ValueMatch,
};
use super::route_defaults::RouteDefaults;
pub use super::route_defaults::{Retry, Timeouts};
use super::session::SessionPersistence;
use super::sharing::Text;
pub use super::target::BackendTarget;
use super::time::Time;
use super::{BackendId, Filter, ObjectRef, Pattern};

/// A route. All listeners that it is attached to share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Route {
    /// Its kind.
    #[serde(skip)]
    pub kind: RouteKind,
    /// The object.
    pub object: ObjectRef,
    /// Creation time; `None` counts as oldest.
    pub created: Option<Time>,
    /// Compared before everything that the API compares among matches of one hostname; greater is first.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i16,
    /// Rules, in the object's order.
    pub rules: Box<[Arc<Rule>]>,
    /// What policies require of the requests of each rule, in the order of `rules`, if a policy has the route as its
    /// target. It takes the place of what they require on the listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies: Option<ThinVec<Arc<Policies>>>,
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
    pub name: Option<Text>,
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
    pub filters: ThinVec<Filter>,
    /// What happens to a request that passes the filters.
    pub action: Action,
    /// How its requests are sent, if the rule says it.
    #[serde(flatten, serialize_with = "options")]
    pub options: Option<Box<RuleOptions>>,
}

/// How the requests of a rule are sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct RuleOptions {
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Retries in addition to those that are always safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Session persistence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionPersistence>,
}

/// What happens to a matched request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Action {
    /// Forwards it to one of the backends by weight. Responds with 500 if the list is empty or all weights are 0. Of a
    /// TLSRoute, TCPRoute or UDPRoute, it is a connection or a datagram, which is closed or dropped instead.
    Forward(Box<[WeightedBackend]>),
    /// Responds with 500, or closes or drops: the rule cannot be served as written, for this reason.
    Invalid(Text),
}

/// A backend with its share of a rule's requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct WeightedBackend {
    /// Share, 0 to 1,000,000, relative to the sum of all weights.
    pub weight: u32,
    /// Where requests go.
    pub target: BackendTarget,
    /// Filters of requests to this backend only, applied after the rule's.
    pub filters: ThinVec<Filter>,
}

impl Rule {
    /// Reports whether its requests are calls of gRPC.
    pub fn is_of_grpc(&self) -> bool {
        self.matches.iter().any(|it| it.others.grpc.is_some())
    }

    /// Returns the time for the whole exchange of a request, where `defaults` are what policies say.
    #[inline]
    pub fn request_timeout(&self, defaults: Option<&RouteDefaults>) -> Option<Duration> {
        self.timeout(defaults, |timeouts| timeouts.request)
    }

    /// Returns the time for an attempt of a request, where `defaults` are what policies say.
    #[inline]
    pub fn attempt_timeout(&self, defaults: Option<&RouteDefaults>) -> Option<Duration> {
        self.timeout(defaults, |timeouts| timeouts.backend_request)
    }

    #[inline]
    fn timeout(
        &self,
        defaults: Option<&RouteDefaults>,
        of: impl Fn(&Timeouts) -> Option<Duration>,
    ) -> Option<Duration> {
        let default = || defaults.and_then(|defaults| of(&defaults.timeouts));
        let own = self.options.as_ref().and_then(|own| of(&own.timeouts));
        let timeout = own.or_else(default);
        timeout.filter(|timeout| !timeout.is_zero())
    }

    /// Returns the retries, where `defaults` are what policies say.
    #[inline]
    pub fn retries<'a>(&'a self, defaults: Option<&'a RouteDefaults>) -> Option<&'a Retry> {
        let default = || defaults.and_then(|defaults| defaults.retry.as_ref());
        let own = self.options.as_ref().and_then(|own| own.retry.as_ref());
        let retry = own.or_else(default);
        retry.filter(|retry| retry.attempts > 0)
    }

    /// Returns the session persistence, if it has one of its own.
    #[inline]
    pub fn session(&self) -> Option<&SessionPersistence> {
        self.options.as_ref()?.session.as_ref()
    }

    /// Reports whether filters of it or of its backendRefs ask an authorization server.
    pub fn asks_server(&self) -> bool {
        let of_shares = self.shares().iter().flat_map(|share| &share.filters);
        let mut filters = self.filters.iter().chain(of_shares);
        filters.any(|filter| matches!(filter, Filter::ExternalAuth(_)))
    }

    fn shares(&self) -> &[WeightedBackend] {
        match &self.action {
            Action::Forward(shares) => shares,
            Action::Invalid(_) => &[],
        }
    }

    /// Returns the backends of its backendRefs and of its filters.
    pub fn backends(&self) -> impl Iterator<Item = &BackendId> {
        let of_shares = self.shares().iter().flat_map(|share| {
            let of_filters = share.filters.iter().filter_map(Filter::backend);
            share.target.backend().into_iter().chain(of_filters)
        });
        let of_filters = self.filters.iter().filter_map(Filter::backend);
        of_shares.chain(of_filters)
    }
}

impl Route {
    /// Reports whether it matters for what protects a request which of the rules it gets: policies target the route, or filters
    /// ask an authorization server.
    pub fn protects_by_rule(&self) -> bool {
        self.policies.is_some() || self.rules.iter().any(|rule| rule.asks_server())
    }

    /// Returns the patterns of all matches.
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let matches = self.rules.iter().flat_map(|rule| &rule.matches);
        matches.flat_map(Match::patterns)
    }
}

fn options<S: Serializer>(
    options: &Option<Box<RuleOptions>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let none = RuleOptions::default();
    options.as_deref().unwrap_or(&none).serialize(serializer)
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(priority: &i16) -> bool {
    *priority == 0
}
