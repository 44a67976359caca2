//! TLS to backends: which policy of consumers and producers applies to requests for a port, and its settings. Keeps
//! policies from one translation to the next. Must not know endpoints or connections.

mod absent;
mod criterion;
mod explanation;
mod own_requests;
mod policy;
mod settings;
mod status;
mod uses;

use std::sync::Arc;

use crate::api::Resource;
use crate::api::backend_tls_policy::{BackendTlsOverride, BackendTlsPolicy};
use crate::ir::{Certificate, ClientTls, ObjectRef, TlsUse, UpstreamProtocol};

use crate::translate::input::Input;
use crate::translate::reason::Fault;

use self::policy::{Candidate, Path, Policy};
use self::settings::Settings;

pub use self::criterion::Criterion;
pub use self::explanation::{BackendPolicies, ConsideredPolicy, PolicyVerdict};

pub(in crate::translate) use self::own_requests::of_own_requests;
pub(in crate::translate) use self::settings::{TlsSettings, is_dns_name, validated};
pub(in crate::translate) use self::status::Statuses;
pub(in crate::translate) use self::uses::{Requesters, Use};
use super::index::PolicyIndex;
use crate::translate::changes::Changes;
use crate::translate::consumer::Requests;

/// The policies of a snapshot.
#[derive(Default)]
pub(in crate::translate) struct TlsPolicies(PolicyIndex<Policy>);

/// The TLS decision for a use of a backend.
pub(in crate::translate) enum Decision {
    /// Plain text: no policy applies, or this policy asks for it.
    Plain(Option<TlsUse>),
    /// TLS.
    Tls(TlsUse, Arc<ClientTls>),
    /// Requests must not be sent, for this reason.
    Refused(String),
}

impl TlsPolicies {
    /// Parses what has changed. Announces the backends whose policy may have changed.
    pub(in crate::translate) fn step(&mut self, input: &Input<'_>, changes: &mut Changes) {
        let read = |name: &ObjectRef| read(input, name);
        let changed = names_changed(changes);
        self.0.step(input, changes, changed, read);
    }

    /// Reports whether a policy targets a backend, so that its TLS may depend on the consumer.
    pub(in crate::translate) fn target(&self, backend: &ObjectRef) -> bool {
        !self.0.of_backend(backend).is_empty()
    }

    /// Reports whether a policy names this port of a backend, rather than all of its ports.
    pub(in crate::translate) fn names_port(&self, backend: &ObjectRef, port: &str) -> bool {
        let mut policies = self.0.of_backend(backend).iter();
        policies.any(|policy| policy.names_port(backend, port))
    }

    /// Decides on TLS for requests to a port of a backend, with this name or without one.
    pub(in crate::translate) fn decide(
        &self,
        backend: &ObjectRef,
        port: Option<&str>,
        protocol: UpstreamProtocol,
        requests: &Requests<'_>,
    ) -> Decision {
        if let Some((policy, gateway)) = self.by_listener(backend, port, requests) {
            return Decision::Refused(format!(
                "{policy} selects requests by their listener in spec.targetRefs.from, but requests through all listeners \
                 of {gateway} are sent to it; name the Gateway alone"
            ));
        }
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
        let settings = match candidate.settings() {
            Ok(Settings::Tls(settings)) => settings,
            Ok(Settings::Plain) => return Decision::Plain(Some(used(None))),
            Err(fault) => return refuse(&fault),
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
    pub(in crate::translate) fn renew(
        &self,
        known: &TlsUse,
        certificate: Option<Arc<Certificate>>,
        protocol: UpstreamProtocol,
    ) -> Option<Option<ClientTls>> {
        match self.0.get(&known.policy)?.settings.as_ref().ok()? {
            Settings::Plain => Some(None),
            Settings::Tls(settings) => Some(Some(settings.with(protocol, certificate))),
        }
    }

    /// Returns a policy that selects by listener, of requests through all listeners of a Gateway, and this Gateway. What it
    /// says of some of them must not decide about the others.
    fn by_listener<'a>(
        &'a self,
        backend: &ObjectRef,
        port: Option<&str>,
        requests: &Requests<'a>,
    ) -> Option<(&'a ObjectRef, &'a ObjectRef)> {
        let (has_set, consumer) = (requests.of_all_listeners?, requests.consumer?);
        let mut policies = self.0.of_backend(backend).iter();
        let selects = |policy: &&Arc<Policy>| {
            policy.selects_by_listener((backend, port), &consumer.gateway, has_set)
        };
        let policy = policies.find(selects)?;
        Some((&policy.name, &consumer.gateway))
    }

    /// Returns the policy that applies. An unusable policy does not let the next one apply.
    fn winner(
        &self,
        backend: &ObjectRef,
        port: Option<&str>,
        path: &Path<'_>,
    ) -> Option<Candidate<'_>> {
        let policies = self.0.of_backend(backend).iter();
        applicable(policies.map(|it| &**it), (backend, port), path)
    }
}

/// Returns the policy that applies, of policies in order of age.
fn applicable<'a>(
    policies: impl Iterator<Item = &'a Policy>,
    (backend, port): (&ObjectRef, Option<&str>),
    path: &Path<'_>,
) -> Option<Candidate<'a>> {
    let candidates = policies.filter_map(|policy| policy.candidate(backend, port, path));
    // `min_by_key` returns the first of equal elements.
    candidates.min_by_key(|candidate| candidate.rank)
}

impl<'a> Requests<'a> {
    fn path(&self) -> Path<'a> {
        Path {
            route: self.route,
            rule: self.rule,
            consumer: self.consumer.map(|it| &*it.gateway.namespace),
            through: self.consumer.map(|it| {
                let listener = self.of_all_listeners.is_none().then_some(&it.listener);
                (&it.gateway, listener)
            }),
        }
    }
}

fn read(input: &Input<'_>, name: &ObjectRef) -> Option<Policy> {
    if &*name.kind == BackendTlsOverride::KIND {
        let object = input.find::<BackendTlsOverride>(name)?;
        return Some(Policy::read(input, &**object));
    }
    let object = input.find::<BackendTlsPolicy>(name)?;
    Some(Policy::read(input, &**object))
}

/// Returns the policies that have changed.
fn names_changed(changes: &Changes) -> Vec<ObjectRef> {
    let mut names = changes.of::<BackendTlsPolicy>();
    names.extend(changes.of::<BackendTlsOverride>());
    names
}

#[cfg(test)]
mod tests;
