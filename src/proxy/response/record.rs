//! The record of one request, from its head to the last byte of its response. Updates the rule's
//! metrics and writes the access log when dropped.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use http::{HeaderMap, HeaderName, HeaderValue, request};

use crate::filter::Scheme;
use crate::ir::Tracing;
use crate::proxy::activity::Activity;
use crate::proxy::client::Client;
use crate::proxy::client::client_address::Origin;
use crate::proxy::client::host::Host;
use crate::proxy::error::{Error, ErrorSource};
use crate::proxy::worker_state::current_table::LoadedRule;
use crate::table::InProgress;
use crate::telemetry::access_log::{Completion, Line};
use crate::telemetry::metrics::TimeoutKind;
use crate::telemetry::trace::{
    Decision, Event, Item, LogRecord, Peer, RequestSpan, TRACEPARENT, TRACESTATE,
};
use crate::upstream::Attempts;

/// Status of a request whose client disconnected before the response.
const CLIENT_CLOSED_REQUEST: u16 = 499;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The record of a request in progress. Boxed, since it moves with the request and then with its response.
pub(crate) struct Record {
    client: Rc<Client>,
    activity: Rc<Activity>,
    /// The address of the client, if it is another one than that of the connection.
    origin: Option<IpAddr>,
    start: Instant,
    rule: Option<LoadedRule>,
    status: u16,
    sent: u64,
    /// Attempts to send the request to a backend.
    pub(in crate::proxy) attempts: Attempts,
    error: Option<&'static str>,
    complete: bool,
    /// The requests in progress that limits count.
    in_progress: Option<Box<InProgress>>,
    /// Its line of the access log so far; `None` if the log is disabled.
    line: Option<Box<Line>>,
    /// The policy whose collector gets its line, instead of the log of the process.
    log: Option<Arc<Tracing>>,
    /// Its span, if it is sampled.
    pub(in crate::proxy) span: Option<Box<RequestSpan>>,
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
        Box::new(Self {
            client,
            activity,
            origin: None,
            start,
            rule: None,
            status: 0,
            sent: 0,
            attempts: Attempts::starting(start),
            error: None,
            complete: false,
            in_progress: None,
            line,
            log: None,
            span: None,
        })
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
            let origin = self.origin;
            self.line.get_or_insert_with(|| {
                let mut line = Line::without_log(&client.peer_text, parts, self.start);
                line.host(host.as_str());
                if let Some(address) = origin {
                    line.client_ip(address);
                }
                line.request_id(id.as_bytes());
                line
            });
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

    /// Makes the span of the request the parent of what backends do, and records the rule.
    #[cold]
    pub(crate) fn trace(&mut self, parts: &mut request::Parts) {
        let Some(span) = &mut self.span else { return };
        if let Some(rule) = &self.rule {
            let template = rule.path_template(parts.uri.path());
            span.matched(rule.route_name(), rule.ir.id.index, template);
        }
        let headers = &mut parts.headers;
        headers.insert(TRACEPARENT, span.context.to_header());
        if !span.has_parent() {
            headers.remove(TRACESTATE);
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

    /// Records the status of a gRPC call, which is in headers or trailers.
    pub(crate) fn grpc_status(&mut self, headers: &HeaderMap) {
        let Some(span) = &mut self.span else { return };
        let status = headers.get(GRPC_STATUS).and_then(|it| it.to_str().ok());
        if let Some(status) = status.and_then(|it| it.parse().ok()) {
            span.grpc_status(status);
        }
    }

    /// Records the matched rule.
    pub(crate) fn matched(&mut self, rule: &LoadedRule) {
        rule.state.stats.enter(self.client.worker.id);
        self.rule = Some(rule.clone());
    }

    /// Counts as requests in progress until its end.
    pub(crate) fn counts_as(&mut self, in_progress: Box<InProgress>) {
        self.in_progress = Some(in_progress);
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

    /// Returns the address of the client. If a proxy tells it, the port is 0.
    pub(crate) fn client(&self) -> SocketAddr {
        let told = self.origin.map(|address| SocketAddr::new(address, 0));
        told.unwrap_or(self.client.peer)
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

    /// Records the end of the response.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }

    /// Records a timeout of the exchange.
    pub(crate) fn timed_out(&mut self, kind: TimeoutKind) {
        self.client.worker.stats.timed_out(kind);
        self.error = Some("aborted: idle timeout");
    }

    /// Records an aborted response.
    pub(crate) fn fail(&mut self, reason: &'static str) {
        self.error = Some(reason);
        self.complete = true;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let ended_by = self.activity.ended_by();
        self.activity.on_request_end();
        let elapsed = self.start.elapsed();
        if !self.complete {
            self.error
                .get_or_insert(ended_by.map_or("the client disconnected", cut_by));
        }
        let status = match self.status {
            0 => CLIENT_CLOSED_REQUEST,
            status => status,
        };
        let worker = self.client.worker.id;
        match &self.rule {
            Some(rule) => {
                rule.state.stats.leave(worker);
                rule.state.stats.record(worker, status, elapsed);
            }
            None => self.client.worker.stats.unmatched.record(worker, status),
        }
        let release = self.attempts.release();
        if let Some(release) = release {
            release.record(worker, status);
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
                bytes_received: self.activity.received(),
                bytes_sent: self.sent,
                rule: rule.map(|rule| (rule.route_name(), rule.ir.id.index)),
                upstream: self.attempts.endpoint(),
                attempts: self.attempts.count(),
                response_time: self.attempts.response_time(),
                release: release.map(|release| &*release.name),
                error: self.error,
                trace_id: context.map(|context| context.trace_id),
            };
            let log = &self.client.worker.access_log;
            if let Some(taps) = log.taps() {
                let backend = || rule?.backend_of(end.upstream).map(|it| it.id.to_string());
                taps.show(&line, &end, &backend);
            }
            match self.log.take() {
                None => log.close(line, &end),
                Some(tracing) => {
                    let outcome = (self.status, self.error);
                    let line = line.into_text(&end);
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
