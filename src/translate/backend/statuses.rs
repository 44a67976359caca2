//! The statuses of backends that have one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::Key;
use crate::ir::ObjectRef;
use crate::status::{ParentStatus, ReleaseBackendStatus};

use super::super::{Input, backend_tls};
use super::Backends;

/// The Gateways that send requests to backends with a status.
pub(super) type BackendSenders = BTreeMap<ObjectRef, BTreeSet<ObjectRef>>;

impl Backends {
    /// The statuses of backends that have one for each Gateway, for the Gateways that send requests to them. Brings those
    /// with one status up to date.
    pub(in crate::translate) fn statuses(
        &mut self,
        input: &Input<'_>,
        senders: BackendSenders,
    ) -> BTreeMap<ObjectRef, Vec<ParentStatus>> {
        let former = std::mem::replace(&mut self.senders, senders);
        let known = self.release_statuses.keys();
        let others = known.filter(|name| former.get(*name) != self.senders.get(*name));
        let others: Vec<_> = others.cloned().collect();
        self.update_statuses(&others);
        let of_backend = |(object, gateways): (&ObjectRef, &BTreeSet<ObjectRef>)| {
            let key = Key::new(&object.namespace, &object.name);
            let conditions = self.enabled(object)?.resolver.conditions(&key)?;
            let entry = |gateway| ParentStatus {
                parent_ref: backend_tls::parent_ref(gateway),
                controller_name: input.options.controller_name.clone(),
                conditions: conditions.clone(),
            };
            let entries: Vec<_> = gateways.iter().map(entry).collect();
            (!entries.is_empty()).then(|| (object.clone(), entries))
        };
        self.senders.iter().filter_map(of_backend).collect()
    }

    /// Brings statuses that are one for all Gateways up to date.
    pub(super) fn update_statuses(&mut self, names: &[ObjectRef]) {
        for name in names {
            match self.release_status(name) {
                Some(status) => {
                    let known = self.release_statuses.get(name);
                    if known.is_none_or(|known| **known != status) {
                        let status = Arc::new(status);
                        self.release_statuses.insert(name.clone(), status);
                    }
                }
                None => drop(self.release_statuses.remove(name)),
            }
        }
    }

    fn release_status(&self, name: &ObjectRef) -> Option<ReleaseBackendStatus> {
        let nobody = BTreeSet::new();
        let gateways = self.senders.get(name).unwrap_or(&nobody);
        let key = Key::new(&name.namespace, &name.name);
        self.enabled(name)?.resolver.status(&key, gateways)
    }
}
