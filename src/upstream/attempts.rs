//! The attempts of a request so far: their endpoints, what the next attempt must avoid, and whether another one is
//! allowed.

use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;

use super::balance::{self, Choice};
use super::chosen::Chosen;
use super::connector::Connector;
use super::ejections::Ejections;
use super::health;
use super::in_flight::{InFlight, WorkerEndpoints};
use super::outgoing::Outgoing;
use super::pool::Pool;
use super::release::{self, SelectedRelease, candidates};
use super::restrictions::{Avoid, Restrictions};
use super::room::Room;
use super::send_error::SendError;
use super::totals::{Suspect, Totals};
use crate::table::{Backend, Endpoint, Endpoints, Release, ReleaseStats, UpstreamFault};
use crate::table::{Overloaded, RequestSlot};
use crate::upstream::restrictions::{EXCLUDED, MAX_ENDPOINTS};

/// Maximum number of times that one request is sent again at once because a GOAWAY left it unprocessed, over all
/// retries. A backend that closes connections after few requests leaves many unprocessed.
const MAX_UNPROCESSED_RESENDS: u8 = 12;
/// Maximum number of attempts of one request that a GOAWAY leaves unprocessed, including the retries of its rule.
const MAX_UNPROCESSED: u8 = 16;

/// Whether a failed request may be sent again, apart from the `retry` of its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// No: it may have had an effect, or has had all attempts.
    Never,
    /// At once: there was no connection, the backend reports that it did not process the request, or a reused
    /// connection closed. Bounded per request.
    AtOnce,
    /// At once, unless the rule says how often the request is sent: a reused connection closed after a part of the request
    /// was written, and the method is idempotent. Once per request.
    Stale,
    /// As a retry, once per request and within the retry budget of the backend: the backend may have processed the
    /// request, but its method is safe, and there is another endpoint.
    AsRetry,
}

/// Attempts of a request so far, on one backend or several.
#[derive(Default)]
pub struct Attempts {
    /// The client whose request it is, an address or a network; `None` for requests of the process.
    pub(crate) client: Option<IpAddr>,
    pub(super) endpoint: Option<SocketAddr>,
    /// Whether the last attempt has found an endpoint.
    is_selected: bool,
    /// Release of the last attempt, if its backend has releases.
    pub(super) release: Option<SelectedRelease>,
    /// When the last attempt has begun, or the first one begins.
    begin: Option<Instant>,
    /// Number of attempts.
    count: u8,
    /// Time from the begin of the last attempt to the head of its response.
    response_time: Option<Duration>,
    /// Endpoint of the request's session.
    preferred: Option<SocketAddr>,
    /// Endpoints that were chosen for the request, if some were.
    chosen: Option<Box<Chosen>>,
    pub(super) failed: Option<Box<FailedAttempts>>,
    pub(super) ejections: Ejections,
    /// Counts the request for its backend, if they are limited.
    slot: Option<RequestSlot>,
}

/// Failed attempts of a request.
#[derive(Default)]
pub(super) struct FailedAttempts {
    /// Ids of endpoints that could not be connected to; 0 is none.
    unreachable: [u64; MAX_ENDPOINTS],
    /// Id of the last endpoint that refused the request or closed the connection without a
    /// response.
    pub(super) refused: Option<u64>,
    pub(super) avoid: Avoid,
    pub(super) last: Option<SendError>,
    /// What holds over all retries.
    pub(super) total: Totals,
}

impl Attempts {
    /// Counts the request for a backend until its attempts are dropped, if the backend has limits.
    ///
    /// # Errors
    /// When the backend has as many requests as its policy permits.
    #[inline]
    pub(super) fn admit(&mut self, backend: &Backend) -> Result<(), Overloaded> {
        if let Some(settings) = &backend.settings {
            self.slot = settings.admit(self.slot.take())?;
        }
        Ok(())
    }

