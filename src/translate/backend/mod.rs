//! Backend kinds, by group, version and kind: everything that refers to a backend resolves it here. A new kind is a file
//! beside this one and a line in [`KINDS`]. Keeps backends from one translation to the next, and knows what of theirs
//! changed in between. Knows nothing of weights or rules.

mod index;
mod service;
mod xbackend;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::api::core::EndpointSlice;
use crate::api::reference::BackendObjectRef;
use crate::api::xbackend::XBackend;
use crate::api::{Key, Resource};
use crate::ir::{Backend, BackendId, ClientTls, ObjectRef, TlsUse, UpstreamProtocol};
use crate::snapshot::Snapshot;
use crate::status::ParentStatus;

pub(super) use self::index::OfServices;

use self::index::ByService;
use self::xbackend::XBackends;
use super::Input;
use super::backend_tls::{Decision, Requests, TlsPolicies};
use super::reason::{Fault, Reason};

/// Finds a backend of one kind, or tells what is wrong with it as the end of a sentence.
type Resolve = fn(&Sources<'_>, &ObjectRef, Option<u16>) -> Result<Found, Fault>;

/// A kind of backend.
struct Kind {
    gvk: &'static str,
    group: &'static str,
    kind: &'static str,
    resolve: Resolve,
    /// Whether objects are for routes of their own namespace alone; no ReferenceGrant changes that.
    is_local: bool,
}

const KINDS: &[Kind] = &[
    Kind {
        gvk: "v1.Service",
        group: "",
        kind: "Service",
        resolve: service::resolve,
        is_local: false,
    },
    Kind {
        gvk: "gateway.networking.x-k8s.io/v1alpha1.XBackend",
        group: XBackend::GROUP,
        kind: XBackend::KIND,
        resolve: xbackend::resolve,
        is_local: true,
    },
];

/// What backends are made of.
struct Sources<'a> {
    snapshot: &'a Snapshot,
    slices: &'a ByService<EndpointSlice>,
    xbackends: &'a XBackends,
}

/// A port of an object that requests can be sent to.
struct Found {
    /// In plain text, unless the port has TLS of its own.
    backend: Backend,
    port: Port,
}

/// What a port says of itself.
#[derive(Clone)]
struct Port {
    name: Option<Arc<str>>,
    protocol: UpstreamProtocol,
    tls: PortTls,
}

/// What decides on TLS to a port.
#[derive(Clone)]
enum PortTls {
    /// Policies on TLS.
    OfPolicies {
        /// What the port speaks, if that is TLS: plain text must not go there.
        speaks_tls: Option<Arc<str>>,
    },
    /// The object itself: TLS, plain text, or why no request may go there.
    Own(Result<Option<Arc<ClientTls>>, Arc<str>>),
}

/// What a reference to a backend comes to.
pub(super) enum Resolution {
    /// A backend.
    Backend(Arc<Backend>),
    /// A backend to which nothing may be sent, for this reason: not the fault of who refers to it.
    Refused(String),
}

/// The backends that routes refer to; each is resolved once, and again when something that it is made of changes.
#[derive(Default)]
pub(super) struct Backends {
    slices: ByService<EndpointSlice>,
    xbackends: XBackends,
    pub(super) tls: TlsPolicies,
    resolved: BTreeMap<BackendId, Resolved>,
    /// Whether some may be resolved that nobody has claimed.
    has_unclaimed: bool,
    /// All that get traffic, as long as nothing about them changes.
    listed: Option<Arc<[Arc<Backend>]>>,
}

struct Resolved {
    backend: Arc<Backend>,
    port: Port,
    /// Number of claims.
    claims: usize,
    /// How many of them are for traffic.
    served: usize,
}

impl Backends {
    /// Follows the change from one snapshot to the next. Returns the objects that backends are found through (their
    /// endpoints aside) and that are not what they were: what refers to them has to be resolved again.
    pub(super) fn follow(&mut self, input: &Input<'_>, before: &Snapshot) -> FxHashSet<Key> {
        let now = input.snapshot;
        let services = now.services.changes_since(&before.services).into_iter();
        let mut touched: FxHashSet<Key> = services.map(|change| change.key.clone()).collect();
        touched.extend(self.tls.follow(input, before));
        touched.extend(self.xbackends.follow(input, before));
        let slices = (&before.endpoint_slices, &now.endpoint_slices);
        let moved = self.slices.follow(slices.0, slices.1);
        for key in touched.iter().chain(&moved) {
            self.resolve_again(now, key);
        }
        touched
    }

