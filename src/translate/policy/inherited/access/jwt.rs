//! `jwt`: the issuers of tokens, their keys, and where requests have tokens.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use jsonwebtoken::Algorithm;

use crate::api::access_policy::{Jwks, Jwt, JwtProvider};
use crate::api::core::{ConfigMap, Secret};
use crate::api::reference::{ConfigMapRef, SecretRef};
use crate::ir::ObjectRef;
use crate::ir::authentication::KeyPlace;
use crate::ir::token::{KeyMaterial, Provider, TokenType, Tokens, VerificationKey};

use super::super::credential::{KEY_SET, SHARED_KEY};
use super::super::policy::Content;
use super::api_key::place;
use super::secret::{References, claim_headers};
use super::{jwks, remote};
use crate::translate::duration;
use crate::translate::gateway::certificate::value;
use crate::translate::reason::{Fault, Reason, all, both, invalid};

/// Least length of a shared key, in bytes: that of the hash of HS256 (RFC 7518, 3.2).
const MIN_SHARED: usize = 32;
/// By how much clocks may differ if the policy does not say it.
const LEEWAY: Duration = Duration::from_secs(60);
/// Greatest such difference.
const MAX_LEEWAY: Duration = Duration::from_secs(600);
/// The algorithms that verify with a shared key.
const SHARED: [Algorithm; 3] = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];

/// Parses the section.
pub(super) fn read(references: &mut References<'_>, section: &Jwt) -> Result<Content, Fault> {
    let Jwt { providers } = section;
    let mut issuers = BTreeSet::new();
    let read = providers.iter().enumerate().map(|(index, provider)| {
        let field = format!("spec.jwt.providers[{index}]");
        if provider.issuer.is_empty() || !issuers.insert(&provider.issuer) {
            let issuer = &provider.issuer;
            return invalid(format!("{field}.issuer: {issuer:?} is empty or not unique"));
        }
        self::provider(references, provider, &field)
    });
    let read: Vec<_> = all(read)?;
    if read.is_empty() {
        return invalid("spec.jwt.providers: names no issuer of tokens".to_owned());
    }
    Ok(Content::Jwt(Arc::new(Tokens {
        policy: references.origin.clone(),
        providers: read.into(),
    })))
}

fn provider(
    references: &mut References<'_>,
    provider: &JwtProvider,
    field: &str,
) -> Result<Provider, Fault> {
    let JwtProvider {
        issuer,
        audiences,
        jwks,
        from,
        claim_to_headers,
        leeway,
        typ,
        algorithms,
    } = provider;
    let leeway = leeway.as_deref().map_or(Ok(LEEWAY), |text| {
        duration::parse(text, &format!("{field}.leeway"))
    })?;
    if leeway > MAX_LEEWAY {
        return invalid(format!("{field}.leeway: is more than 10m"));
    }
    let algorithms = self::algorithms(algorithms, jwks.secret_ref.is_some(), field);
    let from = from.iter().enumerate();
    let from = from.map(|(index, source)| place(source, &format!("{field}.from[{index}]")));
    let from = all::<_, Vec<_>>(from);
    let claim_headers = claim_headers(claim_to_headers, field);
    let (algorithms, (mut from, claim_headers)) = both(algorithms, both(from, claim_headers))?;
    if from.is_empty() {
        from.push(KeyPlace::Header(AUTHORIZATION));
    }
    let Keys {
        keys,
        key_set,
        key_server_tls,
    } = keys(references, jwks, &algorithms, &format!("{field}.jwks"))?;
    Ok(Provider {
        issuer: issuer.as_str().into(),
        audiences: audiences.iter().map(|it| it.as_str().into()).collect(),
        keys,
        key_set,
        key_server_tls,
        from: from.into(),
        claim_headers,
        leeway: leeway.as_secs(),
        token_type: typ.as_deref().map(TokenType::new),
    })
}

