//! What an edit of a policy that protects requests permits beyond the version before. Until the policies are known that were
//! written before the edit, a version takes the place of both that permits no more than either, section by section. Must not
//! know what has arrived.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::api::Object;
use crate::api::access_policy::{AccessPolicy, AccessSpec, Authorization, IpRules};
use crate::api::inherited_policy::Strategy;
use crate::api::rate_limit_policy::{
    Exempt, LimitRule, RateLimitPolicy, RateLimitSpec, RequestLimit,
};
use crate::ir::cidr::{self, CidrSet};

/// Returns the version of a policy that is in force until the policies are known that were written before an edit: where the new
/// version permits more than the published one, it has what that says. `None` if the new one takes effect at once: it permits
/// no more, nothing tells which of the two does, or they have no target in common.
pub(super) fn meanwhile(published: &Object, new: &Object) -> Option<Object> {
    if new.unreadable().is_some() {
        return None;
    }
    if refuses_all(published) {
        // But not for further targets, which nothing else would protect.
        return (!new.has_targets_without(published)).then(|| published.clone());
    }
    let for_common_targets = published.for_targets_of(new)?;
    match (published, new) {
        // What another strategy permits depends on other policies.
        (Object::AccessPolicy(old), Object::AccessPolicy(new))
            if old.spec.strategy == new.spec.strategy =>
        {
            let spec = access(&old.spec, &new.spec);
            let differs = spec != new.spec;
            differs.then(|| {
                let policy = AccessPolicy {
                    metadata: old.metadata.clone(),
                    spec,
                    ..AccessPolicy::clone(new)
                };
                Arc::new(policy).into()
            })
        }
        (Object::RateLimitPolicy(old), Object::RateLimitPolicy(new))
            if old.spec.strategy == new.spec.strategy =>
        {
            let spec = limits(&old.spec, &new.spec);
            let differs = spec != new.spec;
            differs.then(|| {
                let policy = RateLimitPolicy {
                    metadata: old.metadata.clone(),
                    spec,
                    ..RateLimitPolicy::clone(new)
                };
                Arc::new(policy).into()
            })
        }
        (Object::BackendTlsPolicy(_), Object::BackendTlsPolicy(_))
        | (Object::BackendTlsOverride(_), Object::BackendTlsOverride(_))
            if permits_plain_text(new) && !permits_plain_text(published) =>
        {
            Some(for_common_targets)
        }
        _ => None,
    }
}

/// Reports whether a policy cannot be read, and refuses all. Limits without their rules of mode Audit do not.
fn refuses_all(policy: &Object) -> bool {
    let has_rules = match policy {
        Object::RateLimitPolicy(policy) => !policy.spec.rules.is_empty(),
        _ => false,
    };
    policy.unreadable().is_some() && !has_rules
}

/// Reports whether a policy permits plain text where others may ask for TLS.
pub(super) fn permits_plain_text(policy: &Object) -> bool {
    let mode = match policy {
        Object::BackendTlsPolicy(policy) => &policy.spec.mode,
        Object::BackendTlsOverride(policy) => &policy.spec.mode,
        _ => return false,
    };
    mode.as_deref() == Some("None")
}

fn access(old: &AccessSpec, new: &AccessSpec) -> AccessSpec {
    let mut spec = new.clone();
    spec.ip_rules = match (&old.ip_rules, &new.ip_rules) {
        (Some(old), Some(new)) => Some(ip_rules(old, new)),
        (old, new) => new.clone().or_else(|| old.clone()),
    };
    if loses_credentials(old, new) {
        spec = AccessSpec {
            target_refs: spec.target_refs,
            strategy: spec.strategy,
            ip_rules: spec.ip_rules,
            authorization: spec.authorization,
            ..old.clone()
        };
    }
    let knows_clients = credentials(&spec) == credentials(old);
    if let Some(rules) = &old.authorization
        && (knows_clients || !asks_for_clients(rules))
        && new
            .authorization
            .as_ref()
            .is_none_or(|new| permits_more(rules, new))
    {
        spec.authorization = Some(rules.clone());
    }
    spec
}

/// Permits the addresses that both versions permit, and denies those that one of them denies.
fn ip_rules(old: &IpRules, new: &IpRules) -> IpRules {
    let allow = match (&old.allow, &new.allow) {
        (Some(old), Some(new)) => Some(common(old, new)),
        (old, new) => new.clone().or_else(|| old.clone()),
    };
    IpRules {
        allow,
        deny: all(&old.deny, &new.deny),
    }
}

/// Returns the CIDRs of the addresses that both lists have. The new list remains as it is if it adds none, or if one of them
/// cannot be read: its requests are refused.
fn common(old: &[String], new: &[String]) -> Vec<String> {
    let read = |cidrs: &[String]| {
        let cidrs = cidrs.iter().map(|it| cidr::parse(it));
        cidrs.collect::<Option<CidrSet>>()
    };
    let Some((before, after)) = read(old).zip(read(new)) else {
        return new.to_vec();
    };
    if before.contains_all(&after) {
        new.to_vec()
    } else if after.contains_all(&before) {
        old.to_vec()
    } else {
        let both = before.intersection(&after);
        both.iter().map(|it| it.to_string()).collect()
    }
}

