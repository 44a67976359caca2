//! Ports and listeners at run time: which listener a host or SNI belongs to, and which rule a request. Knows nothing of
//! sockets or handshakes.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustls::ServerConfig;

use super::hostname::HostIndex;
use super::matcher::{Mismatch, RequestView, mismatch, path_fits};
use super::router::{Entry, Router};
use super::rule::Rule;
use crate::ir;
use crate::ir::{Bind, Hostname, PortProtocol, Precedence};

/// One port with the listeners that share it.
#[derive(Debug)]
pub struct Port {
    /// What was configured.
    pub ir: Arc<ir::Port>,
    listeners: Box<[Arc<Listener>]>,
    by_host: HostIndex<Arc<Listener>>,
}

impl Port {
    pub(super) fn new(ir: Arc<ir::Port>, listeners: Box<[Arc<Listener>]>) -> Self {
        let by_host = HostIndex::new(
            listeners
                .iter()
                .map(|listener| (listener.ir.hostname.clone(), listener.clone())),
        );
        Self {
            ir,
            listeners,
            by_host,
        }
    }

    /// Whether this node would be built from `ir` and `listeners` again.
    pub(super) fn is_current(&self, ir: &Arc<ir::Port>, listeners: &[Arc<Listener>]) -> bool {
        same_nodes(&self.listeners, listeners) && self.ir == *ir
    }

    /// What to bind.
    pub fn bind(&self) -> Bind {
        self.ir.bind
    }

    /// What clients speak.
    pub fn protocol(&self) -> PortProtocol {
        self.ir.protocol
    }

    /// Its listeners, in the order of the configuration.
    pub fn listeners(&self) -> &[Arc<Listener>] {
        &self.listeners
    }

    /// The most specific listener for a host, in lower case and without port.
    #[inline]
    pub fn listener(&self, host: &str) -> Option<&Arc<Listener>> {
        self.by_host.most_specific(host)
    }

    /// The most specific listener for a server name, in lower case; without one, the listener without hostname.
    #[inline]
    pub fn listener_for_sni(&self, sni: Option<&str>) -> Option<&Arc<Listener>> {
        match sni {
            Some(name) => self.by_host.most_specific(name),
            None => self.by_host.any(),
        }
    }

    /// The TLS configuration of [`Self::listener_for_sni`]. Without one the handshake must be refused.
    pub fn server_config(&self, sni: Option<&str>) -> Option<&Arc<ServerConfig>> {
        self.listener_for_sni(sni)?.server_config.as_ref()
    }
}

/// A listener with the rules attached to it.
#[derive(Debug)]
pub struct Listener {
    /// What was configured.
    pub ir: Arc<ir::Listener>,
    /// How to terminate TLS; `None` without TLS, or when it cannot be terminated.
    pub server_config: Option<Arc<ServerConfig>>,
    /// The rules of its routes, in the order of the configuration.
    rules: Box<[Arc<Rule>]>,
    routers: HostIndex<Router>,
}

impl Listener {
    /// Indexes a listener. `rules` are those of its routes, one after the other.
    pub(super) fn new(
        ir: Arc<ir::Listener>,
        server_config: Option<Arc<ServerConfig>>,
        rules: Box<[Arc<Rule>]>,
    ) -> Self {
        let mut by_host: FxHashMap<&Hostname, Vec<Entry>> = FxHashMap::default();
        for attached in attached(&ir, &rules) {
            by_host.entry(attached.hostname).or_default().push(Entry {
                precedence: attached.precedence,
                rule: attached.rule.clone(),
                index: attached.index,
            });
        }
        let routers = HostIndex::new(
            by_host
                .into_iter()
                .map(|(hostname, entries)| (hostname.clone(), Router::new(entries))),
        );
        Self {
            routers,
            ir,
            server_config,
            rules,
        }
    }

    /// Whether this node would be built from `ir`, `server_config` and `rules` again.
    pub(super) fn is_current(
        &self,
        ir: &Arc<ir::Listener>,
        server_config: Option<&Arc<ServerConfig>>,
        rules: &[Arc<Rule>],
    ) -> bool {
        same_nodes(&self.rules, rules)
            && self.server_config.as_ref().map(Arc::as_ptr) == server_config.map(Arc::as_ptr)
            && self.ir == *ir
    }

    /// The rule that a request belongs to: of the most specific hostname that has one, the first by precedence.
    #[inline]
    pub fn find(&self, request: &RequestView<'_>) -> Option<&Arc<Rule>> {
        self.routers
            .find(request.host, |router| router.find(request))
    }

    /// Every match whose hostname contains the request's host, in the order in which they are tried, and what became
    /// of it. The one that is chosen is the one that [`Self::find`] finds.
    pub fn explain(&self, request: &RequestView<'_>) -> Vec<Considered<'_>> {
        let mut tried = attached(&self.ir, &self.rules);
        tried.retain(|one| one.hostname.contains(request.host));
        tried.sort_by(|one, two| {
            (one.hostname, &one.precedence).cmp(&(two.hostname, &two.precedence))
        });
        let mut chosen = false;
        let mut all = Vec::with_capacity(tried.len());
        for attached in tried {
            let condition = &attached.rule.ir.matches[attached.index];
            let mismatch = if path_fits(&condition.path, request.path) {
                mismatch(condition, request)
            } else {
                Some(Mismatch::Path)
            };
            let verdict = match mismatch {
                Some(mismatch) => MatchVerdict::Differs(mismatch),
                None if std::mem::replace(&mut chosen, true) => MatchVerdict::Outranked,
                None => MatchVerdict::Chosen,
            };
            all.push(Considered {
                hostname: attached.hostname,
                rule: attached.rule,
                index: attached.index,
                verdict,
            });
        }
        all
    }
}

/// A match that [`Listener::explain`] looked at.
#[derive(Clone, Debug)]
pub struct Considered<'a> {
    /// The hostname under which it was tried.
    pub hostname: &'a Hostname,
    /// The rule that it belongs to.
    pub rule: &'a Arc<Rule>,
    /// Its index in the rule.
    pub index: usize,
    /// What became of it.
    pub verdict: MatchVerdict<'a>,
}

/// What became of a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchVerdict<'a> {
    /// It decides what happens to the request.
    Chosen,
    /// It fits, and another one comes first.
    Outranked,
    /// The request does not meet this condition.
    Differs(Mismatch<'a>),
}

/// A match under one of the hostnames of its route.
struct AttachedMatch<'a> {
    hostname: &'a Hostname,
    precedence: Precedence,
    rule: &'a Arc<Rule>,
    index: usize,
}

/// All matches of a listener, in the order of the configuration.
fn attached<'a>(ir: &'a ir::Listener, rules: &'a [Arc<Rule>]) -> Vec<AttachedMatch<'a>> {
    let mut all = Vec::new();
    let mut rules = rules.iter();
    for attached in &ir.routes {
        for rule in rules.by_ref().take(attached.route.rules.len()) {
            for index in 0..rule.ir.matches.len() {
                let precedence = Precedence::http(&attached.route, &rule.ir, index);
                all.extend(attached.hostnames.iter().map(|hostname| AttachedMatch {
                    hostname,
                    precedence: precedence.clone(),
                    rule,
                    index,
                }));
            }
        }
    }
    all
}

/// Whether both hold the very same nodes.
fn same_nodes<T>(one: &[Arc<T>], two: &[Arc<T>]) -> bool {
    one.len() == two.len() && one.iter().zip(two).all(|(one, two)| Arc::ptr_eq(one, two))
}
