//! A matched request on its way through the phases. Must not know the phases.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, request};
use tokio::time::Instant;

use super::negotiation::Negotiated;
use super::view::view;
use crate::filter::ResponsePhase;
use crate::ir::RouteKind;
use crate::ir::grpc::{WebFormat, is_grpc};
use crate::ir::request_path::RequestPath;
use crate::ir::route_defaults::{Retry, RouteDefaults};
use crate::proxy::body::processed_body::Process;
use crate::proxy::body::request_body::RequestBody;
use crate::proxy::client::Client;
use crate::proxy::client::forwarding::AddedHeaders;
use crate::proxy::client::host::Host;
use crate::proxy::grpc_web;
use crate::proxy::request::wanted_page::WantedPage;
use crate::proxy::request::websocket::Handshake;
use crate::proxy::response::interim::Interim;
use crate::proxy::response::record::Record;
use crate::proxy::worker_state::current_table::LoadedRule;
use crate::table::RequestView;

/// A matched request. Boxed, so that futures that hold it are small.
pub(in crate::proxy) struct Exchange {
    /// Client connection.
    pub(in crate::proxy) client: Rc<Client>,
    /// Request head: first as matched, then as modified by filters.
    pub(in crate::proxy) parts: request::Parts,
    /// The canonical form of its path.
    pub(in crate::proxy) path: RequestPath,
    /// Headers to add when forwarding.
    pub(in crate::proxy) added: AddedHeaders,
    /// Host used for matching.
    pub(in crate::proxy) host: Host,
    /// Requested upgrade protocol.
    pub(in crate::proxy) upgrade: Option<HeaderValue>,
    /// Handshake of a WebSocket over HTTP/2.
    pub(in crate::proxy) websocket: Option<Handshake>,
    /// Format of the response to a gRPC-Web call that is translated.
    pub(in crate::proxy) grpc_web: Option<WebFormat>,
    /// Matched rule.
    pub(in crate::proxy) rule: LoadedRule,
    /// What policies say where the rule does not.
    pub(super) defaults: Option<Arc<RouteDefaults>>,
    /// What decides about the compression of the response, if a policy says anything about it.
    pub(super) negotiated: Option<Negotiated>,
    /// What decides about an error page, if a policy has some.
    pub(super) page: Option<WantedPage>,
    /// Whether it is a preflight request, whatever filters make of it.
    pub(super) is_preflight: bool,
    /// Modifications of the response by filters.
    pub(in crate::proxy) response_phase: ResponsePhase,
    /// Whether copies were sent to the mirrors of the selected backendRef.
    pub(in crate::proxy) is_mirrored: bool,
    /// What processes the body of the response of a backend.
    pub(super) process: Option<Box<dyn Process>>,
    /// Request body, until an attempt takes it.
    pub(in crate::proxy) body: RequestBody,
    /// Sends informational responses.
    pub(in crate::proxy) interim: Interim,
    /// Whether the client waits for a 100 before it sends the body.
    pub(in crate::proxy) expects_continue: bool,
    /// Record of the request.
    pub(in crate::proxy) record: Box<Record>,
    /// Deadline of the exchange, response included.
    pub(super) expires: Option<Instant>,
    /// Deadline of the current attempt, response included.
    pub(in crate::proxy) attempt_expires: Option<Instant>,
}

/// The head of a request before filters.
pub(in crate::proxy) struct Unfiltered {
    parts: request::Parts,
    path: RequestPath,
}

impl Exchange {
    /// Returns the time for an attempt, if it is limited.
    pub(super) fn attempt_timeout(&self) -> Option<Duration> {
        self.rule.ir.attempt_timeout(self.defaults.as_deref())
    }

    /// Sets the deadline of an attempt that begins now.
    pub(super) fn begin_attempt(&mut self) {
        let timeout = self.attempt_timeout();
        self.attempt_expires = timeout.map(|timeout| Instant::now() + timeout);
    }

    /// Returns the retries that the rule allows, or else policies.
    pub(super) fn retry(&self) -> Option<&Retry> {
        self.rule.ir.retries(self.defaults.as_deref())
    }

    /// Returns the maximum size of a body that is read as a whole before a backend is asked. Streams of gRPC and bytes of
    /// tunnels are forwarded as they arrive: a backend may respond before their end.
    pub(super) fn buffered_body(&self) -> Option<usize> {
        let limit = self.defaults.as_ref()?.buffered_body?;
        let is_stream = self.upgrade.is_some() || self.rule.kind() == RouteKind::Grpc;
        (!is_stream && !is_grpc(&self.parts.headers)).then_some(limit)
    }

    /// Returns the parts that conditions look at.
    pub(super) fn view(&self) -> RequestView<'_> {
        let target = (&self.host, self.upgrade.as_ref());
        view((&self.parts, &self.path), target, &self.added)
    }

    /// Translates the head of a gRPC-Web call to gRPC, once. What decides by what the client has sent comes before.
    #[inline]
    pub(super) fn translate_head(&mut self) {
        if self.grpc_web.is_some() {
            grpc_web::translate_request(&mut self.parts.headers);
        }
    }

    /// Returns the request with the head that [`Self::translate_head`] makes.
    #[inline]
    pub(super) fn with_translated_head(mut self: Box<Self>) -> Box<Self> {
        self.translate_head();
        self
    }

    /// A copy of the head before filters that may modify it: another attempt may need the original.
    pub(in crate::proxy) fn before_filters(&mut self) -> Box<Unfiltered> {
        self.added.insert_into(&mut self.parts.headers);
        Box::new(Unfiltered {
            parts: self.parts.clone(),
            path: self.path.clone(),
        })
    }

    /// Restores the request after an attempt.
    pub(in crate::proxy) fn restore(
        &mut self,
        unfiltered: Option<Box<Unfiltered>>,
        body: RequestBody,
    ) {
        if let Some(unfiltered) = unfiltered {
            let Unfiltered { parts, path } = *unfiltered;
            self.parts = parts;
            self.path = path;
        }
        self.response_phase.reset_backend();
        self.body = body;
    }

    /// Sets the deadline of the exchange, unless an earlier one is set.
    pub(in crate::proxy) fn expire_by(&mut self, time: Option<Instant>) {
        if time.is_some_and(|time| self.expires.is_none_or(|expires| time < expires)) {
            self.expires = time;
            self.record.activity().expire_at(time);
        }
    }
}
