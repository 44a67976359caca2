//! Counters of the process for `/metrics`. Counters of rules and backends are part of the table.
//! Label values name configuration objects and fixed reasons only, never request data.

mod dns;
mod key_sets;
mod text;
mod usage;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;

pub use dns::{DnsStats, LookupResult};
pub use key_sets::{FetchFailure, KeySetStats, KeySetTotals};
pub use text::exemplars::write_with_exemplars;
pub use text::{CONTENT_TYPE, Metrics, write};
pub use usage::MemoryUse;

pub use super::handshake_failure::HandshakeFailure;
use super::tap::Taps;
use super::trace::TraceQueue;
use crate::ir::named::named;
use crate::runtime::per_worker::PerWorker;
use crate::table::Outcomes;

/// Counters of client connections.
#[derive(Debug, Default)]
pub struct ConnectionStats {
    /// Total accepted connections.
    pub accepted: AtomicU64,
    /// Total closed connections.
    pub closed: AtomicU64,
    /// Connections rejected by the connection limit.
    pub refused: AtomicU64,
    /// Idle connections that were closed in favor of new ones.
    pub evicted: AtomicU64,
    /// Currently parked connections: idle and without buffers.
    pub parked: AtomicU64,
    /// Completed TLS handshakes.
    pub handshakes: AtomicU64,
    /// Connections and sessions of listeners for TLS, TCP and UDP that were refused, for lack of a route or of a backend.
    pub unforwarded: AtomicU64,
    /// Connections over the limits that a policy sets for their port.
    pub over_limits: AtomicU64,
    /// Connections without a valid header of the PROXY protocol that a policy requires.
    pub without_header: AtomicU64,
    /// Sessions of UDP ports.
    pub udp_sessions: AtomicU64,
    /// Those that have ended.
    pub udp_sessions_ended: AtomicU64,
    /// Datagrams that a full socket did not take.
    pub dropped_datagrams: AtomicU64,
    /// Requests that are not valid HTTP.
    pub bad_requests: AtomicU64,
    /// Responses to valid requests that matched no rule; methods are not counted.
    pub unmatched: PerWorker<Outcomes>,
    /// Open connections by worker; set once when the workers start.
    pub by_worker: OnceLock<Arc<[AtomicUsize]>>,
    /// Microseconds in which a worker was not idle, as of a moment ago.
    pub busy_micros: PerWorker<AtomicU64>,
    timeouts: [AtomicU64; TimeoutKind::ALL.len()],
    handshake_failures: [AtomicU64; HandshakeFailure::ALL.len()],
}

named! {
    /// The timeout that ended a client connection or stream.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TimeoutKind {
        /// Request head.
        Header = "header",
        /// Request body.
        Body = "body",
        /// Write to the client.
        Write = "write",
        /// TLS handshake.
        Handshake = "handshake",
        /// Idle time while a response is awaited or streamed.
        StreamIdle = "stream_idle",
        /// Idle time of an upgraded connection.
        TunnelIdle = "tunnel_idle",
        /// Request timeout of the route.
        Request = "request",
    }
}

