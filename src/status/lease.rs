//! Leader election: of several controllers, the one that holds a Lease of the cluster acts. No clock of another process
//! is trusted: a holder is gone when its Lease has not changed for as long as it lasts.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::api_server::describe;

/// How long a Lease lasts without being renewed, and so how long Gateways wait when the leader dies.
const LEASE_DURATION: Duration = Duration::from_secs(6);
/// How long a leader acts without having been able to renew. Writes that are under way then have the rest of the Lease's
/// duration to end.
const RENEW_DEADLINE: Duration = Duration::from_secs(4);
/// The longest that one request may take: a leader whose request is lost has time for another.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the Lease is read, and renewed by its holder.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// The longest duration that is accepted from a Lease of another holder.
const MAX_DURATION: Duration = Duration::from_secs(60);
/// The annotation of the Lease that names the address at which the leader serves streams.
const STREAM_ADDRESS: &str = "portcullis.dev/stream-address";

/// Who leads, as far as a candidate knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Whether this candidate leads.
    pub is_leader: bool,
    /// Where another candidate, the leader, serves streams, as `ADDRESS:PORT`; `None` while this one leads or nobody knows.
    pub leader_address: Option<String>,
}

/// One candidate.
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    identity: String,
    stream_address: Option<String>,
    /// The Lease while it is ours.
    held: Option<Held>,
    /// The Lease of another holder.
    observed: Option<Observed>,
}

/// A Lease that this candidate holds.
struct Held {
    lease: Lease,
    /// When the request that stored it began: nobody has seen it earlier.
    since: Instant,
}

impl Held {
    /// When its holder must stop acting.
    fn deadline(&self) -> Instant {
        self.since + RENEW_DEADLINE
    }
}

/// A Lease of another holder.
struct Observed {
    spec: LeaseSpec,
    /// When it was first seen like this.
    since: Instant,
}

impl Observed {
    /// When others may take it.
    fn expiry(&self) -> Instant {
        let seconds = self.spec.lease_duration_seconds;
        let duration = seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(LEASE_DURATION, Duration::from_secs);
        self.since + duration.min(MAX_DURATION)
    }
}

