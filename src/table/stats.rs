//! Counters of rules, backends and releases: plain atomics that the proxy updates and telemetry reads.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the duration buckets, in microseconds; one more bucket has no bound.
pub const DURATION_BOUNDS_MICROS: [u64; 17] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// Buckets of the duration histogram, the unbounded one included.
pub const DURATION_BUCKETS: usize = DURATION_BOUNDS_MICROS.len() + 1;

/// Counters of a rule's requests.
// Laid out so that a request touches two cache lines, and no line of another rule's.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct RuleStats {
    classes: [AtomicU64; 5],
    total_micros: AtomicU64,
    in_flight: AtomicI64,
    durations: [AtomicU64; DURATION_BUCKETS],
    retries: AtomicU64,
}

impl RuleStats {
    /// Counts a completed request by status and duration. A status outside 100 to 599 counts as 5xx.
    #[inline]
    pub fn record(&self, status: u16, elapsed: Duration) {
        let class = class(status);
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let bucket = DURATION_BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.classes[class].fetch_add(1, Relaxed);
        self.durations[bucket].fetch_add(1, Relaxed);
        self.total_micros.fetch_add(micros, Relaxed);
    }

    /// Counts a request in.
    #[inline]
    pub fn enter(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// Counts a request out.
    #[inline]
    pub fn leave(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
    }

    /// Counts a retry that the rule allowed.
    pub fn retried(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    /// Retries that the rule allowed.
    pub fn retries(&self) -> u64 {
        self.retries.load(Relaxed)
    }

    /// Requests by status class, 1xx to 5xx.
    pub fn classes(&self) -> [u64; 5] {
        self.classes.each_ref().map(|count| count.load(Relaxed))
    }

    /// Requests by duration, each bucket for itself, bounded by [`DURATION_BOUNDS_MICROS`].
    pub fn durations(&self) -> [u64; DURATION_BUCKETS] {
        self.durations.each_ref().map(|count| count.load(Relaxed))
    }

    /// Sum of all durations, in microseconds.
    pub fn total_micros(&self) -> u64 {
        self.total_micros.load(Relaxed)
    }

    /// Requests that have entered and not left.
    pub fn in_flight(&self) -> i64 {
        self.in_flight.load(Relaxed)
    }
}

/// Index of the counter of a status: its class, and 5xx for a status outside 100 to 599.
fn class(status: u16) -> usize {
    match status / 100 {
        class @ 1..=5 => usize::from(class) - 1,
        _ => 4,
    }
}

/// Why an attempt at a backend failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamFault {
    /// The connection was refused or unreachable.
    Connect,
    /// The connection was not established in time.
    ConnectTimeout,
    /// The connection closed before the end of the response.
    Reset,
    /// The endpoint did not process the request, which may be sent again.
    Refused,
    /// The endpoint violated the protocol.
    Protocol,
    /// The response did not arrive in time.
    Timeout,
    /// There was no endpoint to send to.
    NoEndpoint,
}

impl UpstreamFault {
    /// Every fault, in the order of their counters.
    pub const ALL: [Self; 7] = [
        Self::Connect,
        Self::ConnectTimeout,
        Self::Reset,
        Self::Refused,
        Self::Protocol,
        Self::Timeout,
        Self::NoEndpoint,
    ];

    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::Reset => "reset",
            Self::Refused => "refused",
            Self::Protocol => "protocol",
            Self::Timeout => "timeout",
            Self::NoEndpoint => "no_endpoint",
        }
    }
}

/// Why TLS to an endpoint failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsFailure {
    /// The certificate has none of the names.
    Name,
    /// The certificate has expired.
    Expired,
    /// The certificate is not valid yet.
    NotYetValid,
    /// The issuer of the certificate is not trusted.
    UnknownAuthority,
    /// The key of the certificate is none of the pinned ones.
    Pin,
    /// The certificate is invalid for another reason.
    Certificate,
    /// The endpoint refused the handshake, for example because it requires a client certificate.
    Refused,
    /// The endpoint does not speak TLS, or supports no common version or cipher suite.
    Protocol,
    /// The connection closed during the handshake.
    Ended,
}

