//! Normalizes a request and matches it against the current table. Must not know what follows.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{HOST, LOCATION};
use http::{HeaderMap, HeaderValue, request};
use rand::RngExt;

use super::authentication::{Arrival, Credentials};
use super::framing::is_multiplexed;
use super::headers::{self, NormalizedRequest};
use super::path::{self, PathState};
use super::policies::{self, Passed, PolicyResult};
use super::policy_refusal::PolicyRefusal;
use super::view::view;
use super::websocket::{self, Handshake};
use crate::filter::ResponsePhase;
use crate::ir::RouteKind;
use crate::ir::client::{ClientPolicies, Underscores};
use crate::ir::cors::is_preflight;
use crate::ir::grpc::is_grpc;
use crate::ir::hex;
use crate::ir::path_normalization;
use crate::ir::request_path::RequestPath;
use crate::ir::route_defaults::RouteDefaults;
use crate::proxy::body::request_body::RequestBody;
use crate::proxy::client::Client;
use crate::proxy::client::forwarding::AddedHeaders;
use crate::proxy::client::host::Host;
use crate::proxy::client::spelling;
use crate::proxy::error::Error;
use crate::proxy::request::error_response::ErrorFormat;
use crate::proxy::response::record::Record;
use crate::proxy::worker_state::current_table::LoadedRule;
use crate::table::{Listener, Port, RequestView, Rule, Table};

/// A normalized request and the rule that it matches.
pub(super) struct Matched {
    pub(super) normalized: NormalizedRequest,
    pub(super) websocket: Option<Handshake>,
    pub(super) path: RequestPath,
    pub(super) added: AddedHeaders,
    pub(super) rule: LoadedRule,
    /// Whether it is a preflight request. Decided once: filters may remove the headers that make it one.
    pub(super) is_preflight: bool,
    /// What policies have to do with it.
    pub(super) passed: Option<Box<Passed>>,
}

/// A request that no rule gets.
pub(super) struct Refused {
    pub(super) error: Error,
    /// Its id, if it has one yet.
    pub(super) id: Option<HeaderValue>,
    /// Headers of the response.
    pub(super) headers: Option<Box<HeaderMap>>,
    /// What policies say about the response.
    pub(super) defaults: Option<Arc<RouteDefaults>>,
    /// What filters say about the response.
    pub(super) phase: Option<Box<ResponsePhase>>,
    /// Whether its client may get a page: 200 would open the tunnel of a WebSocket over HTTP/2.
    pub(super) may_have_page: bool,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self {
            error,
            id: None,
            headers: None,
            defaults: None,
            phase: None,
            may_have_page: false,
        }
    }
}

/// Matches a request against the current table.
pub(super) fn admit(
    client: &Client,
    (parts, body): (&mut request::Parts, &mut RequestBody),
    record: &mut Record,
) -> Result<Matched, Refused> {
    let websocket = websocket::begin(parts)?;
    let mut normalized = normalize(client, parts, websocket.is_some())?;
    body.spell(client.underscores);
    let table = client.worker.table.load();
    let place = FoundListener::find(client, &table, &normalized.host);
    let clients = place.clients();
    let (path, state) = path::normalize(parts, clients.and_then(|it| it.path.as_ref()))?;
    record.directed(&normalized.host);
    if state.is_decoded {
        return Err(redirected(parts));
    }
    let origin = client.origin(clients, &mut parts.headers, normalized.named.as_deref());
    record.comes_from(&origin);
    let claims = (&origin, normalized.has_forwarding);
    let host_header = normalized.host_header.take();
    let forwarding = &client.forwarding;
    let added = forwarding.sanitize(&mut parts.headers, host_header, claims, new_id);
    record.identified(added.id());
    let refused = |error: Error| Refused {
        id: Some(added.id().clone()),
        may_have_page: websocket.is_none(),
        ..error.into()
    };
    let seen = (&normalized.host, added.id());
    let target = (&normalized.host, normalized.upgrade.as_ref());
    if let Some(port) = place.port {
        observe(record, (&table, port), parts, seen);
    }
    let is_preflight = is_preflight(&parts.method, &parts.headers);
    let (rule, passed) = place
        .listener
        .and_then(|listener| {
            let unprotected = view((parts, &path), target, &added);
            let found = find_rule(listener, (&unprotected, state), parts.uri.path());
            let (rule, opens) = found.inspect_err(|error| count(client, listener, error))?;
            protect(listener, (rule, opens), (parts, body), &path)?;
            let passed = listener.policies(rule).map_or(Ok(None), |policies| {
                let arrival = place.arrival(listener, client);
                let span = record.span.as_deref_mut();
                let view = view((parts, &path), target, &added);
                let request = (&view, is_preflight);
                policies::check((policies, rule), (&origin, &arrival), request, span)
            });
            Ok((table.rule(listener, rule), passed))
        })
        .map_err(|error| Refused {
            defaults: place.defaults_of_unmatched(),
            ..refused(error)
        })?;
    record.matched(&rule, parts, seen);
    if record.span.is_some() {
        record.trace(parts, &path);
    }
    let passed = accept(passed, parts, record, (&table, &place));
    let passed = passed.and_then(|passed| carries(&rule, parts).map(|()| passed));
    let passed = passed.map_err(|refusal| {
        let PolicyRefusal { error, headers, .. } = *refusal;
        Refused {
            phase: Some(phase_of_refusal(&rule, &parts.headers)),
            headers: (!headers.is_empty()).then(|| Box::new(headers)),
            defaults: place.defaults(&rule),
            ..refused(error)
        }
    })?;
    Ok(Matched {
        normalized,
        websocket,
        path,
        added,
        rule,
        is_preflight,
        passed,
    })
}

