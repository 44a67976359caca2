//! Decisions on a sampled request, which become events of its span: their names and attributes. Must not know what decides.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use crate::ir::ObjectRef;
use crate::ir::named::named;
use crate::ir::policy::Phase;

/// The attribute that says what was decided.
const DECISION: &str = "portcullis.decision";

named! {
    /// What was decided.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Decision {
        /// The request goes on.
        Allowed = "allowed",
        /// It does not.
        Refused = "refused",
        /// It goes on, and would not if the policy were enforced.
        Audited = "audited",
        /// There was no decision, and the request does not go on.
        Failed = "failed",
    }
}

/// A decision on a request, as an event of a span.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    pub(super) name: &'static str,
    pub(super) attributes: Vec<(&'static str, EventValue)>,
}

/// The value of an attribute of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EventValue {
    Word(&'static str),
    Name(Arc<str>),
    Text(Box<str>),
    Number(i64),
}

impl Event {
    fn decided(name: &'static str, decision: Decision) -> Self {
        Self {
            name,
            attributes: vec![(DECISION, EventValue::Word(decision.name()))],
        }
    }

    /// The decision of a phase.
    pub fn of_phase(phase: Phase, decision: Decision) -> Self {
        let name = match phase {
            Phase::ClientIp => "portcullis.client_ip",
            Phase::IpRules => "portcullis.ip_rules",
            Phase::Limits | Phase::IdentityLimits => "portcullis.limits",
            Phase::BodyLimit => "portcullis.body_limit",
            Phase::Authentication => "portcullis.authentication",
            Phase::Authorization => "portcullis.authorization",
            Phase::Filters => "portcullis.filters",
            Phase::Backend => "portcullis.backend",
        };
        Self::decided(name, decision)
    }

    /// A policy that protects the route is broken.
    pub fn broken_policy() -> Self {
        Self::decided("portcullis.policy", Decision::Failed)
    }

    /// The request is over a limit.
    pub fn limit(policy: &ObjectRef, limit: &Arc<str>, decision: Decision) -> Self {
        Self::of_phase(Phase::Limits, decision)
            .with("portcullis.policy", text(policy))
            .with("portcullis.limit", EventValue::Name(limit.clone()))
    }

    /// The client has valid credentials, of these kinds.
    pub fn authenticated(kinds: &[&'static str]) -> Self {
        let event = Self::of_phase(Phase::Authentication, Decision::Allowed);
        event.with("portcullis.credentials", text(&kinds.join(", ")))
    }

    /// The decision of an authorization server.
    pub fn external_auth(server: &impl Display, decision: Decision) -> Self {
        let event = Self::decided("portcullis.external_auth", decision);
        event.with("portcullis.backend", text(server))
    }

    /// What an endpoint picker has made of the request, and the first endpoint that it has chosen.
    pub fn picker(result: &'static str, endpoint: Option<SocketAddr>) -> Self {
        let event = Self {
            name: "portcullis.picker",
            attributes: vec![("portcullis.result", EventValue::Word(result))],
        };
        match endpoint {
            None => event,
            Some(endpoint) => event.at(endpoint),
        }
    }

    /// Whether a request whose attempt failed for this reason is sent again.
    pub(super) fn retry(decision: Decision, reason: EventValue) -> Self {
        let event = Self::decided("portcullis.retry", decision);
        event.with("error.type", reason)
    }

    /// The request has failed at this endpoint, which gets no requests for some time.
    pub fn ejection(endpoint: SocketAddr) -> Self {
        let event = Self {
            name: "portcullis.ejection",
            attributes: Vec::new(),
        };
        event.at(endpoint)
    }

    fn at(self, endpoint: SocketAddr) -> Self {
        self.with("server.address", text(&endpoint.ip()))
            .with("server.port", EventValue::Number(endpoint.port().into()))
    }

    fn with(mut self, key: &'static str, value: EventValue) -> Self {
        self.attributes.push((key, value));
        self
    }
}

pub(super) fn text(value: &impl Display) -> EventValue {
    EventValue::Text(value.to_string().into())
}
