//! Normalizes a request and matches it against the current table. Must not know what follows.

use std::sync::Arc;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Version, request};
use rand::RngExt;

use super::authentication::Credentials;
use super::headers::{self, NormalizedRequest};
use super::policies::{self, Passed, PolicyResult};
use super::policy_refusal::PolicyRefusal;
use super::view::view;
use super::websocket::{self, Handshake};
use crate::ir::RouteKind;
use crate::ir::client::ClientPolicies;
use crate::ir::grpc::is_grpc;
use crate::ir::hex;
use crate::proxy::client::Client;
use crate::proxy::client::client_address::Origin;
use crate::proxy::client::forwarding::AddedHeaders;
use crate::proxy::client::host::Host;
use crate::proxy::error::Error;
use crate::proxy::response::record::Record;
use crate::proxy::worker_state::current_table::LoadedRule;
use crate::table::{Listener, Port, RequestView, Rule, Table};
use crate::telemetry::trace::RequestSpan;

/// A normalized request and the rule that it matches.
pub(super) struct Matched {
    pub(super) normalized: NormalizedRequest,
    pub(super) websocket: Option<Handshake>,
    pub(super) added: AddedHeaders,
    pub(super) rule: LoadedRule,
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
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self {
            error,
            id: None,
            headers: None,
        }
    }
}

/// Matches a request against the current table.
pub(super) fn admit(
    client: &Client,
    parts: &mut request::Parts,
    record: &mut Record,
) -> Result<Matched, Refused> {
    let websocket = websocket::begin(parts)?;
    let max_headers = client.limits.max_headers;
    let normalized = headers::normalize(parts, &mut client.host.borrow_mut(), max_headers)?;
    record.directed(&normalized.host);
    let table = client.worker.table.load();
    let place = Place::find(client, &table, &normalized.host);
    let origin = client.origin(place.clients(), &mut parts.headers);
    record.comes_from(&origin);
    let claims = (&origin, normalized.has_forwarding);
    let host_header = normalized.host_header.as_ref();
    let added = client
        .forwarding
        .sanitize(&mut parts.headers, host_header, claims, new_id);
    record.identified(added.id());
    let refused = |error| Refused {
        error,
        id: Some(added.id().clone()),
        headers: None,
    };
    if let (Some(port), true) = (place.port, !table.ir.tracing.is_empty())
        && let Some(tracing) = table.ir.tracing.get(&port.ir.gateway)
    {
        let target = (&normalized.host, port.bind().port);
        record.sample(tracing, parts, target, added.id());
    }
    let (rule, passed) = place
        .listener
        .and_then(|listener| {
            let view = view(parts, &normalized.host, &added);
            find_rule(listener, &view, &origin, record.span.as_deref_mut())
        })
        .map_err(refused)?;
    let rule = table.rule(rule);
    record.matched(&rule);
    if record.span.is_some() {
        record.trace(parts);
    }
    let passed = match passed {
        Ok(None) => None,
        Ok(Some(mut passed)) => {
            if let Some(in_progress) = passed.in_progress.take() {
                record.counts_as(in_progress);
            }
            if let Some(Credentials::Valid(identity)) = &passed.credentials {
                record.note(|| identity.event());
                identity.apply(parts).map_err(refused)?;
            }
            Some(passed)
        }
        Err(refusal) => {
            record.note_if(|| refusal.event());
            let PolicyRefusal { error, headers } = *refusal;
            return Err(Refused {
                headers: Some(Box::new(headers)),
                ..refused(error)
            });
        }
    };
    if rule.kind() == RouteKind::Grpc && parts.version < Version::HTTP_2 && is_grpc(&parts.headers)
    {
        return Err(refused(Error::GrpcOverHttp1));
    }
    if host_header.is_none() {
        // RFC 9110, 7.1: without an authority, the local address is used.
        parts.headers.insert(HOST, client.local_authority());
    }
    Ok(Matched {
        normalized,
        websocket,
        added,
        rule,
        passed,
    })
}

/// Where a request arrives.
struct Place<'a> {
    port: Option<&'a Arc<Port>>,
    listener: Result<&'a Arc<Listener>, Error>,
}

impl<'a> Place<'a> {
    fn find(client: &Client, table: &'a Table, host: &Host) -> Self {
        let port = client.port.configured(table);
        let served = port.ok_or(Error::NotFound("this port is no longer served"));
        Self {
            port,
            listener: served.and_then(|port| client.listener(port, host)),
        }
    }

    /// Returns how clients connect to the listener, if policies say it.
    fn clients(&self) -> Option<&'a Arc<ClientPolicies>> {
        self.listener.ok()?.ir.clients.as_ref()
    }
}

/// Returns the rule for a request, and whether its policies let the request pass.
fn find_rule<'a>(
    listener: &'a Listener,
    view: &RequestView<'_>,
    origin: &Origin,
    span: Option<&mut RequestSpan>,
) -> Result<(&'a Arc<Rule>, PolicyResult), Error> {
    let rule = rule_of(listener, view)?;
    let passed = match listener.policies(rule) {
        None => Ok(None),
        Some(policies) => policies::check((policies, rule), origin, view, span),
    };
    Ok((rule, passed))
}

/// Returns the rule of a listener for a normalized request.
#[inline]
pub(super) fn rule_of<'a>(
    listener: &'a Listener,
    view: &RequestView<'_>,
) -> Result<&'a Arc<Rule>, Error> {
    let rule = listener.find(view);
    rule.ok_or(Error::NotFound("no route matches this request"))
}

/// Generates a request id: 128 random bits in hexadecimal.
pub(super) fn new_id() -> HeaderValue {
    let bytes: [u8; 16] = rand::rng().random();
    let mut text = [0; 32];
    for (digits, byte) in text.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *digits = hex::DIGITS[usize::from(byte)];
    }
    HeaderValue::from_maybe_shared(Bytes::copy_from_slice(&text))
        .unwrap_or_else(|_| HeaderValue::from_static("0"))
}
