//! A parsed inherited policy: its targets, and the sections that it sets. Must not know which of them have an effect.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::iter;
use std::sync::Arc;

use super::credential::Named;
use crate::api::inherited_policy::InheritedPolicy;
use crate::api::reference::BackendObjectRef;
use crate::ir::ObjectRef;
use crate::ir::Time;
use crate::ir::auth_call::ExternalPolicy;
use crate::ir::authentication::{ApiKeys, Basic, Require};
use crate::ir::authorization::Authorization;
use crate::ir::cidr::CidrSet;
use crate::ir::client::{
    ClientAddress, ConnectionSettings, Http3, PathSettings, ProxyProtocol, TlsSettings,
};
use crate::ir::limit::Limits;
use crate::ir::oidc::Oidc;
use crate::ir::route_defaults::RouteDefaults;
use crate::ir::sharing::Text;
use crate::ir::token::Tokens;
use crate::translate::reason::{ConditionType, Fault, Reason};

/// A policy.
pub(super) struct Policy {
    pub(super) name: ObjectRef,
    pub(super) generation: i64,
    created: Option<Time>,
    /// Whether it locks its sections for everything below.
    pub(super) overrides: bool,
    /// Its targets, each once.
    pub(super) targets: Vec<Target>,
    /// What refuses the requests of targets that only a later version has, which is not valid.
    pub(super) pending: Option<Arc<Self>>,
    /// Whether it decides which requests pass.
    pub(super) protects: bool,
    /// Whether it refuses nothing, so that it may be left out.
    pub(super) is_audit: bool,
    /// The condition of its targets.
    pub(super) affected: ConditionType,
    /// References that cannot be resolved, or not entirely.
    pub(super) unresolved: Vec<Fault>,
    /// The sections that it sets, or why they are unusable.
    pub(super) sections: BTreeMap<Section, Result<Content, Fault>>,
    /// The servers of its error pages, if that section can be used.
    pub(super) page_servers: Vec<PageServer>,
    /// The Services that keys of tokens are fetched from.
    pub(super) key_servers: Vec<ObjectRef>,
    /// The Secrets and ConfigMaps with credentials that it names.
    pub(super) named: Vec<Named>,
    /// Why none of these is here, if the controller withholds them.
    pub(super) withheld: Option<Fault>,
}

