//! Ports and listeners at run time: the listener for a host or SNI, and the rule for a request. Must not know sockets
//! or handshakes.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use http::HeaderValue;

use super::alt_svc;
use super::class_counts::ClassCounts;
use super::connections::{ConnectionLimits, Connections, CountedConnection};
use super::hostname::HostIndex;
use super::matcher::{Mismatch, RequestView, mismatch};
use super::node::same_nodes;
use super::policies::{Policies, PolicyStates};
use super::protected;
use super::route::{Route, RouteNode};
use super::router::{Candidate, MadeRouters, Router};
use super::rule::Rule;
use crate::ir;
use crate::ir::client::{ClientPolicies, ConnectionSettings, ProxyMode, ProxyProtocol};
use crate::ir::keyed::KeyedMap;
use crate::ir::object_map::ObjectMap;
use crate::ir::policy::Verdict;
use crate::ir::protected_headers::ProtectedHeaders;
use crate::ir::{Bind, Hostname, ObjectRef, PortProtocol};
use crate::tls::Server;

/// One port with the listeners that share it.
#[derive(Debug)]
pub struct Port {
    /// Its configuration.
    pub ir: Arc<ir::Port>,
    listeners: Box<[Arc<Listener>]>,
    by_host: HostIndex<Arc<Listener>>,
    passes_tls_through: bool,
    forwards_tls: bool,
    /// Its open connections that are limited.
    connections: Arc<Connections>,
    /// Whether its QUIC port is bound. Shared by consecutive tables.
    pub(super) is_quic_bound: Arc<AtomicBool>,
}

impl Port {
    /// Indexes a port. `old` is its node in the previous table.
    pub(super) fn new(
        ir: Arc<ir::Port>,
        listeners: Box<[Arc<Listener>]>,
        old: Option<&Arc<Self>>,
    ) -> Self {
        let by_host = HostIndex::new(
            listeners
                .iter()
                .map(|listener| (listener.ir.hostname.clone(), listener.clone())),
        );
        let is_passthrough =
            |listener: &Arc<Listener>| listener.ir.protocol == ir::Protocol::TlsPassthrough;
        let is_tls = ir.protocol() == PortProtocol::Tls;
        Self {
            ir,
            passes_tls_through: listeners.iter().any(is_passthrough),
            forwards_tls: is_tls && listeners.iter().any(|listener| !listener.is_http()),
            connections: old.map(|old| old.connections.clone()).unwrap_or_default(),
            is_quic_bound: (old.map(|old| old.is_quic_bound.clone())).unwrap_or_default(),
            listeners,
            by_host,
        }
    }

    /// Reports whether building this node from `ir` and `listeners` again would yield an equal one.
    pub(super) fn is_current(&self, ir: &Arc<ir::Port>, listeners: &[Arc<Listener>]) -> bool {
        same_nodes(&self.listeners, listeners) && self.ir == *ir
    }

    /// Returns the address and port to bind.
    pub fn bind(&self) -> Bind {
        self.ir.bind
    }

    /// Returns what clients send first.
    pub fn protocol(&self) -> PortProtocol {
        self.ir.protocol()
    }

    /// Returns its listeners, in the order of the configuration.
    pub fn listeners(&self) -> &[Arc<Listener>] {
        &self.listeners
    }

    /// Returns the most specific listener for a host, in lower case and without port.
    #[inline]
    pub fn listener(&self, host: &str) -> Option<&Arc<Listener>> {
        self.by_host.most_specific(host)
    }

    /// Returns the most specific listener for a server name, in lower case. Without one, returns the listener without
    /// hostname.
    #[inline]
    pub fn listener_for_sni(&self, sni: Option<&str>) -> Option<&Arc<Listener>> {
        match sni {
            Some(name) => self.by_host.most_specific(name),
            None => self.by_host.any(),
        }
    }

    /// Returns the rule for everything that a client sends, on a port of TCP or UDP: its only listener knows no hosts.
    ///
    /// # Errors
    /// Why none is.
    pub fn only_rule(&self, client: IpAddr) -> Result<&Arc<Rule>, Unrouted> {
        let listener = self.listeners.first().ok_or(Unrouted::NoRoute)?;
        listener.rule_for("", client)
    }

    /// Reports whether policies say something about its connections.
    #[inline]
    pub fn has_connection_policies(&self) -> bool {
        self.proxy_protocol().is_some() || self.connection_settings().is_some()
    }

    /// Returns the PROXY protocol in front of its connections, if there may be one. All listeners have the same.
    #[inline]
    pub fn proxy_protocol(&self) -> Option<&Arc<ProxyProtocol>> {
        let protocol = self.clients()?.proxy_protocol.as_ref();
        protocol.filter(|protocol| protocol.mode != ProxyMode::Off)
    }

