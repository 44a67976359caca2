//! The record of one request, from its head to the last byte of its response. Updates the rule's
//! metrics and writes the access log when dropped.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, request};

use crate::filter::Scheme;
use crate::ir::request_path::RequestPath;
use crate::ir::{GatewayLog, Tracing};
use crate::proxy::activity::Activity;
use crate::proxy::client::Client;
use crate::proxy::client::client_address::Origin;
use crate::proxy::client::host::Host;
use crate::proxy::error::{Error, ErrorSource};
use crate::proxy::worker_state::current_table::LoadedRule;
use crate::table::{BodySizes, CountedRequest, Exemplar, KnownMethod, Outcome, PickResult, Rule};
use crate::telemetry::access_log::{Completion, Line, Message, counted_status};
use crate::telemetry::metrics::TimeoutKind;
use crate::telemetry::trace::{Decision, Event, Item, LogRecord, Peer, RequestSpan, TRACESTATE};
use crate::upstream::Attempts;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The record of a request in progress. Boxed, since it moves with the request and then with its response.
pub(crate) struct Record {
    client: Rc<Client>,
    activity: Rc<Activity>,
    /// The address of the client, if it is another one than that of the connection.
    origin: Option<IpAddr>,
    start: Instant,
    method: KnownMethod,
    rule: Option<LoadedRule>,
    status: u16,
    sent: u64,
    /// Attempts to send the request to a backend.
    pub(in crate::proxy) attempts: Attempts,
    error: Option<&'static str>,
    complete: bool,
    /// What an endpoint picker has made of it, if one was asked.
    pick: Option<Box<Pick>>,
    /// Bytes that the client has sent through a tunnel.
    tunnelled: u64,
    /// What the request counts as for limits.
    counted: Option<Box<CountedRequest>>,
    /// Its line of the access log so far; `None` if the log is disabled.
    line: Option<Box<Line>>,
    /// The policy whose collector gets its line, instead of the log of the process.
    log: Option<Arc<Tracing>>,
    /// What a policy says about its line.
    log_settings: Option<Arc<GatewayLog>>,
    /// Its span, if it is sampled.
    pub(in crate::proxy) span: Option<Box<RequestSpan>>,
}

/// What an endpoint picker has made of a request.
struct Pick {
    result: PickResult,
    /// The first endpoint that it has chosen.
    endpoint: Option<SocketAddr>,
}

impl Record {
    /// Opens a record for a request whose head was read.
    pub(crate) fn open(
        client: Rc<Client>,
        activity: Rc<Activity>,
        parts: &request::Parts,
    ) -> Box<Self> {
        activity.on_request();
        let start = Instant::now();
        let worker = &client.worker;
        let line = (worker.access_log).open(&client.peer_text, parts, start, &worker.clock);
        let address = client.kept_bytes.client();
        // Written in place: `Box::new` would copy it.
        let place = Box::new_uninit();
        let record = Self {
            client,
            activity,
            origin: None,
            start,
            method: KnownMethod::of(&parts.method),
            rule: None,
            status: 0,
            sent: 0,
            attempts: Attempts::starting(start, address),
            error: None,
            complete: false,
            pick: None,
            tunnelled: 0,
            counted: None,
            line,
            log: None,
            log_settings: None,
            span: None,
        };
        Box::write(place, record)
    }

    /// The connection of the request.
    pub(in crate::proxy) fn connection(&self) -> &Rc<Client> {
        &self.client
    }

    /// The matched rule, if there is one.
    pub(in crate::proxy) fn rule(&self) -> Option<&LoadedRule> {
        self.rule.as_ref()
    }

    /// The `Activity` of the request.
    pub(crate) fn activity(&self) -> &Rc<Activity> {
        &self.activity
    }