impl ConnectionStats {
    /// Counts a TLS handshake that failed.
    pub fn handshake_failed(&self, failure: HandshakeFailure) {
        self.handshake_failures[failure as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of TLS handshakes that failed for a reason.
    pub fn handshake_failures(&self, failure: HandshakeFailure) -> u64 {
        self.handshake_failures[failure as usize].load(Ordering::Relaxed)
    }

    /// Counts a timeout.
    pub fn timed_out(&self, kind: TimeoutKind) {
        self.timeouts[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of timeouts of a kind.
    pub fn timeouts(&self, kind: TimeoutKind) -> u64 {
        self.timeouts[kind as usize].load(Ordering::Relaxed)
    }

    /// Number of open connections.
    pub fn open(&self) -> u64 {
        let closed = self.closed.load(Ordering::Relaxed);
        self.accepted.load(Ordering::Relaxed).saturating_sub(closed)
    }
}

/// Counters of the configuration.
#[derive(Debug, Default)]
pub struct ConfigStats {
    /// Number of the configuration in service; increases when its content changes.
    generation: AtomicU64,
    /// Time of the last configuration change in milliseconds since the Unix epoch; 0 if there was
    /// none.
    loaded: AtomicU64,
    /// Number of invalid objects and unmet conditions.
    problems: AtomicU64,
    /// Time of the API server's last response in milliseconds since the Unix epoch; 0 if there was
    /// none.
    contact: AtomicU64,
    /// Number of objects that wait for policies.
    waiting: AtomicU64,
}

impl ConfigStats {
    /// Records a new configuration.
    pub fn loaded(&self, generation: u64, problems: usize) {
        self.generation.store(generation, Ordering::Relaxed);
        self.loaded.store(now(), Ordering::Relaxed);
        self.problems.store(problems as u64, Ordering::Relaxed);
    }

    /// Generation in service; 0 before the first.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Time since the Unix epoch when it was put into service; `None` before the first.
    pub fn loaded_at(&self) -> Option<Duration> {
        let loaded = self.loaded.load(Ordering::Relaxed);
        (loaded > 0).then(|| Duration::from_millis(loaded))
    }

    /// Number of problems of the configuration in service.
    pub fn problems(&self) -> u64 {
        self.problems.load(Ordering::Relaxed)
    }

    /// Records a response of the API server.
    pub fn contacted(&self) {
        self.contact.store(now(), Ordering::Relaxed);
    }

    /// Time of the API server's last response since the Unix epoch; `None` if there was none.
    pub fn contact(&self) -> Option<Duration> {
        let contact = self.contact.load(Ordering::Relaxed);
        (contact > 0).then(|| Duration::from_millis(contact))
    }

    /// Records how many objects of the API server wait for policies.
    pub fn waits(&self, objects: usize) {
        self.waiting.store(objects as u64, Ordering::Relaxed);
    }

    /// Number of objects of the API server that wait for policies.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Counters of the stream from a controller.
#[derive(Debug)]
pub struct StreamStats {
    is_connected: AtomicBool,
    /// End of the last connection, or start of the process, in milliseconds since the Unix epoch.
    disconnected: AtomicU64,
    connections: AtomicU64,
    revision: AtomicU64,
}

impl Default for StreamStats {
    fn default() -> Self {
        Self {
            is_connected: AtomicBool::new(false),
            disconnected: AtomicU64::new(now()),
            connections: AtomicU64::new(0),
            revision: AtomicU64::new(0),
        }
    }
}

impl StreamStats {
    /// Records that a controller has begun to stream.
    pub fn connected(&self) {
        self.is_connected.store(true, Ordering::Relaxed);
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that no controller is streaming.
    pub fn disconnected(&self) {
        if self.is_connected.swap(false, Ordering::Relaxed) {
            self.disconnected.store(now(), Ordering::Relaxed);
        }
    }

    /// Records the revision of the objects.
    pub fn committed(&self, revision: u64) {
        self.revision.store(revision, Ordering::Relaxed);
    }

    /// Whether a controller is streaming.
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Time since the Unix epoch when a controller streamed last; the current time while connected.
    pub fn contact(&self) -> Duration {
        let contact = match self.is_connected() {
            true => now(),
            false => self.disconnected.load(Ordering::Relaxed),
        };
        Duration::from_millis(contact)
    }

    /// Total streams that have begun.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Revision of the objects, as numbered by the controller; 0 before the first.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }
}

/// Counters of a controller.
#[derive(Debug, Default)]
pub struct ControllerStats {
    /// Whether this replica is the leader.
    pub leading: AtomicBool,
    /// The configuration stream to pods.
    pub stream: Arc<SessionStats>,
    writes: [AtomicU64; WriteResult::ALL.len()],
}

named! {
    /// Result of a status write.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum WriteResult {
        /// It is written.
        Written = "written",
        /// Conflict with another writer.
        Overtaken = "conflict",
        /// The object is deleted.
        Gone = "not_found",
        /// Rejected by the API server; a retry cannot succeed.
        Refused = "rejected",
        /// Failed; is retried.
        Failed = "failed",
    }
}

/// Controller-side counters of the configuration stream.
#[derive(Debug, Default)]
pub struct SessionStats {
    opened: AtomicU64,
    closed: AtomicU64,
    refused: [AtomicU64; Self::REFUSALS.len()],
}

impl SessionStats {
    /// Statuses of rejected pods.
    const REFUSALS: [StatusCode; 3] = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::SERVICE_UNAVAILABLE,
    ];

    /// Records a connected pod.
    pub fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a disconnected pod.
    pub fn closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a rejected pod.
    pub fn refused(&self, status: StatusCode) {
        let number = Self::REFUSALS.iter().position(|one| *one == status);
        if let Some(count) = number.and_then(|number| self.refused.get(number)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Number of connected pods.
    pub fn open(&self) -> u64 {
        let closed = self.closed.load(Ordering::Relaxed);
        self.opened.load(Ordering::Relaxed).saturating_sub(closed)
    }

    /// Rejections by status.
    pub fn refusals(&self) -> impl Iterator<Item = (u16, u64)> {
        let count = |(status, count): (StatusCode, &AtomicU64)| {
            (status.as_u16(), count.load(Ordering::Relaxed))
        };
        Self::REFUSALS.into_iter().zip(&self.refused).map(count)
    }
}

impl ControllerStats {
    /// Counts a status write.
    pub fn wrote(&self, result: WriteResult) {
        self.writes[result as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Status writes by result.
    pub fn writes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count = |result: WriteResult| self.writes[result as usize].load(Ordering::Relaxed);
        WriteResult::ALL
            .into_iter()
            .map(move |result| (result.name(), count(result)))
    }
}

/// Milliseconds since the Unix epoch.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// Counters that outlive any configuration.
#[derive(Clone, Debug, Default)]
pub struct ProcessStats {
    /// Connections.
    pub connections: Arc<ConnectionStats>,
    /// Sampled requests on their way to collectors.
    pub traces: Arc<TraceQueue>,
    /// What operators see of requests.
    pub taps: Arc<Taps>,
    /// Configuration.
    pub config: Arc<ConfigStats>,
    /// DNS lookups of backend hostnames.
    pub dns: Arc<DnsStats>,
    /// Keys of token issuers.
    pub key_sets: Arc<KeySetStats>,
    /// The stream from a controller, if objects come from one.
    pub stream: Option<Arc<StreamStats>>,
    /// The controller's counters, if this process is one.
    pub controller: Option<Arc<ControllerStats>>,
}
