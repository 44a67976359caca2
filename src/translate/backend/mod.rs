//! Backend kinds, by group, version and kind: everything that refers to a backend resolves it here. A new kind is a file
//! beside this one and a line in [`KINDS`]. Knows nothing of weights or rules.

mod service;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::Key;
use crate::api::core::EndpointSlice;
use crate::api::policy::BackendTlsPolicy;
use crate::api::reference::BackendObjectRef;
use crate::ir::route::{Action, Target};
use crate::ir::{Backend, BackendId, ObjectRef, Rule};

use super::Input;
use super::reason::{Fault, Reason};

/// Finds a backend of one kind, or tells what is wrong with it as the end of a sentence.
type Resolve = for<'a> fn(&Backends<'a>, &ObjectRef, Option<u16>) -> Result<Backend, Fault>;

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

/// Backends of one translation; each is resolved once.
pub(super) struct Backends<'a> {
    input: &'a Input<'a>,
    slices: BTreeMap<Key, Vec<&'a EndpointSlice>>,
    /// BackendTLSPolicies by the Service that they target.
    tls_policies: BTreeMap<Key, Vec<(&'a BackendTlsPolicy, Option<&'a str>)>>,
    resolved: BTreeMap<BackendId, Arc<Backend>>,
}

impl<'a> Backends<'a> {
    pub(super) fn new(input: &'a Input<'a>) -> Self {
        let mut tls_policies: BTreeMap<Key, Vec<_>> = BTreeMap::new();
        for policy in input.snapshot.backend_tls_policies.iter() {
            for target in &policy.spec.target_refs {
                if target.group.is_empty() && target.kind == "Service" {
                    let key = Key::new(&policy.metadata.namespace, &target.name);
                    let section = target
                        .section_name
                        .as_deref()
                        .filter(|name| !name.is_empty());
                    tls_policies
                        .entry(key)
                        .or_default()
                        .push((policy.as_ref(), section));
                }
            }
        }
        Self {
            input,
            slices: input.snapshot.slices_by_service(),
            tls_policies,
            resolved: BTreeMap::new(),
        }
    }

    /// The backend that `reference` in object `from` names; `place` is the path of the reference.
    pub(super) fn resolve(
        &mut self,
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
        self.input.grants.check(from, &name, place)?;
        if let Some(port) = reference.port {
            let id = BackendId {
                object: name.clone(),
                port,
            };
            if let Some(known) = self.resolved.get(&id) {
                return Ok(known.clone());
            }
        }
        let backend = (kind.resolve)(self, &name, reference.port).map_err(|fault| {
            Fault::new(fault.reason, format!("{place}: {name} {}", fault.message))
        })?;
        let backend = Arc::new(backend);
        self.resolved.insert(backend.id.clone(), backend.clone());
        Ok(backend)
    }

    /// The backends that a rule forwards to.
    pub(super) fn of(&self, rule: &Rule) -> Vec<(BackendId, Arc<Backend>)> {
        let Action::Forward(targets) = &rule.action else {
            return Vec::new();
        };
        let ids = targets.iter().filter_map(|share| match &share.target {
            Target::Backend(id) => Some(id),
            Target::Invalid(_) => None,
        });
        ids.filter_map(|id| self.resolved.get_key_value(id))
            .map(|(id, backend)| (id.clone(), backend.clone()))
            .collect()
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