    /// Decides whether the request, for this host and local port, is sampled, and where its line of the access log goes.
    #[cold]
    pub(crate) fn sample(
        &mut self,
        tracing: &Arc<Tracing>,
        parts: &request::Parts,
        (host, port): (&Host, u16),
        id: &HeaderValue,
    ) {
        let client = &self.client;
        if tracing.access_log {
            self.log = Some(tracing.clone());
            // The log of the process may be disabled.
            if self.line.is_none() {
                self.line = Some(self.late_line(parts, host, id));
            }
        }
        let peer = || Peer {
            client: self.client(),
            scheme: match client.scheme() {
                Scheme::Https => "https",
                Scheme::Http => "http",
            },
            host: host.as_str().into(),
            port,
        };
        self.span = RequestSpan::sample(tracing, parts, peer, self.start);
    }

    /// Returns what the line of a request without one has so far.
    #[cold]
    fn late_line(&self, parts: &request::Parts, host: &Host, id: &HeaderValue) -> Box<Line> {
        let mut line = Line::without_log(&self.client.peer_text, parts, self.start);
        line.host(host.as_str());
        if let Some(address) = self.origin {
            line.client_ip(address);
        }
        line.request_id(id.as_bytes());
        line
    }

    /// Applies what a policy says about the line of the request, which has these headers. Must follow [`Self::sample`].
    #[cold]
    pub(crate) fn log_as(&mut self, settings: &Arc<GatewayLog>, headers: &HeaderMap) {
        if let Some(line) = &mut self.line {
            line.add(settings, Message::Request, headers);
            self.log_settings = Some(settings.clone());
        }
    }

    /// Records the headers of the response to the client.
    #[inline]
    pub(crate) fn log_response(&mut self, headers: &HeaderMap) {
        if let (Some(settings), Some(line)) = (&self.log_settings, &mut self.line) {
            line.add(settings, Message::Response, headers);
        }
    }

    /// Records the rule in the span of the request, and removes what belongs to no trace of the client.
    #[cold]
    pub(crate) fn trace(&mut self, parts: &mut request::Parts, path: &RequestPath) {
        let Some(span) = &mut self.span else { return };
        if let Some(rule) = &self.rule {
            let template = rule.path_template(path.canonical(parts.uri.path()));
            span.matched(&rule.ir.id, template);
        }
        if !span.has_parent() {
            parts.headers.remove(TRACESTATE);
        }
    }

    /// Records a decision in the span of the request, if it is sampled.
    #[inline]
    pub(crate) fn note(&mut self, event: impl FnOnce() -> Event) {
        self.note_if(|| Some(event()));
    }

    /// Records a decision, if there is one, in the span of the request, if it is sampled.
    #[inline]
    pub(crate) fn note_if(&mut self, event: impl FnOnce() -> Option<Event>) {
        if let Some(span) = &mut self.span
            && let Some(event) = event()
        {
            span.note(event);
        }
    }

    /// Records whether the request is sent again after the present attempt.
    #[inline]
    pub(crate) fn note_retry(&mut self, is_admitted: bool) {
        if let Some(span) = &mut self.span {
            span.note_retry(match is_admitted {
                true => Decision::Allowed,
                false => Decision::Refused,
            });
        }
    }

    /// Records that an endpoint picker is asked.
    pub(in crate::proxy) fn asks_picker(&mut self) {
        self.pick = Some(Box::new(Pick {
            result: PickResult::Abandoned,
            endpoint: None,
        }));
    }

    /// Records what an endpoint picker has made of the request, and the first endpoint that it has chosen. A later result
    /// replaces an earlier one, and the endpoint stays.
    pub(in crate::proxy) fn picked(&mut self, result: PickResult, endpoint: Option<SocketAddr>) {
        self.note(|| Event::picker(result.name(), endpoint));
        let known = self.pick.take().and_then(|pick| pick.endpoint);
        let endpoint = endpoint.or(known);
        self.pick = Some(Box::new(Pick { result, endpoint }));
    }

