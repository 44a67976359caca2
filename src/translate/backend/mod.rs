//! Backends of all kinds: resolves every reference to a backend. Keeps backends from one translation to the next, and
//! reports which of them changed.

#[cfg(test)]
mod config_map;
mod index;
mod load_balancer;
mod port;
mod ports;
mod registry;
mod release_backend;
mod service;
mod service_import;
mod service_load_balancer;
mod slow_start;
mod statuses;
mod topology;
mod xbackend;

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::api::Key;
use crate::api::core::EndpointSlice;
use crate::ir::{Backend, BackendId, ObjectRef, UpstreamProtocol};
use crate::location::Location;
use crate::snapshot::Snapshot;
use crate::status::ReleaseBackendStatuses;

pub(super) use self::registry::{
    BackendKind, find_enabled, is_target, links, owners, target_ports,
};
pub use self::registry::{backend_kinds, watched_kinds};

use self::index::SlicesByOwner;
use self::port::{BackendUse, Port, PortTls, own_use};
use self::registry::{PartChanges, Resolver, enabled, unusable};
use self::statuses::BackendSenders;
use super::backend_tls::{Decision, Requests, TlsPolicies};
use super::reason::{Fault, Reason};
use super::traffic_policy::TrafficPolicies;
use super::{Input, Options};

/// The inputs from which a backend is resolved.
struct Sources<'a> {
    snapshot: &'a Snapshot,
    slices: &'a SlicesByOwner,
    location: &'a Location,
}

impl<'a> Sources<'a> {
    /// Returns the EndpointSlices with the endpoints of an object.
    fn slices(&self, object: &ObjectRef) -> &'a [Arc<EndpointSlice>] {
        self.slices.of(object)
    }
}

/// A port of an object to which requests can be sent.
struct Found {
    /// In plain text, unless the kind of the object has TLS settings.
    backend: Backend,
    port: Port,
}

/// The result of resolving a reference to a backend.
pub(super) enum Resolution {
    /// A backend.
    Backend(Arc<Backend>),
    /// A backend to which nothing may be sent, for this reason. The reference itself is valid.
    Refused(String),
}

/// The backends that routes refer to. Each is resolved once, and again when one of its inputs changes.
pub(super) struct Backends {
    kinds: Vec<EnabledKind>,
    location: Location,
    slices: SlicesByOwner,
    pub(super) tls: TlsPolicies,
    pub(super) traffic: TrafficPolicies,
    resolved: BTreeMap<BackendId, Resolved>,
    /// Whether a resolved backend may have no claims.
    has_unclaimed: bool,
    /// All backends with traffic; `None` after one of them changed.
    listed: Option<Arc<[Arc<Backend>]>>,
    /// The Gateways that sent requests to backends with a status, as of the last call of `statuses`.
    senders: BackendSenders,
    /// The statuses of ReleaseBackends.
    pub(super) release_statuses: ReleaseBackendStatuses,
}

/// A kind of backend that the operator enables.
struct EnabledKind {
    kind: &'static BackendKind,
    resolver: Box<dyn Resolver + Send>,
}

/// The changes of backends between two snapshots.
pub(super) struct BackendChanges {
    /// Objects whose backends changed, apart from endpoints: references to them must be resolved again.
    pub(super) objects: FxHashSet<ObjectRef>,
    /// Whether one of these objects has a status.
    pub(super) have_other_statuses: bool,
}

struct Resolved {
    backend: Arc<Backend>,
    port: Port,
    /// Number of claims.
    claims: usize,
    /// Number of these claims that serve traffic.
    served: usize,
}

impl Backends {
    /// Creates an empty set of backends of the enabled kinds.
    pub(super) fn new(options: &Options) -> Self {
        let kinds = enabled(&options.permissions.backend_kinds).map(|kind| EnabledKind {
            kind,
            resolver: (kind.resolver)(),
        });
        Self {
            kinds: kinds.collect(),
            location: options.location.clone(),
            slices: SlicesByOwner::default(),
            tls: TlsPolicies::default(),
            traffic: TrafficPolicies::default(),
            resolved: BTreeMap::new(),
            has_unclaimed: false,
            listed: None,
            senders: BackendSenders::new(),
            release_statuses: ReleaseBackendStatuses::new(),
        }
    }

