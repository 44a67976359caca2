//! Counters of backends: plain atomics that the proxy updates and telemetry reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::durations::{DurationCounts, Histogram};
use super::exemplar::{Exemplar, LastSampled};
use super::fault::UpstreamFault;
use super::outcomes::{Outcome, Outcomes};
use super::request_stats::ReleaseStats;
use crate::ir::named::named;
use crate::runtime::per_worker::{PerWorker, WorkerId};

named! {
    /// Why TLS to an endpoint failed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum TlsFailure {
        /// The certificate has none of the names.
        Name = "name",
        /// The certificate has expired.
        Expired = "expired",
        /// The certificate is not valid yet.
        NotYetValid = "not_yet_valid",
        /// The issuer of the certificate is not trusted.
        UnknownAuthority = "unknown_authority",
        /// The key of the certificate is none of the pinned ones.
        Pin = "pin",
        /// The certificate is invalid for another reason.
        Certificate = "certificate",
        /// The endpoint refused the handshake, for example because it requires a client certificate.
        Refused = "refused",
        /// The endpoint does not speak TLS, or supports no common version or cipher suite.
        Protocol = "protocol",
        /// The connection closed during the handshake.
        Ended = "ended",
    }
}

impl TlsFailure {
    /// What is wrong, for people.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Name => {
                "the backend's certificate has none of the names that its BackendTLSPolicy requires"
            }
            Self::Expired => "the backend's certificate has expired",
            Self::NotYetValid => "the backend's certificate is not valid yet",
            Self::UnknownAuthority => {
                "the backend's certificate is from an authority that its BackendTLSPolicy does not trust"
            }
            Self::Pin => "the backend's key is not among those that its BackendTLSPolicy pins",
            Self::Certificate => "the backend's certificate cannot be verified",
            Self::Refused => "the backend refused the TLS handshake",
            Self::Protocol => "the backend does not speak TLS as its BackendTLSPolicy requires",
            Self::Ended => "the backend ended the TLS handshake",
        }
    }
}

named! {
    /// Result of a copy of a request that a mirror sends.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum MirrorResult {
        /// The response was read.
        Completed = "completed",
        /// The copy could not be sent, or its response broke off.
        Failed = "failed",
        /// The backend reads more slowly than the client sends, or there are too many copies.
        Dropped = "dropped",
        /// The response did not come in time.
        Timeout = "timeout",
        /// The body of the client's request was not read to its end.
        Aborted = "aborted",
    }
}

named! {
    /// Result of a call to an authorization server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum AuthResult {
        /// The request is forwarded.
        Allowed = "allowed",
        /// The request is refused.
        Denied = "denied",
        /// There was no valid response in time: the request is refused.
        Failed = "failed",
    }
}

named! {
    /// Result of a question to an endpoint picker.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum PickResult {
        /// It has chosen an endpoint.
        Picked = "picked",
        /// It responds to the client itself.
        Responded = "responded",
        /// It has failed, and the request is balanced.
        FailedOpen = "failed_open",
        /// It has failed, and the request is refused.
        Refused = "refused",
        /// The request has ended before its answer.
        Abandoned = "abandoned",
    }
}

named! {
    /// Result of a request for an error page.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum PageResult {
        /// The client gets the page.
        Fetched = "fetched",
        /// There was no response, or it broke off.
        Failed = "failed",
        /// The response is no page.
        Unusable = "unusable",
        /// The response did not come in time.
        Timeout = "timeout",
        /// The page is too large.
        TooLarge = "too_large",
        /// The policy has too many requests for pages.
        Dropped = "dropped",
    }
}

/// Counters of a backend's connections and attempts. Take two words until the first one.
#[derive(Debug, Default)]
pub struct BackendStats(OnceLock<Box<Counters>>);

#[derive(Debug, Default)]
struct Counters {
    responses: PerWorker<ResponseCounts>,
    connects: AtomicU64,
    /// A moving average; 0 before the first connection.
    connect_micros: AtomicU64,
    hedged_connects: AtomicU64,
    fallbacks: AtomicU64,
    refused_retries: AtomicU64,
    ejections: AtomicU64,
    results: OnceLock<Box<Results>>,
    last_sampled: LastSampled,
    /// Used only when the configuration changes.
    releases: Mutex<Vec<Arc<ReleaseStats>>>,
}

