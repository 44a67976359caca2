//! Backends of all kinds: resolves every reference to a backend. Keeps backends from one translation to the next, and
//! resolves those again of which a source has changed.

#[cfg(test)]
mod config_map;
mod index;
mod inference_pool;
mod kind;
mod load_balancer;
mod picker;
mod pickers;
mod pods;
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

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ir::packed::pack;
use crate::ir::{Backend, BackendId, ObjectRef, RouteKind, Transport, UpstreamProtocol};

pub(super) use self::kind::BackendKind;
pub use self::registry::{backend_kinds, watched_kinds};
pub(super) use self::registry::{find_enabled, is_target, links, owners, target_ports};

use self::index::SlicesByOwner;
use self::kind::Resolver;
use self::picker::Appointed;
use self::port::{BackendUse, Port, PortTls, own_use};
use self::registry::{REGISTRY, unusable};
use super::changes::Changes;
use super::consumer::Requests;
use super::input::{Input, Options};
use super::memo::Memo;
use super::policy::backend_policy::{self, BackendPolicies};
use super::policy::backend_tls::{Decision, TlsPolicies};
use super::policy::traffic_policy::TrafficPolicies;
use super::reason::{Fault, Reason};
use super::reference_grant;
use super::source::Source;
use crate::translate::backend::kind::{Found, PortRef, Sources};

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
    slices: SlicesByOwner,
    pub(super) tls: TlsPolicies,
    pub(super) traffic: TrafficPolicies,
    pub(super) policies: BackendPolicies,
    pickers: Memo<Appointed>,
    resolved: BTreeMap<BackendId, Box<Resolved>>,
    /// Whether a resolved backend may have no claims.
    has_unclaimed: bool,
    /// All backends with traffic; `None` after one of them changed.
    listed: Option<Arc<[Arc<Backend>]>>,
    /// Objects that began to be referred to, or to get requests, or stopped.
    claimed: BTreeSet<ObjectRef>,
}

