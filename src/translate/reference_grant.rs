//! Whether an object may refer to an object of another namespace. Knows nothing of what the reference is for.

use std::collections::BTreeMap;

use crate::api::gateway::ReferenceGrant;
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;

use super::reason::{Fault, Reason};

/// All ReferenceGrants, by the namespace that grants.
pub(super) struct Grants<'a>(BTreeMap<&'a str, Vec<&'a ReferenceGrant>>);

impl<'a> Grants<'a> {
    pub(super) fn new(snapshot: &'a Snapshot) -> Self {
        let mut grants: BTreeMap<&str, Vec<&ReferenceGrant>> = BTreeMap::new();
        for grant in snapshot.reference_grants.iter() {
            let namespace = grant.metadata.namespace.as_str();
            grants.entry(namespace).or_default().push(grant);
        }
        Self(grants)
    }

    /// Whether `from` may refer to `to`: always within a namespace, else when any grant of the target's namespace says
    /// so. `place` is the path of the reference in `from`.
    pub(super) fn check(&self, from: &ObjectRef, to: &ObjectRef, place: &str) -> Result<(), Fault> {
        if from.namespace == to.namespace || self.permits(from, to) {
            return Ok(());
        }
        Err(Fault::new(
            Reason::RefNotPermitted,
            format!(
                "{place} refers to {to}, and no ReferenceGrant in namespace {} permits it; add one there with from \
                 {{group: \"{}\", kind: {}, namespace: {}}} to {{group: \"{}\", kind: {}}}",
                to.namespace, from.group, from.kind, from.namespace, to.group, to.kind
            ),
        ))
    }

    fn permits(&self, from: &ObjectRef, to: &ObjectRef) -> bool {
        let grants = self.0.get(&*to.namespace).into_iter().flatten();
        grants.into_iter().any(|grant| {
            grant.spec.from.iter().any(|source| {
                source.group == *from.group
                    && source.kind == *from.kind
                    && source.namespace == *from.namespace
            }) && grant.spec.to.iter().any(|target| {
                let named = target.name.as_deref().filter(|name| !name.is_empty());
                target.group == *to.group
                    && target.kind == *to.kind
                    && named.is_none_or(|name| name == &*to.name)
            })
        })
    }
}