    /// Returns the settings of its connections that policies set. All listeners have the same.
    #[inline]
    pub fn connection_settings(&self) -> Option<&Arc<ConnectionSettings>> {
        self.clients()?.connections.as_ref()
    }

    /// Counts a connection, if their number is limited.
    ///
    /// # Errors
    /// If there are too many.
    pub fn open_connection(
        &self,
        client: IpAddr,
    ) -> Result<Option<CountedConnection>, TooManyConnections> {
        let Some(settings) = self.connection_settings() else {
            return Ok(None);
        };
        let limits = ConnectionLimits {
            total: settings.max_connections,
            per_client: settings.max_per_client,
        };
        if limits.total.is_none() && limits.per_client.is_none() {
            return Ok(None);
        }
        let counted = self.connections.open(client, limits);
        counted.map(Some).ok_or(TooManyConnections)
    }

    fn clients(&self) -> Option<&Arc<ClientPolicies>> {
        self.listeners.first()?.ir.clients.as_ref()
    }

    /// Reports whether TLS of some hosts is forwarded as it is.
    #[inline]
    pub fn passes_tls_through(&self) -> bool {
        self.passes_tls_through
    }

    /// Reports whether what clients send within TLS, or the TLS itself, is forwarded for some hosts.
    pub fn forwards_tls(&self) -> bool {
        self.forwards_tls
    }

    /// Reports whether it forwards connections or datagrams as they are, for some hosts at least.
    pub fn forwards(&self) -> bool {
        match self.protocol() {
            PortProtocol::Http => false,
            PortProtocol::Tls => self.forwards_tls,
            PortProtocol::Tcp | PortProtocol::Udp => true,
        }
    }

    /// Returns how [`Self::listener_for_sni`] terminates TLS. If `None`, the handshake must be refused.
    pub fn server(&self, sni: Option<&str>) -> Option<&Arc<Server>> {
        self.listener_for_sni(sni)?.server.as_ref()
    }
}

/// A client or a port has too many connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyConnections;

/// Why no rule is for a connection or datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrouted {
    /// No route wants it.
    NoRoute,
    /// Policies do not permit the client.
    Refused,
}

/// A listener with the rules attached to it.
#[derive(Debug)]
pub struct Listener {
    /// Its configuration.
    pub ir: Arc<ir::Listener>,
    /// How to terminate TLS; `None` without TLS, or when it cannot be terminated.
    pub server: Option<Arc<Server>>,
    /// The nodes of its routes, in order of their objects: the order of `ir.routes`.
    routes: ObjectMap<RouteNode>,
    routers: HostIndex<Router>,
    /// What policies require of its requests.
    policies: Option<Arc<Policies>>,
    /// The header with the address of the client, if there is one.
    protected: Option<Arc<ProtectedHeaders>>,
    /// Responses to its requests. Survives table swaps while the listener exists.
    pub responses: Arc<ClassCounts>,
    /// How clients learn of its HTTP/3, if it has that.
    pub(super) alt_svc: Option<HeaderValue>,
}

impl Listener {
    /// Indexes a listener of a port that differs from `old` by `changes`. `attach` returns the nodes of its routes.
    pub(super) fn new(
        (ir, port): (Arc<ir::Listener>, u16),
        server: Option<Arc<Server>>,
        changes: &Changes<'_>,
        (old, states, made): (Option<&Arc<Self>>, &PolicyStates, &mut MadeRouters),
        mut attach: impl FnMut(&Arc<ir::Route>) -> RouteNode,
    ) -> Self {
        let nothing = HostIndex::new([]);
        let known = old.map_or(&nothing, |old| &old.routers);
        let mut routes = old.map_or_else(ObjectMap::default, |old| old.routes.clone());
        let mut edits: KeyedMap<&Hostname, (Vec<Candidate>, Vec<Candidate>)> = KeyedMap::default();
        for (previous, now) in &changes.0 {
            for (hostname, candidate) in previous.iter().flat_map(Attached::candidates) {
                edits.entry(hostname).or_default().0.push(candidate);
            }
            if let Some(previous) = previous {
                routes.remove(&previous.node.ir.object);
            }
            let Some(ir) = now else { continue };
            let node = attach(&ir.route);
            for (hostname, candidate) in candidates(ir, &node) {
                edits.entry(hostname).or_default().1.push(candidate);
            }
            routes.insert(node);
        }
        let router = |(hostname, (gone, new)): (&Hostname, (Vec<Candidate>, Vec<Candidate>))| {
            let router = made.router(known.get(hostname), &gone, new);
            (hostname.clone(), router)
        };
        Self {
            alt_svc: alt_svc::of(&ir, server.as_ref(), port),
            policies: (ir.policies.as_ref()).map(|it| Policies::new(it, states)),
            protected: protected::of_clients(ir.clients.as_ref()),
            responses: old.map(|old| old.responses.clone()).unwrap_or_default(),
            routers: known.with(edits.into_iter().map(router)),
            ir,
            server,
            routes,
        }
    }

