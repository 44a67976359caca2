//! The order in which the matches of all routes are tried: one order for each kind of route.

use std::cmp::Reverse;

use super::object_ref::Key;
use super::route::{GrpcMatch, Match, PathMatch, RouteKind, Rule};
use super::time::Time;

/// The order of matches of equally specific hostnames: the smallest is tried first, and the first that matches wins.
/// The order of the fields is the order of the API's lists, because `Ord` is derived.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    /// Priority of the route, a Portcullis extension; greater is first. 0 leaves the order to the API.
    pub priority: Reverse<i16>,
    /// How specific the match is.
    pub specificity: Specificity,
    /// Creation time; older is first, and `None` counts as oldest.
    pub created: Option<Time>,
    /// Namespace and name of the route, in the order of their text.
    pub route: Key,
    /// Index of the rule.
    pub rule: usize,
    /// Index of the match.
    pub r#match: usize,
}

/// How specific a match is, in the terms of its route's kind. A condition that the kind does not have stays at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specificity {
    /// Kind of path condition.
    pub path: PathRank,
    /// Characters of the path, pattern or prefix; more is first.
    pub path_length: Reverse<usize>,
    /// Number of gRPC method characters, or of its pattern; more is first.
    pub grpc_method: Reverse<usize>,
    /// Whether only gRPC requests match; such matches are first.
    pub grpc: Reverse<bool>,
    /// 1 with a method condition, else 0; more is first.
    pub method: Reverse<usize>,
    /// Number of header conditions; more is first.
    pub headers: Reverse<usize>,
    /// Number of query conditions; more is first.
    pub query: Reverse<usize>,
}

/// The rank of a path condition: exact paths first, then patterns, then prefixes. The router of a hostname searches in
/// this order. Patterns of GRPCRoutes have the rank of prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathRank {
    /// `Exact`.
    Exact,
    /// `RegularExpression`. The API leaves its rank open and suggests this one.
    Regex,
    /// `PathPrefix`.
    Prefix,
}

impl Precedence {
    /// Returns the precedence of the `index`-th match of `rule`. Kind, priority and creation time are those of its
    /// route.
    pub fn new(
        kind: RouteKind,
        priority: i16,
        created: Option<Time>,
        rule: &Rule,
        index: usize,
    ) -> Self {
        let condition = &rule.matches[index];
        let specificity = match kind {
            RouteKind::Grpc => Specificity::grpc(condition),
            _ => Specificity::http(condition),
        };
        Self {
            priority: Reverse(priority),
            specificity,
            created,
            route: rule.id.route.key(),
            rule: rule.id.index,
            r#match: index,
        }
    }
}

impl Specificity {
    /// Follows the list of HTTPRouteRule.matches.
    fn http(condition: &Match) -> Self {
        let (path, length) = match &condition.path {
            PathMatch::Exact(path) => (PathRank::Exact, path.chars().count()),
            PathMatch::Regex(pattern) => (PathRank::Regex, pattern.source().chars().count()),
            PathMatch::Prefix(prefix) => (PathRank::Prefix, prefix.chars().count()),
            // HTTPRoutes have no such condition.
            PathMatch::Call(_) => (PathRank::Prefix, 0),
        };
        Self {
            path,
            path_length: Reverse(length),
            grpc_method: Reverse(0),
            grpc: Reverse(false),
            method: Reverse(usize::from(condition.others.method.is_some())),
            headers: Reverse(condition.others.headers.len()),
            query: Reverse(condition.others.query.len()),
        }
    }

    /// Follows the list of GRPCRouteRule.matches: characters of the service, then of the method, then headers. To
    /// compare with HTTPRoutes, a complete service and method rank as an `Exact` path, and every other condition as a
    /// `PathPrefix` of `/service`. The API leaves the rank of regular expressions open: here their characters count.
    fn grpc(condition: &Match) -> Self {
        let GrpcMatch { service, method } = condition.others.grpc.unwrap_or_default();
        let (path, length) = match &condition.path {
            PathMatch::Exact(path) => (PathRank::Exact, path.chars().count()),
            // The prefix includes the `/` before the service.
            PathMatch::Call(_) | PathMatch::Regex(_) | PathMatch::Prefix(_) => {
                (PathRank::Prefix, service + usize::from(service > 0))
            }
        };
        Self {
            path,
            path_length: Reverse(length),
            grpc_method: Reverse(method),
            grpc: Reverse(true),
            method: Reverse(0),
            headers: Reverse(condition.others.headers.len()),
            query: Reverse(0),
        }
    }
}
