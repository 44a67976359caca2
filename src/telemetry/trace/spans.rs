//! The spans of a sampled request: what is known at its head, its attempts, and how it ended.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::header::USER_AGENT;
use http::{HeaderValue, Method, Version, request};

use super::context::{TRACESTATE, TraceContext};
use super::events::{Decision, Event, EventValue, text};
use crate::ir::named::named;
use crate::ir::telemetry::AttributeSource;
use crate::ir::{ObjectRef, RuleId, Tracing};

/// Maximum length of client-controlled texts, in bytes.
const MAX_TEXT: usize = 1024;
/// Maximum number of attempts with a span.
const MAX_ATTEMPTS: usize = 8;
/// Maximum number of events of a span.
const MAX_EVENTS: usize = 16;

/// The span of a sampled request, with those of its attempts.
#[derive(Debug)]
pub struct RequestSpan {
    /// The policy that it was sampled by.
    pub tracing: Arc<Tracing>,
    /// Its identity.
    pub context: TraceContext,
    /// What a request of the proxy's own is for. It has attempts, and the span of the client's request is their parent.
    pub(super) purpose: Option<Purpose>,
    pub(super) parent: Option<[u8; 8]>,
    pub(super) tracestate: Box<str>,
    begin: Instant,
    /// Nanoseconds since the Unix epoch.
    pub(super) start: u64,
    pub(super) method: SpanMethod,
    /// Without the query, since its values can be credentials.
    pub(super) path: Box<str>,
    pub(super) version: &'static str,
    pub(super) user_agent: Option<Box<str>>,
    pub(super) peer: Peer,
    pub(super) attributes: Vec<(Arc<str>, Box<str>)>,
    pub(super) attempts: Vec<AttemptSpan>,
    /// Number of attempts, also of those that are not kept.
    begun: u32,
    /// Decisions, with the time from the start of the request.
    pub(super) events: Vec<(Duration, Event)>,
    /// Number of events that are not kept.
    pub(super) dropped_events: u32,
    /// Path template of the match.
    pub(super) template: Option<Box<str>>,
    pub(super) rule: Option<(ObjectRef, usize)>,
    pub(super) status: u16,
    pub(super) grpc_status: Option<u16>,
    pub(super) duration: Duration,
    pub(super) error: Option<&'static str>,
}

named! {
    /// What a request of the proxy's own is for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Purpose {
        /// A copy of the client's request.
        Mirror = "mirror",
        /// A question to an authorization server.
        ExternalAuth = "external_auth",
        /// A page in place of a response with an error status.
        ErrorPage = "error_page",
        /// A question to an endpoint picker.
        Picker = "endpoint_picker",
    }
}

/// The method of a request.
#[derive(Debug)]
pub(super) enum SpanMethod {
    /// One that may be in names of spans (RFC 9110, 9.3, and RFC 5789).
    Known(&'static str),
    Other(Box<str>),
}

impl SpanMethod {
    fn of(method: &Method) -> Self {
        Self::Known(match *method {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::DELETE => "DELETE",
            Method::CONNECT => "CONNECT",
            Method::OPTIONS => "OPTIONS",
            Method::TRACE => "TRACE",
            Method::PATCH => "PATCH",
            _ => return Self::Other(cut(method.as_str())),
        })
    }
}

/// The client of a request, and the host that it asked for.
#[derive(Debug)]
pub struct Peer {
    /// Address of the client.
    pub client: SocketAddr,
    /// Scheme of the connection.
    pub scheme: &'static str,
    /// Requested host, in lower case and without port.
    pub host: Box<str>,
    /// Local port.
    pub port: u16,
}

/// The span of an attempt.
#[derive(Debug)]
pub struct AttemptSpan {
    pub(super) span_id: [u8; 8],
    /// How many attempts were before.
    pub(super) resend: u32,
    /// Path as the backend sees it, without query.
    pub(super) path: Box<str>,
    /// Time from the start of the request.
    pub(super) start: Duration,
    pub(super) end: Option<Duration>,
    pub(super) endpoint: Option<SocketAddr>,
    pub(super) is_tls: bool,
    pub(super) status: u16,
    pub(super) error: Option<&'static str>,
}

impl RequestSpan {
    /// Begins the span of a request whose head was read at `begin`, if it is sampled.
    pub fn sample(
        tracing: &Arc<Tracing>,
        parts: &request::Parts,
        peer: impl FnOnce() -> Peer,
        begin: Instant,
    ) -> Option<Box<Self>> {
        let parent = TraceContext::of_request(&parts.headers);
        let context = TraceContext::sample(tracing, parent)?;
        let text = |value: &http::HeaderValue| Some(cut(value.to_str().ok()?));
        let tracestate = parent.map(|_| {
            let values = parts.headers.get_all(TRACESTATE).iter();
            let values: Vec<_> = values.filter_map(|it| it.to_str().ok()).collect();
            members(&values.join(","))
        });
        let attribute = |(name, source): &(Arc<str>, AttributeSource)| {
            let value = match source {
                AttributeSource::Literal(value) => (**value).into(),
                AttributeSource::Header(header) => text(parts.headers.get(header)?)?,
                // The values of these are known at the end.
                AttributeSource::Attribute(_) => return None,
            };
            Some((name.clone(), value))
        };
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since_epoch.unwrap_or_default().as_nanos() as u64;
        Some(Box::new(Self {
            attributes: tracing.attributes.iter().filter_map(attribute).collect(),
            tracing: tracing.clone(),
            context,
            purpose: None,
            parent: parent.map(|parent| parent.span_id),
            tracestate: tracestate.unwrap_or_default(),
            begin,
            start: now.saturating_sub(begin.elapsed().as_nanos() as u64),
            method: SpanMethod::of(&parts.method),
            path: cut(parts.uri.path()),
            version: match parts.version {
                Version::HTTP_3 => "3",
                Version::HTTP_2 => "2",
                Version::HTTP_10 => "1.0",
                _ => "1.1",
            },
            user_agent: parts.headers.get(USER_AGENT).and_then(text),
            peer: peer(),
            attempts: Vec::new(),
            begun: 0,
            events: Vec::new(),
            dropped_events: 0,
            template: None,
            rule: None,
            status: 0,
            grpc_status: None,
            duration: Duration::ZERO,
            error: None,
        }))
    }

