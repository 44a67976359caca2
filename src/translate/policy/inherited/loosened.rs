//! How a policy permits more than those above it. Must not know what is below it, which others have to answer for.

use crate::ir::authentication::Require;
use crate::ir::client::{DuplicateSlashes, EscapedSlashes, PathSettings, ProxyMode};
use crate::ir::limit::{KeyPart, Limit};
use crate::ir::oidc::Oidc;
use crate::ir::token::{Provider, VerificationKey};

use super::authentication::METHODS;
use super::path::{Levels, OnLevel};
use super::policy::{Content, Policy, Section, Target};

/// Returns how a section of a policy that has an effect on a target permits more than what is above it. `levels` are those of
/// requests, and `of_section` those of the section, which differ if it is about connections.
pub(super) fn loosened(
    (levels, of_section): (&Levels<'_>, &Levels<'_>),
    section: Section,
    (policy, target): (&Policy, &Target),
) -> Vec<String> {
    let is_own = |it: &OnLevel<'_>| it.policy.name == policy.name;
    if matches!(section, Section::ClientIp | Section::ProxyProtocol) {
        let applied = of_section.through(target).applied(section);
        return match applied.split_last() {
            Some((own, above)) if is_own(own) && changes_addresses(above.last(), own) => {
                deciding_by_addresses(&levels.above(target), section)
            }
            _ => Vec::new(),
        };
    }
    let levels = levels.through(target);
    let applied = levels.applied(section);
    if let [.., above, own] = applied.as_slice()
        && is_own(own)
        && admits_more_slashes(above, own)
    {
        return deciding_by_paths(&levels.above(target), above);
    }
    let replaced = match applied.as_slice() {
        [.., above, own] if is_own(own) => replaced(above, own),
        _ => None,
    };
    let needless = made_needless(&levels, section, policy);
    needless.into_iter().chain(replaced).collect()
}

/// Reports whether a section has the addresses of clients come from elsewhere than the one above it.
fn changes_addresses(above: Option<&OnLevel<'_>>, own: &OnLevel<'_>) -> bool {
    match (own.content(), above.map(OnLevel::content)) {
        (Err(_), _) => false,
        (Ok(_), Some(Err(_))) => true,
        (Ok(Content::ClientIp(own)), Some(Ok(Content::ClientIp(above)))) => {
            own.source != above.source
        }
        // Without a policy, the settings of the process say it.
        (Ok(Content::ClientIp(_)), _) => true,
        (Ok(Content::ProxyProtocol(own)), Some(Ok(Content::ProxyProtocol(above)))) => {
            (own.mode, &own.trusted) != (above.mode, &above.trusted)
        }
        (Ok(Content::ProxyProtocol(own)), _) => own.mode != ProxyMode::Off,
        (Ok(_), _) => false,
    }
}

/// Returns what a section evades: what policies decide by the addresses of clients.
fn deciding_by_addresses(above: &Levels<'_>, section: Section) -> Vec<String> {
    let effective = |section| above.applied(section).pop();
    let denied = above.applied(Section::IpRules).into_iter();
    let others = [Section::Authorization, Section::Limits];
    let all = denied.chain(others.into_iter().filter_map(effective));
    let by_addresses = all.filter(|one| match one.content() {
        Ok(Content::Authorization(authorization)) => authorization.needs_addresses(),
        Ok(Content::Limits(limits)) => limits.limits.iter().any(|it| looks_at_addresses(it)),
        // One that cannot be used now may do so once it is mended.
        Ok(_) | Err(_) => true,
    });
    let field = section.field();
    let evaded = by_addresses.map(|one| {
        let (of_above, name) = (one.section.field(), &one.policy.name);
        format!("{field} changes the addresses of clients that {of_above} of {name} decides by")
    });
    evaded.collect()
}

fn looks_at_addresses(limit: &Limit) -> bool {
    let mut key = limit.key.iter();
    let is_by_address = key.any(|part| matches!(part, KeyPart::ClientIp { .. }));
    !limit.is_audit && (is_by_address || !limit.exempt.is_empty())
}

