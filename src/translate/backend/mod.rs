//! Backend kinds, by group, version and kind: everything that refers to a backend resolves it here. A new kind is a file
//! beside this one and a line in [`KINDS`]. Keeps backends from one translation to the next, and knows what of theirs
//! changed in between. Knows nothing of weights or rules.

mod index;
mod service;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::Key;
use crate::api::core::EndpointSlice;
use crate::api::policy::BackendTlsPolicy;
use crate::api::reference::BackendObjectRef;
use crate::ir::{Backend, BackendId, ObjectRef};
use crate::snapshot::Snapshot;

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
    /// Identities that were resolved and that nobody has claimed so far.
    fresh: Vec<BackendId>,
    /// All that are claimed, as long as nothing about them changes.
    listed: Option<Arc<[Arc<Backend>]>>,
}

struct Resolved {
    backend: Arc<Backend>,
    /// Number of claims.
    claims: usize,
}

impl Backends {
    /// Follows the change from one snapshot to the next. Returns the objects that backends are found through (their
    /// endpoints aside) and that are not what they were: what refers to them has to be resolved again.
    pub(super) fn follow(&mut self, before: &Snapshot, now: &Snapshot) -> BTreeSet<Key> {
        let services = now.services.changes_since(&before.services).into_iter();
        let mut touched: BTreeSet<Key> = services.map(|change| change.key.clone()).collect();
        touched.extend(
            self.tls_policies
                .follow(&before.backend_tls_policies, &now.backend_tls_policies),
        );
        let mut stale = self
            .slices
            .follow(&before.endpoint_slices, &now.endpoint_slices);
        stale.extend(touched.iter().cloned());
        self.resolve_again(now, &stale);
        touched
    }

    /// The backend that `reference` in object `from` names; `place` is the path of the reference.
    pub(super) fn resolve(
        &mut self,
        input: &Input<'_>,
        from: &ObjectRef,
        reference: &BackendObjectRef,
        place: &str,
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
        let kind = kind.ok_or_else(|| unknown(&name, place))?;
        // Permission comes first: whether an object of another namespace exists is not for everyone to know.
        input.grants.check(from, &name, place)?;
        if let Some(port) = reference.port {
            let id = BackendId {
                object: name.clone(),
                port,
            };
            if let Some(known) = self.resolved.get(&id) {
                return Ok(known.backend.clone());
            }
        }
        let sources = self.sources(input.snapshot);
        let backend = (kind.resolve)(&sources, &name, reference.port).map_err(|fault| {
            Fault::new(fault.reason, format!("{place}: {name} {}", fault.message))
        })?;
        let backend = Arc::new(backend);
        self.fresh.push(backend.id.clone());
        let resolved = Resolved {
            backend: backend.clone(),
            claims: 0,
        };
        self.resolved.insert(backend.id.clone(), resolved);
        Ok(backend)
    }

    /// Makes a backend part of the configuration until it is released as often as it was claimed.
    pub(super) fn claim(&mut self, id: &BackendId) {
        if let Some(resolved) = self.resolved.get_mut(id) {
            resolved.claims += 1;
            if resolved.claims == 1 {
                self.listed = None;
            }
        }
    }

    /// Takes one claim back.
    pub(super) fn release(&mut self, id: &BackendId) {
        if let Some(resolved) = self.resolved.get_mut(id) {
            resolved.claims = resolved.claims.saturating_sub(1);
            if resolved.claims == 0 {
                self.resolved.remove(id);
                self.listed = None;
            }
        }
    }

    /// All backends that are claimed, in order. Forgets the others.
    pub(super) fn claimed(&mut self) -> Arc<[Arc<Backend>]> {
        for id in self.fresh.drain(..) {
            if self.resolved.get(&id).is_some_and(|one| one.claims == 0) {
                self.resolved.remove(&id);
            }
        }
        let all = || self.resolved.values().map(|one| one.backend.clone());
        self.listed.get_or_insert_with(|| all().collect()).clone()
    }

    fn sources<'a>(&'a self, snapshot: &'a Snapshot) -> Sources<'a> {
        Sources {
            snapshot,
            slices: &self.slices,
            tls_policies: &self.tls_policies,
        }
    }

    /// Brings the backends of these objects up to date; those that are no more are forgotten.
    fn resolve_again(&mut self, now: &Snapshot, stale: &BTreeSet<Key>) {
        for (kind, key) in KINDS
            .iter()
            .flat_map(|kind| stale.iter().map(move |key| (kind, key)))
        {
            let object = ObjectRef::new(kind.group, kind.kind, &key.namespace, &key.name);
            let id = |port| BackendId {
                object: object.clone(),
                port,
            };
            let known: Vec<u16> = self
                .resolved
                .range(id(0)..=id(u16::MAX))
                .map(|(id, _)| id.port)
                .collect();
            for port in known {
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

fn unknown(name: &ObjectRef, place: &str) -> Fault {
    let known: Vec<_> = KINDS.iter().map(|kind| kind.gvk).collect();
    let group = if name.group.is_empty() {
        "core"
    } else {
        &name.group
    };
    let message = format!(
        "{place}: kind {} of group {group} is not a backend that is served; kinds that are: {}",
        name.kind,
        known.join(", ")
    );
    Fault::new(Reason::InvalidKind, message)
}