    /// Returns the endpoint of the last attempt.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        self.endpoint
    }

    /// Returns the endpoint of the last attempt, unless that has found none.
    pub fn selected(&self) -> Option<SocketAddr> {
        self.endpoint.filter(|_| self.is_selected)
    }

    /// Returns the number of attempts: how often an endpoint was selected.
    pub fn count(&self) -> u8 {
        self.count
    }

    /// Returns the time from the begin of the last attempt to the head of its response; `None` without a response.
    pub fn response_time(&self) -> Option<Duration> {
        self.response_time
    }

    /// Attempts of a request that has just arrived from a client: the first one begins `now`, which saves a look at the clock.
    pub fn starting(now: Instant, client: IpAddr) -> Self {
        Self {
            client: Some(client),
            begin: Some(now),
            ..Self::default()
        }
    }

    /// Notes that the request has waited before its first attempt.
    pub fn have_waited(&mut self) {
        self.begin = None;
    }

    /// Counts an attempt, which begins now.
    pub(super) fn begin(&mut self) {
        if self.count > 0 {
            (self.begin, self.response_time) = (None, None);
        }
        self.is_selected = false;
        self.count = self.count.saturating_add(1);
        self.begin.get_or_insert_with(Instant::now);
    }

    /// Records that the head of a response has arrived. Returns the time since the begin of the attempt.
    pub(super) fn responded(&mut self) -> Duration {
        let time = self.begin.map_or(Duration::ZERO, |begin| begin.elapsed());
        self.response_time = Some(time);
        time
    }

    /// Makes attempts use this endpoint of their backend while it exists, has not failed the request, and is not
    /// avoided.
    pub fn prefer(&mut self, endpoint: SocketAddr) {
        self.preferred = Some(endpoint);
    }

    /// Makes attempts use these endpoints of their backend in turn, ready or not. Without any, endpoints are balanced.
    pub fn choose(&mut self, endpoints: Option<Box<Chosen>>) {
        self.chosen = endpoints;
    }

    /// Returns the release of the last attempt, if its backend has releases. It may have no endpoints.
    pub fn release(&self) -> Option<&ReleaseStats> {
        self.selected_release().map(|release| &*release.stats)
    }

    /// Returns the value of the `Set-Cookie` that keeps the client on its release, unless the client has it.
    pub fn set_cookie(&self, is_secure: bool) -> Option<&HeaderValue> {
        let selected = self.release.as_ref().filter(|selected| selected.is_drawn)?;
        selected.release.set_cookie(is_secure)
    }

    fn selected_release(&self) -> Option<&Arc<Release>> {
        self.release.as_ref().map(|selected| &selected.release)
    }

    /// Starts over after a delay, as the rule's `retry` allows. The attempt avoids the endpoint that failed last, and
    /// `endpoint` if given, while there is another one.
    pub fn begin_retry(&mut self, endpoint: Option<u64>) {
        if let Some(chosen) = &mut self.chosen {
            chosen.begin_retry();
        }
        let failed = self.failed.get_or_insert_default();
        let unreachable = failed.unreachable.into_iter().rev().find(|id| *id != 0);
        **failed = FailedAttempts {
            // What made one idle connection stale may have closed all.
            avoid: Avoid {
                idle: failed.avoid.idle,
                ..Avoid::default()
            },
            refused: endpoint.or(unreachable).or(failed.refused),
            last: failed.last,
            total: mem::take(&mut failed.total),
            ..FailedAttempts::default()
        };
    }

    /// Reports whether no attempt was made yet.
    pub fn is_first(&self) -> bool {
        self.failed.is_none()
    }

    /// Counts a retry for the default retry budget of the backend, if that permits it. Returns whether it does.
    pub fn try_default_retry(&mut self, backend: &Backend) -> bool {
        let is_permitted = backend.try_default_retry();
        let failed = self.failed.get_or_insert_default();
        failed.total.charged += u8::from(is_permitted);
        is_permitted
    }

    /// Ends the request after a failure. If it has failed at one endpoint only, that endpoint counts as failed.
    pub fn give_up(&mut self, backend: &Backend) {
        let failed = self.failed.as_mut();
        let suspect = failed.map(|failed| mem::take(&mut failed.total.suspect));
        if let Some(Suspect::Endpoint(endpoint)) = suspect {
            let is_ejected = health::on_request_failure(backend, &endpoint);
            self.ejections.add(&endpoint, is_ejected);
        }
    }

    /// Returns the endpoints that failures of the request have ejected, with the time.
    pub fn ejections(&self) -> &[(SocketAddr, Instant)] {
        self.ejections.list()
    }

    /// Reports whether no further attempt is allowed, not even as a retry of the rule.
    pub(super) fn are_exhausted(&self) -> bool {
        let failed = self.failed.as_ref();
        failed.is_some_and(|failed| failed.total.unprocessed >= MAX_UNPROCESSED)
    }

    /// Records a response. It shows that the failure of another endpoint was not caused by the request.
    pub(super) fn on_response(&mut self, backend: &Backend, endpoint: &Endpoint) {
        let Some(failed) = &mut self.failed else {
            return;
        };
        for _ in 0..mem::take(&mut failed.total.charged) {
            backend.refund_default_retry();
        }
        if let Suspect::Endpoint(suspect) = mem::take(&mut failed.total.suspect)
            && suspect.id != endpoint.id
        {
            let is_ejected = health::on_request_failure(backend, &suspect);
            self.ejections.add(&suspect, is_ejected);
        }
    }

    /// Returns the connections that the next attempt must not use.
    pub(super) fn avoid(&self) -> Avoid {
        self.failed
            .as_ref()
            .map_or_else(Avoid::default, |failed| failed.avoid)
    }

    pub(super) fn restrictions(&self, upgrades: bool) -> Restrictions {
        Restrictions {
            release: self.selected_release().cloned(),
            excluded: self.excluded(),
            avoid: self.avoid(),
            upgrades,
            is_chosen: self.chosen().is_some(),
            client: self.client,
        }
    }

    pub(super) fn select(
        &mut self,
        pool: &Pool,
        backend: &Backend,
        affinity: Option<u64>,
        request: &Outgoing<'_>,
    ) -> Option<InFlight> {
        let (worker, endpoints) = (&pool.endpoints, backend.endpoints());
        if self.chosen().is_some() {
            let selected = self.select_chosen(pool, &endpoints);
            if self.chosen().is_some() {
                return selected;
            }
        }
        let upgrades = request.upgrade.is_some();
        let has_open = |it: &Endpoint| pool.has_open(Connector::key_of(backend, it, upgrades));
        let room = backend.settings.as_deref();
        let room = room.and_then(|settings| Room::of(settings, Some(&has_open)));
        if let Some(preferred) = self.select_preferred(worker, &endpoints, room) {
            (self.endpoint, self.is_selected) = (Some(preferred.endpoint().address), true);
            return Some(preferred);
        }
        let candidates = match endpoints.releases() {
            None => {
                self.release = None;
                &endpoints
            }
            Some(releases) => {
                self.release =
                    release::select(releases, self.release.take(), &request.parts.headers);
                &*self.release.as_ref()?.release.endpoints
            }
        };
        let release = self.release.as_ref().map(|selected| &*selected.release);
        let ring = release::ring(&endpoints, release);
        let choice = Choice::of(backend, worker.worker(), ring, affinity).with_open(&has_open);
        let choice = choice.with_near(endpoints.near());
        let select = |excluded: &[u64]| balance::select(worker, candidates, excluded, choice);
        // Apart from the selection for the first attempt, which most requests need alone.
        let select_other = |excluded: &[u64]| match &self.chosen {
            None => select(excluded),
            Some(chosen) => select(&chosen.with_unreachable(excluded)),
        };
        let selected = match &self.failed {
            None if self.chosen.is_none() => select(&[]),
            None => select_other(&[]),
            Some(failed) => {
                select_other(&failed.excluded(failed.refused))
                    // The endpoint that refused the request may accept it on another connection.
                    .or_else(|| select_other(&failed.unreachable))
            }
        };
        let selected = match selected {
            Some(selected) if !self.has_unreachable() => selected,
            selected => self.select_fallback(worker, backend).or(selected)?,
        };
        (self.endpoint, self.is_selected) = (Some(selected.endpoint().address), true);
        Some(selected)
    }

    /// Reports whether no endpoint was selected because all that are left have as much as the policy permits.
    pub(super) fn are_endpoints_full(&self, backend: &Backend) -> bool {
        if self.chosen.is_some() {
            return false;
        }
        let endpoints = backend.endpoints();
        let candidates = candidates(&endpoints, self.selected_release().map(|it| &**it));
        balance::are_full(backend, candidates, &self.excluded())
    }

    fn has_unreachable(&self) -> bool {
        let failed = self.failed.as_ref();
        failed.is_some_and(|failed| failed.unreachable[0] != 0)
    }

    /// Selects what answers for the endpoints while they are out of date.
    fn select_fallback(&self, worker: &WorkerEndpoints, backend: &Backend) -> Option<InFlight> {
        // Another release would not be the one that was selected.
        let fallback = backend.fallback().filter(|_| self.release.is_none())?;
        let selected = balance::select(worker, &fallback, &self.excluded(), Choice::by_load(None))?;
        backend.fell_back();
        Some(selected)
    }

    fn select_preferred(
        &mut self,
        worker: &WorkerEndpoints,
        endpoints: &Endpoints,
        room: Option<Room<'_>>,
    ) -> Option<InFlight> {
        let (endpoint, release) = endpoints.find(self.preferred?)?;
        let failed = self.failed.as_ref();
        let excluded = failed.map_or([0; EXCLUDED], |failed| failed.excluded(failed.refused));
        let is_full = || room.is_some_and(|room| !room.is_left(endpoint));
        if endpoint.health.is_avoided() || excluded.contains(&endpoint.id) || is_full() {
            return None;
        }
        let begun = worker.begin(endpoint);
        let begun = match room {
            None => begun,
            Some(room) => room.confirm(begun)?,
        };
        self.release = release.cloned().map(SelectedRelease::kept);
        Some(begun)
    }

    /// Returns the endpoints that were chosen, unless requests are balanced because none of them is left.
    fn chosen(&self) -> Option<&Chosen> {
        self.chosen.as_deref().filter(|chosen| !chosen.is_over())
    }

    fn select_chosen(&mut self, pool: &Pool, endpoints: &Endpoints) -> Option<InFlight> {
        let refused = self.failed.as_ref().and_then(|failed| failed.refused);
        let next = self.chosen.as_mut()?.next(endpoints, refused)?;
        let selected = pool.endpoints.begin(next);
        self.release = None;
        (self.endpoint, self.is_selected) = (Some(selected.endpoint().address), true);
        Some(selected)
    }

    /// Records a failed attempt.
    pub(super) fn on_failure(&mut self, error: SendError) -> &mut FailedAttempts {
        let failed = self.failed.get_or_insert_default();
        failed.last = Some(error);
        failed
    }

    /// Records endpoints that could not be connected to, the selected one last; 0 is none. Returns whether the request may
    /// try to connect to another one.
    pub(super) fn on_unreachable(&mut self, endpoints: [u64; 2]) -> bool {
        if let Some(chosen) = self.chosen.as_mut().filter(|chosen| !chosen.is_over()) {
            let [_, selected] = endpoints;
            return chosen.on_unreachable(selected);
        }
        let failed = self.failed.get_or_insert_default();
        failed.add_unreachable(endpoints);
        failed.may_connect()
    }

    /// Returns the ids of endpoints that must not be connected to.
    fn excluded(&self) -> [u64; EXCLUDED] {
        let failed = self.failed.as_ref();
        failed.map_or([0; EXCLUDED], |failed| failed.excluded(None))
    }

    /// Reports whether there is another endpoint that has not failed.
    pub(super) fn has_other_endpoint(&self, backend: &Backend, in_flight: &InFlight) -> bool {
        let excluded = self.excluded();
        let endpoints = backend.endpoints();
        if let Some(chosen) = self.chosen() {
            return chosen.has_other(&endpoints, in_flight.endpoint().id);
        }
        let candidates = candidates(&endpoints, self.selected_release().map(|it| &**it));
        let mut ids = candidates.iter().map(|one| one.id);
        ids.any(|id| id != in_flight.endpoint().id && !excluded.contains(&id))
    }

    /// Counts a failed attempt for its backend and its release.
    pub(super) fn count_failure(&self, backend: &Backend, fault: UpstreamFault) {
        backend.stats.failed(fault);
        if let Some(release) = self.release() {
            release.failed(fault);
        }
    }
}

impl FailedAttempts {
    /// Counts an attempt that a GOAWAY left unprocessed. Returns whether the request may be sent again at once.
    pub(super) fn resend_unprocessed(&mut self) -> Resend {
        self.total.unprocessed += 1;
        match self.total.unprocessed <= MAX_UNPROCESSED_RESENDS {
            true => Resend::AtOnce,
            false => Resend::Never,
        }
    }

    /// Reports whether the request may try to connect to another endpoint.
    fn may_connect(&self) -> bool {
        self.unreachable.last() == Some(&0)
    }

    fn add_unreachable(&mut self, endpoints: [u64; 2]) {
        for id in endpoints.into_iter().filter(|id| *id != 0) {
            if let Some(free) = self.unreachable.iter_mut().find(|id| **id == 0) {
                *free = id;
            }
        }
    }

    fn excluded(&self, refused: Option<u64>) -> [u64; EXCLUDED] {
        let [first, second, third] = self.unreachable;
        [first, second, third, refused.unwrap_or(0)]
    }
}