    /// Applies the changes between two snapshots.
    pub(super) fn follow(&mut self, input: &Input<'_>, before: &Snapshot) -> BackendChanges {
        let now = input.snapshot;
        let mut objects = self.tls.follow(input, before);
        let mut have_other_statuses = false;
        for EnabledKind { kind, resolver } in &mut self.kinds {
            let changed = resolver.follow(input, before);
            have_other_statuses |= kind.has_status && !changed.is_empty();
            let names = changed.iter();
            objects.extend(names.map(|key| kind.object_ref(&key.namespace, &key.name)));
        }
        // After `follow` of all kinds, because parts may be backends of any kind.
        let slices = (&before.endpoint_slices, &now.endpoint_slices);
        let mut endpoint_changes = self.slices.follow(slices.0, slices.1);
        let parts = PartChanges {
            input,
            before,
            objects: &objects,
            endpoint_changes: &endpoint_changes,
            slices: &self.slices,
        };
        let mut followed = Vec::new();
        for EnabledKind { kind, resolver } in &mut self.kinds {
            followed.push((*kind, resolver.follow_parts(&parts)));
        }
        for (kind, changes) in followed {
            let name = |key: &Key| kind.object_ref(&key.namespace, &key.name);
            objects.extend(changes.objects.iter().map(name));
            let changed: Vec<_> = changes.endpoints.iter().map(name).collect();
            self.update_statuses(&changed);
            endpoint_changes.extend(changed);
        }
        endpoint_changes.extend(self.traffic.follow(input, before));
        for object in objects.iter().chain(&endpoint_changes) {
            self.resolve_again(now, object);
        }
        BackendChanges {
            objects,
            have_other_statuses,
        }
    }

    fn enabled(&self, object: &ObjectRef) -> Option<&EnabledKind> {
        let mut kinds = self.kinds.iter();
        kinds.find(|it| it.kind.is_named(&object.group, &object.kind))
    }

