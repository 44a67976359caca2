//! Text for matches, and for the verdict on each.

use crate::ir::RuleId;
use crate::ir::route::{Match, PathMatch, ValueMatch};
use crate::table::{Considered, MatchVerdict, Mismatch};

/// Placeholder for a value that is not shown.
const REDACTED: &str = "<redacted>";

/// Whether values of headers and query parameters are shown, which are often credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// As configured.
    Shown,
    /// As `<redacted>`, like in the configuration of the admin server.
    Redacted,
}

/// Describes a match that was considered, and its result.
pub(super) fn considered(one: &Considered<'_>, values: Values) -> String {
    let rule = &one.rule.ir;
    let conditions = rule
        .matches
        .get(one.index)
        .map_or_else(String::new, |condition| conditions(condition, values));
    let what = format!(
        "{}, match {} ({conditions}; hostname {})",
        rule_name(&rule.id),
        one.index,
        one.hostname
    );
    match &one.verdict {
        MatchVerdict::Chosen => what,
        MatchVerdict::Outranked => format!("{what}: matches too, but has lower precedence"),
        MatchVerdict::Differs(mismatch) => format!("{what}: {}", differs(mismatch)),
    }
}

/// Returns how far a match is from the request: 0 if it matches too, and most if not even the path begins alike.
pub(super) fn distance(one: &Considered<'_>, path: &str) -> usize {
    /// Above every other distance, so that paths come last.
    const PATH: usize = 1 << 16;
    match &one.verdict {
        MatchVerdict::Chosen | MatchVerdict::Outranked => 0,
        MatchVerdict::Differs(Mismatch::Query(_) | Mismatch::Preflight) => 1,
        MatchVerdict::Differs(Mismatch::Header(_)) => 2,
        MatchVerdict::Differs(Mismatch::Method) => 3,
        MatchVerdict::Differs(Mismatch::Grpc) => 4,
        MatchVerdict::Differs(Mismatch::Path) => {
            let matched = one.rule.ir.matches.get(one.index).map(|it| &it.path);
            let wanted = match matched {
                Some(PathMatch::Exact(wanted) | PathMatch::Prefix(wanted)) => &**wanted,
                Some(PathMatch::Regex(_) | PathMatch::Call(_)) | None => "",
            };
            let same = path.bytes().zip(wanted.bytes()).take_while(|(a, b)| a == b);
            PATH - same.count().min(PATH - 5)
        }
    }
}

/// Names a rule by its route, its index, and its name if it has one.
pub(super) fn rule_name(id: &RuleId) -> String {
    match &id.name {
        Some(name) => format!("{} rule {} `{name}`", id.route, id.index),
        None => format!("{} rule {}", id.route, id.index),
    }
}

fn differs(mismatch: &Mismatch<'_>) -> String {
    match mismatch {
        Mismatch::Path => "the path does not match".to_owned(),
        Mismatch::Grpc => {
            "the request is not gRPC, which is a POST with content-type application/grpc or application/grpc-web"
                .to_owned()
        }
        Mismatch::Preflight => {
            "the rule permits no calls of other origins; set access-control-allow-origin with a ResponseHeaderModifier"
                .to_owned()
        }
        Mismatch::Method => "the method does not match".to_owned(),
        Mismatch::Header(name) => format!("header {name} does not match"),
        Mismatch::Query(name) => format!("query parameter {name} does not match"),
    }
}

pub(super) fn conditions(condition: &Match, values: Values) -> String {
    let mut parts = vec![match &condition.path {
        PathMatch::Exact(path) => format!("path {path}"),
        PathMatch::Prefix(prefix) if prefix.is_empty() => "any path".to_owned(),
        PathMatch::Prefix(prefix) => format!("path {prefix} and below"),
        PathMatch::Regex(pattern) => format!("path matches {}", pattern.source()),
        PathMatch::Call(call) => {
            let part = |name: &str, condition: &Option<ValueMatch>| match condition {
                None => format!("any {name}"),
                Some(ValueMatch::Exact(text)) => format!("{name} {text}"),
                Some(ValueMatch::Regex(pattern)) => format!("{name} matches {}", pattern.source()),
            };
            let service = part("service", &call.service);
            format!("{service}, {}", part("method", &call.method))
        }
    }];
    parts.extend(condition.others.grpc.map(|_| "gRPC".to_owned()));
    parts.extend(
        condition
            .others
            .method
            .iter()
            .map(|method| format!("method {method}")),
    );
    for header in &condition.others.headers {
        parts.push(format!(
            "header {}",
            value(header.name.as_str(), &header.value, values)
        ));
    }
    for query in &condition.others.query {
        parts.push(format!(
            "query {}",
            value(&query.name, &query.value, values)
        ));
    }
    parts.join(", ")
}

fn value(name: &str, value: &ValueMatch, values: Values) -> String {
    match (value, values) {
        (ValueMatch::Exact(_), Values::Redacted) => format!("{name}={REDACTED}"),
        (ValueMatch::Regex(_), Values::Redacted) => format!("{name} matches {REDACTED}"),
        (ValueMatch::Exact(exact), Values::Shown) => format!("{name}={exact}"),
        (ValueMatch::Regex(pattern), Values::Shown) => {
            format!("{name} matches {}", pattern.source())
        }
    }
}