/// Responses that one worker has got.
// In this order, so that a response touches few cache lines.
#[derive(Debug, Default)]
#[repr(C)]
struct ResponseCounts {
    outcomes: Outcomes,
    times: DurationCounts,
}

/// Counters that most backends do not need: of failures, and of requests that are not a client's.
#[derive(Debug, Default)]
struct Results {
    faults: [AtomicU64; UpstreamFault::ALL.len()],
    tls_failures: [AtomicU64; TlsFailure::ALL.len()],
    mirrored: [AtomicU64; MirrorResult::ALL.len()],
    authorized: [AtomicU64; AuthResult::ALL.len()],
    pages: [AtomicU64; PageResult::ALL.len()],
    picked: [AtomicU64; PickResult::ALL.len()],
    pick_times: PerWorker<DurationCounts>,
}

impl BackendStats {
    #[inline]
    fn counters(&self) -> &Counters {
        self.0.get_or_init(Box::default)
    }

    fn count(&self, counter: impl FnOnce(&Counters) -> &AtomicU64) -> u64 {
        let counters = self.0.get();
        counters.map_or(0, |counters| counter(counters).load(Relaxed))
    }

    /// Counts a response, and the time from the begin of the attempt to its head.
    #[inline]
    pub fn responded(&self, worker: WorkerId, status: u16, time: Duration) {
        let counts = self.counters().responses.of(worker);
        counts.outcomes.add(Outcome::of_status(status));
        counts.times.record(time);
    }

    /// Records a response of a sampled request, which is counted, too. Its duration is that to its head.
    #[cold]
    pub fn sampled(&self, exemplar: Exemplar) {
        self.counters().last_sampled.set(exemplar);
    }

    /// Returns the last response of a sampled request.
    pub fn exemplar(&self) -> Option<Exemplar> {
        self.0.get()?.last_sampled.get()
    }

    /// Returns the number of responses by status, or by the class of statuses that are not registered.
    pub fn responses(&self) -> BTreeMap<u16, u64> {
        let mut responses = BTreeMap::new();
        for counts in self.0.get().iter().flat_map(|it| it.responses.iter()) {
            let add =
                |outcome: Outcome, count| *responses.entry(outcome.status).or_default() += count;
            counts.outcomes.read(add);
        }
        responses
    }

    /// Returns the times from the begin of an attempt to the head of its response.
    pub fn response_times(&self) -> Histogram {
        let counters = self.0.get();
        let counts = counters.into_iter().flat_map(|it| it.responses.iter());
        Histogram::of(counts.map(|counts| &counts.times))
    }