    /// Begins the spans of a request of the proxy's own for this purpose, while it handles this request: those of its
    /// attempts, whose parent is this span. They end by themselves, and may outlive the request.
    pub fn of_subrequest(
        &self,
        purpose: Purpose,
        method: &Method,
        template: Option<&str>,
    ) -> Box<Self> {
        Box::new(Self {
            tracing: self.tracing.clone(),
            context: self.context,
            purpose: Some(purpose),
            parent: self.parent,
            tracestate: self.tracestate.clone(),
            begin: self.begin,
            start: self.start,
            method: SpanMethod::of(method),
            path: Box::default(),
            version: self.version,
            user_agent: None,
            peer: Peer {
                host: Box::default(),
                ..self.peer
            },
            attributes: Vec::new(),
            attempts: Vec::new(),
            begun: 0,
            events: Vec::new(),
            dropped_events: 0,
            template: template.map(cut),
            rule: None,
            status: 0,
            grpc_status: None,
            duration: Duration::ZERO,
            error: None,
        })
    }

    /// Ends the spans of a request of the proxy's own. `endpoint` is that of the last attempt. Without a response so far, it
    /// was given up.
    pub fn end_subrequest(&mut self, endpoint: Option<SocketAddr>) {
        let is_open = |attempt: &&AttemptSpan| attempt.status == 0;
        let open = self.attempts.last().filter(is_open);
        let error = open.map(|_| "given up: no response in time");
        self.end(0, self.begin.elapsed(), error, endpoint);
    }

    /// Reports whether it has no spans.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns the `tracestate` of the trace, if it has one.
    pub fn tracestate(&self) -> Option<HeaderValue> {
        let is_known = self.has_parent() && !self.tracestate.is_empty();
        is_known.then(|| HeaderValue::from_str(&self.tracestate).ok())?
    }

    /// Returns the path template of the match.
    pub fn template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Reports whether the trace began elsewhere.
    pub fn has_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// Records the matched rule: its route, its index there, and the path template of the match.
    pub fn matched(&mut self, rule: &RuleId, template: Option<String>) {
        self.rule = Some((rule.route.clone(), rule.index));
        self.template = template.map(String::into_boxed_str);
    }

    /// Begins the span of an attempt. Returns its identity, which the backend gets as its parent.
    pub fn begin_attempt(&mut self, path: &str) -> TraceContext {
        let (context, now) = (self.context.child(), self.begin.elapsed());
        self.end_attempt(now);
        if self.attempts.len() == MAX_ATTEMPTS {
            // The first ones tell most; the last one is the one that counts.
            self.attempts.pop();
        }
        // Most requests have one.
        self.attempts.reserve_exact(1);
        self.attempts.push(AttemptSpan {
            span_id: context.span_id,
            resend: self.begun,
            path: cut(path),
            start: now,
            end: None,
            endpoint: None,
            is_tls: false,
            status: 0,
            error: None,
        });
        self.begun += 1;
        context
    }