/// Returns the filters of a rule that responses to refused requests pass.
fn phase_of_refusal(rule: &Rule, request: &HeaderMap) -> Box<ResponsePhase> {
    let mut phase = Box::<ResponsePhase>::default();
    phase.share(rule.filters().all, request);
    phase
}

/// Counts the response to a request that no rule gets.
fn count(client: &Client, listener: &Listener, error: &Error) {
    let status = error.status().as_u16();
    listener.responses.record(client.worker.id, status);
}

/// Refuses calls of gRPC over a version of HTTP that does not carry them.
fn carries(rule: &Rule, parts: &request::Parts) -> Result<(), Box<PolicyRefusal>> {
    let is_call = rule.kind() == RouteKind::Grpc && is_grpc(&parts.headers);
    match is_call && !is_multiplexed(parts.version) {
        true => Err(Box::new(Error::GrpcOverHttp1.into())),
        false => Ok(()),
    }
}

/// Removes from a request what only the proxy may say in those of a rule, in every spelling. A path that `opens` what is protected
/// is forwarded as it decides.
#[inline]
fn protect(
    listener: &Listener,
    (rule, opens): (&Rule, bool),
    (parts, body): (&mut request::Parts, &mut RequestBody),
    path: &RequestPath,
) -> Result<(), Error> {
    for headers in listener.protected_headers(rule) {
        headers.sanitize(&mut parts.headers);
        body.protect(headers);
    }
    match opens {
        true => path::forward_canonical(parts, path),
        false => Ok(()),
    }
}

/// Begins the span of a request and its line of the access log, if the Gateway of a port wants them.
#[inline]
fn observe(
    record: &mut Record,
    (table, port): (&Table, &Port),
    parts: &request::Parts,
    (host, id): (&Host, &HeaderValue),
) {
    let gateway = &port.ir.gateway;
    if !table.ir.tracing.is_empty()
        && let Some(tracing) = table.ir.tracing.get(gateway)
    {
        record.sample(tracing, parts, (host, port.bind().port), id);
    }
    if !table.ir.access_logs.is_empty()
        && let Some(settings) = table.ir.access_logs.get(gateway)
    {
        record.log_as(settings, &parts.headers);
    }
}

/// Normalizes the headers of a request, which asks for an upgrade if it was an extended CONNECT for WebSocket.
#[inline]
fn normalize(
    client: &Client,
    parts: &mut request::Parts,
    is_websocket: bool,
) -> Result<NormalizedRequest, Error> {
    if client.underscores != Underscores::Allow {
        spelling::apply(client.underscores, &mut parts.headers)?;
    }
    let max_headers = client.limits.max_headers;
    let mut normalized = headers::normalize(parts, &mut client.host.borrow_mut(), max_headers)?;
    if normalized.host_header.is_none() {
        // RFC 9110, 7.1: without an authority, the local address is used. Conditions see what the backend gets.
        parts.headers.insert(HOST, client.local_authority());
    }
    if is_websocket {
        normalized.upgrade = Some(Handshake::upgrade());
    }
    Ok(normalized)
}

/// Redirects a client to the path without escaped slashes. Calls of gRPC follow no redirect.
#[cold]
fn redirected(parts: &request::Parts) -> Refused {
    let location = path::location(&parts.uri);
    match location.filter(|_| ErrorFormat::of(&parts.headers) == ErrorFormat::Text) {
        None => Error::BadRequest("the path has an escaped slash").into(),
        Some(location) => {
            let headers = HeaderMap::from_iter([(LOCATION, location)]);
            Refused {
                headers: Some(Box::new(headers)),
                ..Error::EscapedSlash.into()
            }
        }
    }
}

