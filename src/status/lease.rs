//! Leader election: the controller replica that holds the Lease is the leader. Does not trust
//! clocks of other replicas: a Lease has expired when it has not changed for its whole duration,
//! measured on the local clock.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::cluster::api_server::describe;
use crate::runtime::optional::or_pending;

/// Duration of a Lease without renewal, and so the longest time without a leader after the leader
/// dies.
const LEASE_DURATION: Duration = Duration::from_secs(6);
/// How long a leader may act without a successful renewal. Writes in flight then have the rest of
/// `LEASE_DURATION` to finish.
const RENEW_DEADLINE: Duration = Duration::from_secs(4);
/// Timeout of one request. A leader whose request is lost has time for another one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which candidates read the Lease and the leader renews it.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// Maximum duration that is accepted from another holder's Lease.
const MAX_DURATION: Duration = Duration::from_secs(60);
/// Lease annotation with the address at which the leader serves streams.
const STREAM_ADDRESS: &str = "portcullis.dev/stream-address";

/// Who leads, as far as a candidate knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Whether this candidate is the leader.
    pub is_leader: bool,
    /// Address where the leader serves streams, as `ADDRESS:PORT`; `None` while this candidate
    /// leads or the address is unknown.
    pub leader_address: Option<String>,
    /// Until when this candidate may act as the leader, unless it renews the Lease before.
    pub until: Option<Instant>,
}

