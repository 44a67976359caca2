//! What the policies on a path require of its requests: the values of the IR, section by section.

use std::sync::Arc;

use crate::ir::cidr::CidrSet;
use crate::ir::limit::Limits;
use crate::ir::policy::{Enforced, IpRules, Policies};

use super::path::{Levels, OnLevel};
use super::policy::{Content, Section};

/// Returns what the policies of these levels require.
pub(super) fn effective(levels: &Levels<'_>) -> Policies {
    Policies {
        ip_rules: enforced(&levels.applied(Section::IpRules), ip_rules),
        limits: limits(&levels.applied(Section::Limits)),
    }
}

/// Returns what a section requires. A section that protects is never left out: one broken policy breaks it.
fn enforced<T>(
    applied: &[OnLevel<'_>],
    translate: impl Fn(&[OnLevel<'_>]) -> Result<T, String>,
) -> Option<Enforced<T>> {
    if applied.is_empty() {
        return None;
    }
    Some(match translate(applied) {
        Ok(required) => Enforced::Valid(Arc::new(required)),
        Err(why) => Enforced::Broken(why.into()),
    })
}

/// Denied addresses accumulate. The list of permitted addresses is that of the most specific policy.
fn ip_rules(applied: &[OnLevel<'_>]) -> Result<IpRules, String> {
    let (mut allow, mut deny) = (None, CidrSet::default());
    for policy in applied {
        let Content::IpRules {
            allow: own,
            deny: denied,
        } = policy.content()?
        else {
            continue;
        };
        allow.clone_from(own);
        deny = deny.union(denied);
    }
    let policies = applied.iter().map(|it| it.policy.name.clone());
    Ok(IpRules {
        allow,
        deny,
        policies: policies.collect(),
    })
}

/// The limits of the most specific policy. One that would refuse nothing may be left out if it is broken.
fn limits(applied: &[OnLevel<'_>]) -> Option<Enforced<Limits>> {
    let winner = applied.last()?;
    match winner.content() {
        Ok(Content::Limits(limits)) => Some(Enforced::Valid(limits.clone())),
        Ok(_) => None,
        Err(_) if winner.policy.is_audit => None,
        Err(why) => Some(Enforced::Broken(why.into())),
    }
}

/// Returns how a policy permits more than what it replaces; `None` if it does not. `inherited` is what has an effect
/// above it.
pub(super) fn loosened(inherited: &OnLevel<'_>, policy: &OnLevel<'_>) -> Option<String> {
    let of = |it: &OnLevel<'_>| match it.content() {
        Ok(Content::IpRules { allow, .. }) => Some(allow.clone()),
        _ => None,
    };
    let (above, own) = (of(inherited)??, of(policy)?);
    let name = &inherited.policy.name;
    match own {
        None => Some(format!("spec.ipRules removes allow of {name}")),
        Some(own) if !above.contains_all(&own) => Some(format!(
            "spec.ipRules.allow permits addresses that {name} does not permit"
        )),
        Some(_) => None,
    }
}