/// Counts a request that its policies let pass, and adds the identity of its client to it.
fn accept(
    passed: PolicyResult,
    parts: &mut request::Parts,
    record: &mut Record,
    (table, place): (&Table, &FoundListener<'_>),
) -> PolicyResult {
    match passed {
        Ok(None) => Ok(None),
        Ok(Some(mut passed)) => {
            if let Some(counted) = passed.counted.take() {
                record.counts_as(counted);
            }
            if let Some(Credentials::Unverified(unverified)) = &mut passed.credentials {
                unverified.find_server(table, place.port);
            }
            let credentials = passed.credentials.as_ref();
            if let Some(identity) = credentials.and_then(Credentials::identity) {
                let applied = identity.apply(parts);
                applied.map_err(|error| Box::new(error.into()))?;
            }
            Ok(Some(passed))
        }
        Err(mut refusal) => {
            if let Some(counted) = refusal.counted.take() {
                record.counts_as(counted);
            }
            record.note_if(|| refusal.event());
            Err(refusal)
        }
    }
}

/// Where a request arrives.
struct FoundListener<'a> {
    port: Option<&'a Arc<Port>>,
    listener: Result<&'a Arc<Listener>, Error>,
}

impl<'a> FoundListener<'a> {
    fn find(client: &Client, table: &'a Table, host: &Host) -> Self {
        let port = client.port.configured(table);
        let served = port.ok_or(Error::NotFound("this port is no longer served"));
        Self {
            port,
            listener: served.and_then(|port| client.listener(port, host)),
        }
    }

    /// Returns what credentials of a request to a listener are bound to.
    fn arrival<'b>(&self, listener: &'b Arc<Listener>, client: &'b Client) -> Arrival<'b>
    where
        'a: 'b,
    {
        Arrival {
            gateway: self.port.map(|port| &port.ir.gateway),
            listener,
            scheme: client.scheme(),
            session_key: &client.worker.session_key,
        }
    }

    /// Returns what policies say about the requests of a rule, if they say anything.
    #[cold]
    fn defaults(&self, rule: &Rule) -> Option<Arc<RouteDefaults>> {
        let policies = self.listener.ok()?.policies(rule)?;
        policies.ir.route.clone()
    }

    /// Returns what policies say about requests that no rule matches, if they say anything.
    #[cold]
    fn defaults_of_unmatched(&self) -> Option<Arc<RouteDefaults>> {
        let policies = self.listener.ok()?.policies_of_unmatched()?;
        policies.ir.route.clone()
    }

    /// Returns how clients connect to the listener, if policies say it.
    fn clients(&self) -> Option<&'a Arc<ClientPolicies>> {
        self.listener.ok()?.ir.clients.as_ref()
    }
}

/// Returns the rule for a request, and whether a backend that takes the beginning of the forwarded path for a host may serve what
/// the rule does not decide about: then the path that decides is the one to forward.
pub(super) fn find_rule<'a>(
    listener: &'a Listener,
    (view, state): (&RequestView<'_>, PathState),
    forwarded: &str,
) -> Result<(&'a Arc<Rule>, bool), Error> {
    if state.is_ambiguous {
        path::check_readings(listener, view)?;
    }
    let rule = rule_of(listener, view)?;
    let behind = path_normalization::behind_host(forwarded);
    let opens = behind.is_some_and(|behind| path::opens(listener, rule, (view, behind.as_str())));
    Ok((rule, opens))
}

/// Returns the rule of a listener for a normalized request.
#[inline]
fn rule_of<'a>(listener: &'a Listener, view: &RequestView<'_>) -> Result<&'a Arc<Rule>, Error> {
    let rule = listener.find(view);
    let rule = rule.ok_or(Error::NotFound("no route matches this request"))?;
    match rule.has_doubtful_query(view) {
        true => Err(Error::BadRequest(
            "a query parameter that selects a rule has several values",
        )),
        false => Ok(rule),
    }
}

/// Generates a request id: 128 random bits in hexadecimal.
pub(super) fn new_id() -> HeaderValue {
    // Each byte of a random array would take a word of the generator.
    let bytes = rand::rng().random::<u128>().to_ne_bytes();
    let mut text = [0; 32];
    for (digits, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *digits = hex::DIGITS[usize::from(byte)];
    }
    HeaderValue::from_maybe_shared(Bytes::copy_from_slice(&text))
        .unwrap_or_else(|_| HeaderValue::from_static("0"))
}
