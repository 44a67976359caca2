//! Which limits count by an identity that the policies on a path do not establish.

use crate::ir::limit::IdentityPart;
use crate::ir::policy::Enforced;

use super::authentication;
use super::path::Levels;
use super::policy::{Content, Policy, Section, Target};

/// Describes the limits of a policy by an identity that the requests to a target lack, where policies on its path do not
/// authenticate them so that they have it.
pub(super) fn lacking(levels: &Levels<'_>, policy: &Policy, target: &Target) -> Vec<String> {
    let winner = levels.applied(Section::Limits).pop();
    let Some(winner) = winner.filter(|it| it.policy.name == policy.name) else {
        return Vec::new();
    };
    let Ok(Content::Limits(limits)) = winner.content() else {
        return Vec::new();
    };
    if !limits.limits.iter().any(|limit| limit.needs_identity()) {
        return Vec::new();
    }
    let required = authentication::required(levels);
    let required = match &required {
        Some(Enforced::Valid(required)) => Some(&**required),
        // Its requests get 500 before.
        Some(Enforced::Broken(_)) => return Vec::new(),
        None => None,
    };
    let limits = limits.limits.iter();
    let lacking = limits.filter_map(|limit| Some((limit, limit.lacking_identity(required)?)));
    let lacking = lacking.map(|(limit, part)| {
        let establishes = match part {
            IdentityPart::Client => "authenticates requests",
            IdentityPart::Claim(_) => "asks for tokens (jwt)",
        };
        let name = &limit.name;
        format!(
            "limit {name} has the key {part}, but no AccessPolicy on {target} or above {establishes}: requests without it count together"
        )
    });
    lacking.collect()
}