/// A reference to a server of error pages.
pub(super) struct PageServer {
    pub(super) field: String,
    pub(super) reference: BackendObjectRef,
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
    /// `oidc` of an AccessPolicy.
    Oidc,
    /// `external` of an AccessPolicy.
    External,
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
    /// `http3` of a ClientPolicy.
    Http3,
    /// `tls` of a ClientPolicy.
    Tls,
    /// `path` of a ClientPolicy.
    Path,
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
    /// `errorPages` of a RoutePolicy.
    ErrorPages,
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
    /// Sign-in at an OpenID provider.
    Oidc(Arc<Oidc>),
    /// The permission of an authorization server, and the reference to it.
    External(Arc<ExternalPolicy>, BackendObjectRef),
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
    /// HTTP/3.
    Http3(Arc<Http3>),
    /// TLS of clients.
    Tls(Arc<TlsSettings>),
    /// Paths of requests.
    Path(Arc<PathSettings>),
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
            Self::Oidc => "spec.oidc",
            Self::External => "spec.external",
            Self::Require => "spec.require",
            Self::Authorization => "spec.authorization",
            Self::Limits => "spec.rules",
            Self::ProxyProtocol => "spec.proxyProtocol",
            Self::ClientIp => "spec.clientIP",
            Self::Timeouts | Self::RouteTimeouts => "spec.timeouts",
            Self::Connections => "spec.connections",
            Self::Headers => "spec.headers",
            Self::Http2 => "spec.http2",
            Self::Http3 => "spec.http3",
            Self::Tls => "spec.tls",
            Self::Path => "spec.path",
            Self::RequestBody => "spec.requestBody",
            Self::Retry => "spec.retry",
            Self::RequestHeaders => "spec.requestHeaders",
            Self::ResponseHeaders => "spec.responseHeaders",
            Self::Compression => "spec.compression",
            Self::ErrorPages => "spec.errorPages",
        }
    }

    /// Reports whether it is about connections, so that all listeners of a port have the same.
    pub(super) fn is_of_connections(self) -> bool {
        match self {
            Self::IpRules
            | Self::Basic
            | Self::ApiKey
            | Self::Jwt
            | Self::Oidc
            | Self::External
            | Self::Require
            | Self::Authorization
            | Self::Limits
            | Self::ClientIp
            | Self::Tls
            | Self::Path
            | Self::RequestBody
            | Self::RouteTimeouts
            | Self::Retry
            | Self::RequestHeaders
            | Self::ResponseHeaders
            | Self::Compression
            | Self::ErrorPages => false,
            Self::ProxyProtocol
            | Self::Timeouts
            | Self::Connections
            | Self::Headers
            | Self::Http2
            | Self::Http3 => true,
        }
    }

    /// Reports whether it is about credentials or other parts of HTTP requests, which connections do not have.
    pub(super) fn is_of_requests(self) -> bool {
        self.is_of_credentials() || self == Self::Authorization
    }

    /// Reports whether it is about credentials.
    pub(super) fn is_of_credentials(self) -> bool {
        matches!(
            self,
            Self::Basic | Self::ApiKey | Self::Jwt | Self::Oidc | Self::External | Self::Require
        )
    }

    /// Reports whether its credentials are in Secrets or ConfigMaps.
    pub(super) fn reads_credentials(self) -> bool {
        matches!(self, Self::Basic | Self::ApiKey | Self::Jwt | Self::Oidc)
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
            pending: None,
            protects: true,
            is_audit: false,
            affected,
            unresolved: Vec::new(),
            sections,
            page_servers: Vec::new(),
            key_servers: Vec::new(),
            named: Vec::new(),
            withheld: None,
        }
    }

    /// Returns the objects that it has an effect on.
    pub(super) fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        let policies = iter::once(self).chain(self.pending.as_deref());
        policies.flat_map(|it| it.targets.iter().map(|target| &target.object))
    }

    /// Reports whether it is about clients: a ClientPolicy.
    pub(super) fn is_of_clients(&self) -> bool {
        self.affected == ConditionType::ClientPolicyAffected
    }

    /// Reports whether requests fail where it is unknown what it says.
    pub(super) fn fails_closed(&self) -> bool {
        self.protects && !self.is_audit
    }

    /// Returns the sections that take part in the merge: those that can be used, and those whose requests fail because they
    /// cannot. Others are left out, so that they neither replace nor lock anything.
    pub(super) fn counting(&self) -> impl Iterator<Item = Section> {
        // Addresses of clients are not known without these sections, so that what depends on them fails.
        let is_of_addresses =
            |section| matches!(section, Section::ClientIp | Section::ProxyProtocol);
        let counts = move |section, is_usable: bool| {
            is_usable || self.fails_closed() || is_of_addresses(section)
        };
        let all = self.sections.iter();
        all.filter_map(move |(section, content)| {
            counts(*section, content.is_ok()).then_some(*section)
        })
    }

    /// Returns what happens where a section of it cannot be used.
    fn outcome_of_broken(&self, section: Section) -> &'static str {
        match section {
            Section::ClientIp | Section::ProxyProtocol => {
                "requests to which IP rules or limits apply get 500"
            }
            _ if self.fails_closed() => "its requests get 500",
            _ => "the section is left out",
        }
    }

    /// Returns what cannot be used of these sections, with what follows from that.
    pub(super) fn unusable(&self, is_known: impl Fn(Section) -> bool) -> Vec<Fault> {
        let mut faults = Vec::new();
        let known = self.sections.iter().filter(|(it, _)| is_known(**it));
        for (section, content) in known {
            match content {
                Err(fault) => {
                    let outcome = self.outcome_of_broken(*section);
                    let message = format!("{}; {outcome}", fault.message);
                    faults.push(Fault::new(fault.reason, message));
                }
                Ok(Content::Limits(limits)) => {
                    let left_out = limits.left_out.iter();
                    faults.extend(left_out.map(|why| {
                        let message =
                            format!("{why}; the rule, which refuses nothing, is left out");
                        Fault::new(Reason::Invalid, message)
                    }));
                }
                Ok(_) => {}
            }
        }
        faults
    }

    /// Returns the backends that it names, and whether keys are fetched from them rather than requests sent.
    pub(super) fn named(&self) -> BTreeSet<(ObjectRef, bool)> {
        let external = match self.sections.get(&Section::External) {
            Some(Ok(Content::External(_, reference))) => Some(reference),
            _ => None,
        };
        let pages = self.page_servers.iter().map(|page| &page.reference);
        let servers = external.into_iter().chain(pages);
        let servers = servers.map(|it| (it.object_ref(&self.name.namespace), false));
        let of_keys = self.key_servers.iter().map(|name| (name.clone(), true));
        servers.chain(of_keys).collect()
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