impl TlsFailure {
    /// Every failure, in the order of their counters.
    pub const ALL: [Self; 9] = [
        Self::Name,
        Self::Expired,
        Self::NotYetValid,
        Self::UnknownAuthority,
        Self::Pin,
        Self::Certificate,
        Self::Refused,
        Self::Protocol,
        Self::Ended,
    ];

    /// Its name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::UnknownAuthority => "unknown_authority",
            Self::Pin => "pin",
            Self::Certificate => "certificate",
            Self::Refused => "refused",
            Self::Protocol => "protocol",
            Self::Ended => "ended",
        }
    }
}

/// Result of a copy of a request that a mirror sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MirrorResult {
    /// The response was read.
    Completed,
    /// The copy could not be sent, or its response broke off.
    Failed,
    /// The backend reads more slowly than the client sends, or there are too many copies.
    Dropped,
    /// The response did not come in time.
    Timeout,
    /// The body of the client's request was not read to its end.
    Aborted,
}

impl MirrorResult {
    /// Every result, in the order of their counters.
    pub const ALL: [Self; 5] = [
        Self::Completed,
        Self::Failed,
        Self::Dropped,
        Self::Timeout,
        Self::Aborted,
    ];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
            Self::Timeout => "timeout",
            Self::Aborted => "aborted",
        }
    }
}

/// Result of a call to an authorization server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuthResult {
    /// The request is forwarded.
    Allowed,
    /// The request is refused.
    Denied,
    /// There was no valid response in time: the request is refused.
    Failed,
}

impl AuthResult {
    /// Every result, in the order of their counters.
    pub const ALL: [Self; 3] = [Self::Allowed, Self::Denied, Self::Failed];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
        }
    }
}

/// Counters of a backend's connections and attempts.
#[derive(Debug, Default)]
pub struct BackendStats {
    connects: AtomicU64,
    /// A moving average; 0 before the first connection.
    connect_micros: AtomicU64,
    hedged_connects: AtomicU64,
    refused_retries: AtomicU64,
    ejections: AtomicU64,
    faults: [AtomicU64; UpstreamFault::ALL.len()],
    tls_failures: [AtomicU64; TlsFailure::ALL.len()],
    mirrored: [AtomicU64; MirrorResult::ALL.len()],
    authorized: [AtomicU64; AuthResult::ALL.len()],
    /// Used only when the configuration changes.
    releases: Mutex<Vec<Arc<ReleaseStats>>>,
}

