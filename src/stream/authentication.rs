//! Authentication and authorization of pods. A pod may read a Gateway's objects if it runs in the
//! workload and under the ServiceAccount that this controller created for that Gateway. Owns the
//! requests to the API server.

use std::net::IpAddr;
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
use tokio::sync::{Mutex, Semaphore};
use tokio::time::{Instant, timeout};

use super::keys::{KeySet, Keys, Verdict};
use super::reviews::{Remembered, Reviews};
use super::token::{self, Bound, Claims};
use crate::api::gateway::Gateway;
use crate::cluster::api_server::{describe, request};
use crate::provision;
use crate::wire::AUDIENCE;

/// Maximum number of concurrent requests for owners of pods, so that many pods do not overload the API server.
const MAX_CONCURRENT: usize = 16;
/// Path of the public keys of ServiceAccount tokens. By default, every ServiceAccount may read it.
const KEYS: &str = "/openid/v1/jwks";
/// Minimum interval of requests for the keys, and their maximum age.
const KEYS_PAUSE: Duration = Duration::from_secs(10);
const KEYS_AGE: Duration = Duration::from_secs(60 * 60);
/// Timeout of that request. Without the keys, TokenReviews decide alone.
const KEYS_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of characters of the API server's reason for a refusal.
const MAX_REASON: usize = 200;
/// What a client gets whose token gives no access to the Gateway that it names. It does not say which Gateways exist.
const FORBIDDEN: &str =
    "the token gives no access to this Gateway: the log of the controller says why";

/// Why a pod is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The token is missing, or shows by itself that it is not valid for this controller.
    Unauthenticated(String),
    /// The token is forged, does not belong to a pod of the Gateway, or the Gateway does not exist.
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

    /// Returns the reason for the log of the controller.
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Unauthenticated(message)
            | Self::Forbidden(message)
            | Self::Unavailable(message) => message,
        }
    }

    /// Returns the text of the response.
    pub(super) fn body(&self) -> &str {
        match self {
            Self::Unauthenticated(message) | Self::Unavailable(message) => message,
            Self::Forbidden(_) => FORBIDDEN,
        }
    }
}

/// The pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    namespace: String,
    service_account: String,
    service_account_uid: String,
    pub(super) pod: String,
    pub(super) pod_uid: String,
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
    reviews: Reviews<Identity>,
    keys: Mutex<FetchedKeys>,
}

/// Public keys, and when they were requested last.
#[derive(Default)]
struct FetchedKeys {
    keys: Keys,
    at: Option<Instant>,
}

