//! AccessPolicies: who may send requests. One file for each section.

mod api_key;
mod authorization;
mod basic;
pub(in crate::translate) mod discovery;
mod external;
mod ip_rules;
mod jwks;
mod jwt;
pub(in crate::translate) mod key_backend;
mod oidc;
pub(in crate::translate) mod remote;
mod secret;
mod server_uri;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::Resource;
use crate::api::access_policy::{AccessPolicy, AccessSpec, ApiKey, Basic, Jwt, Oidc};
use crate::api::inherited_policy::{SectionTargetRef, Unreadable};
use crate::ir::authentication::Require;

pub(super) use self::ip_rules::cidrs;
use self::secret::References;
use super::super::policy_status::unreadable_fault;
use super::credential::named;
use super::policy::{Content, Policy, Section};
use crate::translate::input::Input;
use crate::translate::reason::{ConditionType, Fault, Reason, invalid};

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

/// A section whose credentials are in other objects.
enum CredentialSection<'a> {
    Basic(&'a Basic),
    ApiKey(&'a ApiKey),
    Jwt(&'a Jwt),
    Oidc(&'a Oidc),
}

/// Parses a policy, with the Secrets and ConfigMaps that it names.
pub(super) fn read(input: &Input<'_>, object: &AccessPolicy) -> Policy {
    let name = object.object_ref();
    let mut references = References {
        input,
        origin: &name,
        unresolved: Vec::new(),
    };
    let mut policy = parse(object, |section| match section {
        CredentialSection::Basic(section) => basic::read(&mut references, section),
        CredentialSection::ApiKey(section) => api_key::read(&mut references, section),
        CredentialSection::Jwt(section) => jwt::read(&mut references, section),
        CredentialSection::Oidc(section) => oidc::read(&mut references, section),
    });
    policy.unresolved = references.unresolved;
    policy
}

/// Parses a policy without its credentials. That suffices to tell where it has an effect, since its sections count whether or
/// not they can be used.
pub(super) fn outline(object: &AccessPolicy) -> Policy {
    parse(object, |_| {
        invalid("its credentials are not read".to_owned())
    })
}

/// Parses a policy. `read` parses the sections with credentials.
fn parse(
    object: &AccessPolicy,
    mut read: impl FnMut(CredentialSection<'_>) -> Result<Content, Fault>,
) -> Policy {
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
    let mut sections = BTreeMap::new();
    if let Some(rules) = ip_rules {
        sections.insert(Section::IpRules, ip_rules::read(rules));
    }
    if let Some(section) = basic {
        sections.insert(Section::Basic, read(CredentialSection::Basic(section)));
    }
    if let Some(section) = api_key {
        sections.insert(Section::ApiKey, read(CredentialSection::ApiKey(section)));
    }
    if let Some(section) = jwt {
        sections.insert(Section::Jwt, read(CredentialSection::Jwt(section)));
    }
    if let Some(section) = oidc {
        sections.insert(Section::Oidc, read(CredentialSection::Oidc(section)));
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
            *content = invalid(format!(
                "{field}: connections of TLSRoutes, TCPRoutes and UDPRoutes have no requests"
            ));
        }
    }
    let mut policy = Policy::new(object, ConditionType::AccessPolicyAffected, sections);
    policy.pending = object.pending.as_deref().map(|it| Arc::new(outline(it)));
    policy.named = named(object);
    policy.withheld = object.withheld.as_deref().map(withheld);
    policy.key_servers = key_backend::key_servers(object);
    policy
}

/// Returns why a pod gets none of the credentials that a policy names.
fn withheld(why: &str) -> Fault {
    Fault::new(Reason::CredentialLimitExceeded, why)
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
        other => invalid(format!("spec.require: {other:?} is neither All nor Any")),
    }
}