    /// Records the status of a gRPC call, which is in headers or trailers.
    pub(crate) fn grpc_status(&mut self, headers: &HeaderMap) {
        let Some(span) = &mut self.span else { return };
        let status = headers.get(GRPC_STATUS).and_then(|it| it.to_str().ok());
        if let Some(status) = status.and_then(|it| it.parse().ok()) {
            span.grpc_status(status);
        }
    }

    /// Records the matched rule. A tap of its route needs the line of the request, for this host.
    pub(crate) fn matched(
        &mut self,
        rule: &LoadedRule,
        parts: &request::Parts,
        (host, id): (&Host, &HeaderValue),
    ) {
        let worker = &self.client.worker;
        rule.state.stats.enter(worker.id);
        self.rule = Some(rule.clone());
        if self.line.is_none() && worker.access_log.needs_line(&rule.ir.id.route) {
            self.line = Some(self.late_line(parts, host, id));
        }
    }

    /// Counts for limits until its end.
    pub(crate) fn counts_as(&mut self, counted: Box<CountedRequest>) {
        match &mut self.counted {
            None => self.counted = Some(counted),
            Some(known) => known.join(*counted),
        }
    }

    /// Records what the response of a backend costs.
    pub(crate) fn costs(&mut self, headers: &HeaderMap) {
        if let Some(counted) = &mut self.counted {
            counted.respond(headers);
        }
    }

    /// Records the host.
    pub(crate) fn directed(&mut self, host: &Host) {
        if let Some(line) = &mut self.line {
            line.host(host.as_str());
        }
    }

    /// Records where the request comes from.
    pub(crate) fn comes_from(&mut self, origin: &Origin) {
        let address = origin.address;
        if address == self.client.peer.ip() {
            return;
        }
        self.origin = Some(address);
        if let Some(line) = &mut self.line {
            line.client_ip(address);
        }
    }

    /// Returns the address of the client. If a proxy names it, the port is 0.
    pub(crate) fn client(&self) -> SocketAddr {
        let named = self.origin.map(|address| SocketAddr::new(address, 0));
        named.unwrap_or(self.client.peer)
    }

    /// Records the request id.
    pub(crate) fn identified(&mut self, id: &HeaderValue) {
        if let Some(line) = &mut self.line {
            line.request_id(id.as_bytes());
        }
    }

    /// Records the response of an endpoint or a filter.
    pub(crate) fn responded(&mut self, status: u16) {
        self.status = status;
    }

    /// Records an error response.
    pub(crate) fn refused(&mut self, error: Error) {
        self.status = error.status().as_u16();
        self.error = Some(error.message());
        if error.source() == ErrorSource::Downstream && error.closes() {
            self.client.worker.stats.bad_requests.fetch_add(1, Relaxed);
        }
    }

    /// Records that an authorization server denied the request.
    pub(crate) fn denied(&mut self) {
        self.error = Some("denied by the authorization server");
    }