    /// Returns the kind of an object, if its objects may be backends.
    pub(super) fn kind_of(&self, object: &ObjectRef) -> Option<&'static BackendKind> {
        self.enabled(object).map(|enabled| enabled.kind)
    }

    /// Resolves a reference to a port of an object, for requests of the route that holds it. `field` is the path of the
    /// reference.
    pub(super) fn resolve(
        &mut self,
        input: &Input<'_>,
        requests: &Requests<'_>,
        name: &ObjectRef,
        port: Option<u16>,
        field: &str,
    ) -> Result<Resolution, Fault> {
        let enabled = self.enabled(name);
        let EnabledKind { kind, resolver } = enabled.ok_or_else(|| unusable(name, field))?;
        // Check the permission first: without one, the status must not disclose whether the object exists.
        if kind.is_local && name.namespace != requests.route.namespace {
            return Err(elsewhere(name, requests.route, field));
        }
        input.grants.check(requests.route, name, field)?;
        let with_reference =
            |fault: Fault| Fault::new(fault.reason, format!("{field}: {name} {}", fault.message));
        let mut found = None;
        let at = match port.and_then(|port| self.known(name, port)) {
            Some(known) => known.port.clone(),
            None => {
                let sources = self.sources(input.snapshot);
                let new = resolver
                    .resolve(&sources, name, port)
                    .map_err(with_reference)?;
                found.insert(new).port.clone()
            }
        };
        let protocol = at.protocol_for(requests.are_grpc).map_err(with_reference)?;
        let (policy, tls) = match self.decide(name, &at, protocol, requests) {
            Decision::Plain(policy) => (policy, None),
            Decision::Tls(policy, tls) => (Some(policy), Some(tls)),
            Decision::Refused(why) => {
                return Ok(Resolution::Refused(format!("{field}: {name}: {why}")));
            }
        };
        at.permits(policy.as_ref(), kind).map_err(with_reference)?;
        let used = BackendUse {
            for_grpc: protocol != at.protocol,
            protocol,
            policy,
            tls,
        };
        let backend = match found {
            Some(found) => Some(self.add(found, used)),
            None => self.of_known(name, port.unwrap_or_default(), used),
        };
        let missing = || with_reference(Fault::new(Reason::BackendNotFound, "is gone"));
        Ok(Resolution::Backend(backend.ok_or_else(missing)?))
    }

    fn decide(
        &self,
        name: &ObjectRef,
        port: &Port,
        protocol: UpstreamProtocol,
        requests: &Requests<'_>,
    ) -> Decision {
        match &port.tls {
            PortTls::OfPolicies { .. } => {
                let port_name = port.name.as_deref();
                self.tls.decide(name, port_name, protocol, requests)
            }
            PortTls::Own(Ok(Some(tls))) => {
                Decision::Tls(own_use(name), port.own_tls(tls, protocol))
            }
            PortTls::Own(Ok(None)) => Decision::Plain(None),
            PortTls::Own(Err(why)) => Decision::Refused(why.to_string()),
        }
    }

    /// Returns any use of a port, if it has been resolved.
    fn known(&self, object: &ObjectRef, port: u16) -> Option<&Resolved> {
        // The least identity of the port: `None` and `false` precede other values.
        let first = BackendId {
            object: object.clone(),
            port,
            tls: None,
            for_grpc: false,
        };
        let (id, resolved) = self.resolved.range(first..).next()?;
        (id.object == *object && id.port == port).then_some(resolved)
    }

    /// Returns the backend for a use of a port that has been resolved for this or another use.
    fn of_known(
        &mut self,
        object: &ObjectRef,
        port: u16,
        used: BackendUse,
    ) -> Option<Arc<Backend>> {
        let id = BackendId {
            object: object.clone(),
            port,
            tls: used.policy.clone(),
            for_grpc: used.for_grpc,
        };
        if let Some(same) = self.resolved.get(&id)
            && same.backend.tls == used.tls
        {
            return Some(same.backend.clone());
        }
        let known = self.known(object, port)?;
        let found = Found {
            backend: Backend::clone(&known.backend),
            port: known.port.clone(),
        };
        Some(self.add(found, used))
    }

    fn add(&mut self, found: Found, used: BackendUse) -> Arc<Backend> {
        let Found { mut backend, port } = found;
        used.put_into(&mut backend);
        backend.traffic = self.traffic.of(&backend.id.object).cloned();
        if let Some(known) = self.resolved.get_mut(&backend.id) {
            if *known.backend == backend {
                return known.backend.clone();
            }
            let backend = Arc::new(backend);
            known.backend = backend.clone();
            known.port = port;
            self.listed = None;
            return backend;
        }
        let backend = Arc::new(backend);
        self.has_unclaimed = true;
        let resolved = Resolved {
            backend: backend.clone(),
            port,
            claims: 0,
            served: 0,
        };
        self.resolved.insert(backend.id.clone(), resolved);
        backend
    }

    /// Keeps a backend until it is released as often as it was claimed. While one of the claims serves traffic, the
    /// backend is part of the configuration.
    pub(super) fn claim(&mut self, id: &BackendId, serves: bool) {
        if let Some(resolved) = self.resolved.get_mut(id) {
            resolved.claims += 1;
            resolved.served += usize::from(serves);
            if serves && resolved.served == 1 {
                self.listed = None;
            }
        }
    }

    /// Undoes one claim.
    pub(super) fn release(&mut self, id: &BackendId, serves: bool) {
        if let Some(resolved) = self.resolved.get_mut(id) {
            resolved.claims = resolved.claims.saturating_sub(1);
            resolved.served = resolved.served.saturating_sub(usize::from(serves));
            if serves && resolved.served == 0 {
                self.listed = None;
            }
            if resolved.claims == 0 {
                self.resolved.remove(id);
            }
        }
    }

    /// Returns all backends with traffic, in order. Drops backends without claims.
    pub(super) fn served(&mut self) -> Arc<[Arc<Backend>]> {
        if std::mem::take(&mut self.has_unclaimed) {
            self.resolved.retain(|_, one| one.claims > 0);
        }
        let served = || self.resolved.values().filter(|one| one.served > 0);
        let list = || served().map(|one| one.backend.clone()).collect();
        self.listed.get_or_insert_with(list).clone()
    }

    /// Returns all uses of an object.
    fn of_object(&self, object: &ObjectRef) -> impl Iterator<Item = (&BackendId, &Resolved)> {
        let first = BackendId {
            object: object.clone(),
            port: 0,
            tls: None,
            for_grpc: false,
        };
        let known = self.resolved.range(first..);
        known.take_while(move |(id, _)| id.object == *object)
    }

    fn sources<'a>(&'a self, snapshot: &'a Snapshot) -> Sources<'a> {
        Sources {
            snapshot,
            slices: &self.slices,
            location: &self.location,
        }
    }

    /// Resolves the backends of an object again. Drops those that no longer exist.
    fn resolve_again(&mut self, now: &Snapshot, object: &ObjectRef) {
        let known = self.of_object(object);
        let known: Vec<BackendId> = known.map(|(id, _)| id.clone()).collect();
        for id in known {
            let renewed = self.renew(now, &id);
            match (renewed, self.resolved.get_mut(&id)) {
                (Some((same, port)), Some(resolved)) if same == *resolved.backend => {
                    resolved.port = port;
                    continue;
                }
                (Some((changed, port)), Some(resolved)) => {
                    resolved.backend = Arc::new(changed);
                    resolved.port = port;
                }
                _ => drop(self.resolved.remove(&id)),
            }
            self.listed = None;
        }
    }

    /// Resolves one use of a port again; `None` if the port no longer permits it.
    fn renew(&self, now: &Snapshot, id: &BackendId) -> Option<(Backend, Port)> {
        let EnabledKind { kind, resolver } = self.enabled(&id.object)?;
        let sources = self.sources(now);
        let found = resolver.resolve(&sources, &id.object, Some(id.port)).ok()?;
        let Found { mut backend, port } = found;
        let protocol = port.protocol_for(id.for_grpc).ok()?;
        if id.for_grpc != (protocol != port.protocol) {
            return None;
        }
        let former = self.resolved.get(id)?.backend.tls.as_ref();
        let tls = match (&port.tls, &id.tls) {
            (PortTls::Own(own), used) => {
                let own = own.as_ref().ok()?.as_ref();
                if own.is_some() != used.is_some() {
                    return None;
                }
                own.map(|tls| port.own_tls(tls, protocol))
            }
            (PortTls::OfPolicies { .. }, Some(used)) => {
                let certificate = former.and_then(|it| it.client_certificate.clone());
                let tls = self.tls.renew(used, certificate, protocol)?;
                tls.map(Arc::new)
            }
            (PortTls::OfPolicies { .. }, None) => None,
        };
        port.permits(id.tls.as_ref(), kind).ok()?;
        let same = former.filter(|former| tls.as_ref() == Some(former));
        backend.tls = same.cloned().or(tls);
        backend.id = id.clone();
        backend.protocol = protocol;
        backend.traffic = self.traffic.of(&id.object).cloned();
        Some((backend, port))
    }
}

fn elsewhere(name: &ObjectRef, route: &ObjectRef, field: &str) -> Fault {
    let message = format!(
        "{field} refers to {name}, but an {} is for routes of its own namespace only (GEP-4894); create one in namespace {}",
        name.kind, route.namespace
    );
    Fault::new(Reason::RefNotPermitted, message)
}

#[cfg(test)]
mod tests;
