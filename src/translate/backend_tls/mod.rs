//! TLS to backends: which policy of consumers and producers applies to requests for a port, and its settings. Keeps
//! policies from one translation to the next. Must not know endpoints or connections.

mod absent;
mod explanation;
mod policy;
mod settings;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::api::Resource;
use crate::api::backend_tls_override::BackendTlsOverride;
use crate::api::grpc_route::GrpcRoute;
use crate::api::http_route::HttpFilter;
use crate::api::reference::{BackendObjectRef, BackendRef};
use crate::ir::{Certificate, ClientTls, ListenerKey, ObjectRef, RuleId, TlsUse, UpstreamProtocol};
use crate::permissions::BackendKinds;
use crate::snapshot::Snapshot;

use super::reason::Fault;
use super::{Input, backend};

use self::policy::{Candidate, Path, Policy};
use self::settings::Settings;

pub use self::explanation::{BackendPolicies, ConsideredPolicy, Criterion, PolicyVerdict};

pub(super) use self::absent::Senders;
pub(super) use self::settings::{TlsSettings, authority_names, is_dns_name, validated};
pub(super) use self::status::{Use, Uses, statuses};

/// The sender of requests to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Consumer {
    /// The Gateway.
    pub(super) gateway: ObjectRef,
    /// The listener that the requests come through, of the Gateway or of a ListenerSet.
    pub(super) listener: ListenerKey,
    /// The client certificate of the Gateway, or why it cannot be used.
    pub(super) client_certificate: Option<ClientCertificate>,
    /// Whether the Gateway permits the priorities of routes.
    pub(super) permits_priorities: bool,
}

/// A client certificate, or why there is none.
pub(super) type ClientCertificate = Result<Arc<Certificate>, Arc<str>>;

/// The requests for which a reference to a backend is resolved.
#[derive(Clone, Copy)]
pub(super) struct Requests<'a> {
    pub(super) route: &'a ObjectRef,
    /// The name of the rule.
    pub(super) rule: Option<&'a str>,
    /// Whether a GRPCRoute sends them.
    pub(super) are_grpc: bool,
    /// `None` if no listener can serve them.
    pub(super) consumer: Option<&'a Consumer>,
}

/// The policies of a snapshot.
#[derive(Default)]
pub(super) struct TlsPolicies {
    by_name: BTreeMap<ObjectRef, Arc<Policy>>,
    /// By the backends that they target, in order of precedence.
    by_target: BTreeMap<ObjectRef, Vec<Arc<Policy>>>,
}

/// The TLS decision for a use of a backend.
pub(super) enum Decision {
    /// Plain text: no policy applies, or this policy asks for it.
    Plain(Option<TlsUse>),
    /// TLS.
    Tls(TlsUse, Arc<ClientTls>),
    /// Requests must not be sent, for this reason.
    Refused(String),
}

impl TlsPolicies {
    /// Applies the changes between two snapshots. Returns the backends whose policy may have changed.
    pub(super) fn follow(&mut self, input: &Input<'_>, before: &Snapshot) -> FxHashSet<ObjectRef> {
        let now = input.snapshot;
        let policies = now
            .backend_tls_policies
            .names_changed_since(&before.backend_tls_policies);
        let overrides = now
            .backend_tls_overrides
            .names_changed_since(&before.backend_tls_overrides);
        let mut changed: BTreeSet<_> = policies.chain(overrides).collect();
        let authorities = now.tls_objects_changed_since(before);
        if !authorities.is_empty() {
            let policies = self.by_name.values();
            let affected =
                policies.filter(|it| it.authorities.iter().any(|it| authorities.contains(it)));
            changed.extend(affected.map(|policy| policy.name.clone()));
        }
        let mut affected = FxHashSet::default();
        if changed.is_empty() {
            return affected;
        }
        for name in changed {
            let policy = read(input, &name).map(Arc::new);
            let former = match &policy {
                Some(policy) => self.by_name.insert(name, policy.clone()),
                None => self.by_name.remove(&name),
            };
            let versions = former.iter().chain(&policy);
            let targets = versions.flat_map(|policy| &policy.targets);
            affected.extend(targets.map(|target| target.backend.clone()));
        }
        self.index();
        affected
    }

    fn index(&mut self) {
        self.by_target.clear();
        let mut policies: Vec<_> = self.by_name.values().collect();
        policies.sort_by(|one, two| one.age().cmp(&two.age()));
        for policy in policies {
            let backends: BTreeSet<_> = policy.targets.iter().map(|it| &it.backend).collect();
            for backend in backends {
                let known = self.by_target.entry(backend.clone()).or_default();
                known.push(policy.clone());
            }
        }
    }

    /// Returns the names of all policies.
    pub(super) fn names(&self) -> impl Iterator<Item = &ObjectRef> {
        self.by_name.keys()
    }

    /// Returns the backends that policies target.
    pub(super) fn targets(&self) -> impl Iterator<Item = &ObjectRef> {
        self.by_target.keys()
    }

    /// Reports whether a policy targets a backend, so that its TLS may depend on the consumer.
    pub(super) fn target(&self, backend: &ObjectRef) -> bool {
        self.by_target.contains_key(backend)
    }

    /// Returns the objects that policies name in `from`.
    pub(super) fn senders(&self) -> BTreeSet<&ObjectRef> {
        let targets = self.by_name.values().flat_map(|policy| &policy.targets);
        let from = targets.filter_map(|target| target.from.as_ref());
        from.map(|from| &from.object).collect()
    }

