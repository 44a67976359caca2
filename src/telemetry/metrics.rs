//! Numbers of the process for `/metrics`. Those of rules and backends live in the table and are read from it; the
//! others are here. Label values name configuration objects and fixed reasons only, never anything of a request.

mod dns;
mod text;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::StatusCode;

pub use dns::{DnsStats, LookupResult};
pub use text::{CONTENT_TYPE, encode};

/// Numbers of client connections.
#[derive(Debug, Default)]
pub struct ConnectionStats {
    /// Accepted, ever.
    pub accepted: AtomicU64,
    /// Closed, ever.
    pub closed: AtomicU64,
    /// Refused because there were too many.
    pub refused: AtomicU64,
    /// Parked now: idle and without buffers.
    pub parked: AtomicU64,
    /// TLS handshakes that were completed.
    pub handshakes: AtomicU64,
    /// TLS handshakes that failed.
    pub handshake_failures: AtomicU64,
    /// Requests that could not be read as HTTP.
    pub bad_requests: AtomicU64,
    /// Requests that matched no rule, those that could be read.
    pub unmatched: StatusCounts,
    /// Open now, by worker; set once, when the workers start.
    pub by_worker: OnceLock<Arc<[AtomicUsize]>>,
    timeouts: [AtomicU64; TimeoutKind::ALL.len()],
}

/// Numbers of responses by status, for statuses that requests without a rule get. Others are counted as one.
#[derive(Debug, Default)]
pub struct StatusCounts([AtomicU64; Self::KNOWN.len() + 1]);

impl StatusCounts {
    const KNOWN: [(u16, &str); 8] = [
        (400, "400"),
        (404, "404"),
        (405, "405"),
        (408, "408"),
        (417, "417"),
        (421, "421"),
        (431, "431"),
        (499, "499"),
    ];

    /// Counts a response.
    pub fn record(&self, status: u16) {
        let known = Self::KNOWN.iter().position(|(known, _)| *known == status);
        self.0[known.unwrap_or(Self::KNOWN.len())].fetch_add(1, Ordering::Relaxed);
    }

    /// Responses so far, by the name of their status.
    pub fn by_status(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = Self::KNOWN.iter().map(|(_, name)| *name).chain(["other"]);
        names.zip(self.0.iter().map(|count| count.load(Ordering::Relaxed)))
    }
}

/// Which limit of time ended a client's connection or stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutKind {
    /// The head of a request.
    Header,
    /// The body of a request.
    Body,
    /// Writing to the client.
    Write,
    /// The TLS handshake.
    Handshake,
    /// Silence while a response was awaited or streamed.
    StreamIdle,
    /// Silence in an upgraded connection.
    TunnelIdle,
    /// The whole exchange, by the request timeout of its route.
    Request,
}

impl TimeoutKind {
    const ALL: [Self; 7] = [
        Self::Header,
        Self::Body,
        Self::Write,
        Self::Handshake,
        Self::StreamIdle,
        Self::TunnelIdle,
        Self::Request,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Body => "body",
            Self::Write => "write",
            Self::Handshake => "handshake",
            Self::StreamIdle => "stream_idle",
            Self::TunnelIdle => "tunnel_idle",
            Self::Request => "request",
        }
    }
}

