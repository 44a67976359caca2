//! Text for what policies require of requests, and the order of the phases. Must not know the policies themselves.

use std::sync::Arc;

use super::describe::header_changes;
use super::explanation::Explanation;
use super::matches::{Values, conditions};
use crate::ir::cidr::CidrSet;
use crate::ir::filter::HeaderChanges;
use crate::ir::limit::{KeyPart, Limit, Limits};
use crate::ir::policy::{Enforced, IpRules, PHASES, Policies};
use crate::ir::route_defaults::RouteDefaults;

/// Maximum number of CIDRs of a list that are shown.
const MAX_CIDRS: usize = 10;

/// Explains what policies require, if there are any.
pub(super) fn explain(
    explanation: &mut Explanation,
    policies: Option<&Arc<Policies>>,
    values: Values,
) {
    let Some(policies) = policies else {
        return;
    };
    let Policies {
        ip_rules,
        limits,
        route,
    } = &**policies;
    explanation.lines("IP rules", ip_rules.as_ref().map(shown_ip_rules));
    explanation.lines(
        "limits",
        limits.iter().flat_map(|it| shown_limits(it, values)),
    );
    explanation.lines("policies", route.iter().flat_map(|it| shown_defaults(it)));
    let order = PHASES.map(|phase| phase.to_string());
    explanation.line("order", order.join(", then "));
}

fn shown_ip_rules(rules: &Enforced<IpRules>) -> String {
    let IpRules {
        allow,
        deny,
        policies,
    } = match rules {
        Enforced::Valid(rules) => &**rules,
        Enforced::Broken(why) => return format!("every request gets 500: {why}"),
    };
    let allow = match allow {
        Some(allow) => format!("only {}", cidrs(allow)),
        None => "every address".to_owned(),
    };
    let deny = match deny.is_empty() {
        true => String::new(),
        false => format!(", but not {}", cidrs(deny)),
    };
    let policies: Vec<_> = policies.iter().map(ToString::to_string).collect();
    format!("{allow}{deny} ({})", policies.join(", "))
}

/// Timeouts and retries are shown with those of the rule.
fn shown_defaults(defaults: &RouteDefaults) -> Vec<String> {
    let RouteDefaults {
        max_body,
        timeouts: _,
        retry: _,
        request_headers,
        response_headers,
        policies,
    } = defaults;
    let body = max_body.map(|bytes| format!("request bodies of {bytes} bytes at most"));
    let changes = |what: &str, changes: &Option<HeaderChanges>| {
        let changes = changes.as_ref();
        changes.map_or_else(Vec::new, |changes| header_changes(what, changes))
    };
    let mut lines: Vec<_> = body.into_iter().collect();
    lines.extend(changes("request header", request_headers));
    lines.extend(changes("response header", response_headers));
    let names: Vec<_> = policies.iter().map(ToString::to_string).collect();
    lines.push(format!("from {}", names.join(", ")));
    lines
}

fn shown_limits(limits: &Enforced<Limits>, values: Values) -> Vec<String> {
    let Limits { policy, limits, .. } = match limits {
        Enforced::Valid(limits) => &**limits,
        Enforced::Broken(why) => return vec![format!("every request gets 500: {why}")],
    };
    let limits = limits.iter();
    limits
        .map(|limit| format!("{} ({policy})", shown_limit(limit, values)))
        .collect()
}

fn shown_limit(limit: &Limit, values: Values) -> String {
    let mut parts = Vec::new();
    if let Some(rate) = &limit.rate {
        let (requests, seconds, burst) = (rate.requests, rate.per.as_secs(), rate.burst);
        parts.push(format!(
            "{requests} requests in {seconds}s, {burst} at once"
        ));
    }
    if let Some(concurrent) = limit.concurrent {
        parts.push(format!("{concurrent} requests at the same time"));
    }
    let key = limit.key.iter().map(|part| match part {
        KeyPart::ClientIp { v4, v6 } => format!("client address /{v4} or /{v6}"),
        KeyPart::Header(name) => format!("header {name}"),
        KeyPart::Cookie(name) => format!("cookie {name}"),
        KeyPart::Hostname => "host".to_owned(),
    });
    let key: Vec<_> = key.collect();
    let name = &limit.name;
    let mut text = format!("{name}: {}", parts.join(", "));
    if !key.is_empty() {
        text.push_str(&format!(" for each {}", key.join(" and ")));
    }
    if let Some(condition) = &limit.condition {
        text.push_str(&format!(
            ", of requests with {}",
            conditions(condition, values)
        ));
    }
    if !limit.exempt.is_empty() {
        text.push_str(&format!(", except for {}", cidrs(&limit.exempt)));
    }
    if limit.is_audit {
        text.push_str("; only counted");
    }
    text
}

pub(super) fn cidrs(set: &CidrSet) -> String {
    let all: Vec<_> = set.iter().collect();
    let mut shown: Vec<_> = all
        .iter()
        .take(MAX_CIDRS)
        .map(ToString::to_string)
        .collect();
    if all.len() > MAX_CIDRS {
        shown.push(format!("{} more", all.len() - MAX_CIDRS));
    }
    shown.join(", ")
}