    /// Returns the policies that target the backends of a rule, with the verdict on each for the requests of a
    /// listener.
    pub(super) fn of_rule(
        &self,
        snapshot: &Snapshot,
        rule: &RuleId,
        gateway: &ObjectRef,
        listener: &ListenerKey,
    ) -> Vec<BackendPolicies> {
        let RuleId { route, index, name } = rule;
        let path = Path {
            route,
            rule: name.as_deref(),
            through: Some((gateway, listener)),
        };
        let backends = backend_refs(snapshot, route, *index)
            .iter()
            .map(|it| &it.backend)
            .filter(|it| backend::is_target(&BackendKinds::All, &it.group, &it.kind));
        let of_backend = |reference: &BackendObjectRef| {
            let backend = reference.object_ref(&path.route.namespace);
            let mut ports = backend::target_ports(snapshot, &BackendKinds::All, &backend)
                .into_iter()
                .flatten();
            let port = ports.find(|port| Some(port.port) == reference.port);
            let port = port.and_then(|port| port.name.as_deref());
            BackendPolicies {
                policies: self.explain(&backend, port, &path),
                port: reference.port,
                backend,
            }
        };
        backends.map(of_backend).collect()
    }

    /// Decides on TLS for requests to a port of a backend, with this name or without one.
    pub(super) fn decide(
        &self,
        backend: &ObjectRef,
        port: Option<&str>,
        protocol: UpstreamProtocol,
        requests: &Requests<'_>,
    ) -> Decision {
        let Some(candidate) = self.winner(backend, port, &requests.path()) else {
            return Decision::Plain(None);
        };
        let policy = candidate.policy;
        let used = |client| TlsUse {
            policy: policy.name.clone(),
            client,
        };
        let refuse = |fault: &Fault| {
            let (name, why) = (&policy.name, &fault.message);
            Decision::Refused(format!(
                "{name} cannot be applied to it: {why}; requests are refused rather than sent unverified"
            ))
        };
        if let Some(fault) = policy.forbidden(candidate.target) {
            return refuse(&fault);
        }
        let settings = match &policy.settings {
            Ok(Settings::Tls(settings)) => settings,
            Ok(Settings::Plain) => return Decision::Plain(Some(used(None))),
            Err(fault) => return refuse(fault),
        };
        let consumer = requests.consumer;
        match consumer.and_then(|it| Some((it, it.client_certificate.as_ref()?))) {
            None => Decision::Tls(used(None), Arc::new(settings.with(protocol, None))),
            Some((consumer, Ok(certificate))) => {
                let tls = settings.with(protocol, Some(certificate.clone()));
                Decision::Tls(used(Some(consumer.gateway.clone())), Arc::new(tls))
            }
            Some((consumer, Err(why))) => Decision::Refused(format!(
                "{} has no client certificate to present: {why}",
                consumer.gateway
            )),
        }
    }

    /// Returns the present TLS settings of a known use, which may be none; `None` if its policy cannot be applied any
    /// more.
    pub(super) fn renew(
        &self,
        known: &TlsUse,
        certificate: Option<Arc<Certificate>>,
        protocol: UpstreamProtocol,
    ) -> Option<Option<ClientTls>> {
        match self.by_name.get(&known.policy)?.settings.as_ref().ok()? {
            Settings::Plain => Some(None),
            Settings::Tls(settings) => Some(Some(settings.with(protocol, certificate))),
        }
    }

    /// Returns the policy that applies. An unusable policy does not let the next one apply.
    fn winner(
        &self,
        backend: &ObjectRef,
        port: Option<&str>,
        path: &Path<'_>,
    ) -> Option<Candidate<'_>> {
        let policies = self.by_target.get(backend)?.iter();
        let candidates = policies.filter_map(|policy| policy.candidate(backend, port, path));
        // They are in order of age, and `min_by_key` returns the first of equal elements.
        candidates.min_by_key(|candidate| candidate.rank)
    }
}

impl<'a> Requests<'a> {
    fn path(&self) -> Path<'a> {
        Path {
            route: self.route,
            rule: self.rule,
            through: self.consumer.map(|it| (&it.gateway, &it.listener)),
        }
    }
}

/// Returns the backendRefs of a rule of a route; none if the rule does not exist.
fn backend_refs<'a>(
    snapshot: &'a Snapshot,
    route: &ObjectRef,
    rule: usize,
) -> &'a [BackendRef<HttpFilter>] {
    let (namespace, name) = (&*route.namespace, &*route.name);
    let found = if &*route.kind == GrpcRoute::KIND {
        let route = snapshot.grpc_routes.get(namespace, name);
        let rule = route.and_then(|route| route.spec.rules.get(rule));
        rule.map(|rule| &rule.backend_refs)
    } else {
        let route = snapshot.http_routes.get(namespace, name);
        let rule = route.and_then(|route| route.spec.rules.get(rule));
        rule.map(|rule| &rule.backend_refs)
    };
    found.map_or(&[], Vec::as_slice)
}

fn read(input: &Input<'_>, name: &ObjectRef) -> Option<Policy> {
    let (namespace, own) = (&*name.namespace, &*name.name);
    if &*name.kind == BackendTlsOverride::KIND {
        let object = input.snapshot.backend_tls_overrides.get(namespace, own)?;
        return Some(Policy::read(input, &**object));
    }
    let object = input.snapshot.backend_tls_policies.get(namespace, own)?;
    Some(Policy::read(input, &**object))
}

#[cfg(test)]
mod tests;
