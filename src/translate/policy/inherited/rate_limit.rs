//! RateLimitPolicies: how many requests clients may send.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};

use crate::api::Resource;
use crate::api::rate_limit_policy::{
    Cost as ApiCost, KeyPart as ApiKeyPart, LimitResponse, LimitRule, RateLimitPolicy,
    RateLimitSpec, RequestLimit,
};
use crate::ir::ObjectRef;
use crate::ir::cidr::CidrSet;
use crate::ir::limit::{Cost, IdentityPart, KeyPart, Limit, Limits, Rate, Scope};

use super::super::policy_status::unreadable_fault;
use super::access::cidrs;
use super::condition;
use super::policy::{Content, Policy, Section};
use crate::translate::reason::{ConditionType, Fault, Faults, Reason, invalid, merge};

/// Length of the prefix of IPv6 addresses by default: a client has that many at least.
const V6_PREFIX: u8 = 64;

/// Parses a policy.
pub(super) fn read(object: &RateLimitPolicy) -> Policy {
    let spec = &object.spec;
    let limits = match &object.unreadable {
        None => limits(&object.object_ref(), spec),
        Some(unreadable) if spec.rules.is_empty() => Err(unreadable_fault(unreadable)),
        Some(unreadable) => limits(&object.object_ref(), spec).map(|mut limits| {
            limits.left_out.push(unreadable.reason.as_str().into());
            limits
        }),
    };
    let limits = limits.map(|limits| Content::Limits(Arc::new(limits)));
    let sections = BTreeMap::from([(Section::Limits, limits)]);
    let mut policy = Policy::new(object, ConditionType::RateLimitPolicyAffected, sections);
    policy.pending = object.pending.as_deref().map(|it| Arc::new(read(it)));
    policy.is_audit = object.unreadable.is_none() && spec.rules.iter().all(is_audit);
    policy
}

fn is_audit(rule: &LimitRule) -> bool {
    rule.mode.as_deref() == Some("Audit")
}

/// Translates the rules of a policy. Those of mode Audit that cannot be used are left out, unless no other rule remains.
fn limits(policy: &ObjectRef, spec: &RateLimitSpec) -> Result<Limits, Fault> {
    // Destructured, so that a new field fails to compile until it is handled here.
    let RateLimitSpec {
        target_refs: _,
        strategy: _,
        rules,
        response,
    } = spec;
    let enforced = rules.iter().filter(|rule| !is_audit(rule));
    let enforced: Vec<_> = enforced.map(|rule| &rule.name).collect();
    let mut names = BTreeSet::new();
    let (mut translated, mut left_out) = (Vec::with_capacity(rules.len()), Vec::new());
    let mut faults = Faults::default();
    for (index, rule) in rules.iter().enumerate() {
        let field = format!("spec.rules[{index}]");
        let is_taken = is_audit(rule) && enforced.contains(&&rule.name);
        let limit = match is_taken || !names.insert(&rule.name) {
            true => invalid(format!("{field}.name: {:?} is not unique", rule.name)),
            false => limit(rule, &field),
        };
        match limit {
            Err(fault) if is_audit(rule) => left_out.push(fault),
            limit => translated.extend(faults.keep(limit).map(Arc::new)),
        }
    }
    faults.finish(())?;
    if translated.is_empty()
        && let Some(fault) = merge(&left_out)
    {
        return Err(fault);
    }
    let LimitResponse { status, headers } = response.clone().unwrap_or_default();
    let status = status.unwrap_or(429);
    let is_error = |status: &StatusCode| status.is_client_error() || status.is_server_error();
    let Some(status) = StatusCode::from_u16(status).ok().filter(is_error) else {
        return invalid(format!("spec.response.status: {status} is not 400 to 599"));
    };
    Ok(Limits {
        policy: policy.clone(),
        limits: translated,
        left_out: left_out.into_iter().map(|it| it.message.into()).collect(),
        status,
        has_headers: match headers.as_deref() {
            None | Some("None") => false,
            Some("Draft") => true,
            Some(other) => {
                return invalid(format!(
                    "spec.response.headers: {other:?} is neither None nor Draft"
                ));
            }
        },
    })
}

fn limit(rule: &LimitRule, field: &str) -> Result<Limit, Fault> {
    let LimitRule {
        name,
        condition,
        key,
        limit,
        cost,
        concurrent,
        exempt,
        scope,
        mode,
    } = rule;
    let scope = self::scope(scope.as_deref(), field)?;
    if limit.is_none() && concurrent.is_none() {
        return invalid(format!("{field}: needs limit or concurrent"));
    }
    if *concurrent == Some(0) {
        return invalid(format!("{field}.concurrent: 0 would refuse every request"));
    }
    if concurrent.is_some() && scope == Scope::Gateway {
        return invalid(format!(
            "{field}.concurrent: is counted per replica; move it to a rule of its own with scope Replica"
        ));
    }
    if cost.is_some() && limit.is_none() {
        return invalid(format!("{field}.cost: is for limit, which is not set"));
    }
    let cost = cost.as_ref().map(|it| self::cost(it, field)).transpose()?;
    let condition = condition.as_ref();
    let condition = condition.map(|it| condition::read(it, &format!("{field}.match")));
    let (identity, key) = keys(key, field)?;
    let exempt = exempt.as_ref();
    let exempt = exempt.map(|it| cidrs(&it.cidrs, &format!("{field}.exempt.cidrs")));
    Ok(Limit {
        name: name.as_str().into(),
        condition: condition.transpose()?,
        key,
        identity,
        rate: limit.as_ref().map(|it| rate(it, field)).transpose()?,
        cost: cost.unwrap_or_default(),
        concurrent: *concurrent,
        scope,
        exempt: exempt.unwrap_or_else(|| Ok(CidrSet::default()))?,
        is_audit: match mode.as_deref() {
            None | Some("Enforce") => false,
            Some("Audit") => true,
            Some(other) => {
                return invalid(format!(
                    "{field}.mode: {other:?} is neither Enforce nor Audit"
                ));
            }
        },
    })
}

