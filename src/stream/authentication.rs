//! Authentication and authorization of pods. A pod may read a Gateway's objects if it runs in the
//! workload and under the ServiceAccount that this controller created for that Gateway. Uses the
//! API server.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::{Metadata, NamespaceResourceScope};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::message::AUDIENCE;
use super::token::{self, Claims};
use crate::api::gateway::Gateway;
use crate::api_server::{describe, request};
use crate::provision;

/// Maximum number of concurrent requests, so that many pods do not overload the API server.
const MAX_CONCURRENT: usize = 16;
/// Maximum number of cached tokens. Each pod has one, and gets a new one at most once an hour.
const MAX_CACHED: usize = 16_384;

/// Why a pod is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The token is missing or not valid for this controller.
    Unauthenticated(String),
    /// The token does not belong to a pod of the Gateway.
    Forbidden(String),
    /// The API server could not be reached.
    Unavailable(String),
}

impl Refusal {
    /// Returns the HTTP status of the response.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Unauthenticated(_) => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns the reason for the logs of the pod and of the controller.
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Unauthenticated(message)
            | Self::Forbidden(message)
            | Self::Unavailable(message) => message,
        }
    }
}

/// The pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) namespace: String,
    pub(super) service_account: String,
    service_account_uid: String,
    pub(super) pod: String,
    pod_uid: String,
    /// Expiry of the token in seconds since the Unix epoch.
    expires: u64,
}

impl Identity {
    /// Returns remaining lifetime of the token.
    pub(super) fn lifetime(&self) -> Duration {
        Duration::from_secs(self.expires.saturating_sub(seconds()))
    }
}

/// Authenticates pods with the API server.
pub(super) struct Authenticator {
    client: Client,
    turns: Semaphore,
    /// Results of TokenReviews by a keyed hash of the token, until it expires.
    reviewed: Mutex<HashMap<u64, Reviewed>>,
    hasher: RandomState,
}

struct Reviewed {
    token: String,
    identity: Identity,
}

impl Authenticator {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            turns: Semaphore::new(MAX_CONCURRENT),
            reviewed: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    /// Authenticates a token with a TokenReview and returns the pod that it is bound to. Results
    /// are cached until the token expires.
    pub(super) async fn identify(&self, token: &str) -> Result<Identity, Refusal> {
        // The unverified claims reject clearly invalid tokens without a request to the API server.
        let claims = token::claims(token).map_err(Refusal::Unauthenticated)?;
        let now = seconds();
        if claims.expires <= now {
            let message = "the token has expired".to_owned();
            return Err(Refusal::Unauthenticated(message));
        }
        if let Some(identity) = self.cached(token, now) {
            return Ok(identity);
        }
        let identity = self.review(token, &claims).await?;
        self.cache(token, &identity, now);
        Ok(identity)
    }

    /// Reports whether the pod is known to be deleted.
    pub(super) async fn is_deleted(&self, identity: &Identity) -> bool {
        match self.metadata::<Pod>(identity, &identity.pod).await {
            Ok(pod) => pod.uid.as_deref() != Some(&identity.pod_uid),
            Err(refusal) => matches!(refusal, Refusal::Forbidden(_)),
        }
    }

    /// Authorizes a pod: this controller must have created its ServiceAccount and its workload for
    /// the Gateway.
    pub(super) async fn authorize(
        &self,
        identity: &Identity,
        gateway: &Gateway,
    ) -> Result<(), Refusal> {
        let uid = gateway.metadata.uid.as_str();
        let name = provision::service_account_name(gateway);
        if identity.namespace != gateway.metadata.namespace || identity.service_account != name {
            let Identity {
                namespace,
                service_account,
                ..
            } = identity;
            return Err(forbidden(format!(
                "ServiceAccount {namespace}/{service_account} is not the ServiceAccount of the Gateway's pods"
            )));
        }
        let account = self.metadata::<ServiceAccount>(identity, &name).await?;
        if account.uid.as_deref() != Some(&identity.service_account_uid)
            || !provision::is_owned_by(&account, uid)
        {
            return Err(forbidden(format!(
                "ServiceAccount {name} was not created by this controller for the Gateway"
            )));
        }
        let pod = self.metadata::<Pod>(identity, &identity.pod).await?;
        if pod.uid.as_deref() != Some(&identity.pod_uid) {
            return Err(forbidden(format!(
                "pod {} has a different UID than the token",
                identity.pod
            )));
        }
        let workload = self.workload(identity, &pod).await?;
        if !workload.is_some_and(|workload| provision::is_owned_by(&workload, uid)) {
            return Err(forbidden(format!(
                "pod {} does not belong to a workload of the Gateway",
                identity.pod
            )));
        }
        Ok(())
    }

