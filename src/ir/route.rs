//! Routes as rules with matches, filters and backends.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, Method};
use serde::{Serialize, Serializer};

use super::session::SessionPersistence;
use super::{BackendId, Filter, ObjectRef, Pattern};

/// A route, once for all listeners that it is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Route {
    /// Its kind.
    #[serde(skip)]
    pub kind: RouteKind,
    /// The object.
    pub object: ObjectRef,
    /// Creation time in seconds since 1970; `None` counts as older than any.
    pub created: Option<i64>,
    /// Compared before all that the API compares among matches of one hostname; greater is first.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i16,
    /// Rules, in the object's order.
    pub rules: Vec<Arc<Rule>>,
}

/// The kind of a route, which decides in which order its matches are tried: see [`super::Precedence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// HTTPRoute.
    Http,
    /// GRPCRoute.
    Grpc,
}

/// The name of a rule in logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct RuleId {
    /// The route object.
    pub route: ObjectRef,
    /// Index in `spec.rules`.
    pub index: usize,
    /// `name` of the rule.
    pub name: Option<Arc<str>>,
}

/// A rule: what it matches and what happens then.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Rule {
    /// Its name.
    pub id: RuleId,
    /// Alternatives; never empty.
    pub matches: Vec<Match>,
    /// Filters, in order.
    pub filters: Vec<Filter>,
    /// What becomes of a request that the filters let through.
    pub action: Action,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Retries beyond those that are always safe.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,
    /// Session persistence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionPersistence>,
}

/// What becomes of a matched request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Action {
    /// It is forwarded by weight. An empty list, or one of weight 0 in all, answers 500.
    Forward(Vec<WeightedBackend>),
    /// It is answered with 500: the rule cannot be served as written, for this reason.
    Broken(Arc<str>),
}

/// A share of a rule's traffic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct WeightedBackend {
    /// Share, 0 to 1,000,000.
    pub weight: u32,
    /// Where it goes.
    pub target: Target,
    /// Filters of this share only, after the rule's.
    pub filters: Vec<Filter>,
}

impl Rule {
    /// The backends that its requests and those of its filters go to.
    pub fn backends(&self) -> impl Iterator<Item = &BackendId> {
        let shares: &[WeightedBackend] = match &self.action {
            Action::Forward(shares) => shares,
            Action::Broken(_) => &[],
        };
        let of_shares = shares.iter().flat_map(|share| {
            let of_filters = share.filters.iter().filter_map(Filter::backend);
            share.target.backend().into_iter().chain(of_filters)
        });
        let of_filters = self.filters.iter().filter_map(Filter::backend);
        of_shares.chain(of_filters)
    }
}

/// Where a share of traffic goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Target {
    /// A backend of [`super::Ir::backends`].
    Backend(BackendId),
    /// Nowhere: answered with 500, for this reason.
    Invalid(Arc<str>),
}

impl Target {
    /// The backend, if there is one.
    pub fn backend(&self) -> Option<&BackendId> {
        match self {
            Self::Backend(id) => Some(id),
            Self::Invalid(_) => None,
        }
    }
}

/// Timeouts of a rule; `None` is no timeout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Timeouts {
    /// The whole exchange, retries included; over it: 504.
    pub request: Option<Duration>,
    /// One try; over it: 504.
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

/// Conditions that must all hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Match {
    /// Path.
    pub path: PathMatch,
    /// Set in a GRPCRoute: only gRPC requests match.
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

/// How specific a match of a GRPCRoute is. Its condition on service and method is the one on the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcMatch {
    /// Characters of the service or its pattern; 0 without one.
    pub service: usize,
    /// Characters of the method or its pattern; 0 without one.
    pub method: usize,
}

/// A path condition, compared with the path as it is forwarded, percent-encoding included.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum PathMatch {
    /// The whole path.
    Exact(Arc<str>),
    /// Whole elements at its beginning. Holds no `/` at the end, so that `/` is the empty string.
    Prefix(Arc<str>),
    /// A pattern that the whole path matches.
    Regex(Pattern),
}

/// A header condition. Repeated fields are compared joined by `,`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct HeaderMatch {
    /// Name.
    #[serde(serialize_with = "header_name")]
    pub name: HeaderName,
    /// Value.
    pub value: ValueMatch,
}

/// A query parameter condition. Of repeated parameters the first counts.
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
    /// Matched as a whole.
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