    /// The backend that `reference` names, for requests of its route; `field` is the path of the reference.
    pub(super) fn resolve(
        &mut self,
        input: &Input<'_>,
        requests: &Requests<'_>,
        reference: &BackendObjectRef,
        field: &str,
    ) -> Result<Resolution, Fault> {
        let namespace = reference
            .namespace
            .as_deref()
            .unwrap_or(&requests.route.namespace);
        let name = ObjectRef::new(
            &reference.group,
            &reference.kind,
            namespace,
            &reference.name,
        );
        let kind = KINDS
            .iter()
            .find(|kind| kind.group == &*name.group && kind.kind == &*name.kind);
        let kind = kind.ok_or_else(|| unknown(&name, field))?;
        // Permission comes first: whether an object of another namespace exists is not for everyone to know.
        if kind.is_local && name.namespace != requests.route.namespace {
            return Err(elsewhere(&name, requests.route, field));
        }
        input.grants.check(requests.route, &name, field)?;
        let told =
            |fault: Fault| Fault::new(fault.reason, format!("{field}: {name} {}", fault.message));
        let mut found = None;
        let port = match reference.port.and_then(|port| self.known(&name, port)) {
            Some(known) => known.port.clone(),
            None => {
                let sources = self.sources(input.snapshot);
                let new = (kind.resolve)(&sources, &name, reference.port).map_err(told)?;
                found.insert(new).port.clone()
            }
        };
        let (used, tls) = match self.decide(&name, &port, requests) {
            Decision::Plain(used) => (used, None),
            Decision::Tls(used, tls) => (Some(used), Some(tls)),
            Decision::Refused(why) => {
                return Ok(Resolution::Refused(format!("{field}: {name}: {why}")));
            }
        };
        port.permits(used.as_ref()).map_err(told)?;
        let backend = match found {
            Some(found) => Some(self.add(found, used, tls)),
            None => self.of_known(&name, reference.port.unwrap_or_default(), used, tls),
        };
        let missing = || told(Fault::new(Reason::BackendNotFound, "is gone"));
        Ok(Resolution::Backend(backend.ok_or_else(missing)?))
    }

    fn decide(&self, name: &ObjectRef, port: &Port, requests: &Requests<'_>) -> Decision {
        match &port.tls {
            PortTls::OfPolicies { .. } => {
                let service = Key::new(&name.namespace, &name.name);
                let port_name = port.name.as_deref();
                self.tls
                    .decide(&service, port_name, port.protocol, requests)
            }
            PortTls::Own(Ok(Some(tls))) => Decision::Tls(own_use(name), tls.clone()),
            PortTls::Own(Ok(None)) => Decision::Plain(None),
            PortTls::Own(Err(why)) => Decision::Refused(why.to_string()),
        }
    }

    /// What XBackends are told of the Gateways that send requests to them.
    pub(super) fn statuses(
        &self,
        input: &Input<'_>,
        senders: &BTreeMap<Key, BTreeSet<ObjectRef>>,
    ) -> BTreeMap<ObjectRef, Vec<ParentStatus>> {
        self.xbackends.statuses(input, senders)
    }

    /// Any use of a port that is known.
    fn known(&self, object: &ObjectRef, port: u16) -> Option<&Resolved> {
        let first = BackendId {
            object: object.clone(),
            port,
            tls: None,
        };
        let (id, resolved) = self.resolved.range(first..).next()?;
        (id.object == *object && id.port == port).then_some(resolved)
    }

    /// The backend of a use of a port that is known by this or another use.
    fn of_known(
        &mut self,
        object: &ObjectRef,
        port: u16,
        used: Option<TlsUse>,
        tls: Option<Arc<ClientTls>>,
    ) -> Option<Arc<Backend>> {
        let id = BackendId {
            object: object.clone(),
            port,
            tls: used,
        };
        if let Some(same) = self.resolved.get(&id)
            && same.backend.tls == tls
        {
            return Some(same.backend.clone());
        }
        let known = self.known(object, port)?;
        let found = Found {
            backend: Backend::clone(&known.backend),
            port: known.port.clone(),
        };
        Some(self.add(found, id.tls, tls))
    }