impl Leadership {
    /// Reports whether this candidate may act as the leader now. It may not after its deadline, even if it has not
    /// noticed that yet.
    pub fn may_act(&self) -> bool {
        self.is_leader && self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// Runs the leader's tasks from when this candidate leads until it may no longer act. The election may run on another
/// thread: each poll of the tasks first checks the deadline, so that none writes after it, whatever kept this thread or
/// the process from running.
pub async fn lead(leadership: &mut watch::Receiver<Leadership>, tasks: impl Future<Output = ()>) {
    let known = leadership.clone();
    let mut tasks = pin!(tasks);
    let tasks = poll_fn(|context| {
        if known.borrow().may_act() {
            tasks.as_mut().poll(context)
        } else {
            Poll::Ready(())
        }
    });
    tokio::select! {
        biased;
        // An error means that there is no candidate any more.
        _ = leadership.wait_for(|known| !known.is_leader) => {}
        () = tasks => {}
    }
}

/// A candidate in the leader election.
pub struct Candidate {
    leases: Api<Lease>,
    name: String,
    identity: String,
    stream_address: Option<String>,
    /// The Lease while this candidate holds it.
    held: Option<Held>,
    /// The Lease of another holder, as last observed.
    observed: Option<Observed>,
}

/// A Lease that this candidate holds.
struct Held {
    lease: Lease,
    /// Start of the request that stored the Lease: no other candidate can have observed it earlier, so
    /// the renew deadline ends before the Lease expires for others.
    since: Instant,
}

impl Held {
    /// Returns when this candidate must stop acting as the leader.
    fn deadline(&self) -> Instant {
        self.since + RENEW_DEADLINE
    }
}

/// The Lease of another holder.
struct Observed {
    spec: LeaseSpec,
    /// When this version of the Lease was first observed.
    since: Instant,
}

impl Observed {
    /// Returns when other candidates may take the Lease.
    fn expiry(&self) -> Instant {
        let seconds = self.spec.lease_duration_seconds;
        let duration = seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map_or(LEASE_DURATION, Duration::from_secs);
        self.since + duration.min(MAX_DURATION)
    }
}

impl Candidate {
    /// Creates a candidate for the named Lease that serves streams at `ADDRESS:PORT`. Identities
    /// must be unique among running candidates: a candidate with the holder's identity holds the
    /// Lease.
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

    /// Campaigns while polled, and publishes who leads.
    pub async fn campaign(&mut self, leadership: &watch::Sender<Leadership>) {
        let mut logged = String::new();
        loop {
            self.check_deadline(leadership);
            let began = Instant::now();
            let deadline = self.held.as_ref().map(Held::deadline);
            let tried = tokio::select! {
                biased;
                // Polled first: a response that arrives after the deadline must not be acted on.
                () = or_pending(deadline.map(sleep_until)) => Err("it was not renewed in time".to_owned()),
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
                    tracing::warn!("cannot acquire or renew Lease {name}: {error}; retrying");
                    logged = error;
                }
            }
            self.check_deadline(leadership);
            sleep_until(self.next_try(began)).await;
        }
    }

    /// Steps down if the Lease was not renewed in time, for example because the process was
    /// suspended.
    fn check_deadline(&mut self, leadership: &watch::Sender<Leadership>) {
        let is_late = |held: &Held| held.deadline() <= Instant::now();
        if self.held.as_ref().is_some_and(is_late) {
            self.held = None;
            self.publish(leadership, Leadership::default());
        }
    }

    fn publish(&self, leadership: &watch::Sender<Leadership>, known: Leadership) {
        leadership.send_if_modified(|leadership| {
            // Renewals are no news, except for tasks that have stopped at the deadline.
            let is_changed = known.is_leader != leadership.is_leader
                || known.leader_address != leadership.leader_address
                || known.is_leader && !leadership.may_act();
            if known.is_leader != leadership.is_leader {
                let what = if known.is_leader {
                    "is the leader now"
                } else {
                    "is no longer the leader"
                };
                tracing::info!("this controller, {}, {what}", self.identity);
            }
            *leadership = known;
            is_changed
        });
    }

    /// Returns the start of the next attempt: the leader wakes at its renew deadline, other candidates when the
    /// Lease expires.
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

    /// Releases the Lease, so that another candidate can lead at once. Gives up if the API server does not respond in
    /// time.
    pub async fn resign(&mut self) {
        self.held = None;
        // If the release fails, other candidates wait until the Lease expires.
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

    /// Takes or renews the Lease if it is free, held by this candidate, or expired.
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
            // The request contains the resourceVersion that was read: the slower of two candidates
            // gets a conflict.
            Some(lease) if self.may_take(&lease, began) => {
                self.replace(&self.renewed(lease)).await?
            }
            Some(lease) => {
                self.held = None;
                return Ok(Leadership {
                    leader_address: self.address_in(&lease),
                    ..Leadership::default()
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

    /// Replaces the Lease; `None` if another candidate has changed or deleted it.
    async fn replace(&self, lease: &Lease) -> Result<Option<Lease>, String> {
        let params = PostParams::default();
        unless(&[404, 409], self.leases.replace(&self.name, &params, lease)).await
    }

    fn hold(&mut self, lease: Lease, since: Instant) -> Leadership {
        let held = Held { lease, since };
        let until = Some(held.deadline());
        self.held = Some(held);
        self.observed = None;
        Leadership {
            is_leader: true,
            leader_address: None,
            until,
        }
    }

    /// Reports whether the Lease is free, held by this candidate, or expired.
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

    /// Returns the stream address of the holder. A holder whose version does not serve streams keeps the
    /// annotation of its predecessor, which may be this candidate's.
    fn address_in(&self, lease: &Lease) -> Option<String> {
        let annotations = lease.metadata.annotations.as_ref()?;
        let address = annotations.get(STREAM_ADDRESS)?;
        address.parse::<SocketAddr>().ok()?;
        Some(address.clone()).filter(|_| self.stream_address.as_ref() != Some(address))
    }

    /// Returns the Lease with this candidate as its holder, renewed now.
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

/// Sets or removes the stream address of the holder.
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

/// Unwraps the response of a request; `None` if it failed with one of `codes`.
async fn unless(
    codes: &[u16],
    request: impl Future<Output = Result<Lease, kube::Error>>,
) -> Result<Option<Lease>, String> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(Ok(lease)) => Ok(Some(lease)),
        Ok(Err(kube::Error::Api(status))) if codes.contains(&status.code) => Ok(None),
        Ok(Err(error)) => Err(describe(&error)),
        Err(_) => Err("the API server did not respond in time".to_owned()),
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
    fn bounds_the_lease_duration_of_other_holders() {
        assert_eq!(observed(Some(15)), Duration::from_secs(15));
        assert_eq!(observed(Some(i32::MAX)), MAX_DURATION);
        assert_eq!(observed(Some(-1)), LEASE_DURATION);
        assert_eq!(observed(None), LEASE_DURATION);
    }

    #[test]
    fn leader_steps_down_before_the_lease_expires_after_two_attempts() {
        assert!(RENEW_DEADLINE + Duration::from_secs(2) <= LEASE_DURATION);
        assert!(RETRY_PERIOD + REQUEST_TIMEOUT < RENEW_DEADLINE);
    }
}
