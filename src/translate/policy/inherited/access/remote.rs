//! `jwks.remote` and the keys of OpenID providers: key sets that issuers publish. Says which ones the policies of a snapshot
//! need, and reads those that were fetched. Must not fetch them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use jsonwebtoken::Algorithm;

use crate::api::access_policy::{AccessPolicy, Oidc, RemoteJwks};
use crate::api::core::ConfigMap;
use crate::api::key_set::{Discovery, KeySet};
use crate::api::parameters::GROUP;
use crate::api::reference::{BackendObjectRef, ConfigMapRef};
use crate::api::{Key, Resource};
use crate::ir::ObjectRef;
use crate::ir::tls::Authorities;
use crate::ir::token::VerificationKey;
use crate::snapshot::Snapshot;

use super::key_backend::KeyServer;
use super::secret::References;
use super::server_uri::{uri, uri_of_backend};
use super::{discovery, jwks, key_backend};
use crate::translate::duration;
use crate::translate::gateway::authority::{self, Union};
use crate::translate::input::Input;
use crate::translate::reason::{Fault, Reason};

/// Maximum number of key sets that are fetched for a namespace.
const MAX_PER_NAMESPACE: usize = 16;
/// For how long keys are used before they are fetched again, if the policy does not say it.
const CACHE_DURATION: Duration = Duration::from_secs(5 * 60);
/// Least and greatest such time. A shorter one would be a load for the issuer.
const CACHE_DURATIONS: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(10)..=Duration::from_secs(24 * 60 * 60);

/// A key set that policies need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedKeySet {
    /// Where it is.
    pub source: KeySetSource,
    /// For how long it is used before it is fetched again.
    pub cache_duration: Duration,
}

/// Where a key set is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySetSource {
    /// The URI: of HTTPS with a DNS name, or of HTTP with a loopback address.
    pub uri: Uri,
    /// The authorities of the server's certificate.
    pub authorities: Authorities,
    /// The OpenID provider whose discovery document is there, which says where the keys are; `None` if the keys are there.
    pub provider: Option<Box<str>>,
    /// The Service that is asked; `None` for the addresses of the host.
    pub server: Option<KeyServer>,
}

/// The key sets that policies need, by the key of their [`KeySet`]; or why they cannot be fetched.
pub type WantedKeySets = BTreeMap<Key, Result<WantedKeySet, String>>;

/// Returns the key sets that the policies of a snapshot need. The oldest policies of a namespace come first if it has too
/// many.
pub(in crate::translate) fn wanted_key_sets(
    snapshot: &Snapshot,
    input: &Input<'_>,
) -> WantedKeySets {
    let policies = snapshot.access_policies.iter();
    let mut policies: Vec<_> = policies.filter(|it| !remotes(it).is_empty()).collect();
    policies.sort_by_cached_key(|policy| {
        let metadata = &policy.metadata;
        let (namespace, name) = (metadata.namespace.clone(), metadata.name.clone());
        (namespace, metadata.creation_timestamp, name)
    });
    let mut wanted = WantedKeySets::new();
    let mut in_namespace: BTreeMap<&str, usize> = BTreeMap::new();
    for policy in policies {
        let namespace = &*policy.metadata.namespace;
        for remote in remotes(policy) {
            let Ok((uri, cache_duration)) = remote.place else {
                continue;
            };
            let key = Key::new(namespace, &remote.name);
            if let Some(known) = wanted.get_mut(&key) {
                if let Ok(known) = known {
                    known.cache_duration = known.cache_duration.min(cache_duration);
                }
                continue;
            }
            let count = in_namespace.entry(namespace).or_default();
            *count += 1;
            let source = match *count > MAX_PER_NAMESPACE {
                true => Err(format!(
                    "the namespace has more than {MAX_PER_NAMESPACE} key sets"
                )),
                false => authorities(remote.authorities, namespace, |name| {
                    snapshot.config_maps.get(namespace, &name.name)
                }),
            };
            let set = source.and_then(|authorities| {
                let name = policy.object_ref();
                let server = remote.backend;
                let server = server.map(|it| key_backend::server(input, &name, it));
                Ok(WantedKeySet {
                    source: KeySetSource {
                        uri,
                        authorities,
                        provider: remote.provider.map(Into::into),
                        server: server.transpose()?,
                    },
                    cache_duration,
                })
            });
            wanted.insert(key, set);
        }
    }
    wanted
}