    fn add(
        &mut self,
        found: Found,
        used: Option<TlsUse>,
        tls: Option<Arc<ClientTls>>,
    ) -> Arc<Backend> {
        let Found { mut backend, port } = found;
        backend.id.tls = used;
        backend.tls = tls;
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

    /// Keeps a backend until it is released as often as it was claimed. It is part of the configuration while one of the
    /// claims is for traffic.
    pub(super) fn claim(&mut self, id: &BackendId, serves: bool) {
        if let Some(resolved) = self.resolved.get_mut(id) {
            resolved.claims += 1;
            resolved.served += usize::from(serves);
            if serves && resolved.served == 1 {
                self.listed = None;
            }
        }
    }

    /// Takes one claim back.
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

    /// All backends that get traffic, in order. Forgets those that nobody claims.
    pub(super) fn served(&mut self) -> Arc<[Arc<Backend>]> {
        if std::mem::take(&mut self.has_unclaimed) {
            self.resolved.retain(|_, one| one.claims > 0);
        }
        let served = || self.resolved.values().filter(|one| one.served > 0);
        let list = || served().map(|one| one.backend.clone()).collect();
        self.listed.get_or_insert_with(list).clone()
    }

    fn sources<'a>(&'a self, snapshot: &'a Snapshot) -> Sources<'a> {
        Sources {
            snapshot,
            slices: &self.slices,
            xbackends: &self.xbackends,
        }
    }

    /// Brings the backends of an object up to date; those that are no more are forgotten.
    fn resolve_again(&mut self, now: &Snapshot, key: &Key) {
        if self.resolved.is_empty() {
            return;
        }
        for kind in KINDS {
            let object = ObjectRef::new(kind.group, kind.kind, &key.namespace, &key.name);
            let first = BackendId {
                object: object.clone(),
                port: 0,
                tls: None,
            };
            let known = self.resolved.range(first..);
            let known = known.take_while(|(id, _)| id.object == object);
            let known: Vec<BackendId> = known.map(|(id, _)| id.clone()).collect();
            for id in known {
                let found = (kind.resolve)(&self.sources(now), &object, Some(id.port));
                let renewed = found.ok().and_then(|found| self.renew(&id, found));
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
    }

    /// A use of a port that has changed; `None` when it cannot be used so any more.
    fn renew(&self, id: &BackendId, found: Found) -> Option<(Backend, Port)> {
        let Found { mut backend, port } = found;
        let former = self.resolved.get(id)?.backend.tls.as_ref();
        let tls = match (&port.tls, &id.tls) {
            (PortTls::Own(own), used) => {
                let tls = own.as_ref().ok()?.clone();
                if tls.is_some() != used.is_some() {
                    return None;
                }
                tls
            }
            (PortTls::OfPolicies { .. }, Some(used)) => {
                let certificate = former.and_then(|it| it.client_certificate.clone());
                let tls = self.tls.renew(used, certificate, port.protocol)?;
                tls.map(Arc::new)
            }
            (PortTls::OfPolicies { .. }, None) => None,
        };
        port.permits(id.tls.as_ref()).ok()?;
        let same = former.filter(|former| tls.as_ref() == Some(former));
        backend.tls = same.cloned().or(tls);
        backend.id = id.clone();
        Some((backend, port))
    }
}

impl Port {
    /// Whether requests may be sent to it so: plain text must not go to a port that speaks TLS, unless a policy asks for
    /// that.
    fn permits(&self, used: Option<&TlsUse>) -> Result<(), Fault> {
        match &self.tls {
            PortTls::OfPolicies {
                speaks_tls: Some(name),
            } if used.is_none() => {
                let message = format!(
                    "has appProtocol {name}, and no BackendTLSPolicy says how to verify its certificate; add one whose \
                     targetRefs name this Service"
                );
                Err(Fault::new(Reason::UnsupportedProtocol, message))
            }
            _ => Ok(()),
        }
    }
}

/// Whether objects of this kind can be backends.
pub(super) fn is_backend(group: &str, kind: &str) -> bool {
    let mut kinds = KINDS.iter();
    kinds.any(|known| known.group == group && known.kind == kind)
}

/// Whether policies on TLS may target objects of this kind.
pub(super) fn is_service(group: &str, kind: &str) -> bool {
    group.is_empty() && kind == "Service"
}

/// Whether this is the kind XBackend.
pub(super) fn is_xbackend(group: &str, kind: &str) -> bool {
    group == XBackend::GROUP && kind == XBackend::KIND
}

/// The use of a backend that says itself what TLS to it is like.
fn own_use(name: &ObjectRef) -> TlsUse {
    TlsUse {
        policy: name.clone(),
        client: None,
    }
}

fn elsewhere(name: &ObjectRef, route: &ObjectRef, field: &str) -> Fault {
    let message = format!(
        "{field} refers to {name}, but an {} is for routes of its own namespace only (GEP-4894); create one in namespace {}",
        name.kind, route.namespace
    );
    Fault::new(Reason::RefNotPermitted, message)
}

fn unknown(name: &ObjectRef, field: &str) -> Fault {
    let known: Vec<_> = KINDS.iter().map(|kind| kind.gvk).collect();
    let group = if name.group.is_empty() {
        "core"
    } else {
        &name.group
    };
    let message = format!(
        "{field}: kind {} of group {group} is not supported as a backend; supported kinds: {}",
        name.kind,
        known.join(", ")
    );
    Fault::new(Reason::InvalidKind, message)
}
