//! A parsed inherited policy: its targets, and the sections that it sets. Must not know which of them have an effect.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::api::inherited_policy::InheritedPolicy;
use crate::ir::ObjectRef;
use crate::ir::Time;
use crate::ir::authentication::{ApiKeys, Basic, Require};
use crate::ir::authorization::Authorization;
use crate::ir::cidr::CidrSet;
use crate::ir::client::{ClientAddress, ConnectionSettings, ProxyProtocol};
use crate::ir::limit::Limits;
use crate::ir::route_defaults::RouteDefaults;
use crate::ir::sharing::Text;
use crate::ir::token::Tokens;
use crate::translate::reason::{ConditionType, Fault};

/// A policy.
pub(super) struct Policy {
    pub(super) name: ObjectRef,
    pub(super) generation: i64,
    created: Option<Time>,
    /// Whether it locks its sections for everything below.
    pub(super) overrides: bool,
    /// Its targets, each once.
    pub(super) targets: Vec<Target>,
    /// Whether requests fail where it is unknown what it says.
    pub(super) protects: bool,
    /// Whether it refuses nothing, so that it may be left out.
    pub(super) is_audit: bool,
    /// The condition of its targets.
    pub(super) affected: ConditionType,
    /// References that cannot be resolved, or not entirely.
    pub(super) unresolved: Vec<Fault>,
    /// The sections that it sets, or why they are unusable.
    pub(super) sections: BTreeMap<Section, Result<Content, Fault>>,
}

/// A target: an object, or a section of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) object: ObjectRef,
    /// A listener, or a rule of a route; `None` for the whole object.
    pub(super) section: Option<Text>,
}

/// A section of the spec of a policy. Each belongs to one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Section {
    /// `ipRules` of an AccessPolicy.
    IpRules,
    /// `basic` of an AccessPolicy.
    Basic,
    /// `apiKey` of an AccessPolicy.
    ApiKey,
    /// `jwt` of an AccessPolicy.
    Jwt,
    /// `require` of an AccessPolicy.
    Require,
    /// `authorization` of an AccessPolicy.
    Authorization,
    /// `rules` and `response` of a RateLimitPolicy: a response without limits would say nothing.
    Limits,
    /// `proxyProtocol` of a ClientPolicy.
    ProxyProtocol,
    /// `clientIP` of a ClientPolicy.
    ClientIp,
    /// `timeouts` of a ClientPolicy.
    Timeouts,
    /// `connections` of a ClientPolicy.
    Connections,
    /// `headers` of a ClientPolicy.
    Headers,
    /// `http2` of a ClientPolicy.
    Http2,
    /// `requestBody` of a RoutePolicy.
    RequestBody,
    /// `timeouts` of a RoutePolicy.
    RouteTimeouts,
    /// `retry` of a RoutePolicy.
    Retry,
    /// `requestHeaders` of a RoutePolicy.
    RequestHeaders,
    /// `responseHeaders` of a RoutePolicy.
    ResponseHeaders,
    /// `compression` of a RoutePolicy.
    Compression,
}

/// What a section says.
pub(super) enum Content {
    /// Addresses of clients.
    IpRules {
        allow: Option<CidrSet>,
        deny: CidrSet,
    },
    /// Users with passwords.
    Basic(Arc<Basic>),
    /// Clients with API keys.
    ApiKey(Arc<ApiKeys>),
    /// JSON Web Tokens.
    Jwt(Arc<Tokens>),
    /// Which credentials are needed.
    Require(Require),
    /// Which clients may send which requests.
    Authorization(Arc<Authorization>),
    /// Limits of requests.
    Limits(Arc<Limits>),
    /// The PROXY protocol.
    ProxyProtocol(Arc<ProxyProtocol>),
    /// The address of a client.
    ClientIp(Arc<ClientAddress>),
    /// Settings of connections, of which a section sets some.
    Connections(ConnectionSettings),
    /// How requests are handled, of which a section sets a part.
    Route(Box<RouteDefaults>),
}