/// Returns the policies that need each key set.
pub fn key_set_users(snapshot: &Snapshot) -> BTreeMap<Key, Vec<ObjectRef>> {
    let mut users: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for policy in snapshot.access_policies.iter() {
        for remote in remotes(policy) {
            let key = Key::new(&policy.metadata.namespace, &remote.name);
            users.entry(key).or_default().push(policy.object_ref());
        }
    }
    users
}

/// Reports why a response is not a key set that can be used. The message continues a sentence that begins with its place.
///
/// # Errors
/// When no key of it verifies signatures of tokens.
pub fn check_key_set(text: &str) -> Result<(), String> {
    jwks::check(text)
}

/// A key set that a policy names.
pub(super) struct Remote<'a> {
    /// The name of its [`KeySet`].
    name: String,
    /// Where it is, and for how long it is used.
    place: Result<(Uri, Duration), Fault>,
    /// The authorities of the server's certificate.
    authorities: Option<&'a ConfigMapRef>,
    /// The OpenID provider whose keys these are.
    provider: Option<&'a str>,
    /// The Service that is asked.
    backend: Option<&'a BackendObjectRef>,
}

impl<'a> Remote<'a> {
    fn of_jwks(remote: &'a RemoteJwks, field: &str) -> Self {
        Self {
            name: KeySet::name_of(remote),
            place: read(remote, field),
            authorities: remote.ca_config_map_ref.as_ref(),
            provider: None,
            backend: remote.backend_ref.as_ref(),
        }
    }

    /// The keys of an OpenID provider.
    pub(super) fn of_provider(oidc: &'a Oidc) -> Self {
        Self {
            name: KeySet::name_of_provider(oidc),
            place: discovery::uri(&oidc.issuer).map(|uri| (uri, CACHE_DURATION)),
            authorities: oidc.ca_config_map_ref.as_ref(),
            provider: Some(&oidc.issuer),
            backend: None,
        }
    }
}

fn remotes(policy: &AccessPolicy) -> Vec<Remote<'_>> {
    let providers = policy.spec.jwt.iter().flat_map(|jwt| &jwt.providers);
    let remotes = providers.filter_map(|provider| provider.jwks.remote.as_ref());
    let remotes = remotes.map(|remote| Remote::of_jwks(remote, ""));
    let providers = policy.spec.oidc.iter().map(Remote::of_provider);
    remotes.chain(providers).collect()
}

/// A key set as it was fetched last.
pub(super) struct FetchedSet {
    /// The keys; empty as long as they are unknown.
    pub(super) keys: Box<[VerificationKey]>,
    /// Its name.
    pub(super) name: ObjectRef,
    /// The authorities of the server's certificate; `None` if they cannot be used.
    pub(super) authorities: Option<Authorities>,
    /// The policy that asks for TLS to the Service that the keys are fetched from.
    pub(super) tls: Option<ObjectRef>,
    /// What the discovery document of the OpenID provider says.
    pub(super) discovery: Option<Discovery>,
}

/// Returns the set that a policy names, as it was fetched last.
pub(super) fn keys(
    references: &mut References<'_>,
    remote: &RemoteJwks,
    algorithms: &[Algorithm],
    field: &str,
) -> Result<FetchedSet, Fault> {
    let place = (field, &*format!("{field}.caConfigMapRef"));
    let remote = Remote::of_jwks(remote, field);
    let without = "requests with tokens of this issuer get 500";
    fetched(references, remote, algorithms, (place, without))
}

