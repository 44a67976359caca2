//! The order in which the matches of all routes are tried: one list for each kind of route.

use std::cmp::Reverse;
use std::sync::Arc;

use super::route::{GrpcMatch, Match, PathMatch, RouteKind, Rule};

/// The order of matches of equally specific hostnames: the smallest is tried first, and the first that fits wins.
/// The fields stand in the order of the API's lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    /// Priority of the route, which is ours and not of the API; greater is first, and 0 leaves it to the API.
    pub priority: Reverse<i16>,
    /// How specific the match is.
    pub specificity: Specificity,
    /// Creation time; older is first, and none is oldest.
    pub created: Option<i64>,
    /// Namespace of the route, alphabetically.
    pub namespace: Arc<str>,
    /// Name of the route, alphabetically.
    pub name: Arc<str>,
    /// Index of the rule.
    pub rule: usize,
    /// Index of the match.
    pub r#match: usize,
}

/// How specific a match is, in the terms of its route's kind. A kind without one of the conditions leaves it at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Specificity {
    /// Kind of path condition.
    pub path: PathRank,
    /// Characters of the path, pattern or prefix; more is first.
    pub path_length: Reverse<usize>,
    /// Characters of a gRPC method or its pattern; more is first.
    pub grpc_method: Reverse<usize>,
    /// Whether only gRPC requests match; those matches are first.
    pub grpc: Reverse<bool>,
    /// Weight of the method condition; more is first.
    pub method: Reverse<usize>,
    /// Number of header conditions; more is first.
    pub headers: Reverse<usize>,
    /// Number of query conditions; more is first.
    pub query: Reverse<usize>,
}

/// The rank of a path condition: exact paths first, then patterns, then prefixes. The index of a hostname's matches
/// searches in this order. Patterns of GRPCRoutes have the rank of prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathRank {
    /// `Exact`.
    Exact,
    /// `RegularExpression`. The API leaves its place open and suggests this one.
    Regex,
    /// `PathPrefix`.
    Prefix,
}

impl Precedence {
    /// The place of the `index`-th match of `rule`, whose route is of this kind, has this priority and was created at this
    /// time.
    pub fn new(
        kind: RouteKind,
        priority: i16,
        created: Option<i64>,
        rule: &Rule,
        index: usize,
    ) -> Self {
        let condition = &rule.matches[index];
        let specificity = match kind {
            RouteKind::Http => Specificity::http(condition),
            RouteKind::Grpc => Specificity::grpc(condition),
        };
        Self {
            priority: Reverse(priority),
            specificity,
            created,
            namespace: rule.id.route.namespace.clone(),
            name: rule.id.route.name.clone(),
            rule: rule.id.index,
            r#match: index,
        }
    }
}

impl Specificity {
    /// The list of HTTPRouteRule.matches.
    fn http(condition: &Match) -> Self {
        let (path, length) = match &condition.path {
            PathMatch::Exact(path) => (PathRank::Exact, path.chars().count()),
            PathMatch::Regex(pattern) => (PathRank::Regex, pattern.source().chars().count()),
            PathMatch::Prefix(prefix) => (PathRank::Prefix, prefix.chars().count()),
        };
        Self {
            path,
            path_length: Reverse(length),
            grpc_method: Reverse(0),
            grpc: Reverse(false),
            method: Reverse(usize::from(condition.method.is_some())),
            headers: Reverse(condition.headers.len()),
            query: Reverse(condition.query.len()),
        }
    }

    /// The list of GRPCRouteRule.matches: characters of the service, then of the method, then headers. Among those of
    /// HTTPRoutes, service and method in full are an `Exact` path, and every other condition is a `PathPrefix` of
    /// `/service`. The API leaves the place of regular expressions open: here their characters count like others.
    fn grpc(condition: &Match) -> Self {
        let GrpcMatch { service, method } = condition.grpc.unwrap_or_default();
        let (path, length) = match &condition.path {
            PathMatch::Exact(path) => (PathRank::Exact, path.chars().count()),
            // With the `/` before the service.
            PathMatch::Regex(_) | PathMatch::Prefix(_) => {
                (PathRank::Prefix, service + usize::from(service > 0))
            }
        };
        Self {
            path,
            path_length: Reverse(length),
            grpc_method: Reverse(method),
            grpc: Reverse(true),
            method: Reverse(0),
            headers: Reverse(condition.headers.len()),
            query: Reverse(0),
        }
    }
}
