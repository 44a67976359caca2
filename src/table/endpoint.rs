//! One endpoint of a backend: its address, load and health.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::backend_counts::{BackendCounts, ConnectionSlot, Overloaded};
use super::endpoint_fault::EndpointFaults;
use crate::runtime::monotonic;
use crate::runtime::per_worker::{Count, PerWorker, WorkerId};

/// One address of one backend.
#[derive(Debug)]
pub struct Endpoint {
    /// Unique in the process and never reused; the key of connection pools.
    pub id: u64,
    /// Its address.
    pub address: SocketAddr,
    /// The name to resolve for each connection instead; only for fallbacks.
    pub hostname: Option<Arc<str>>,
    /// When it joined other endpoints, in milliseconds of [`monotonic`](crate::runtime::monotonic); `None` if there were
    /// none.
    pub added_at: Option<NonZeroU64>,
    /// Its requests.
    pub load: Load,
    /// Results of recent requests.
    pub health: Health,
    /// Its failed attempts.
    pub faults: EndpointFaults,
    /// Its connections, once they were limited.
    counts: OnceLock<Arc<BackendCounts>>,
}

/// The requests of an endpoint. Each worker counts its own.
#[derive(Debug, Default)]
pub struct Load(PerWorker<WorkerLoad>);

#[derive(Debug, Default)]
struct WorkerLoad {
    in_flight: Count,
    sent: Count,
}

impl Load {
    /// Counts a request in flight.
    #[inline]
    pub fn begin(&self, worker: WorkerId) {
        self.0.of(worker).in_flight.add(1);
    }

    /// Counts a request that was given a connection.
    #[inline]
    pub fn sent(&self, worker: WorkerId) {
        self.0.of(worker).sent.add(1);
    }

    /// Ends a request.
    #[inline]
    pub fn end(&self, worker: WorkerId) {
        self.0.of(worker).in_flight.subtract_one();
    }

    /// Returns the requests of one worker in flight.
    #[inline]
    pub fn in_flight_of(&self, worker: WorkerId) -> u64 {
        self.0.of(worker).in_flight.get()
    }

    /// Returns the requests of all workers in flight. Reads memory that every worker writes.
    pub fn in_flight(&self) -> u64 {
        self.0.sum(|load| &load.in_flight)
    }

    /// Returns the requests of all workers that were given a connection.
    pub fn total_sent(&self) -> u64 {
        self.0.sum(|load| &load.sent)
    }
}

/// Passive health of an endpoint, shared by all workers. The proxy updates it. The loads and stores are relaxed: a late
/// view only delays an ejection.
#[derive(Debug, Default)]
pub struct Health {
    /// End of the current ejection, in milliseconds of [`monotonic`](crate::runtime::monotonic); 0 without one.
    pub avoided_until: AtomicU64,
    /// Consecutive ejections.
    pub ejections: AtomicU32,
    /// Consecutive failed requests.
    pub strikes: AtomicU32,
    /// Earliest time of the next probe after an ejection, on the same clock.
    pub next_probe: AtomicU64,
}

impl Health {
    /// Value of [`Self::avoided_until`] while active health checks of the endpoint fail. Requests do not change it.
    const FAILED: u64 = u64::MAX;

    /// Reports whether active health checks of the endpoint fail.
    #[inline]
    pub fn has_failed_checks(&self) -> bool {
        self.avoided_until.load(Relaxed) == Self::FAILED
    }

    /// Records that active health checks of the endpoint fail, until they succeed.
    pub fn fail_checks(&self) {
        self.avoided_until.store(Self::FAILED, Relaxed);
    }

    /// Records that active health checks of the endpoint succeed, or that there are none any more. An ejection by failed
    /// requests lasts.
    pub fn pass_checks(&self) {
        let failed = Self::FAILED;
        let passed = self
            .avoided_until
            .compare_exchange(failed, 0, Relaxed, Relaxed);
        if passed.is_ok() {
            self.ejections.store(0, Relaxed);
            self.strikes.store(0, Relaxed);
        }
    }

    /// Ends an ejection because of a response. Failed checks outlive it.
    pub fn end_ejection(&self) {
        let until = self.avoided_until.load(Relaxed);
        if until != Self::FAILED {
            let ended = self
                .avoided_until
                .compare_exchange(until, 0, Relaxed, Relaxed);
            // Otherwise checks have failed meanwhile.
            if ended.is_ok() {
                self.ejections.store(0, Relaxed);
            }
        }
    }

    /// Returns the time until the ejection ends; `None` if there is none, or if it lasts until checks or a probe succeed.
    pub fn time_left(&self) -> Option<Duration> {
        let until = self.avoided_until.load(Relaxed);
        let left = until.checked_sub(monotonic::now().get())?;
        (left > 0 && until != Self::FAILED).then(|| Duration::from_millis(left))
    }

    /// Reports whether the endpoint is ejected or still needs a successful probe.
    #[inline]
    pub fn is_avoided(&self) -> bool {
        self.avoided_until.load(Relaxed) != 0
    }
}

impl Endpoint {
    /// Returns an endpoint whose name is resolved for each connection.
    pub(super) fn named(hostname: Arc<str>, port: u16) -> Self {
        Self {
            hostname: Some(hostname),
            ..Self::new((Ipv4Addr::UNSPECIFIED, port).into(), None)
        }
    }

    pub(super) fn new(address: SocketAddr, added_at: Option<NonZeroU64>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            address,
            hostname: None,
            added_at,
            load: Load::default(),
            health: Health::default(),
            faults: EndpointFaults::default(),
            counts: OnceLock::new(),
        }
    }

    /// Returns the connections that were opened since they are limited.
    pub fn connections(&self) -> u32 {
        self.counts.get().map_or(0, |counts| counts.connections())
    }

    /// Makes idle connections close soon, if they are limited.
    pub fn want_connections(&self) {
        if let Some(counts) = self.counts.get() {
            counts.want();
        }
    }

    /// Counts a connection.
    ///
    /// # Errors
    /// When there are as many as `max`. Idle ones close soon.
    pub fn connect(&self, max: u32) -> Result<ConnectionSlot, Overloaded> {
        self.counts.get_or_init(Arc::default).connect(max)
    }
}
