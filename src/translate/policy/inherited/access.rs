//! AccessPolicies: who may send requests. One file for each section.

mod api_key;
mod authorization;
pub(in crate::translate) mod basic;
pub(in crate::translate) mod discovery;
mod external;
mod ip_rules;
mod jwks;
pub(in crate::translate) mod jwt;
pub(in crate::translate) mod key_backend;
pub(in crate::translate) mod oidc;
pub(in crate::translate) mod remote;
pub(in crate::translate) mod secret;
mod server_uri;

use std::collections::BTreeMap;

use crate::api::Resource;
use crate::api::access_policy::{AccessPolicy, AccessSpec};
use crate::api::inherited_policy::{SectionTargetRef, Unreadable};
use crate::ir::authentication::Require;

pub(super) use self::ip_rules::cidrs;
use self::secret::References;
use super::super::policy_status::unreadable_fault;
use super::policy::{Content, Policy, Section};
use crate::translate::input::Input;
use crate::translate::reason::{ConditionType, Fault, Reason};

/// The sections of an AccessPolicy.
const SECTIONS: [Section; 8] = [
    Section::IpRules,
    Section::Basic,
    Section::ApiKey,
    Section::Jwt,
    Section::Oidc,
    Section::External,
    Section::Require,
    Section::Authorization,
];

/// Parses a policy, with the Secrets that it refers to.
pub(super) fn read(input: &Input<'_>, object: &AccessPolicy) -> Policy {
    // Destructured, so that a new field fails to compile until it is handled here.
    let AccessSpec {
        target_refs,
        strategy: _,
        ip_rules,
        basic,
        api_key,
        jwt,
        oidc,
        external,
        require,
        authorization,
    } = &object.spec;
    if let Some(unreadable) = &object.unreadable {
        let sections = broken(unreadable);
        return Policy::new(object, ConditionType::AccessPolicyAffected, sections);
    }
    let name = object.object_ref();
    let mut references = References {
        input,
        origin: &name,
        unresolved: Vec::new(),
    };
    let mut sections = BTreeMap::new();
    if let Some(rules) = ip_rules {
        sections.insert(Section::IpRules, ip_rules::read(rules));
    }
    if let Some(section) = basic {
        sections.insert(Section::Basic, basic::read(&mut references, section));
    }
    if let Some(section) = api_key {
        sections.insert(Section::ApiKey, api_key::read(&mut references, section));
    }
    if let Some(section) = jwt {
        sections.insert(Section::Jwt, jwt::read(&mut references, section));
    }
    if let Some(section) = oidc {
        sections.insert(Section::Oidc, oidc::read(&mut references, section));
    }
    if let Some(section) = external {
        sections.insert(Section::External, external::read(&name, section));
    }
    if let Some(text) = require {
        sections.insert(Section::Require, self::require(text));
    }
    if let Some(section) = authorization {
        sections.insert(Section::Authorization, authorization::read(&name, section));
    }
    if target_refs.iter().any(has_no_requests) {
        let of_requests = sections.iter_mut().filter(|(it, _)| it.is_of_requests());
        for (section, content) in of_requests {
            let field = section.field();
            let message = format!(
                "{field}: connections of TLSRoutes, TCPRoutes and UDPRoutes have no requests"
            );
            *content = Err(Fault::new(Reason::Invalid, message));
        }
    }
    let unresolved = references.unresolved;
    let mut policy = Policy::new(object, ConditionType::AccessPolicyAffected, sections);
    policy.unresolved = unresolved;
    let servers = key_backend::references(object);
    let servers = servers.map(|it| it.object_ref(&policy.name.namespace));
    policy.key_servers = servers.collect();
    policy
}

/// Returns the sections of a policy that is not valid, none of which can be used: those that it sets, or all if it is unknown
/// which ones it would set.
fn broken(unreadable: &Unreadable) -> BTreeMap<Section, Result<Content, Fault>> {
    let section = |name: &String| {
        let mut all = SECTIONS.into_iter();
        all.find(|it| it.field().strip_prefix("spec.") == Some(name))
    };
    let set: Option<Vec<_>> = unreadable.sections.iter().map(section).collect();
    // By itself, `require` requires nothing.
    let set = set.filter(|set| set.iter().any(|it| *it != Section::Require));
    let set = set.unwrap_or_else(|| SECTIONS.to_vec());
    let broken = |section| (section, Err(unreadable_fault(unreadable)));
    set.into_iter().map(broken).collect()
}

/// Reports whether what a target forwards is not HTTP.
fn has_no_requests(target: &SectionTargetRef) -> bool {
    matches!(&*target.kind, "TLSRoute" | "TCPRoute" | "UDPRoute")
}

fn require(text: &str) -> Result<Content, Fault> {
    match text {
        "All" => Ok(Content::Require(Require::All)),
        "Any" => Ok(Content::Require(Require::Any)),
        other => {
            let message = format!("spec.require: {other:?} is neither All nor Any");
            Err(Fault::new(Reason::Invalid, message))
        }
    }
}