impl Section {
    /// Returns the path of its field.
    pub(super) fn field(self) -> &'static str {
        match self {
            Self::IpRules => "spec.ipRules",
            Self::Basic => "spec.basic",
            Self::ApiKey => "spec.apiKey",
            Self::Jwt => "spec.jwt",
            Self::Require => "spec.require",
            Self::Authorization => "spec.authorization",
            Self::Limits => "spec.rules",
            Self::ProxyProtocol => "spec.proxyProtocol",
            Self::ClientIp => "spec.clientIP",
            Self::Timeouts | Self::RouteTimeouts => "spec.timeouts",
            Self::Connections => "spec.connections",
            Self::Headers => "spec.headers",
            Self::Http2 => "spec.http2",
            Self::RequestBody => "spec.requestBody",
            Self::Retry => "spec.retry",
            Self::RequestHeaders => "spec.requestHeaders",
            Self::ResponseHeaders => "spec.responseHeaders",
            Self::Compression => "spec.compression",
        }
    }

    /// Reports whether it is about connections, so that all listeners of a port have the same.
    pub(super) fn is_of_connections(self) -> bool {
        match self {
            Self::IpRules
            | Self::Basic
            | Self::ApiKey
            | Self::Jwt
            | Self::Require
            | Self::Authorization
            | Self::Limits
            | Self::ClientIp
            | Self::RequestBody
            | Self::RouteTimeouts
            | Self::Retry
            | Self::RequestHeaders
            | Self::ResponseHeaders
            | Self::Compression => false,
            Self::ProxyProtocol
            | Self::Timeouts
            | Self::Connections
            | Self::Headers
            | Self::Http2 => true,
        }
    }

    /// Reports whether it is about credentials or other parts of HTTP requests, which connections do not have.
    pub(super) fn is_of_requests(self) -> bool {
        self.is_of_credentials() || self == Self::Authorization
    }

    /// Reports whether it is about credentials.
    pub(super) fn is_of_credentials(self) -> bool {
        matches!(self, Self::Basic | Self::ApiKey | Self::Jwt | Self::Require)
    }

    /// Reports whether a policy that locks this section locks another one, too: what that one says decides what this one
    /// is worth. `content` is what this one says.
    pub(super) fn locks(self, other: Self, content: Option<&Content>) -> bool {
        let (by_address, by_client) = match content {
            Some(Content::Authorization(it)) => (it.needs_addresses(), it.needs_clients()),
            _ => (self == Self::Authorization, self == Self::Authorization),
        };
        match other {
            // The source of the address decides the verdict.
            Self::ClientIp => matches!(self, Self::IpRules | Self::Limits) || by_address,
            // With `require: Any`, a further way to authenticate makes the others needless.
            _ if other.is_of_credentials() => {
                self != other && self.is_of_credentials() || by_client
            }
            _ => false,
        }
    }
}

impl Policy {
    /// Creates a policy.
    pub(super) fn new<P: InheritedPolicy>(
        object: &P,
        affected: ConditionType,
        sections: BTreeMap<Section, Result<Content, Fault>>,
    ) -> Self {
        let meta = object.meta();
        let mut targets = Vec::new();
        for target in object.target_refs() {
            let name = ObjectRef::new(&target.group, &target.kind, &meta.namespace, &target.name);
            let section = target.section_name.as_deref();
            let target = Target {
                object: name,
                section: section.filter(|name| !name.is_empty()).map(Text::from),
            };
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        Self {
            name: object.object_ref(),
            generation: meta.generation,
            created: meta.creation_timestamp,
            overrides: object.overrides(),
            targets,
            protects: true,
            is_audit: false,
            affected,
            unresolved: Vec::new(),
            sections,
        }
    }

    /// Reports whether it is about clients: a ClientPolicy.
    pub(super) fn is_of_clients(&self) -> bool {
        self.affected == ConditionType::ClientPolicyAffected
    }

    /// Returns what happens where a section of it cannot be used.
    pub(super) fn outcome_of_broken(&self, section: Section) -> &'static str {
        match section {
            Section::ClientIp => "requests to which IP rules or limits apply get 500",
            _ if self.protects && !self.is_audit => "its requests get 500",
            _ => "the section is left out",
        }
    }

    /// Returns what decides between policies of one target: the least wins.
    pub(super) fn age(&self) -> (Option<Time>, &ObjectRef) {
        (self.created, &self.name)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, section } = self;
        match section {
            None => object.fmt(f),
            Some(section) if object.kind.ends_with("Route") => {
                write!(f, "rule {section} of {object}")
            }
            Some(section) => write!(f, "listener {section} of {object}"),
        }
    }
}
