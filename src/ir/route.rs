//! Routes as rules with matches, filters and backends.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method};
use serde::{Serialize, Serializer};

use super::policy::Policies;
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
    pub matches: Vec<Match>,
    /// Filters, in order.
    pub filters: Vec<Filter>,
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
    Forward(Vec<WeightedBackend>),
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
    pub filters: Vec<Filter>,
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

/// A condition on the path, and others, which must all hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Match {
    /// Path.
    pub path: PathMatch,
    /// What else must hold.
    #[serde(flatten)]
    pub others: OtherConditions,
}

/// The conditions of a match, the path aside. Most matches have none, which takes no memory of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OtherConditions(Option<Box<Conditions>>);

/// Conditions that must all hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Conditions {
    /// Set in GRPCRoutes: only gRPC requests match, and the preflight requests of browsers for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcMatch>,
    /// Method.
    #[serde(serialize_with = "method")]
    pub method: Option<Method>,
    /// Headers; each name once.
    pub headers: Vec<HeaderMatch>,
    /// Query parameters; each name once.
    pub query: Vec<QueryMatch>,
}

static NO_CONDITIONS: Conditions = Conditions {
    grpc: None,
    method: None,
    headers: Vec::new(),
    query: Vec::new(),
};

impl OtherConditions {
    /// Reports whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl From<Conditions> for OtherConditions {
    fn from(conditions: Conditions) -> Self {
        Self((conditions != NO_CONDITIONS).then(|| Box::new(conditions)))
    }
}

impl Deref for OtherConditions {
    type Target = Conditions;

    #[inline]
    fn deref(&self) -> &Conditions {
        self.0.as_deref().unwrap_or(&NO_CONDITIONS)
    }
}

impl Serialize for OtherConditions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Conditions::serialize(self, serializer)
    }
}

impl From<PathMatch> for Match {
    fn from(path: PathMatch) -> Self {
        Self {
            path,
            others: OtherConditions::default(),
        }
    }
}

impl Route {
    /// Returns the patterns of all matches.
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let matches = self.rules.iter().flat_map(|rule| &rule.matches);
        matches.flat_map(Match::patterns)
    }
}

impl Match {
    /// Returns the patterns of all conditions.
    fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        let (path, call) = match &self.path {
            PathMatch::Regex(pattern) => (Some(pattern), None),
            PathMatch::Call(call) => (None, Some(call)),
            PathMatch::Exact(_) | PathMatch::Prefix(_) => (None, None),
        };
        let call = call.into_iter();
        let call = call.flat_map(|call| call.service.iter().chain(&call.method));
        let headers = self.others.headers.iter().map(|header| &header.value);
        let query = self.others.query.iter().map(|parameter| &parameter.value);
        let values = call
            .chain(headers)
            .chain(query)
            .filter_map(|value| match value {
                ValueMatch::Regex(pattern) => Some(pattern),
                ValueMatch::Exact(_) => None,
            });
        path.into_iter().chain(values)
    }
}

/// How specific a match of a GRPCRoute is. Its condition on service and method is a path condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcMatch {
    /// Number of characters of the service or its pattern; 0 without one.
    pub service: usize,
    /// Number of characters of the method or its pattern; 0 without one.
    pub method: usize,
}

/// A path condition, compared with the forwarded path, percent-encoding included.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum PathMatch {
    /// The whole path.
    Exact(Arc<str>),
    /// Whole path elements at the start. Has no `/` at the end, so that `/` is the empty string.
    Prefix(Arc<str>),
    /// A pattern that the whole path matches.
    Regex(Pattern),
    /// Conditions on the parts of a gRPC path, `/service/method`.
    Call(Box<GrpcCall>),
}

/// Conditions on service and method of a gRPC call, each compared as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcCall {
    /// Service; `None` matches every service.
    pub service: Option<ValueMatch>,
    /// Method; `None` matches every method.
    pub method: Option<ValueMatch>,
}

impl GrpcCall {
    /// Returns service and method of a path. Only the last `/` separates them (gRPC over HTTP/2, "Requests").
    pub fn parts(path: &str) -> Option<(&str, &str)> {
        let parts = path.strip_prefix('/')?.rsplit_once('/')?;
        let (service, method) = parts;
        (!service.is_empty() && !method.is_empty()).then_some(parts)
    }
}

/// A header condition. Repeated headers are compared as one value, joined by `,`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct HeaderMatch {
    /// Name.
    #[serde(serialize_with = "header_name")]
    pub name: HeaderName,
    /// Value.
    pub value: ValueMatch,
}

/// A query parameter condition. The first of repeated parameters counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct QueryMatch {
    /// Name, case-sensitive.
    pub name: Arc<str>,
    /// Value.
    pub value: ValueMatch,
}

/// A condition on a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum ValueMatch {
    /// Equal.
    Exact(Arc<str>),
    /// Matches as a whole.
    Regex(Pattern),
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(priority: &i16) -> bool {
    *priority == 0
}

fn method<S: Serializer>(method: &Option<Method>, serializer: S) -> Result<S::Ok, S::Error> {
    match method {
        Some(method) => serializer.serialize_str(method.as_str()),
        None => serializer.serialize_none(),
    }
}

fn header_name<S: Serializer>(name: &HeaderName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}
