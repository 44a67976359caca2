//! Text for what policies require of requests, and the order of the phases. Must not know the policies themselves.

use std::sync::Arc;

use http::{HeaderName, Method};

use super::describe::header_changes;
use super::explanation::Explanation;
use super::matches::{Values, conditions};
use crate::ir::ObjectRef;
use crate::ir::authentication::{Authentication, KeyPlace, Require};
use crate::ir::authorization::{Authorization, AuthorizationRule, RequestConditions};
use crate::ir::cidr::CidrSet;
use crate::ir::compression::Compression;
use crate::ir::filter::HeaderChanges;
use crate::ir::limit::{KeyPart, Limit, Limits};
use crate::ir::policy::{Enforced, IpRules, PHASES, Policies};
use crate::ir::route_defaults::RouteDefaults;
use crate::ir::token::Provider;

/// Maximum number of CIDRs or clients of a list that are shown.
const MAX_LISTED: usize = 10;

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
        authentication,
        authorization,
    } = &**policies;
    explanation.lines("IP rules", ip_rules.as_ref().map(shown_ip_rules));
    explanation.lines(
        "limits",
        limits.iter().flat_map(|it| shown_limits(it, values)),
    );
    explanation.lines("policies", route.iter().flat_map(|it| shown_defaults(it)));
    let credentials = authentication.iter().flat_map(shown_credentials);
    explanation.lines("credentials", credentials);
    let rules = authorization.iter().flat_map(|it| shown_rules(it, values));
    explanation.lines("authorization", rules);
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
        compression,
        stream_idle,
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
    lines.extend(stream_idle.map(|time| match time.is_zero() {
        true => "idle streams stay open".to_owned(),
        false => format!("idle streams end after {time:?}"),
    }));
    lines.extend(compression.as_ref().map(shown_compression));
    let names: Vec<_> = policies.iter().map(ToString::to_string).collect();
    lines.push(format!("from {}", names.join(", ")));
    lines
}

fn shown_compression(compression: &Compression) -> String {
    let Compression {
        encodings,
        content_types,
        min_size,
        level,
    } = compression;
    if encodings.is_empty() {
        return "no compression".to_owned();
    }
    let encodings: Vec<_> = encodings.iter().map(|it| it.name()).collect();
    let (encodings, types) = (encodings.join(", "), content_types.join(", "));
    format!("compression with {encodings}, level {level:?}, from {min_size} bytes, of {types}")
}

fn shown_credentials(authentication: &Enforced<Authentication>) -> Vec<String> {
    let Authentication {
        basic,
        api_key,
        tokens,
        require,
    } = match authentication {
        Enforced::Valid(authentication) => &**authentication,
        Enforced::Broken(why) => return vec![format!("every request gets 500: {why}")],
    };
    let basic = basic.as_ref().map(|basic| {
        let (users, policy) = (basic.users.len(), &basic.policy);
        let header = sent_as(basic.forward_user.as_ref());
        format!("one of {users} users with a password{header} ({policy})")
    });
    let api_key = api_key.as_ref().map(|api_key| {
        let (keys, policy) = (api_key.keys.len(), &api_key.policy);
        let places = shown_places(&api_key.from);
        let header = sent_as(api_key.forward_client.as_ref());
        let keep = if api_key.keep {
            ", kept for the backend"
        } else {
            ""
        };
        format!("one of {keys} API keys, in {places}{keep}{header} ({policy})")
    });
    let providers = tokens.iter().flat_map(|tokens| {
        let providers = tokens.providers.iter();
        providers.map(|provider| (provider, &tokens.policy))
    });
    let of_tokens: Vec<_> = providers
        .map(|(provider, policy)| shown_provider(provider, policy))
        .collect();
    let of_tokens = (!of_tokens.is_empty()).then(|| of_tokens.join(" or "));
    let separator = match require {
        Require::All => "and",
        Require::Any => "or",
    };
    let methods = basic.into_iter().chain(api_key).chain(of_tokens).zip(0..);
    let methods = methods.map(|(method, index)| match index {
        0 => method,
        _ => format!("{separator} {method}"),
    });
    methods.collect()
}

fn shown_places(places: &[KeyPlace]) -> String {
    let places = places.iter().map(|place| match place {
        KeyPlace::Header(name) => format!("header {name}"),
        KeyPlace::Query(name) => format!("query parameter {name}"),
        KeyPlace::Cookie(name) => format!("cookie {name}"),
    });
    let places: Vec<_> = places.collect();
    places.join(" or ")
}

fn shown_provider(provider: &Provider, policy: &ObjectRef) -> String {
    let (issuer, keys) = (&provider.issuer, provider.keys.len());
    let audiences = match provider.audiences.is_empty() {
        true => String::new(),
        false => format!(" for {}", provider.audiences.join(" or ")),
    };
    let places = shown_places(&provider.from);
    format!("a token of {issuer}{audiences}, with one of {keys} keys, in {places} ({policy})")
}

fn shown_rules(authorization: &Enforced<Authorization>, values: Values) -> Vec<String> {
    let Authorization {
        policy,
        rules,
        default,
    } = match authorization {
        Enforced::Valid(authorization) => &**authorization,
        Enforced::Broken(why) => return vec![format!("every request gets 500: {why}")],
    };
    let rules = rules.iter().map(|rule| {
        let (name, conditions) = (&rule.name, shown_conditions(rule, values));
        format!("{name}: {:?} {conditions} ({policy})", rule.action)
    });
    let default = format!("others: {default:?} ({policy})");
    rules.chain([default]).collect()
}

fn shown_conditions(rule: &AuthorizationRule, values: Values) -> String {
    let RequestConditions { methods, matches } = &rule.requests;
    let mut parts = Vec::new();
    if let Some(methods) = methods {
        let methods: Vec<_> = methods.iter().map(Method::as_str).collect();
        parts.push(format!("method {}", methods.join(" or ")));
    }
    if let Some(matches) = matches {
        let matches: Vec<_> = matches.iter().map(|it| conditions(it, values)).collect();
        parts.push(matches.join(" or "));
    }
    if let Some(addresses) = &rule.cidrs {
        parts.push(format!("address in {}", cidrs(addresses)));
    }
    if let Some(clients) = &rule.clients {
        let shown: Vec<&str> = clients.iter().take(MAX_LISTED).map(|it| &**it).collect();
        let more = match clients.len().saturating_sub(MAX_LISTED) {
            0 => String::new(),
            more => format!(", {more} more"),
        };
        parts.push(format!("client {}{more}", shown.join(" or ")));
    }
    for claim in &rule.claims {
        let shown: Vec<&str> = claim.values.iter().map(|it| &**it).collect();
        parts.push(format!("claim {} {}", claim.name, shown.join(" or ")));
    }
    match parts.is_empty() {
        true => "every request".to_owned(),
        false => parts.join(", "),
    }
}

/// Text for the header that names the client to the backend.
fn sent_as(header: Option<&HeaderName>) -> String {
    header.map_or_else(String::new, |name| format!(", named in header {name}"))
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
        .take(MAX_LISTED)
        .map(ToString::to_string)
        .collect();
    if all.len() > MAX_LISTED {
        shown.push(format!("{} more", all.len() - MAX_LISTED));
    }
    shown.join(", ")
}
