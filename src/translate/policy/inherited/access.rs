//! AccessPolicies: who may send requests.

use std::collections::BTreeMap;

use crate::api::access_policy::{AccessPolicy, AccessSpec, IpRules};
use crate::ir::cidr::{self, CidrSet};

use super::policy::{Content, Policy, Section};
use crate::translate::reason::{ConditionType, Fault, Reason};

/// Parses a policy.
pub(super) fn read(object: &AccessPolicy) -> Policy {
    // Destructured, so that a new field fails to compile until it is handled here.
    let AccessSpec {
        target_refs: _,
        strategy: _,
        ip_rules,
    } = &object.spec;
    let mut sections = BTreeMap::new();
    if let Some(rules) = ip_rules {
        sections.insert(Section::IpRules, self::ip_rules(rules));
    }
    Policy::new(object, ConditionType::AccessPolicyAffected, sections)
}

fn ip_rules(rules: &IpRules) -> Result<Content, Fault> {
    let IpRules { allow, deny } = rules;
    let allow = allow.as_ref();
    let allow = allow.map(|cidrs| self::cidrs(cidrs, "spec.ipRules.allow"));
    Ok(Content::IpRules {
        allow: allow.transpose()?,
        deny: cidrs(deny, "spec.ipRules.deny")?,
    })
}

/// Parses the CIDRs of a field.
pub(super) fn cidrs(texts: &[String], field: &str) -> Result<CidrSet, Fault> {
    let cidr = |(index, text): (usize, &String)| {
        cidr::parse(text).ok_or_else(|| {
            let message = format!(
                "{field}[{index}]: {text:?} is neither an address nor a CIDR such as 10.0.0.0/8 or fd00::/8"
            );
            Fault::new(Reason::Invalid, message)
        })
    };
    texts.iter().enumerate().map(cidr).collect()
}