/// Reports whether a section lets slashes pass that a backend may read as others, and that the one above it does not let pass.
/// Others are refused where the path decides.
fn admits_more_slashes(above: &OnLevel<'_>, own: &OnLevel<'_>) -> bool {
    let (Ok(Content::Path(above)), Ok(Content::Path(own))) = (above.content(), own.content())
    else {
        return false;
    };
    let are_escaped = |it: &PathSettings| it.escaped_slashes == EscapedSlashes::Keep;
    let are_several = |it: &PathSettings| it.duplicate_slashes == DuplicateSlashes::Forward;
    let merges = above.duplicate_slashes == DuplicateSlashes::Merge;
    are_escaped(own) && !are_escaped(above) || are_several(own) && merges
}

/// Returns what a section evades: what policies decide by the paths of requests. `of_above` is the section above it.
fn deciding_by_paths(above: &Levels<'_>, of_above: &OnLevel<'_>) -> Vec<String> {
    let sections = [Section::Authorization, Section::Limits].into_iter();
    let effective = sections.filter_map(|section| above.applied(section).pop());
    let by_paths = effective.filter(|one| match one.content() {
        Ok(Content::Authorization(authorization)) => authorization.needs_paths(),
        Ok(Content::Limits(limits)) => limits.limits.iter().any(|it| looks_at_paths(it)),
        // One that cannot be used now may do so once it is mended.
        Ok(_) | Err(_) => true,
    });
    let evaded = by_paths.map(|one| {
        let (field, name) = (one.section.field(), &one.policy.name);
        let of_above = &of_above.policy.name;
        format!("spec.path lets slashes pass that {of_above} does not, and {field} of {name} decides by paths")
    });
    evaded.collect()
}

fn looks_at_paths(limit: &Limit) -> bool {
    let condition = limit.condition.as_ref();
    !limit.is_audit && condition.is_some_and(|condition| !condition.path.is_any())
}

/// Returns how a section permits more than the one that it replaces.
fn replaced(above: &OnLevel<'_>, own: &OnLevel<'_>) -> Option<String> {
    let (name, field) = (&above.policy.name, own.section.field());
    let content = own.content().ok()?;
    let Ok(of_above) = above.content() else {
        let is_known = own.section == Section::Limits || permits_nothing(content);
        return (!is_known).then(|| {
            format!("{field} replaces that of {name}, which cannot be used: nothing says what that one permits")
        });
    };
    match (of_above, content) {
        (Content::Authorization(above), Content::Authorization(own)) => {
            let is_same = (&above.rules, above.default) == (&own.rules, own.default);
            let is_stricter = own.denies_all();
            (!is_same && !is_stricter)
                .then(|| format!("spec.authorization replaces the rules of {name}"))
        }
        (Content::IpRules { allow: above, .. }, Content::IpRules { allow: own, .. }) => {
            match (above.as_ref()?, own) {
                (_, None) => Some(format!("spec.ipRules removes allow of {name}")),
                (above, Some(own)) if !above.contains_all(own) => Some(format!(
                    "spec.ipRules.allow permits addresses that {name} does not permit"
                )),
                (_, Some(_)) => None,
            }
        }
        _ => by_credentials(above, own),
    }
}

/// Reports whether a section permits no more than any other one.
fn permits_nothing(content: &Content) -> bool {
    match content {
        Content::Authorization(own) => own.denies_all(),
        Content::IpRules { allow, .. } => allow.as_ref().is_some_and(|it| it.is_empty()),
        Content::Require(require) => *require == Require::All,
        _ => false,
    }
}

/// Returns how credentials of a section permit more than those that they replace.
fn by_credentials(above: &OnLevel<'_>, own: &OnLevel<'_>) -> Option<String> {
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
fn made_needless(levels: &Levels<'_>, section: Section, policy: &Policy) -> Option<String> {
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
