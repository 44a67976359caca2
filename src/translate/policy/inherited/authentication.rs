//! What the policies on a path require of the credentials of requests: the sections `basic`, `apiKey`,
//! `jwt`, `oidc`, `external` and `require`.

use std::sync::Arc;

use crate::ir::authentication::{Authentication, Require};
use crate::ir::policy::Enforced;

use super::path::{Levels, OnLevel};
use super::policy::{Content, Section};

/// The ways to authenticate.
pub(super) const METHODS: [Section; 5] = [
    Section::Basic,
    Section::ApiKey,
    Section::Jwt,
    Section::Oidc,
    Section::External,
];

/// Returns the credentials that requests need. Of each section, that of the most specific policy.
pub(super) fn required(levels: &Levels<'_>) -> Option<Enforced<Authentication>> {
    let winner = |section| levels.applied(section).pop();
    let methods = METHODS.map(winner);
    if methods.iter().all(Option::is_none) {
        return None;
    }
    let require = winner(Section::Require);
    let winners = methods.into_iter().chain([require]).flatten();
    Some(match merged(winners) {
        Ok(required) => Enforced::Valid(Arc::new(required)),
        Err(why) => Enforced::Broken(why.into()),
    })
}

fn merged<'a>(winners: impl Iterator<Item = OnLevel<'a>>) -> Result<Authentication, String> {
    let mut merged = Authentication {
        basic: None,
        api_key: None,
        tokens: None,
        oidc: None,
        external: None,
        require: Require::All,
    };
    for winner in winners {
        match winner.content()? {
            Content::Basic(basic) => merged.basic = Some(basic.clone()),
            Content::ApiKey(keys) => merged.api_key = Some(keys.clone()),
            Content::Jwt(tokens) => merged.tokens = Some(tokens.clone()),
            Content::Oidc(oidc) => merged.oidc = Some(oidc.clone()),
            Content::External(external, _) => merged.external = Some(external.clone()),
            Content::Require(require) => merged.require = *require,
            _ => {}
        }
    }
    Ok(merged)
}