impl BackendStats {
    /// Counters of these releases, in this order: the present ones by name, or new ones. Drops those of other releases.
    pub(super) fn set_releases<'a>(
        &self,
        names: impl Iterator<Item = &'a Arc<str>>,
    ) -> Vec<Arc<ReleaseStats>> {
        let mut present = self.releases.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |name: &Arc<str>| present.iter().find(|stats| stats.name == *name).cloned();
        let wanted: Vec<_> = names
            .map(|name| find(name).unwrap_or_else(|| Arc::new(ReleaseStats::new(name.clone()))))
            .collect();
        present.clone_from(&wanted);
        wanted
    }

    /// Counts an established connection.
    pub fn connected(&self, elapsed: Duration) {
        self.connects.fetch_add(1, Relaxed);
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let average = match self.connect_micros.load(Relaxed) {
            0 => micros,
            average => average - average / 8 + micros / 8,
        };
        // If two workers store concurrently, one sample is lost, which an average tolerates.
        self.connect_micros.store(average.max(1), Relaxed);
    }

    /// Returns the moving average of the time to connect; `None` before the first connection.
    pub fn connect_time(&self) -> Option<Duration> {
        match self.connect_micros.load(Relaxed) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// Counts a connect to a second endpoint because the first one was slow.
    pub fn hedged(&self) {
        self.hedged_connects.fetch_add(1, Relaxed);
    }

    /// Counts a retry that the backend's retry budget did not permit.
    pub fn retry_refused(&self) {
        self.refused_retries.fetch_add(1, Relaxed);
    }

    /// Retries that the backend's retry budget did not permit.
    pub fn refused_retries(&self) -> u64 {
        self.refused_retries.load(Relaxed)
    }

    /// Counts an ejection of an endpoint.
    pub fn ejected(&self) {
        self.ejections.fetch_add(1, Relaxed);
    }

    /// Returns the number of hedged connects.
    pub fn hedged_connects(&self) -> u64 {
        self.hedged_connects.load(Relaxed)
    }

    /// Returns the number of ejections.
    pub fn ejections(&self) -> u64 {
        self.ejections.load(Relaxed)
    }

    /// Counts a failed attempt.
    pub fn failed(&self, fault: UpstreamFault) {
        self.faults[fault as usize].fetch_add(1, Relaxed);
    }

    /// Counts a TLS handshake that failed.
    pub fn tls_failed(&self, failure: TlsFailure) {
        self.tls_failures[failure as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of TLS handshakes that failed for this reason.
    pub fn tls_failures(&self, failure: TlsFailure) -> u64 {
        self.tls_failures[failure as usize].load(Relaxed)
    }

    /// Counts the copy of a request.
    pub fn mirrored(&self, result: MirrorResult) {
        self.mirrored[result as usize].fetch_add(1, Relaxed);
    }

    /// Copies of requests with this result so far.
    pub fn mirrored_requests(&self, result: MirrorResult) -> u64 {
        self.mirrored[result as usize].load(Relaxed)
    }

    /// Counts a call to an authorization server.
    pub fn authorized(&self, result: AuthResult) {
        self.authorized[result as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of calls to authorization servers with this result.
    pub fn authorizations(&self, result: AuthResult) -> u64 {
        self.authorized[result as usize].load(Relaxed)
    }

    /// Connections established so far.
    pub fn connects(&self) -> u64 {
        self.connects.load(Relaxed)
    }

    /// Attempts that failed this way so far.
    pub fn faults(&self, fault: UpstreamFault) -> u64 {
        self.faults[fault as usize].load(Relaxed)
    }
}

/// Counters of a release of a backend.
#[derive(Debug)]
pub struct ReleaseStats {
    /// Name of the release.
    pub name: Arc<str>,
    classes: [AtomicU64; 5],
    faults: [AtomicU64; UpstreamFault::ALL.len()],
}

impl ReleaseStats {
    fn new(name: Arc<str>) -> Self {
        Self {
            name,
            classes: Default::default(),
            faults: Default::default(),
        }
    }

    /// Counts a completed request by status. A status outside 100 to 599 counts as 5xx.
    pub fn record(&self, status: u16) {
        self.classes[class(status)].fetch_add(1, Relaxed);
    }

    /// Counts a failed attempt.
    pub fn failed(&self, fault: UpstreamFault) {
        self.faults[fault as usize].fetch_add(1, Relaxed);
    }

    /// Requests by status class, 1xx to 5xx.
    pub fn classes(&self) -> [u64; 5] {
        self.classes.each_ref().map(|count| count.load(Relaxed))
    }

    /// Attempts that failed this way so far.
    pub fn faults(&self, fault: UpstreamFault) -> u64 {
        self.faults[fault as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_by_class_and_by_duration() {
        let stats = RuleStats::default();
        stats.record(200, Duration::from_micros(250));
        stats.record(404, Duration::from_micros(251));
        stats.record(999, Duration::from_secs(61));
        assert_eq!(stats.classes(), [0, 1, 0, 1, 1]);
        let durations = stats.durations();
        assert_eq!((durations[0], durations[1], durations[17]), (1, 1, 1));
        assert_eq!(stats.total_micros(), 61_000_501);
    }

    #[test]
    fn all_lists_are_in_the_order_of_their_counters() {
        let stats = BackendStats::default();
        for (index, fault) in UpstreamFault::ALL.into_iter().enumerate() {
            assert_eq!(fault as usize, index);
            stats.failed(fault);
            assert_eq!(stats.faults(fault), 1);
        }
        for (index, failure) in TlsFailure::ALL.into_iter().enumerate() {
            assert_eq!(failure as usize, index);
        }
        for (index, result) in MirrorResult::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, index);
        }
    }
}