    /// Returns the Deployment or DaemonSet that owns a pod.
    async fn workload(
        &self,
        identity: &Identity,
        pod: &ObjectMeta,
    ) -> Result<Option<ObjectMeta>, Refusal> {
        match controller(pod) {
            Some(owner) if owner.kind == "DaemonSet" => {
                self.owner::<DaemonSet>(identity, owner).await
            }
            Some(owner) if owner.kind == "ReplicaSet" => {
                let set = self.owner::<ReplicaSet>(identity, owner).await?;
                match set.as_ref().and_then(controller) {
                    Some(owner) if owner.kind == "Deployment" => {
                        self.owner::<Deployment>(identity, owner).await
                    }
                    _ => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// Returns the owner of a reference. Fails if the owner has a different UID.
    async fn owner<K>(
        &self,
        identity: &Identity,
        reference: &OwnerReference,
    ) -> Result<Option<ObjectMeta>, Refusal>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + DeserializeOwned + std::fmt::Debug + Metadata<Ty = ObjectMeta>,
    {
        let owner = self.metadata::<K>(identity, &reference.name).await?;
        Ok((owner.uid.as_ref() == Some(&reference.uid)).then_some(owner))
    }

    async fn metadata<K>(&self, identity: &Identity, name: &str) -> Result<ObjectMeta, Refusal>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + DeserializeOwned + std::fmt::Debug + Metadata<Ty = ObjectMeta>,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &identity.namespace);
        let _turn = self.turns.acquire().await;
        let found = request(api.get_metadata_opt(name)).await;
        match found.map_err(Refusal::Unavailable)? {
            Ok(Some(object)) => Ok(object.metadata),
            Ok(None) => Err(forbidden(format!("{} {name} does not exist", K::KIND))),
            Err(error) => Err(Refusal::Unavailable(describe(&error))),
        }
    }

    async fn review(&self, token: &str, claims: &Claims) -> Result<Identity, Refusal> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                audiences: Some(vec![AUDIENCE.to_owned()]),
                token: token.to_owned(),
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let reviewed = {
            let _turn = self.turns.acquire().await;
            request(api.create(&PostParams::default(), &review)).await
        };
        let reviewed = reviewed.map_err(Refusal::Unavailable)?;
        let reviewed = reviewed.map_err(|error| Refusal::Unavailable(describe(&error)))?;
        let status = reviewed.status.unwrap_or_default();
        let is_for_us = || {
            let mut audiences = status.audiences.iter().flatten();
            audiences.any(|audience| audience == AUDIENCE)
        };
        if status.authenticated != Some(true) || !is_for_us() {
            let why = status.error.as_deref().unwrap_or("it is not valid");
            let message = format!("the API server rejected the token: {why}");
            return Err(Refusal::Unauthenticated(message));
        }
        let user = status.user.unwrap_or_default();
        identity(&user, claims).ok_or_else(|| {
            let name = user.username.as_deref().unwrap_or_default();
            forbidden(format!("the token of {name} is not bound to a pod"))
        })
    }

    fn cached(&self, token: &str, now: u64) -> Option<Identity> {
        let known = self.reviewed.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get(&self.hash(token))?;
        (known.token == token && known.identity.expires > now).then(|| known.identity.clone())
    }

    fn cache(&self, token: &str, identity: &Identity, now: u64) {
        let mut reviewed = self.reviewed.lock().unwrap_or_else(PoisonError::into_inner);
        if reviewed.len() >= MAX_CACHED {
            reviewed.retain(|_, one| one.identity.expires > now);
        }
        if reviewed.len() < MAX_CACHED {
            let one = Reviewed {
                token: token.to_owned(),
                identity: identity.clone(),
            };
            reviewed.insert(self.hash(token), one);
        }
    }

    fn hash(&self, token: &(impl Hash + ?Sized)) -> u64 {
        self.hasher.hash_one(token)
    }
}

/// Returns the pod that a reviewed token is bound to.
fn identity(user: &UserInfo, claims: &Claims) -> Option<Identity> {
    let name = user.username.as_deref()?;
    let name = name.strip_prefix("system:serviceaccount:")?;
    let (namespace, service_account) = name.split_once(':')?;
    let extra = |key: &str| {
        let key = format!("authentication.kubernetes.io/{key}");
        user.extra.as_ref()?.get(&key)?.first().cloned()
    };
    Some(Identity {
        namespace: namespace.to_owned(),
        service_account: service_account.to_owned(),
        service_account_uid: user.uid.clone()?,
        pod: extra("pod-name")?,
        pod_uid: extra("pod-uid")?,
        expires: claims.expires,
    })
}

/// Returns the controller owner reference of an object.
fn controller(object: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = object.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true) && owner.api_version == "apps/v1")
}

fn forbidden(message: String) -> Refusal {
    Refusal::Forbidden(message)
}

fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or(Duration::ZERO).as_secs()
}