    /// Reports whether building this node from `ir` and `server` again would yield an equal one, if no route changes.
    pub(super) fn is_current(&self, ir: &Arc<ir::Listener>, server: Option<&Arc<Server>>) -> bool {
        self.server.as_ref().map(Arc::as_ptr) == server.map(Arc::as_ptr) && self.ir == *ir
    }

    /// Reports whether its clients send requests, instead of connections that are forwarded.
    pub fn is_http(&self) -> bool {
        matches!(
            self.ir.protocol,
            ir::Protocol::Http | ir::Protocol::Https(_)
        )
    }

    /// Returns the nodes of its routes.
    pub(super) fn routes(&self) -> impl Iterator<Item = &RouteNode> {
        self.routes.iter()
    }

    /// Returns the rules of a route, as they are on this listener; none if it does not have the route.
    pub fn rules_of(&self, route: &ObjectRef) -> &[Arc<Rule>] {
        match self.routes.get(route) {
            Some(route) => &route.rules,
            None => &[],
        }
    }

    /// Returns the rule for a request: the first by precedence, of the most specific hostname that has a match. A preflight
    /// request has the rule of the calls that it asks for, and none if that rule permits none.
    #[inline]
    pub fn find(&self, request: &RequestView<'_>) -> Option<&Arc<Rule>> {
        self.routers
            .find(request.host, |router| router.find(request))
            .filter(|rule| !rule.refuses_preflight(request))
    }

    /// Returns the rule for whatever a client of `host` sends, on listeners whose routes do not look into it: that of the
    /// most specific hostname, and of its oldest route.
    #[inline]
    pub fn find_for_host(&self, host: &str) -> Option<&Arc<Rule>> {
        self.routers.find(host, Router::first)
    }

    /// Returns the rule for whatever a client sends to `host`, as [`Self::find_for_host`] selects it.
    ///
    /// # Errors
    /// Why none is.
    pub fn rule_for(&self, host: &str, client: IpAddr) -> Result<&Arc<Rule>, Unrouted> {
        let rule = self.find_for_host(host).ok_or(Unrouted::NoRoute)?;
        match self.verdict(rule, client) {
            Verdict::Pass => Ok(rule),
            _ => Err(Unrouted::Refused),
        }
    }

    /// What policies require of the requests of one of its rules.
    #[inline]
    pub fn policies<'a>(&'a self, rule: &'a Rule) -> Option<&'a Arc<Policies>> {
        rule.policies().or(self.policies.as_ref())
    }

    /// The headers that only the proxy may say in requests of one of its rules, or that it decides by.
    #[inline]
    pub fn protected_headers<'a>(
        &'a self,
        rule: &'a Rule,
    ) -> impl Iterator<Item = &'a Arc<ProtectedHeaders>> {
        let policies = self.policies(rule);
        let of_policies = policies.and_then(|policies| policies.protected.as_ref());
        let all = [self.protected.as_ref(), of_policies, rule.protected()];
        all.into_iter().flatten()
    }

    /// What policies require of requests that match none of its rules.
    pub fn policies_of_unmatched(&self) -> Option<&Arc<Policies>> {
        self.policies.as_ref()
    }

    /// Returns the verdict of policies on a connection or datagram from an address to one of its rules.
    #[inline]
    pub fn verdict(&self, rule: &Rule, client: IpAddr) -> Verdict {
        match self.policies(rule) {
            None => Verdict::Pass,
            Some(policies) if self.unknown_peers(&policies.ir).is_some() => Verdict::Broken,
            Some(policies) => policies.ir.verdict_on_connection(client),
        }
    }

    /// Returns why it is unknown where connections come from, if it is and these policies decide by that. Datagrams have no PROXY
    /// protocol.
    pub fn unknown_peers(&self, policies: &ir::policy::Policies) -> Option<&str> {
        let clients = self.ir.clients.as_ref()?;
        let why = clients.unknown_protocol.as_deref();
        why.filter(|_| self.ir.protocol != ir::Protocol::Udp && policies.need_addresses())
    }

    /// Returns every match whose hostname contains the request's host, in the order in which they are tried, with the
    /// verdict on it. The chosen one is the result of [`Self::find`].
    pub fn explain(&self, request: &RequestView<'_>) -> Vec<Considered<'_>> {
        let mut tried = Vec::new();
        for attached in self.attached() {
            let hostnames = attached.ir.hostnames.iter();
            for hostname in hostnames.filter(|hostname| hostname.contains(request.host)) {
                for rule in &attached.node.rules {
                    let matches = 0..rule.ir.matches.len();
                    tried.extend(matches.map(|index| (hostname, rule, index)));
                }
            }
        }
        tried.sort_by_cached_key(|(hostname, rule, index)| (*hostname, rule.precedence(*index)));
        let mut chosen = false;
        let mut all = Vec::with_capacity(tried.len());
        for (hostname, rule, index) in tried {
            let condition = &rule.ir.matches[index];
            let mismatch = if condition.path.matches(request.path) {
                mismatch(condition, request)
            } else {
                Some(Mismatch::Path)
            };
            let verdict = match mismatch {
                Some(mismatch) => MatchVerdict::Differs(mismatch),
                None if std::mem::replace(&mut chosen, true) => MatchVerdict::Outranked,
                None if rule.refuses_preflight(request) => {
                    MatchVerdict::Differs(Mismatch::Preflight)
                }
                None => MatchVerdict::Chosen,
            };
            all.push(Considered {
                hostname,
                rule,
                index,
                verdict,
            });
        }
        all
    }

    fn attached(&self) -> impl Iterator<Item = Attached<'_>> {
        let attached = self.ir.routes.iter().zip(self.routes.iter());
        attached.map(|(ir, node)| Attached { ir, node })
    }

    fn of<'a>(&'a self, ir: &'a Arc<ir::AttachedRoute>) -> Option<Attached<'a>> {
        let node = self.routes.get(&ir.route.object)?;
        Some(Attached { ir, node })
    }
}