impl Candidate {
    /// A candidate for the Lease of this name that serves streams at this address, `ADDRESS:PORT`. No two candidates that
    /// run at one time may have the same identity; one that starts under the identity of the holder holds the Lease.
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        identity: &str,
        stream_address: Option<String>,
    ) -> Self {
        Self {
            leases: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity: identity.to_owned(),
            stream_address,
            held: None,
            observed: None,
        }
    }

    /// Campaigns for as long as it is polled, and publishes who leads.
    pub async fn campaign(&mut self, leadership: &watch::Sender<Leadership>) {
        let mut logged = String::new();
        loop {
            self.check_deadline(leadership);
            let began = Instant::now();
            let deadline = self.held.as_ref().map(Held::deadline);
            let tried = tokio::select! {
                biased;
                // A response that comes after the deadline must not be acted on.
                () = at(deadline) => Err("it could not be renewed in time".to_owned()),
                tried = self.acquire() => tried,
            };
            match tried {
                Ok(known) => {
                    logged.clear();
                    self.publish(leadership, known);
                }
                Err(error) if error == logged => {}
                Err(error) => {
                    let name = &self.name;
                    tracing::warn!("Lease {name} cannot be held: {error}; it is retried");
                    logged = error;
                }
            }
            self.check_deadline(leadership);
            sleep_until(self.next_try(began)).await;
        }
    }

    /// Stops leading when the Lease has not been renewed in time; the process may have stood still.
    fn check_deadline(&mut self, leadership: &watch::Sender<Leadership>) {
        let is_late = |held: &Held| held.deadline() <= Instant::now();
        if self.held.as_ref().is_some_and(is_late) {
            self.held = None;
            self.publish(leadership, Leadership::default());
        }
    }

    fn publish(&self, leadership: &watch::Sender<Leadership>, known: Leadership) {
        leadership.send_if_modified(|leadership| {
            if known.is_leader != leadership.is_leader {
                let what = if known.is_leader {
                    "is the leader now"
                } else {
                    "is no longer the leader"
                };
                tracing::info!("this controller, {}, {what}", self.identity);
            }
            let is_news = *leadership != known;
            *leadership = known;
            is_news
        });
    }

    /// When the next try begins: a leader stops at its deadline, and others take over as soon as the Lease expires.
    fn next_try(&self, began: Instant) -> Instant {
        let next = began + RETRY_PERIOD;
        if let Some(held) = &self.held {
            return next.min(held.deadline());
        }
        let expiry = self.observed.as_ref().map(Observed::expiry);
        match expiry.filter(|expiry| *expiry > Instant::now()) {
            Some(expiry) => next.min(expiry),
            None => next,
        }
    }

    /// Lets others lead at once, if the API server answers in time.
    pub async fn resign(&mut self) {
        self.held = None;
        // After a failure the others wait as for a process that died.
        let _ = timeout(REQUEST_TIMEOUT, self.release()).await;
    }

    async fn release(&self) -> Result<(), String> {
        let Some(mut lease) = unless(&[404], self.leases.get(&self.name)).await? else {
            return Ok(());
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&self.identity) {
            spec.holder_identity = None;
            annotate(&mut lease, None);
            self.replace(&lease).await?;
        }
        Ok(())
    }

    /// Takes or renews the Lease if that is allowed.
    async fn acquire(&mut self) -> Result<Leadership, String> {
        if let Some(held) = &self.held {
            let began = Instant::now();
            let renewed = self.renewed(held.lease.clone());
            if let Some(lease) = self.replace(&renewed).await? {
                return Ok(self.hold(lease, began));
            }
        }
        let read = unless(&[404], self.leases.get(&self.name)).await?;
        let began = Instant::now();
        let written = match read {
            // The version that was read goes along: the slower of two candidates gets a conflict.
            Some(lease) if self.may_take(&lease, began) => {
                self.replace(&self.renewed(lease)).await?
            }
            Some(lease) => {
                self.held = None;
                return Ok(Leadership {
                    is_leader: false,
                    leader_address: self.address_in(&lease),
                });
            }
            None => {
                let name = Some(self.name.clone());
                let lease = self.renewed(Lease {
                    metadata: ObjectMeta {
                        name,
                        ..ObjectMeta::default()
                    },
                    spec: None,
                });
                let params = PostParams::default();
                unless(&[409], self.leases.create(&params, &lease)).await?
            }
        };
        match written {
            Some(lease) => Ok(self.hold(lease, began)),
            None => {
                self.held = None;
                Ok(Leadership::default())
            }
        }
    }

    /// Stores a Lease; `None` when another was faster, or has deleted it.
    async fn replace(&self, lease: &Lease) -> Result<Option<Lease>, String> {
        let params = PostParams::default();
        unless(&[404, 409], self.leases.replace(&self.name, &params, lease)).await
    }

    fn hold(&mut self, lease: Lease, since: Instant) -> Leadership {
        self.held = Some(Held { lease, since });
        self.observed = None;
        Leadership {
            is_leader: true,
            leader_address: None,
        }
    }

    /// Whether the Lease is free, ours, or has expired.
    fn may_take(&mut self, lease: &Lease, now: Instant) -> bool {
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return true;
        }
        match &self.observed {
            Some(observed) if observed.spec == spec => observed.expiry() <= now,
            _ => {
                self.observed = Some(Observed { spec, since: now });
                false
            }
        }
    }

    /// Where the holder of a Lease serves streams. A holder of a version that knows no streams leaves the annotation of the
    /// one before it, which may be ours.
    fn address_in(&self, lease: &Lease) -> Option<String> {
        let annotations = lease.metadata.annotations.as_ref()?;
        let address = annotations.get(STREAM_ADDRESS)?;
        address.parse::<SocketAddr>().ok()?;
        Some(address.clone()).filter(|_| self.stream_address.as_ref() != Some(address))
    }

    /// A Lease as this candidate holds it from now on.
    fn renewed(&self, mut lease: Lease) -> Lease {
        let now = MicroTime(Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            spec.holder_identity = Some(self.identity.clone());
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
        }
        spec.renew_time = Some(now);
        spec.lease_duration_seconds = i32::try_from(LEASE_DURATION.as_secs()).ok();
        annotate(&mut lease, self.stream_address.as_ref());
        lease
    }
}

/// Says in a Lease where its holder serves streams.
fn annotate(lease: &mut Lease, address: Option<&String>) {
    let annotations = &mut lease.metadata.annotations;
    match address {
        Some(address) => {
            let annotations = annotations.get_or_insert_with(BTreeMap::new);
            annotations.insert(STREAM_ADDRESS.to_owned(), address.clone());
        }
        None => {
            if let Some(annotations) = annotations {
                annotations.remove(STREAM_ADDRESS);
            }
        }
    }
}

/// Returns at this time; never without one.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// The Lease that a request returns; `None` when it is refused with one of these codes.
async fn unless(
    codes: &[u16],
    request: impl Future<Output = Result<Lease, kube::Error>>,
) -> Result<Option<Lease>, String> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(lease)) => Ok(Some(lease)),
        Ok(Err(kube::Error::Api(status))) if codes.contains(&status.code) => Ok(None),
        Ok(Err(error)) => Err(describe(&error)),
        Err(_) => Err("the API server does not respond".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(seconds: Option<i32>) -> Duration {
        let since = Instant::now();
        let spec = LeaseSpec {
            lease_duration_seconds: seconds,
            ..LeaseSpec::default()
        };
        Observed { spec, since }.expiry() - since
    }

    #[test]
    fn believes_the_duration_of_another_holder_within_bounds() {
        assert_eq!(observed(Some(15)), Duration::from_secs(15));
        assert_eq!(observed(Some(i32::MAX)), MAX_DURATION);
        assert_eq!(observed(Some(-1)), LEASE_DURATION);
        assert_eq!(observed(None), LEASE_DURATION);
    }

    #[test]
    fn a_leader_stops_before_another_may_begin_and_has_time_for_two_tries() {
        assert!(RENEW_DEADLINE + Duration::from_secs(2) <= LEASE_DURATION);
        assert!(RETRY_PERIOD + REQUEST_TIMEOUT < RENEW_DEADLINE);
    }
}