/// Returns a set as it was fetched last. `field` and `of_authorities` are those of the policy, and `without` says what
/// happens without keys.
pub(super) fn fetched(
    references: &mut References<'_>,
    remote: Remote<'_>,
    algorithms: &[Algorithm],
    ((field, of_authorities), without): ((&str, &str), &str),
) -> Result<FetchedSet, Fault> {
    let (uri, _) = remote.place?;
    let namespace = references.origin.namespace.clone();
    let input = references.input;
    let find = |name: &ObjectRef| input.find::<ConfigMap>(name);
    let authorities = authorities(remote.authorities, &namespace, find);
    let authorities = authorities.map_err(|problem| {
        let message = format!("{of_authorities}: {problem}");
        let fault = Fault::new(Reason::InvalidConfigMapRef, message);
        references.unresolved.push(fault);
    });
    let name = ObjectRef::new(GROUP, KeySet::KIND, &namespace, &remote.name);
    let server = remote.backend.map(|reference| {
        let field = format!("{field}.backendRef");
        key_backend::resolve(input, references.origin, reference, &field)
    });
    let (tls, broken) = match server {
        Some(Ok(server)) => (server.tls.map(|(policy, _)| policy), None),
        Some(Err(fault)) => (None, Some(fault)),
        None => (None, None),
    };
    let set = input.find::<KeySet>(&name);
    let text = set.and_then(|set| set.keys.as_deref());
    let place = format!("{field}: {uri}");
    let (keys, unusable) = match text.map(|text| jwks::read(text, algorithms)) {
        None => (Box::default(), None),
        Some(Ok((keys, problems))) => {
            references.left_out(Reason::InvalidKeySet, &place, &problems);
            (keys, None)
        }
        Some(Err(problem)) => (Box::default(), Some(problem)),
    };
    let outcome = match keys.is_empty() {
        true => without,
        false => "the keys that were fetched before stay in use",
    };
    // What the fetch says of a broken reference is the same.
    let not_fetched = set.filter(|_| broken.is_none());
    let not_fetched = not_fetched.and_then(|set| set.problem.clone());
    references.unresolved.extend(broken.map(|fault| {
        let message = format!("{}; {outcome}", fault.message);
        Fault::new(fault.reason, message)
    }));
    let problems = [
        (Reason::KeySetNotFetched, not_fetched),
        (Reason::InvalidKeySet, unusable),
    ];
    for (reason, problem) in problems {
        let message = problem.map(|problem| format!("{place} {problem}; {outcome}"));
        let fault = message.map(|message| Fault::new(reason, message));
        references.unresolved.extend(fault);
    }
    Ok(FetchedSet {
        keys,
        name,
        authorities: authorities.ok(),
        tls,
        discovery: set.and_then(|set| set.discovery.clone()),
    })
}

/// Parses where a key set is, and for how long it is used.
fn read(remote: &RemoteJwks, field: &str) -> Result<(Uri, Duration), Fault> {
    let uri = match remote.backend_ref {
        None => uri(&remote.uri),
        Some(_) => uri_of_backend(&remote.uri),
    };
    let uri = uri.map_err(|why| Fault::new(Reason::Invalid, format!("{field}.uri: {why}")))?;
    let field = format!("{field}.cacheDuration");
    let duration = remote.cache_duration.as_deref();
    let duration = duration.map_or(Ok(CACHE_DURATION), |text| duration::parse(text, &field))?;
    if !CACHE_DURATIONS.contains(&duration) {
        let message = format!("{field}: is less than 10s or more than 24h");
        return Err(Fault::new(Reason::Invalid, message));
    }
    Ok((uri, duration))
}

/// Returns the authorities that a policy names. The error is a sentence.
fn authorities<'a>(
    map: Option<&ConfigMapRef>,
    namespace: &str,
    find: impl FnOnce(&ObjectRef) -> Option<&'a Arc<ConfigMap>>,
) -> Result<Authorities, String> {
    let Some(map) = map else {
        return Ok(Authorities::System);
    };
    let name = ObjectRef::core("ConfigMap", namespace, &map.name);
    let map = find(&name).ok_or_else(|| format!("{name} does not exist"))?;
    let bundle = authority::of_config_map(map, &name);
    let bundle = bundle.map_err(|problem| format!("{name} {problem}"))?;
    let mut union = Union::default();
    union.add(bundle);
    Ok(Authorities::Certificates(union.into_list()))
}

#[cfg(test)]
mod tests;