/// A kind of backend that the operator enables.
struct EnabledKind {
    kind: &'static BackendKind,
    resolver: Box<dyn Resolver + Send>,
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
        let enabled = &options.permissions.backend_kinds;
        // In the order of the registry: a kind whose objects consist of others comes after these.
        let kinds = REGISTRY.0.iter().filter(|kind| enabled.has(kind.gvk));
        let kinds = kinds.map(|kind| EnabledKind {
            kind,
            resolver: (kind.resolver)(),
        });
        Self {
            kinds: kinds.collect(),
            slices: SlicesByOwner::default(),
            tls: TlsPolicies::default(),
            traffic: TrafficPolicies::default(),
            policies: BackendPolicies::default(),
            pickers: Memo::default(),
            resolved: BTreeMap::new(),
            has_unclaimed: false,
            listed: None,
            claimed: BTreeSet::new(),
        }
    }

    /// Stores the first backends in as few nodes as possible.
    pub(super) fn pack(&mut self) {
        self.slices.pack();
        pack(&mut self.resolved);
    }

    /// Updates what has changed. Announces the objects whose backends are others.
    pub(super) fn step(&mut self, input: &Input<'_>, changes: &mut Changes) {
        self.tls.step(input, changes);
        self.traffic.step(input, changes);
        self.policies.step(input, changes);
        let owners = |slice: &_| owners(slice).collect();
        self.slices.step(input, changes, owners);
        let sources = sources(input, &self.slices);
        for EnabledKind { kind, resolver } in &mut self.kinds {
            resolver.step(kind.name, &sources, changes);
        }
        let changed = changes.sources().iter().filter_map(|source| match source {
            Source::Backend(object)
            | Source::EndpointsOf(object)
            | Source::TrafficPolicyOf(object)
            | Source::BackendPolicyOf(object) => Some(object),
            _ => None,
        });
        for object in changed {
            self.resolve_again(input, object);
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
        reference_grant::check(input, requests.route, name, field)?;
        let with_reference =
            |fault: Fault| Fault::new(fault.reason, format!("{field}: {name} {}", fault.message));
        if !kind.forwards(requests.kind) {
            let advice = kind.carries.advice();
            return Err(with_reference(Fault::new(
                Reason::UnsupportedProtocol,
                advice,
            )));
        }
        let port = PortRef {
            number: port,
            transport: match requests.kind {
                RouteKind::Udp => Transport::Udp,
                _ => Transport::Tcp,
            },
        };
        let mut found = None;
        let at = match self.known(name, port) {
            Some(known) => known.port.clone(),
            None => {
                let sources = sources(input, &self.slices);
                // The reference depends on the backend of the object, whatever that is computed from.
                let (new, _) = input.reading(|| resolver.resolve(&sources, name, port));
                found.insert(new.map_err(with_reference)?).port.clone()
            }
        };
        let protocol = at.protocol_for(requests.kind).map_err(with_reference)?;
        let (policy, tls) = match self.decide(name, &at, protocol, requests) {
            Decision::Plain(policy) => (policy, None),
            Decision::Tls(policy, _) if protocol == UpstreamProtocol::Udp => {
                let policy = policy.policy;
                let message = "asks for TLS, which datagrams do not have; let it target the ports of TCP by their names";
                return Ok(Resolution::Refused(format!(
                    "{field}: {name}: {policy} {message}"
                )));
            }
            Decision::Tls(policy, tls) => (Some(policy), Some(tls)),
            Decision::Refused(why) => {
                return Ok(Resolution::Refused(format!("{field}: {name}: {why}")));
            }
        };
        at.permits(protocol, policy.as_ref(), kind.name.1)
            .map_err(with_reference)?;
        let used = BackendUse {
            required: at.required(protocol),
            protocol,
            policy,
            tls,
        };
        let backend = match found {
            Some(found) => Some(self.add(found, used)),
            None => self.of_known(name, port, used),
        };
        let missing = || with_reference(Fault::new(Reason::BackendNotFound, "was deleted"));
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
                let passes = requests.consumer.is_some_and(|it| it.passes_tls_through);
                match protocol {
                    // Client and backend secure the connection.
                    UpstreamProtocol::Tcp if passes => Decision::Plain(None),
                    // Policies for all ports are about those of TCP.
                    UpstreamProtocol::Udp
                        if !port_name.is_some_and(|port| self.tls.names_port(name, port)) =>
                    {
                        Decision::Plain(None)
                    }
                    _ => self.tls.decide(name, port_name, protocol, requests),
                }
            }
            PortTls::Own(Ok(Some(tls))) => {
                Decision::Tls(own_use(name), port.own_tls(tls, protocol))
            }
            PortTls::Own(Ok(None)) => Decision::Plain(None),
            PortTls::Own(Err(why)) => Decision::Refused(why.to_string()),
        }
    }

    /// Returns any use of a port, if it has been resolved.
    fn known(&self, object: &ObjectRef, port: PortRef) -> Option<&Resolved> {
        let number = port.number?;
        let first = BackendId::new(object.clone(), number);
        let known = self.resolved.range(first..);
        let mut of_port = known.take_while(|(id, _)| id.object == *object && id.port == number);
        let known = of_port.find(|(id, _)| id.transport() == port.transport);
        known.map(|(_, resolved)| &**resolved)
    }

    /// Returns the backend for a use of a port that has been resolved for this or another use.
    fn of_known(
        &mut self,
        object: &ObjectRef,
        port: PortRef,
        used: BackendUse,
    ) -> Option<Arc<Backend>> {
        let id = BackendId {
            object: object.clone(),
            port: port.number?,
            tls: used.policy.clone(),
            protocol: used.required,
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
        self.apply_policies(&mut backend, &port);
        if let Some(known) = self.resolved.get_mut(&backend.id) {
            // The port may have other zones, which matter with another policy.
            known.port = port;
            if *known.backend == backend {
                return known.backend.clone();
            }
            let backend = Arc::new(backend);
            known.backend = backend.clone();
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
        self.resolved.insert(backend.id.clone(), Box::new(resolved));
        backend
    }

    /// Applies the policies on the object and the port of a backend that are not about TLS, and its picker.
    fn apply_policies(&self, backend: &mut Backend, port: &Port) {
        let object = &backend.id.object;
        let applied = self.policies.of(object, port.name.as_deref());
        let traffic = self.traffic.of(object);
        backend.traffic = backend_policy::traffic_of(traffic, applied.as_ref());
        backend.choice = self.choice_of(object);
        backend.policy = applied.as_ref().map(|applied| applied.policy.clone());
        if let Some(zoned) = &port.zoned {
            let prefers_zone = applied.as_ref().is_some_and(|it| it.policy.prefers_zone);
            backend.endpoints = zoned.endpoints(prefers_zone);
        }
        let slow_start = applied.and_then(|applied| applied.slow_start);
        backend.slow_start = slow_start.or(backend.slow_start);
    }

    /// Keeps a backend until it is released as often as it was claimed. While one of the claims serves traffic, the
    /// backend is part of the configuration.
    pub(super) fn claim(&mut self, id: &BackendId, serves: bool) {
        if let Some(resolved) = self.resolved.get_mut(id) {
            if resolved.claims == 0 {
                self.claimed.insert(id.object.clone());
            }
            resolved.claims += 1;
            resolved.served += usize::from(serves);
            if serves && resolved.served == 1 {
                self.claimed.insert(id.object.clone());
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
                self.claimed.insert(id.object.clone());
                self.listed = None;
            }
            if resolved.claims == 0 {
                self.claimed.insert(id.object.clone());
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
        let first = BackendId::new(object.clone(), 0);
        let known = self.resolved.range(first..);
        let of_object = known.take_while(move |(id, _)| id.object == *object);
        of_object.map(|(id, resolved)| (id, &**resolved))
    }

    /// Resolves the backends of an object again. Drops those that no longer exist.
    fn resolve_again(&mut self, input: &Input<'_>, object: &ObjectRef) {
        let known = self.of_object(object);
        let known: Vec<BackendId> = known.map(|(id, _)| id.clone()).collect();
        for id in known {
            let renewed = self.renew(input, &id);
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
    fn renew(&self, input: &Input<'_>, id: &BackendId) -> Option<(Backend, Port)> {
        let EnabledKind { kind, resolver } = self.enabled(&id.object)?;
        let sources = sources(input, &self.slices);
        let port = PortRef {
            number: Some(id.port),
            transport: id.transport(),
        };
        let found = resolver.resolve(&sources, &id.object, port).ok()?;
        let Found { mut backend, port } = found;
        let protocol = port.protocol_of(id).ok()?;
        if id.protocol != port.required(protocol) {
            return None;
        }
        let previous = self.resolved.get(id)?.backend.tls.as_ref();
        let of_picker = picker::own_tls(id);
        let tls = match (&port.tls, &id.tls) {
            (PortTls::Own(own), used) => {
                let own = own.as_ref().ok()?.as_ref();
                if own.is_some() != used.is_some() {
                    return None;
                }
                own.map(|tls| port.own_tls(tls, protocol))
            }
            (PortTls::OfPolicies { .. }, Some(_)) if of_picker.is_some() => of_picker.map(Arc::new),
            (PortTls::OfPolicies { .. }, Some(used)) => {
                let certificate = previous.and_then(|it| it.client_certificate.clone());
                let tls = self.tls.renew(used, certificate, protocol)?;
                tls.map(Arc::new)
            }
            (PortTls::OfPolicies { .. }, None) => None,
        };
        port.permits(protocol, id.tls.as_ref(), kind.name.1).ok()?;
        let same = previous.filter(|previous| tls.as_ref() == Some(previous));
        backend.tls = same.cloned().or(tls);
        backend.id = id.clone();
        backend.protocol = protocol;
        self.apply_policies(&mut backend, &port);
        Some((backend, port))
    }
}

fn sources<'a, 'i>(input: &'a Input<'i>, slices: &'a SlicesByOwner) -> Sources<'a, 'i> {
    Sources {
        input,
        slices,
        kinds: REGISTRY,
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