/// Returns the entries of both lists. The new list remains as it is if it lacks none.
fn all(old: &[String], new: &[String]) -> Vec<String> {
    let known: BTreeSet<_> = new.iter().collect();
    if old.iter().all(|it| known.contains(it)) {
        return new.to_vec();
    }
    let known: BTreeSet<_> = old.iter().collect();
    let added = new.iter().filter(|it| !known.contains(it));
    old.iter().chain(added).cloned().collect()
}

/// Reports whether the new version asks for no credentials, and the old one for some. Where both do, the new ones decide: with
/// `require: Any`, which may come from another policy, one way less to authenticate lets fewer clients pass.
fn loses_credentials(old: &AccessSpec, new: &AccessSpec) -> bool {
    let asks = |spec: &AccessSpec| {
        let methods = AccessSpec {
            require: None,
            ..credentials(spec)
        };
        methods != AccessSpec::default()
    };
    let requires_other = new.require.is_some() && new.require != old.require;
    let authorization = new.authorization.as_ref();
    let needs_none = authorization.is_none_or(|rules| !asks_for_clients(rules));
    asks(old) && !asks(new) && !requires_other && needs_none
}

/// Returns what establishes who a client is.
fn credentials(spec: &AccessSpec) -> AccessSpec {
    AccessSpec {
        target_refs: Vec::new(),
        strategy: Strategy::default(),
        ip_rules: None,
        authorization: None,
        ..spec.clone()
    }
}

/// Reports whether rules decide by what authentication establishes.
fn asks_for_clients(authorization: &Authorization) -> bool {
    let conditions = authorization.rules.iter();
    let mut conditions = conditions.filter_map(|rule| rule.condition.as_ref());
    conditions.any(|it| !it.clients.is_empty() || !it.claims.is_empty())
}

/// Reports whether the new rules differ from the old ones in nothing but rules that permit, which are new, and rules that deny,
/// which are gone.
fn permits_more(old: &Authorization, new: &Authorization) -> bool {
    let (kept, removed): (Vec<_>, Vec<_>) = old.rules.iter().partition(|it| new.rules.contains(it));
    let (same, added): (Vec<_>, Vec<_>) = new.rules.iter().partition(|it| old.rules.contains(it));
    kept == same
        && removed.iter().all(|rule| rule.action == "Deny")
        && added.iter().all(|rule| rule.action == "Allow")
        && (new.default == old.default || new.default.as_deref() == Some("Allow"))
}

/// Refuses what the rules of one version refuse.
fn limits(old: &RateLimitSpec, new: &RateLimitSpec) -> RateLimitSpec {
    let rules = new.rules.iter().map(|rule| {
        let before = named(&old.rules, &rule.name);
        before.map_or_else(|| rule.clone(), |before| stricter(before, rule))
    });
    let is_lost = |rule: &&LimitRule| !is_audit(rule) && named(&new.rules, &rule.name).is_none();
    let lost = old.rules.iter().filter(is_lost).cloned();
    RateLimitSpec {
        rules: rules.chain(lost).collect(),
        ..new.clone()
    }
}

fn named<'a>(rules: &'a [LimitRule], name: &str) -> Option<&'a LimitRule> {
    rules.iter().find(|rule| rule.name == name)
}

/// Reports whether a rule refuses nothing.
fn is_audit(rule: &LimitRule) -> bool {
    rule.mode.as_deref() == Some("Audit")
}

/// Returns a rule that refuses what one of two versions refuses; the new version if they count other requests, or in another way.
fn stricter(old: &LimitRule, new: &LimitRule) -> LimitRule {
    if is_audit(old) != is_audit(new) {
        let enforced = if is_audit(old) { new } else { old };
        return enforced.clone();
    }
    let counted = |rule: &LimitRule| LimitRule {
        limit: None,
        concurrent: None,
        exempt: None,
        ..rule.clone()
    };
    let limit = match (&old.limit, &new.limit) {
        (Some(before), Some(after)) if before.per != after.per => return new.clone(),
        (Some(before), Some(after)) => Some(least(before, after)),
        (before, after) => after.clone().or_else(|| before.clone()),
    };
    if counted(old) != counted(new) {
        return new.clone();
    }
    LimitRule {
        limit,
        concurrent: match (old.concurrent, new.concurrent) {
            (Some(before), Some(after)) => Some(before.min(after)),
            (before, after) => after.or(before),
        },
        exempt: match (&old.exempt, &new.exempt) {
            (Some(before), Some(after)) => Some(Exempt {
                cidrs: common(&before.cidrs, &after.cidrs),
            }),
            _ => None,
        },
        ..new.clone()
    }
}

/// Returns the lower rate and burst of two rates in the same time.
fn least(old: &RequestLimit, new: &RequestLimit) -> RequestLimit {
    let burst = |it: &RequestLimit| it.burst.unwrap_or(it.requests);
    let least = (old.requests.min(new.requests), burst(old).min(burst(new)));
    let is_least = |it: &&RequestLimit| (it.requests, burst(it)) == least;
    // Of a limit that stays as it is, the counts stay, too.
    let one_of_both = [new, old].into_iter().find(is_least).cloned();
    one_of_both.unwrap_or_else(|| RequestLimit {
        requests: least.0,
        per: new.per.clone(),
        burst: Some(least.1),
    })
}

#[cfg(test)]
mod tests;