    /// Records the head of the response to the present attempt, or its failure. An attempt that has found no endpoint has no
    /// span: nothing was sent.
    pub fn attempted(
        &mut self,
        endpoint: Option<SocketAddr>,
        is_tls: bool,
        outcome: Result<u16, &'static str>,
    ) {
        if endpoint.is_none() {
            return self.forget_attempt();
        }
        let now = self.begin.elapsed();
        let Some(attempt) = self.attempts.last_mut() else {
            return;
        };
        (attempt.endpoint, attempt.is_tls) = (endpoint, is_tls);
        match outcome {
            Ok(status) => attempt.status = status,
            Err(error) => (attempt.error, attempt.end) = (Some(error), Some(now)),
        }
    }

    /// Records a decision.
    #[cold]
    pub fn note(&mut self, event: Event) {
        self.note_at(Instant::now(), event);
    }

    /// Records a decision of this time. The first ones are kept.
    pub fn note_at(&mut self, time: Instant, event: Event) {
        match self.events.len() < MAX_EVENTS {
            true => {
                let time = time.saturating_duration_since(self.begin);
                self.events.push((time, event));
            }
            false => self.dropped_events += 1,
        }
    }

    /// Records whether the request is sent again after the present attempt.
    #[cold]
    pub fn note_retry(&mut self, decision: Decision) {
        let reason = match self.attempts.last() {
            Some(AttemptSpan {
                error: Some(error), ..
            }) => EventValue::Word(error),
            Some(attempt) => text(&attempt.status),
            None => return,
        };
        self.note(Event::retry(decision, reason));
    }

    /// Records the status of a gRPC call.
    pub fn grpc_status(&mut self, status: u16) {
        self.grpc_status = Some(status);
    }

    /// Ends the span. `status` is 0 without a response, `endpoint` is that of the last attempt.
    pub fn end(
        &mut self,
        status: u16,
        duration: Duration,
        error: Option<&'static str>,
        endpoint: Option<SocketAddr>,
    ) {
        (self.status, self.duration, self.error) = (status, duration, error);
        if let Some(attempt) = self.attempts.last_mut() {
            let is_open = attempt.end.is_none();
            attempt.endpoint = attempt.endpoint.or(endpoint);
            attempt.error = attempt.error.or(error.filter(|_| is_open));
            if attempt.endpoint.is_none() {
                self.forget_attempt();
            }
        }
        self.end_attempt(duration);
        self.events.sort_by_key(|(time, _)| *time);
    }

    fn forget_attempt(&mut self) {
        if self.attempts.pop().is_some() {
            self.begun -= 1;
        }
    }

    fn end_attempt(&mut self, now: Duration) {
        if let Some(attempt) = self.attempts.last_mut() {
            attempt.end.get_or_insert(now);
        }
    }

    /// Number of spans.
    pub(super) fn count(&self) -> u64 {
        u64::from(self.purpose.is_none()) + self.attempts.len() as u64
    }
}

/// Returns the list of `tracestate`, in ASCII, or the first of its members that fit: members are removed as a whole
/// (W3C Trace Context, 3.3.1.5).
fn members(list: &str) -> Box<str> {
    if list.len() <= MAX_TEXT {
        return list.into();
    }
    let mut fits = (0..=MAX_TEXT).rev();
    let end = fits.find(|end| list.as_bytes()[*end] == b',');
    list[..end.unwrap_or_default()].into()
}

/// Returns the beginning of a text.
fn cut(text: &str) -> Box<str> {
    if text.len() <= MAX_TEXT {
        return text.into();
    }
    let mut fits = (0..=MAX_TEXT).rev();
    let end = fits.find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or_default()].into()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::super::context::tests::tracing;
    use super::*;

    /// Returns the `tracestate` that a span has of these headers.
    fn tracestate(values: &[&str]) -> String {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let mut request = Request::get("/").header("traceparent", parent);
        for value in values {
            request = request.header("tracestate", *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let peer = || Peer {
            client: ([127, 0, 0, 1], 1).into(),
            scheme: "http",
            host: "h".into(),
            port: 80,
        };
        let span = RequestSpan::sample(&Arc::new(tracing()), &parts, peer, Instant::now());
        span.unwrap().tracestate.to_string()
    }

    #[test]
    fn members_of_a_long_tracestate_are_kept_as_a_whole() {
        let member = |key: &str| format!("{key}={}", "v".repeat(254));
        let [a, b, c, d] = ["a", "b", "c", "d"].map(member);
        let three = format!("{a},{b},{c}");
        assert_eq!(tracestate(&["vendor=1", "other=2"]), "vendor=1,other=2");
        assert_eq!(tracestate(&[&*three, &*d]), three);
        // As long as what fits.
        let exact = format!("{three},d={}", "v".repeat(MAX_TEXT - three.len() - 3));
        assert_eq!(exact.len(), MAX_TEXT);
        assert_eq!(tracestate(&[&*exact, "e=1"]), exact);
        let long = format!("a={}", "v".repeat(MAX_TEXT));
        assert_eq!(tracestate(&[&*long]), "");
    }
}