impl Authenticator {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            turns: Semaphore::new(MAX_CONCURRENT),
            reviews: Reviews::new(),
            keys: Mutex::default(),
        }
    }

    /// Authenticates a token from `address`, and authorizes its pod for a Gateway, `None` if there is none of the name.
    /// Results of TokenReviews are remembered. What the token itself shows is checked first, so that an invalid one costs
    /// no request; the Gateway only once the token is known to be genuine. A pod that asks without pause is refused.
    pub(super) async fn admit(
        &self,
        token: &str,
        gateway: Option<&Gateway>,
        address: IpAddr,
    ) -> Result<Identity, Refusal> {
        let now = seconds();
        let claims = token::claims(token, now).map_err(Refusal::Unauthenticated)?;
        let identity = match self.reviews.remembered(token, now) {
            Some(Remembered::Accepted(identity)) => identity,
            Some(Remembered::Refused(why)) => return Err(forbidden(why)),
            None => self.identify(token, &claims, gateway, address, now).await?,
        };
        if !self.reviews.may_ask(&identity.pod_uid) {
            let why = "the pod asks for streams without pause: retry in a second";
            return Err(Refusal::Unavailable(why.to_owned()));
        }
        match self.authorize(&identity, gateway).await {
            Ok(()) => self.reviews.has_stream(&identity.pod_uid, address),
            Err(refusal) => {
                if matches!(refusal, Refusal::Forbidden(_)) {
                    self.reviews.forget(&identity.pod_uid);
                }
                return Err(refusal);
            }
        }
        Ok(identity)
    }

    /// Has the API server verify a token that is not remembered. A genuine token of others is treated like a forged one.
    async fn identify(
        &self,
        token: &str,
        claims: &Claims<'_>,
        gateway: Option<&Gateway>,
        address: IpAddr,
        now: u64,
    ) -> Result<Identity, Refusal> {
        let verdict = self.verify(claims).await;
        match (verdict, &claims.bound) {
            (Verdict::Invalid, _) => {
                return Err(forbidden("the signature of the token is not valid"));
            }
            // The API server has made these claims, so that a token of others costs no review.
            (Verdict::Valid, Some(bound)) => check_bound(bound, gateway)?,
            _ => {}
        }
        let busy = || {
            let why = "too many tokens from this address were refused: retry in a few seconds";
            Refusal::Unavailable(why.to_owned())
        };
        let lane = self.reviews.lane(claims, verdict, address);
        let lane = lane.ok_or_else(busy)?;
        let turn = self.reviews.turn(lane).await;
        // Other requests with this token, or from this address, may have had their turn meanwhile.
        match self.reviews.remembered(token, now) {
            Some(Remembered::Accepted(identity)) => return Ok(identity),
            Some(Remembered::Refused(why)) => return Err(forbidden(why)),
            None => {}
        }
        self.reviews
            .lane(claims, verdict, address)
            .ok_or_else(busy)?;
        let reviewed = self.review(token, claims).await;
        let reviewed = reviewed.and_then(|identity| {
            check_account(&identity.namespace, &identity.service_account, gateway)?;
            Ok(identity)
        });
        match &reviewed {
            Ok(identity) => self.reviews.accept(token, claims, identity, now),
            Err(Refusal::Unauthenticated(why) | Refusal::Forbidden(why)) => {
                self.reviews.refuse(token, why, address);
            }
            Err(Refusal::Unavailable(_)) => {}
        }
        drop(turn);
        reviewed
    }

    /// Verifies the signature of a token with the API server's public keys, if they can be read.
    async fn verify(&self, claims: &Claims<'_>) -> Verdict {
        let mut known = self.keys.lock().await;
        let verdict = known.keys.verify(claims);
        let age = known.at.map(|at| at.elapsed());
        let is_due = match verdict {
            Verdict::Valid | Verdict::Invalid => age.is_none_or(|age| age > KEYS_AGE),
            Verdict::UnknownKey | Verdict::NoKeys => age.is_none_or(|age| age > KEYS_PAUSE),
        };
        if !is_due {
            return verdict;
        }
        known.at = Some(Instant::now());
        if let Some(keys) = self.fetch_keys().await {
            known.keys = keys;
        }
        known.keys.verify(claims)
    }

    /// Requests the public keys. `None` if this controller may not read them.
    async fn fetch_keys(&self) -> Option<Keys> {
        let keys = http::Request::get(KEYS).body(Vec::new()).ok()?;
        let keys = timeout(KEYS_TIMEOUT, self.client.request::<KeySet>(keys)).await;
        match keys.ok()? {
            Ok(keys) => Some(Keys::new(&keys)),
            Err(error) => {
                tracing::debug!("cannot read {KEYS}: {}", describe(&error));
                None
            }
        }
    }

    /// Reports whether the pod is known to be deleted.
    pub(super) async fn is_deleted(&self, identity: &Identity) -> bool {
        let is_deleted = match self.metadata::<Pod>(identity, &identity.pod).await {
            Ok(pod) => pod.uid.as_deref() != Some(&identity.pod_uid),
            Err(refusal) => matches!(refusal, Refusal::Forbidden(_)),
        };
        if is_deleted {
            self.reviews.forget(&identity.pod_uid);
        }
        is_deleted
    }

    /// Authorizes a pod: this controller must have created its ServiceAccount and its workload for
    /// the Gateway.
    async fn authorize(
        &self,
        identity: &Identity,
        gateway: Option<&Gateway>,
    ) -> Result<(), Refusal> {
        let gateway = check_account(&identity.namespace, &identity.service_account, gateway)?;
        let uid = gateway.metadata.uid.as_str();
        let name = &identity.service_account;
        let account = self.metadata::<ServiceAccount>(identity, name).await?;
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

    async fn review(&self, token: &str, claims: &Claims<'_>) -> Result<Identity, Refusal> {
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
            let why: String = why.chars().take(MAX_REASON).collect();
            return Err(forbidden(format!(
                "the API server rejected the token: {why}"
            )));
        }
        let user = status.user.unwrap_or_default();
        identity(&user, claims).ok_or_else(|| {
            let name = user.username.as_deref().unwrap_or_default();
            forbidden(format!("the token of {name} is not bound to a pod"))
        })
    }
}

/// Checks that the claims of a token name the ServiceAccount of the Gateway's pods and a pod.
fn check_bound(bound: &Bound, gateway: Option<&Gateway>) -> Result<(), Refusal> {
    let name = &bound.serviceaccount.name;
    if bound.pod.is_none() {
        return Err(forbidden(format!(
            "the token of ServiceAccount {}/{name} is not bound to a pod",
            bound.namespace
        )));
    }
    check_account(&bound.namespace, name, gateway).map(|_| ())
}

/// Returns the Gateway, if it exists and the ServiceAccount has the name of that of its pods.
fn check_account<'a>(
    namespace: &str,
    name: &str,
    gateway: Option<&'a Gateway>,
) -> Result<&'a Gateway, Refusal> {
    let gateway = gateway.ok_or_else(no_gateway)?;
    if gateway.metadata.namespace == namespace && name == provision::service_account_name(gateway) {
        return Ok(gateway);
    }
    Err(forbidden(format!(
        "ServiceAccount {namespace}/{name} is not the ServiceAccount of the Gateway's pods"
    )))
}

/// Rejects a pod of a Gateway that this controller does not serve.
pub(super) fn no_gateway() -> Refusal {
    forbidden("the Gateway does not exist, or does not belong to this controller")
}

/// Returns the pod that a reviewed token is bound to.
fn identity(user: &UserInfo, claims: &Claims<'_>) -> Option<Identity> {
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

fn forbidden(message: impl Into<String>) -> Refusal {
    Refusal::Forbidden(message.into())
}

fn seconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or(Duration::ZERO).as_secs()
}
