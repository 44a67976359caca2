//! The servers that policies name, for the requests through each Gateway: which TLS a server gets depends on that. Keeps
//! them from one translation to the next. Must not know what the servers are for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::access_policy::AccessPolicy;
use crate::api::route_policy::RoutePolicy;
use crate::ir::route::BackendTarget;
use crate::ir::{self, BackendId, ObjectRef};

use crate::translate::backend::{Backends, Resolution};
use crate::translate::changes::Changes;
use crate::translate::consumer::Requests;
use crate::translate::gateway::attachment::Parents;
use crate::translate::input::Input;
use crate::translate::memo::Memo;
use crate::translate::policy::inherited::{Attachments, InheritedPolicies, NamedServers};
use crate::translate::reason::{Fault, Reason};
use crate::translate::source::Source;

/// By Gateway, the servers of a policy or why they cannot be used.
type Resolved = BTreeMap<ObjectRef, Vec<Result<BackendId, Fault>>>;

/// The servers that all policies name.
#[derive(Default)]
pub(in crate::translate) struct PolicyServers {
    outputs: Memo<Resolved>,
    served: Arc<BTreeMap<ObjectRef, Arc<ir::PolicyServers>>>,
}

impl PolicyServers {
    /// Updates what has changed.
    pub(in crate::translate) fn step(
        &mut self,
        input: &Input<'_>,
        changes: &mut Changes,
        policies: &InheritedPolicies,
        (attachments, parents): (&dyn Attachments, &Parents),
        backends: &mut Backends,
    ) {
        let mut names = self.outputs.outdated(changes);
        names.extend(changes.of::<AccessPolicy>());
        names.extend(changes.of::<RoutePolicy>());
        for name in names {
            let computed = input.reading(|| {
                let named = policies.servers_of(&name)?;
                Some(resolved(
                    input,
                    (&name, &named),
                    (attachments, parents),
                    backends,
                ))
            });
            claims(computed.0.as_ref()).for_each(|id| backends.claim(id, true));
            let previous = self.outputs.replace(&name, computed).previous;
            claims(previous.as_ref()).for_each(|id| backends.release(id, true));
            let now = self.outputs.get(&name);
            if previous.as_ref() != now {
                self.serve(&name);
                changes.announce(Source::ServersOf(name));
            }
        }
    }

    /// Publishes the servers of a policy.
    fn serve(&mut self, name: &ObjectRef) {
        let Some(resolved) = self.outputs.get(name) else {
            if self.served.contains_key(name) {
                Arc::make_mut(&mut self.served).remove(name);
            }
            return;
        };
        let target = |server: &Result<BackendId, Fault>| match server {
            Ok(id) => BackendTarget::Backend(id.clone()),
            Err(fault) => BackendTarget::Invalid(fault.message.as_str().into()),
        };
        let servers = resolved.iter();
        let servers = servers
            .map(|(gateway, servers)| (gateway.clone(), servers.iter().map(target).collect()));
        let servers = Arc::new(ir::PolicyServers(servers.collect()));
        Arc::make_mut(&mut self.served).insert(name.clone(), servers);
    }

    /// Returns the servers, by policy.
    pub(in crate::translate) fn served(&self) -> Arc<BTreeMap<ObjectRef, Arc<ir::PolicyServers>>> {
        self.served.clone()
    }

    /// Returns why requests through a Gateway cannot be sent to servers of a policy.
    pub(super) fn faults(
        &self,
        input: &Input<'_>,
        policy: &ObjectRef,
        gateway: &ObjectRef,
    ) -> Vec<Fault> {
        input.read(|| Source::ServersOf(policy.clone()));
        let resolved = self.outputs.get(policy);
        let servers = resolved.and_then(|resolved| resolved.get(gateway));
        let faults = servers
            .into_iter()
            .flatten()
            .filter_map(|it| it.as_ref().err());
        faults.cloned().collect()
    }
}

/// Returns the backends that traffic may need.
fn claims(resolved: Option<&Resolved>) -> impl Iterator<Item = &BackendId> {
    let servers = resolved.into_iter().flat_map(BTreeMap::values);
    servers.flatten().filter_map(|server| server.as_ref().ok())
}

/// Resolves the references of a policy for each Gateway whose requests it may apply to.
fn resolved(
    input: &Input<'_>,
    (policy, named): (&ObjectRef, &NamedServers<'_>),
    (attachments, parents): (&dyn Attachments, &Parents),
    backends: &mut Backends,
) -> Resolved {
    let targets = named.targets();
    let listeners = targets.flat_map(|target| attachments.listeners_of(target));
    let gateways: BTreeSet<_> = listeners.map(|(gateway, _)| gateway).collect();
    let mut resolved = Resolved::new();
    for gateway in gateways {
        input.read(|| Source::ListenersOf(gateway.clone()));
        let consumer = parents.of_gateway(&gateway).next();
        let consumer = consumer.map(|place| &parents[place].consumer);
        let has_set = |set: &ObjectRef| parents.has_set(input, &gateway, set);
        let servers = named.servers.iter().map(|server| {
            let name = server.reference.object_ref(&policy.namespace);
            input.read(|| Source::Backend(name.clone()));
            let requests = Requests {
                route: policy,
                rule: None,
                kind: server.requests,
                consumer,
                of_all_listeners: Some(&has_set),
            };
            let port = server.reference.port;
            let found = backends.resolve(input, &requests, &name, port, server.field);
            let backend = match found {
                Ok(Resolution::Backend(backend)) => Ok(backend.id.clone()),
                Ok(Resolution::Refused(why)) => Err(Fault::new(Reason::BackendNotFound, why)),
                Err(fault) => Err(fault),
            };
            backend.map_err(|fault| {
                let message = format!("{}; {}", fault.message, server.outcome);
                Fault::new(fault.reason, message)
            })
        });
        let servers = servers.collect();
        resolved.insert(gateway, servers);
    }
    resolved
}