fn scope(scope: Option<&str>, field: &str) -> Result<Scope, Fault> {
    match scope {
        None | Some("Replica") => Ok(Scope::Replica),
        Some("Gateway") => Ok(Scope::Gateway),
        Some(other) => invalid(format!(
            "{field}.scope: {other:?} is neither Replica nor Gateway"
        )),
    }
}

fn cost(cost: &ApiCost, field: &str) -> Result<Cost, Fault> {
    let ApiCost { kind, name } = cost;
    let name = name.as_deref().unwrap_or_default();
    match kind.as_str() {
        "Request" => Ok(Cost::Request),
        "RequestBytes" => Ok(Cost::RequestBytes),
        "ResponseBytes" => Ok(Cost::ResponseBytes),
        "ResponseHeader" => match name.parse::<HeaderName>() {
            Ok(name) => Ok(Cost::ResponseHeader(name)),
            Err(_) => invalid(format!(
                "{field}.cost.name: {name:?} is not the name of a header"
            )),
        },
        other => invalid(format!(
            "{field}.cost.type: {other} is not supported; use Request, RequestBytes, ResponseBytes or ResponseHeader"
        )),
    }
}

fn rate(limit: &RequestLimit, field: &str) -> Result<Rate, Fault> {
    let RequestLimit {
        requests,
        per,
        burst,
    } = limit;
    let seconds = match per.as_str() {
        "Second" => 1,
        "Minute" => 60,
        "Hour" => 3600,
        "Day" => 86_400,
        other => {
            return invalid(format!(
                "{field}.limit.per: {other:?} is none of Second, Minute, Hour and Day"
            ));
        }
    };
    let burst = burst.unwrap_or(*requests);
    if *requests == 0 || burst == 0 {
        return invalid(format!("{field}.limit: 0 would refuse every request"));
    }
    Ok(Rate {
        requests: *requests,
        per: Duration::from_secs(seconds),
        burst,
    })
}

/// Translates the key of the limit at `field`: what authentication establishes, and what requests have without it.
fn keys(parts: &[ApiKeyPart], field: &str) -> Result<(Vec<IdentityPart>, Vec<KeyPart>), Fault> {
    let (mut identity, mut key) = (Vec::new(), Vec::new());
    let mut faults = Faults::default();
    for (index, part) in parts.iter().enumerate() {
        let field = format!("{field}.key[{index}]");
        match &*part.kind {
            "Client" => identity.push(IdentityPart::Client),
            "Claim" => {
                let name = faults.keep(named(part, &field));
                identity.extend(name.map(|name| IdentityPart::Claim(name.into())));
            }
            "ClientIP" | "Header" | "Cookie" | "Hostname" => {
                key.extend(faults.keep(key_part(part, &field)));
            }
            other => {
                let message = format!(
                    "{field}.type: {other} is not supported; use ClientIP, Header, Cookie, Hostname, Client or Claim"
                );
                faults.keep::<()>(invalid(message));
            }
        }
    }
    faults.finish((identity, key))
}

fn named<'a>(part: &'a ApiKeyPart, field: &str) -> Result<&'a str, Fault> {
    let name = part.name.as_deref().filter(|name| !name.is_empty());
    name.ok_or_else(|| Fault::new(Reason::Invalid, format!("{field}.name: missing")))
}

/// Translates the part of a key at `field` that requests have without authentication.
pub(in crate::translate) fn key_part(part: &ApiKeyPart, field: &str) -> Result<KeyPart, Fault> {
    let ApiKeyPart {
        kind,
        name: _,
        v4_prefix,
        v6_prefix,
    } = part;
    match kind.as_str() {
        "ClientIP" => {
            let (v4, v6) = (v4_prefix.unwrap_or(32), v6_prefix.unwrap_or(V6_PREFIX));
            match v4 <= 32 && v6 <= 128 {
                true => Ok(KeyPart::ClientIp { v4, v6 }),
                false => invalid(format!("{field}: a prefix is longer than the address")),
            }
        }
        "Header" => {
            let name = named(part, field)?;
            match name.parse::<HeaderName>() {
                Ok(name) => Ok(KeyPart::Header(name)),
                Err(_) => invalid(format!(
                    "{field}.name: {name:?} is not the name of a header"
                )),
            }
        }
        "Cookie" => Ok(KeyPart::Cookie(named(part, field)?.into())),
        "Hostname" => Ok(KeyPart::Hostname),
        other => invalid(format!(
            "{field}.type: {other} is not supported; use ClientIP, Header, Cookie or Hostname"
        )),
    }
}