/// Returns the permitted algorithms. Those with a shared key need one, and others a public key: a public key must never be
/// taken for a shared one.
fn algorithms(names: &[String], is_shared: bool, field: &str) -> Result<Vec<Algorithm>, Fault> {
    let possible: &[Algorithm] = if is_shared { &SHARED } else { &jwks::PUBLIC };
    if names.is_empty() {
        return Ok(possible.to_vec());
    }
    let algorithm = |(index, name): (usize, &String)| {
        let found = possible.iter().find(|it| format!("{it:?}") == *name);
        found.copied().ok_or_else(|| {
            let possible: Vec<_> = possible.iter().map(|it| format!("{it:?}")).collect();
            let message = format!(
                "{field}.algorithms[{index}]: {name:?} is none of {}, which these keys can have",
                possible.join(", ")
            );
            Fault::new(Reason::Invalid, message)
        })
    };
    all(names.iter().enumerate().map(algorithm))
}

/// The keys of a provider.
struct Keys {
    keys: Box<[VerificationKey]>,
    /// The KeySet that has them, if they are fetched.
    key_set: Option<ObjectRef>,
    /// The policy that asks for TLS to the Service that they are fetched from.
    key_server_tls: Option<ObjectRef>,
}

fn keys(
    references: &mut References<'_>,
    jwks: &Jwks,
    algorithms: &[Algorithm],
    field: &str,
) -> Result<Keys, Fault> {
    let Jwks {
        inline,
        config_map_ref,
        secret_ref,
        remote,
    } = jwks;
    let keys = match (inline, config_map_ref, secret_ref, remote) {
        (Some(text), None, None, None) => {
            let field = format!("{field}.inline");
            let read = jwks::read(text, algorithms);
            let (keys, problems) = read.map_err(|problem| {
                Fault::new(Reason::Invalid, format!("{field}: the text {problem}"))
            })?;
            references.left_out(Reason::Invalid, &field, &problems);
            Ok(keys)
        }
        (None, Some(map), None, None) => of_config_map(
            references,
            map,
            algorithms,
            &format!("{field}.configMapRef"),
        ),
        (None, None, Some(secret), None) => shared_key(
            references,
            secret,
            algorithms,
            &format!("{field}.secretRef"),
        ),
        (None, None, None, Some(remote)) => {
            let field = format!("{field}.remote");
            let set = remote::keys(references, remote, algorithms, &field)?;
            return Ok(Keys {
                keys: set.keys,
                key_set: Some(set.name),
                key_server_tls: set.tls,
            });
        }
        _ => invalid(format!(
            "{field}: has not exactly one of inline, configMapRef, secretRef and remote"
        )),
    };
    keys.map(|keys| Keys {
        keys,
        key_set: None,
        key_server_tls: None,
    })
}

fn of_config_map(
    references: &mut References<'_>,
    map: &ConfigMapRef,
    algorithms: &[Algorithm],
    field: &str,
) -> Result<Box<[VerificationKey]>, Fault> {
    let name = ObjectRef::core("ConfigMap", &references.origin.namespace, &map.name);
    let found = references.input.find::<ConfigMap>(&name);
    let found = found.ok_or_else(|| references.input.absence(&name).to_owned());
    let text = found.and_then(|map| {
        let text = map.data.get(KEY_SET);
        text.ok_or_else(|| format!("has no {KEY_SET}"))
    });
    let read = text.and_then(|text| {
        let read = jwks::read(text, algorithms);
        read.map_err(|problem| format!("has {KEY_SET} that {problem}"))
    });
    match read {
        Ok((keys, problems)) => {
            let place = format!("{field}: {name}");
            references.left_out(Reason::InvalidConfigMapRef, &place, &problems);
            Ok(keys)
        }
        Err(problem) => {
            let message = format!("{field}: {name} {problem}");
            let fault = Fault::new(Reason::InvalidConfigMapRef, message);
            references.unresolved.push(fault.clone());
            Err(Fault::new(Reason::Invalid, fault.message))
        }
    }
}

fn shared_key(
    references: &mut References<'_>,
    reference: &SecretRef,
    algorithms: &[Algorithm],
    field: &str,
) -> Result<Box<[VerificationKey]>, Fault> {
    let read = |secret: &Secret| {
        let key = value(secret, SHARED_KEY)?;
        match key.len() >= MIN_SHARED {
            true => Ok((Box::from(key), Vec::new())),
            false => Err(format!(
                "has a {SHARED_KEY} of less than {MIN_SHARED} bytes, which can be guessed"
            )),
        }
    };
    let key = references.read(reference, field, read)?;
    Ok([VerificationKey {
        id: None,
        algorithms: algorithms.into(),
        material: KeyMaterial::Shared(key),
    }]
    .into())
}