impl ConnectionStats {
    /// Counts a timeout.
    pub fn timed_out(&self, kind: TimeoutKind) {
        self.timeouts[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many timeouts of a kind there were.
    pub fn timeouts(&self, kind: TimeoutKind) -> u64 {
        self.timeouts[kind as usize].load(Ordering::Relaxed)
    }

    /// Connections that are open now.
    pub fn open(&self) -> u64 {
        let closed = self.closed.load(Ordering::Relaxed);
        self.accepted.load(Ordering::Relaxed).saturating_sub(closed)
    }
}

/// Numbers of the configuration.
#[derive(Debug, Default)]
pub struct ConfigStats {
    /// Reloads that changed what is served.
    generation: AtomicU64,
    /// Time of the last, in milliseconds since 1970; 0 when there was none.
    loaded: AtomicU64,
    /// Objects that are left out or held at an older version, and conditions that are not met.
    problems: AtomicU64,
    /// Time of the last response of the API server, in milliseconds since 1970; 0 when there was none.
    contact: AtomicU64,
}

impl ConfigStats {
    /// Notes that a configuration is served from now on.
    pub fn loaded(&self, generation: u64, problems: usize) {
        self.generation.store(generation, Ordering::Relaxed);
        self.loaded.store(now(), Ordering::Relaxed);
        self.problems.store(problems as u64, Ordering::Relaxed);
    }

    /// The generation that is served; 0 before the first.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// When it was taken into service, since 1970; zero before the first.
    pub fn loaded_at(&self) -> Duration {
        Duration::from_millis(self.loaded.load(Ordering::Relaxed))
    }

    /// Faults of the configuration that is served.
    pub fn problems(&self) -> u64 {
        self.problems.load(Ordering::Relaxed)
    }

    /// Notes that the API server has responded.
    pub fn contacted(&self) {
        self.contact.store(now(), Ordering::Relaxed);
    }

    /// When the API server responded last, since 1970; `None` when it never did, or there is none.
    pub fn contact(&self) -> Option<Duration> {
        let contact = self.contact.load(Ordering::Relaxed);
        (contact > 0).then(|| Duration::from_millis(contact))
    }
}

/// Numbers of the stream from a controller.
#[derive(Debug)]
pub struct StreamStats {
    is_connected: AtomicBool,
    /// When the last connection ended, or the process began, in milliseconds since 1970.
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
    /// Notes that a controller has begun to stream.
    pub fn connected(&self) {
        self.is_connected.store(true, Ordering::Relaxed);
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that no controller streams any more.
    pub fn disconnected(&self) {
        if self.is_connected.swap(false, Ordering::Relaxed) {
            self.disconnected.store(now(), Ordering::Relaxed);
        }
    }

    /// Notes which revision the objects have.
    pub fn committed(&self, revision: u64) {
        self.revision.store(revision, Ordering::Relaxed);
    }

    /// Whether a controller streams.
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// How long no controller has streamed; zero while one does.
    pub fn age(&self) -> Duration {
        if self.is_connected() {
            return Duration::ZERO;
        }
        let since = self.disconnected.load(Ordering::Relaxed);
        Duration::from_millis(now().saturating_sub(since))
    }

    /// Streams that have begun, ever.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// The revision that the objects have, as the controller numbers them; 0 before the first.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }
}

/// Numbers of a controller.
#[derive(Debug, Default)]
pub struct ControllerStats {
    /// Whether it leads.
    pub leading: AtomicBool,
    /// The configuration stream to pods.
    pub stream: Arc<SessionStats>,
    writes: [AtomicU64; WriteResult::ALL.len()],
}

/// What became of a status that had to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// It is written.
    Written,
    /// Another writer was faster.
    Overtaken,
    /// The object is gone.
    Gone,
    /// The API server will never take it.
    Refused,
    /// It has to be retried.
    Failed,
}

impl WriteResult {
    const ALL: [Self; 5] = [
        Self::Written,
        Self::Overtaken,
        Self::Gone,
        Self::Refused,
        Self::Failed,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Overtaken => "overtaken",
            Self::Gone => "gone",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Numbers of the configuration stream, on the side of the controller.
#[derive(Debug, Default)]
pub struct SessionStats {
    opened: AtomicU64,
    closed: AtomicU64,
    refused: [AtomicU64; Self::REFUSALS.len()],
}

impl SessionStats {
    /// Statuses that refuse a pod.
    const REFUSALS: [StatusCode; 3] = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::SERVICE_UNAVAILABLE,
    ];

    /// A pod connects.
    pub fn opened(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// A pod that had connected is gone.
    pub fn closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// A pod is refused.
    pub fn refused(&self, status: StatusCode) {
        let number = Self::REFUSALS.iter().position(|one| *one == status);
        if let Some(count) = number.and_then(|number| self.refused.get(number)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Pods that are connected.
    pub fn open(&self) -> u64 {
        let closed = self.closed.load(Ordering::Relaxed);
        self.opened.load(Ordering::Relaxed).saturating_sub(closed)
    }

    /// Refusals so far, by status.
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

    /// Status writes so far, by what became of them.
    pub fn writes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count = |result: WriteResult| self.writes[result as usize].load(Ordering::Relaxed);
        WriteResult::ALL
            .into_iter()
            .map(move |result| (result.name(), count(result)))
    }
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// What outlives any one configuration.
#[derive(Clone, Debug, Default)]
pub struct ProcessStats {
    /// Connections.
    pub connections: Arc<ConnectionStats>,
    /// Configuration.
    pub config: Arc<ConfigStats>,
    /// Lookups of the names of backends.
    pub dns: Arc<DnsStats>,
    /// The stream from a controller, where objects come from one.
    pub stream: Option<Arc<StreamStats>>,
    /// The controller, where this is one.
    pub controller: Option<Arc<ControllerStats>>,
}
