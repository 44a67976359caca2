//! Backend kinds, by group, version and kind: everything that refers to a backend resolves it here. A new kind is a file
//! beside this one and a line in [`KINDS`]. Keeps backends from one translation to the next, and knows what of theirs
//! changed in between. Knows nothing of weights or rules.

mod index;
mod service;

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::api::Key;
use crate::api::core::EndpointSlice;
use crate::api::policy::BackendTlsPolicy;
use crate::api::reference::BackendObjectRef;
use crate::ir::{Backend, BackendId, ObjectRef};
use crate::snapshot::Snapshot;

pub(super) use self::index::OfServices;

use self::index::ByService;
use super::Input;
use super::reason::{Fault, Reason};

/// Finds a backend of one kind, or tells what is wrong with it as the end of a sentence.
type Resolve = fn(&Sources<'_>, &ObjectRef, Option<u16>) -> Result<Backend, Fault>;

/// A kind of backend.
struct Kind {
    gvk: &'static str,
    group: &'static str,
    kind: &'static str,
    resolve: Resolve,
}

const KINDS: &[Kind] = &[Kind {
    gvk: "v1.Service",
    group: "",
    kind: "Service",
    resolve: service::resolve,
}];

/// What backends are made of.
struct Sources<'a> {
    snapshot: &'a Snapshot,
    slices: &'a ByService<EndpointSlice>,
    /// BackendTLSPolicies by the Service that they target.
    tls_policies: &'a ByService<BackendTlsPolicy>,
}

/// The backends that routes refer to; each is resolved once, and again when something that it is made of changes.
#[derive(Default)]
pub(super) struct Backends {
    slices: ByService<EndpointSlice>,
    tls_policies: ByService<BackendTlsPolicy>,
    resolved: BTreeMap<BackendId, Resolved>,
    /// Whether some may be resolved that nobody has claimed.
    has_unclaimed: bool,
    /// All that get traffic, as long as nothing about them changes.
    listed: Option<Arc<[Arc<Backend>]>>,
}

struct Resolved {
    backend: Arc<Backend>,
    /// Number of claims.
    claims: usize,
    /// How many of them are for traffic.
    served: usize,
}

impl Backends {
    /// Follows the change from one snapshot to the next. Returns the objects that backends are found through (their
    /// endpoints aside) and that are not what they were: what refers to them has to be resolved again.
    pub(super) fn follow(&mut self, before: &Snapshot, now: &Snapshot) -> FxHashSet<Key> {
        let services = now.services.changes_since(&before.services).into_iter();
        let mut touched: FxHashSet<Key> = services.map(|change| change.key.clone()).collect();
        let policies = (&before.backend_tls_policies, &now.backend_tls_policies);
        touched.extend(self.tls_policies.follow(policies.0, policies.1));
        let slices = (&before.endpoint_slices, &now.endpoint_slices);
        let moved = self.slices.follow(slices.0, slices.1);
        for key in touched.iter().chain(&moved) {
            self.resolve_again(now, key);
        }
        touched
    }

    /// The backend that `reference` in object `from` names; `field` is the path of the reference.
    pub(super) fn resolve(
        &mut self,
        input: &Input<'_>,
        from: &ObjectRef,
        reference: &BackendObjectRef,
        field: &str,
    ) -> Result<Arc<Backend>, Fault> {
        let namespace = reference.namespace.as_deref().unwrap_or(&from.namespace);
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
        input.grants.check(from, &name, field)?;
        let id = BackendId {
            object: name,
            port: reference.port.unwrap_or_default(),
        };
        if let Some(known) = reference.port.and_then(|_| self.resolved.get(&id)) {
            return Ok(known.backend.clone());
        }
        let name = &id.object;
        let found = (kind.resolve)(&self.sources(input.snapshot), name, reference.port);
        let backend = found.map_err(|fault| {
            Fault::new(fault.reason, format!("{field}: {name} {}", fault.message))
        })?;
        let backend = Arc::new(backend);
        self.has_unclaimed = true;
        let resolved = Resolved {
            backend: backend.clone(),
            claims: 0,
            served: 0,
        };
        self.resolved.insert(backend.id.clone(), resolved);
        Ok(backend)
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
            tls_policies: &self.tls_policies,
        }
    }

    /// Brings the backends of an object up to date; those that are no more are forgotten.
    fn resolve_again(&mut self, now: &Snapshot, key: &Key) {
        if self.resolved.is_empty() {
            return;
        }
        for kind in KINDS {
            let object = ObjectRef::new(kind.group, kind.kind, &key.namespace, &key.name);
            let id = |port| BackendId {
                object: object.clone(),
                port,
            };
            let known = self.resolved.range(id(0)..=id(u16::MAX));
            let ports: Vec<u16> = known.map(|(id, _)| id.port).collect();
            for port in ports {
                let found = (kind.resolve)(&self.sources(now), &object, Some(port));
                match (found, self.resolved.get_mut(&id(port))) {
                    (Ok(same), Some(resolved)) if same == *resolved.backend => continue,
                    (Ok(changed), Some(resolved)) => resolved.backend = Arc::new(changed),
                    _ => drop(self.resolved.remove(&id(port))),
                }
                self.listed = None;
            }
        }
    }
}

/// Whether objects of this kind can be backends.
pub(super) fn is_backend(group: &str, kind: &str) -> bool {
    let mut kinds = KINDS.iter();
    kinds.any(|known| known.group == group && known.kind == kind)
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