/// A match that [`Listener::explain`] considers.
#[derive(Clone, Debug)]
pub struct Considered<'a> {
    /// The hostname under which it was tried.
    pub hostname: &'a Hostname,
    /// The rule that it belongs to.
    pub rule: &'a Arc<Rule>,
    /// Its index in the rule.
    pub index: usize,
    /// The verdict on it.
    pub verdict: MatchVerdict<'a>,
}

/// The verdict on a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchVerdict<'a> {
    /// It selects the rule of the request.
    Chosen,
    /// The request meets its conditions, but another match precedes it.
    Outranked,
    /// The request does not meet this condition.
    Differs(Mismatch<'a>),
}

/// A route on a listener.
#[derive(Clone, Copy)]
struct Attached<'a> {
    ir: &'a Arc<ir::AttachedRoute>,
    node: &'a RouteNode,
}

impl<'a> Attached<'a> {
    fn candidates(&self) -> impl Iterator<Item = (&'a Hostname, Candidate)> + use<'a> {
        candidates(self.ir, self.node)
    }
}

/// Returns the matches of a route, under each of its hostnames.
fn candidates<'a>(
    ir: &'a ir::AttachedRoute,
    node: &Route,
) -> impl Iterator<Item = (&'a Hostname, Candidate)> {
    let matches = node.rules.iter().flat_map(Candidate::all);
    matches.flat_map(|candidate| {
        let hostnames = ir.hostnames.iter();
        hostnames.map(move |hostname| (hostname, candidate.clone()))
    })
}

/// The routes of a listener that differ from those of its node in the previous table: the old route and the new one.
pub(super) struct Changes<'a>(Vec<(Option<Attached<'a>>, Option<&'a Arc<ir::AttachedRoute>>)>);

impl<'a> Changes<'a> {
    /// Computes the changes. `outdated` are objects of routes that need new nodes although their IR may be equal.
    pub(super) fn new(
        ir: &'a ir::Listener,
        old: Option<&'a Arc<Listener>>,
        outdated: &[ObjectRef],
    ) -> Self {
        let Some(old) = old else {
            return Self(ir.routes.iter().map(|now| (None, Some(now))).collect());
        };
        let changes = ir.routes.changes_since(&old.ir.routes);
        let mut changes: Vec<_> = changes
            .into_iter()
            .map(|(previous, now)| (previous.and_then(|previous| old.of(previous)), now))
            .collect();
        let unchanged = outdated.iter().filter_map(|object| {
            let (previous, now) = (old.ir.routes.get(object)?, ir.routes.get(object)?);
            let attached = old.of(previous)?;
            (previous == now).then_some((Some(attached), Some(now)))
        });
        changes.extend(unchanged);
        Self(changes)
    }

    /// Reports whether there are no changes.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the nodes that the listener had for the changed routes.
    pub(super) fn detached(&self) -> impl Iterator<Item = &'a RouteNode> {
        let previous = self.0.iter().filter_map(|(previous, _)| previous.as_ref());
        previous.map(|attached| attached.node)
    }
}