    /// Counters of these releases, in this order: the present ones by name, or new ones. Drops those of other releases.
    pub(super) fn set_releases<'a>(
        &self,
        names: impl Iterator<Item = &'a Arc<str>>,
    ) -> Vec<Arc<ReleaseStats>> {
        let releases = &self.counters().releases;
        let mut present = releases.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |name: &Arc<str>| present.iter().find(|stats| stats.name == *name).cloned();
        let wanted: Vec<_> = names
            .map(|name| find(name).unwrap_or_else(|| Arc::new(ReleaseStats::new(name.clone()))))
            .collect();
        present.clone_from(&wanted);
        wanted
    }

    fn results(&self) -> &Results {
        self.counters().results.get_or_init(Box::default)
    }

    fn result(&self, counter: impl FnOnce(&Results) -> &AtomicU64) -> u64 {
        let results = self.0.get().and_then(|counters| counters.results.get());
        results.map_or(0, |results| counter(results).load(Relaxed))
    }

    /// Counts an established connection.
    pub fn connected(&self, elapsed: Duration) {
        self.counters().connects.fetch_add(1, Relaxed);
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        let connect_micros = &self.counters().connect_micros;
        let average = match connect_micros.load(Relaxed) {
            0 => micros,
            average => average - average / 8 + micros / 8,
        };
        // If two workers store concurrently, one sample is lost, which an average tolerates.
        connect_micros.store(average.max(1), Relaxed);
    }

    /// Returns the moving average of the time to connect; `None` before the first connection.
    pub fn connect_time(&self) -> Option<Duration> {
        match self.count(|counters| &counters.connect_micros) {
            0 => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }

    /// Counts a connect to a second endpoint because the first one was slow.
    pub fn hedged(&self) {
        self.counters().hedged_connects.fetch_add(1, Relaxed);
    }

    /// Counts a request that is sent to the address of the object, because endpoints are out of date.
    pub(super) fn fell_back(&self) {
        self.counters().fallbacks.fetch_add(1, Relaxed);
    }

    /// Returns the number of requests that were sent to the address of the object.
    pub fn fallbacks(&self) -> u64 {
        self.count(|counters| &counters.fallbacks)
    }

    /// Counts a retry that the backend's retry budget did not permit.
    pub fn retry_refused(&self) {
        self.counters().refused_retries.fetch_add(1, Relaxed);
    }

    /// Retries that the backend's retry budget did not permit.
    pub fn refused_retries(&self) -> u64 {
        self.count(|counters| &counters.refused_retries)
    }

    /// Counts an ejection of an endpoint.
    pub fn ejected(&self) {
        self.counters().ejections.fetch_add(1, Relaxed);
    }

    /// Returns the number of hedged connects.
    pub fn hedged_connects(&self) -> u64 {
        self.count(|counters| &counters.hedged_connects)
    }

    /// Returns the number of ejections.
    pub fn ejections(&self) -> u64 {
        self.count(|counters| &counters.ejections)
    }

    /// Counts a failed attempt.
    pub fn failed(&self, fault: UpstreamFault) {
        self.results().faults[fault as usize].fetch_add(1, Relaxed);
    }

    /// Counts a TLS handshake that failed.
    pub fn tls_failed(&self, failure: TlsFailure) {
        self.results().tls_failures[failure as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of TLS handshakes that failed for this reason.
    pub fn tls_failures(&self, failure: TlsFailure) -> u64 {
        self.result(|results| &results.tls_failures[failure as usize])
    }

    /// Counts the copy of a request.
    pub fn mirrored(&self, result: MirrorResult) {
        self.results().mirrored[result as usize].fetch_add(1, Relaxed);
    }

    /// Copies of requests with this result so far.
    pub fn mirrored_requests(&self, result: MirrorResult) -> u64 {
        self.result(|results| &results.mirrored[result as usize])
    }

    /// Counts a call to an authorization server.
    pub fn authorized(&self, result: AuthResult) {
        self.results().authorized[result as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of calls to authorization servers with this result.
    pub fn authorizations(&self, result: AuthResult) -> u64 {
        self.result(|results| &results.authorized[result as usize])
    }

    /// Counts a request for an error page.
    pub fn paged(&self, result: PageResult) {
        self.results().pages[result as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of requests for error pages with this result.
    pub fn pages(&self, result: PageResult) -> u64 {
        self.result(|results| &results.pages[result as usize])
    }

    /// Counts a question to the picker of the backend.
    pub fn picked(&self, result: PickResult) {
        self.results().picked[result as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of questions to the picker of the backend with this result.
    pub fn picks(&self, result: PickResult) -> u64 {
        self.result(|results| &results.picked[result as usize])
    }

    /// Counts the time until the picker of the backend has chosen an endpoint or responded itself.
    pub fn pick_took(&self, worker: WorkerId, time: Duration) {
        self.results().pick_times.of(worker).record(time);
    }

    /// Returns the times until the picker of the backend has chosen an endpoint or responded itself.
    pub fn pick_times(&self) -> Histogram {
        let results = self.0.get().and_then(|counters| counters.results.get());
        Histogram::of(results.into_iter().flat_map(|it| it.pick_times.iter()))
    }

    /// Connections established so far.
    pub fn connects(&self) -> u64 {
        self.count(|counters| &counters.connects)
    }

    /// Attempts that failed this way so far.
    pub fn faults(&self, fault: UpstreamFault) -> u64 {
        self.result(|results| &results.faults[fault as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_picks_are_those_of_all_workers() {
        let stats = BackendStats::default();
        assert_eq!(stats.pick_times(), Histogram::default());
        for index in 0..2 {
            stats.pick_took(WorkerId::new(index, 2), Duration::from_millis(3));
        }
        let times = stats.pick_times();
        assert_eq!((times.count(), times.total_micros), (2, 6_000));
        assert_eq!(stats.response_times(), Histogram::default());
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
        for (index, result) in PickResult::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, index);
        }
        for (index, result) in PageResult::ALL.into_iter().enumerate() {
            assert_eq!(result as usize, index);
        }
    }
}
