//! One endpoint of a backend: its address, load and health.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

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
    /// Its requests, over all workers.
    pub load: Load,
    /// Results of recent requests.
    pub health: Health,
}

/// The requests of an endpoint: those in flight in the lower half, and all that were sent, modulo 2^32, in the upper
/// half. One word, so that counting both costs one atomic operation.
#[derive(Debug, Default)]
pub struct Load(AtomicU64);

impl Load {
    const SENT: u64 = 1 << 32;

    /// Counts a request.
    #[inline]
    pub fn begin(&self) {
        self.0.fetch_add(Self::SENT + 1, Relaxed);
    }

    /// Ends a request.
    #[inline]
    pub fn end(&self) {
        self.0.fetch_sub(1, Relaxed);
    }

    /// Undoes the count of a request that was not sent.
    pub fn withdraw(&self) {
        self.0.fetch_sub(Self::SENT + 1, Relaxed);
    }

    /// Returns the number of requests in flight.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.0.load(Relaxed) as u32
    }

    /// Returns the number of requests that were sent, modulo 2^32.
    pub fn sent(&self) -> u32 {
        (self.0.load(Relaxed) >> 32) as u32
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
        }
    }
}