    /// Records body bytes passed to the client.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
    }

    /// Records the bytes that a tunnel has passed to the backend and to the client so far.
    pub(crate) fn relayed(&mut self, to_backend: u64, to_client: u64) {
        self.tunnelled = to_backend;
        self.sent = to_client;
    }

    /// Records the end of the response.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }

    /// Records a timeout of the exchange.
    pub(crate) fn timed_out(&mut self, kind: TimeoutKind) {
        self.client.worker.stats.timed_out(kind);
        self.error = Some("aborted: idle timeout");
    }

    /// Counts the request in the metrics of its rule.
    fn count(&self, status: u16, elapsed: Duration) {
        let worker = &self.client.worker;
        let outcome = Outcome {
            method: self.method,
            status,
            error: self.error,
        };
        let Some(rule) = &self.rule else {
            // Its method has no room beside the many errors.
            let method = KnownMethod::default();
            let outcome = Outcome { method, ..outcome };
            return worker.stats.unmatched.of(worker.id).add(outcome);
        };
        let stats = &rule.state.stats;
        stats.leave(worker.id);
        stats.record(worker.id, outcome, elapsed, worker.duration_labels);
        rule.responses.record(worker.id, status);
        if let Some(span) = &self.span {
            let exemplar = Exemplar {
                outcome,
                elapsed,
                trace_id: span.context.trace_id,
                time: SystemTime::now(),
            };
            stats.sampled(worker.id, exemplar);
            self.sampled_attempt(rule, exemplar);
        }
    }

    /// Makes a sampled request the exemplar of the backend that has responded.
    #[cold]
    fn sampled_attempt(&self, rule: &Rule, exemplar: Exemplar) {
        let selected = self.attempts.selected();
        let backend = selected.and_then(|endpoint| rule.backend_of(Some(endpoint)));
        if let (Some(backend), Some(elapsed)) = (backend, self.attempts.response_time()) {
            backend.stats.sampled(Exemplar {
                elapsed,
                ..exemplar
            });
        }
    }

    /// Records an aborted response.
    pub(crate) fn fail(&mut self, reason: &'static str) {
        self.error = Some(reason);
        self.complete = true;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let received = self.activity.received().saturating_add(self.tunnelled);
        if let Some(mut counted) = self.counted.take() {
            counted.charge(BodySizes {
                request: received,
                response: self.sent,
            });
        }
        let ended_by = self.activity.ended_by();
        self.activity.on_request_end();
        let elapsed = self.start.elapsed();
        if !self.complete {
            self.error
                .get_or_insert(ended_by.map_or("the client disconnected", cut_by));
        }
        let status = counted_status(self.status);
        self.count(status, elapsed);
        let release = self.attempts.release();
        if let Some(release) = release {
            release.record(self.client.worker.id, status);
        }
        let context = self.span.as_ref().map(|span| span.context);
        if let Some(mut span) = self.span.take() {
            for (endpoint, time) in self.attempts.ejections() {
                span.note_at(*time, Event::ejection(*endpoint));
            }
            span.end(self.status, elapsed, self.error, self.attempts.selected());
            self.client.worker.traces.add(Item::Span(span));
        }
        if let Some(line) = self.line.take() {
            let rule = self.rule.as_ref();
            let end = Completion {
                status: self.status,
                duration: elapsed,
                bytes_received: received,
                bytes_sent: self.sent,
                rule: rule.map(|rule| (&rule.ir.id.route, rule.ir.id.index)),
                upstream: self.attempts.endpoint(),
                attempts: self.attempts.count(),
                response_time: self.attempts.response_time(),
                picker: self.pick.as_ref().map(|pick| pick.result.name()),
                picked: self.pick.as_ref().and_then(|pick| pick.endpoint),
                release: release.map(|release| &*release.name),
                error: self.error,
                trace_id: context.map(|context| context.trace_id),
            };
            let log = &self.client.worker.access_log;
            if let Some(taps) = log.taps() {
                let backend = || rule?.backend_of(end.upstream).map(|it| it.id.to_string());
                taps.show(&line, &end, &backend);
            }
            let settings = self.log_settings.as_deref();
            match self.log.take() {
                None => log.close(line, &end, settings),
                Some(tracing) => {
                    let Some(line) = line.into_text(&end, settings) else {
                        return;
                    };
                    let outcome = (Some(self.status), self.error);
                    let record = LogRecord::new(tracing, context, elapsed, outcome, line);
                    self.client.worker.traces.add(Item::Record(record));
                }
            }
        }
    }
}

/// Access log text for an exchange that a timeout ended.
fn cut_by(timeout: TimeoutKind) -> &'static str {
    match timeout {
        TimeoutKind::Header | TimeoutKind::Handshake => "aborted: timed out waiting for the client",
        TimeoutKind::Body => "aborted: timed out waiting for the request body",
        TimeoutKind::Write => "aborted: timed out writing to the client",
        TimeoutKind::StreamIdle => "aborted: timed out waiting for the backend",
        TimeoutKind::TunnelIdle => "aborted: idle timeout",
        TimeoutKind::Request => "aborted: no complete response within the route's request timeout",
    }
}
