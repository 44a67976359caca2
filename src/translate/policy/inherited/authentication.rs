//! What the policies on a path require of the credentials of requests: the sections `basic`, `apiKey`,
//! `jwt`, `oidc`, `external` and `require`.

use std::sync::Arc;

use crate::ir::authentication::{Authentication, Require};
use crate::ir::oidc::Oidc;
use crate::ir::policy::Enforced;
use crate::ir::token::{Provider, VerificationKey};

use super::path::{Levels, OnLevel};
use super::policy::{Content, Policy, Section};

/// The ways to authenticate.
const METHODS: [Section; 5] = [
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

/// Returns how a section permits more than what it replaces. `above` is what has an effect above it.
pub(super) fn loosened(above: &OnLevel<'_>, own: &OnLevel<'_>) -> Option<String> {
    let name = &above.policy.name;
    if let (Ok(Content::External(above, of_above)), Ok(Content::External(own, reference))) =
        (above.content(), own.content())
    {
        let namespaces = [&above.policy.namespace, &own.policy.namespace];
        let [of_above, reference] = [(of_above, namespaces[0]), (reference, namespaces[1])]
            .map(|(reference, namespace)| (reference.object_ref(namespace), reference.port));
        let is_same = of_above == reference && above.call == own.call;
        return (!is_same).then(|| format!("spec.external replaces the server of {name}"));
    }
    if let (Ok(Content::Oidc(above)), Ok(Content::Oidc(own))) = (above.content(), own.content()) {
        let client = |it: &Oidc| (it.issuer().to_owned(), it.client_id.clone());
        let is_same = client(above) == client(own);
        return (!is_same)
            .then(|| format!("spec.oidc replaces the provider or the client of {name}"));
    }
    let permits_all = match (above.content(), own.content()) {
        (Ok(Content::Basic(above)), Ok(Content::Basic(own))) => {
            own.users.iter().all(|user| above.users.contains(user))
        }
        (Ok(Content::ApiKey(above)), Ok(Content::ApiKey(own))) => {
            own.keys.iter().all(|key| above.keys.contains(key))
        }
        (Ok(Content::Jwt(above)), Ok(Content::Jwt(own))) => {
            let of_above = |one: &Provider| above.providers.iter().any(|it| is_no_looser(one, it));
            own.providers.iter().all(of_above)
        }
        _ => true,
    };
    let field = own.section.field();
    (!permits_all).then(|| format!("{field} permits clients that {name} does not permit"))
}

/// Reports whether a provider accepts no token that another one does not accept.
fn is_no_looser(one: &Provider, other: &Provider) -> bool {
    let audiences = &other.audiences;
    let has_audiences =
        !one.audiences.is_empty() && one.audiences.iter().all(|it| audiences.contains(it));
    let verifies = |key: &VerificationKey| {
        let mut keys = other.keys.iter();
        keys.any(|it| {
            let mut algorithms = key.algorithms.iter();
            it.material == key.material
                && algorithms.all(|algorithm| it.algorithms.contains(algorithm))
        })
    };
    one.issuer == other.issuer
        && (audiences.is_empty() || has_audiences)
        && one.leeway <= other.leeway
        && (other.token_type.is_none() || one.token_type == other.token_type)
        && one.keys.iter().all(verifies)
}

/// Returns how a section of a policy makes credentials needless that policies above ask for.
pub(super) fn made_needless(
    levels: &Levels<'_>,
    section: Section,
    policy: &Policy,
) -> Option<String> {
    if !section.is_of_credentials() {
        return None;
    }
    let require = levels.applied(Section::Require);
    let requires = |it: &OnLevel<'_>| match it.content() {
        Ok(Content::Require(require)) => *require,
        _ => Require::All,
    };
    let is_any = require
        .last()
        .is_some_and(|it| requires(it) == Require::Any);
    let methods = METHODS.iter().map(|method| levels.applied(*method));
    let methods: Vec<_> = methods.filter(|applied| !applied.is_empty()).collect();
    // A method alone is needed in any case.
    let is_choice = is_any && methods.len() > 1;
    let others = methods.iter().flatten();
    let mut others =
        others.filter(|other| other.section != section && other.policy.name != policy.name);
    let other = others.next().filter(|_| is_choice)?;
    let is_own = |it: &&OnLevel<'_>| it.policy.name == policy.name;
    match section {
        Section::Require => {
            let own = require.iter().position(|it| is_own(&it))?;
            let above = own.checked_sub(1).map(|above| requires(&require[above]));
            let is_looser = requires(&require[own]) == Require::Any && above != Some(Require::Any);
            is_looser.then_some(())?;
        }
        _ => {
            let applied = levels.applied(section);
            applied.first().filter(is_own)?;
        }
    }
    let (field, name) = (section.field(), &other.policy.name);
    let others = other.section.field();
    Some(format!(
        "{field}: credentials of {others} of {name} are not needed, since one of all is enough"
    ))
}
