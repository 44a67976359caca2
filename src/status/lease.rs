//! Leader election: of several controllers, the one that holds a Lease of the cluster acts. No clock of another process
//! is trusted: a holder is gone when its Lease has not changed for as long as it lasts.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::api_server::describe;

/// How long a Lease lasts without being renewed. The times are those of Kubernetes' own controllers.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long a leader acts without having been able to renew: it ends before another may begin.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// The longest that one try may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(8);
/// How often the Lease is read, and renewed by its holder.
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// One candidate.
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    identity: String,
    /// The Lease as it was when it last changed, and when that was noticed.
    observed: Option<(LeaseSpec, Instant)>,
}

impl Candidate {
    /// A candidate for the Lease of this name. No two candidates may have the same identity.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            observed: None,
        }
    }

    /// Campaigns for as long as it is polled, and publishes whether it leads.
    pub async fn campaign(&mut self, is_leader: &watch::Sender<bool>) {
        let mut renewed: Option<Instant> = None;
        let mut logged = String::new();
        let may_act = |renewed: Option<Instant>| {
            renewed.is_some_and(|renewed: Instant| renewed.elapsed() < RENEW_DEADLINE)
        };
        loop {
            // The process may have stood still.
            self.publish(is_leader, may_act(renewed));
            let began = Instant::now();
            let tried = tokio::select! {
                biased;
                // A response that comes after the deadline must not be acted on.
                () = renew_deadline(renewed) => {
                    renewed = None;
                    Err("it could not be renewed in time".to_owned())
                }
                tried = timeout(REQUEST_TIMEOUT, self.try_acquire()) => {
                    tried.unwrap_or_else(|_| Err("the API server does not respond".to_owned()))
                }
            };
            match tried {
                Ok(holds) => {
                    renewed = holds.then_some(began);
                    logged.clear();
                }
                Err(error) => {
                    if logged != error {
                        tracing::warn!(
                            "Lease {} cannot be held: {error}; it is retried",
                            self.name
                        );
                        logged = error;
                    }
                }
            }
            self.publish(is_leader, may_act(renewed));
            sleep(RETRY_PERIOD).await;
        }
    }

    fn publish(&self, is_leader: &watch::Sender<bool>, leads: bool) {
        is_leader.send_if_modified(|is_leader| {
            let was = std::mem::replace(is_leader, leads);
            if was != leads {
                let what = if leads {
                    "is the leader now"
                } else {
                    "is no longer the leader"
                };
                tracing::info!("this controller, {}, {what}", self.identity);
            }
            was != leads
        });
    }

    /// Lets others lead at once, if the API server answers in time.
    pub async fn resign(&self) {
        // After a failure the others wait as for a process that died.
        let _ = timeout(RETRY_PERIOD, self.release()).await;
    }

    async fn release(&self) {
        let Ok(Some(mut lease)) = self.leases.get_opt(&self.name).await else {
            return;
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&self.identity) {
            spec.holder_identity = None;
            let _ = self
                .leases
                .replace(&self.name, &PostParams::default(), &lease)
                .await;
        }
    }

    /// Takes or renews the Lease if that is allowed; false when another holds it.
    async fn try_acquire(&mut self) -> Result<bool, String> {
        let text = |error: kube::Error| describe(&error);
        let Some(mut lease) = self.leases.get_opt(&self.name).await.map_err(text)? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.held(None)),
            };
            let created = self.leases.create(&PostParams::default(), &lease).await;
            return is_ours(created);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if !self.may_take(&spec) {
            return Ok(false);
        }
        // The version that was read goes along: the slower of two gets a conflict.
        lease.spec = Some(self.held(Some(&spec)));
        is_ours(
            self.leases
                .replace(&self.name, &PostParams::default(), &lease)
                .await,
        )
    }

    /// Whether the Lease is free, ours, or has been left to expire.
    fn may_take(&mut self, spec: &LeaseSpec) -> bool {
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return true;
        }
        let good_for = spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok());
        let good_for = good_for.map_or(LEASE_DURATION, Duration::from_secs);
        match &self.observed {
            Some((observed, at)) if observed == spec => at.elapsed() > good_for,
            _ => {
                self.observed = Some((spec.clone(), Instant::now()));
                false
            }
        }
    }

    /// The Lease as we hold it, after what it was.
    fn held(&self, former: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(Timestamp::now());
        let is_ours =
            former.is_some_and(|former| former.holder_identity.as_ref() == Some(&self.identity));
        let transitions = former
            .and_then(|former| former.lease_transitions)
            .unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: former
                .filter(|_| is_ours)
                .and_then(|former| former.acquire_time.clone())
                .or(Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions.saturating_add(i32::from(!is_ours))),
            ..former.cloned().unwrap_or_default()
        }
    }
}

/// Returns when a leader that renewed last at this time must stop acting; never without a Lease.
async fn renew_deadline(renewed: Option<Instant>) {
    match renewed {
        Some(renewed) => sleep_until(renewed + RENEW_DEADLINE).await,
        None => std::future::pending().await,
    }
}

/// Whether a write has made the Lease ours. Another candidate that was faster is no failure.
fn is_ours(written: Result<Lease, kube::Error>) -> Result<bool, String> {
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(describe(&error)),
    }
}
