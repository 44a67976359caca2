//! Statuses of backends that have one, and notes on those that have none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::Key;
use crate::ir::{BackendId, ObjectRef};
use crate::status::{Note, ParentStatus, ReleaseBackendStatus};

use super::super::Input;
use super::super::policy_status::parent_ref;
use super::{Backends, EnabledKind};

/// The users of a backend.
pub(super) struct Users<'a> {
    /// The Gateways whose routes refer to it.
    pub(super) gateways: Option<&'a BTreeSet<ObjectRef>>,
    /// Whether any of these routes can send requests to it.
    pub(super) is_served: bool,
}

/// The Gateways that send requests to backends with a status.
pub(super) type BackendSenders = BTreeMap<ObjectRef, BTreeSet<ObjectRef>>;

impl Backends {
    /// Returns faults of objects that routes refer to and that are served nevertheless.
    pub(in crate::translate) fn notes(&self) -> impl Iterator<Item = Note> {
        let note = |EnabledKind { kind, resolver }: &EnabledKind| {
            let notes = resolver.notes().into_iter();
            notes.map(|(key, message)| Note {
                object: kind.object_ref(&key.namespace, &key.name),
                message,
            })
        };
        let is_claimed = |object: &ObjectRef| self.of_object(object).any(|(_, it)| it.claims > 0);
        let notes = self.kinds.iter().flat_map(note);
        notes.filter(move |note| is_claimed(&note.object))
    }

    /// Returns the statuses of backends with one status per Gateway, for the Gateways in `senders`. Updates the
    /// statuses of backends with one status for all Gateways.
    pub(in crate::translate) fn statuses(
        &mut self,
        input: &Input<'_>,
        senders: BackendSenders,
    ) -> BTreeMap<ObjectRef, Vec<ParentStatus>> {
        self.senders = senders;
        let known: Vec<_> = self.release_statuses.keys().cloned().collect();
        self.update_statuses(&known);
        let of_backend = |(object, gateways): (&ObjectRef, &BTreeSet<ObjectRef>)| {
            let key = Key::new(&object.namespace, &object.name);
            let conditions = self.enabled(object)?.resolver.conditions(&key)?;
            let entry = |gateway| ParentStatus {
                parent_ref: parent_ref(gateway),
                controller_name: input.options.controller_name.clone(),
                conditions: conditions.clone(),
            };
            let entries: Vec<_> = gateways.iter().map(entry).collect();
            (!entries.is_empty()).then(|| (object.clone(), entries))
        };
        self.senders.iter().filter_map(of_backend).collect()
    }

    /// Updates statuses that are one for all Gateways.
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
        let users = Users {
            gateways: self.senders.get(name),
            is_served: self.is_served(name),
        };
        let key = Key::new(&name.namespace, &name.name);
        self.enabled(name)?.resolver.status(&key, &users)
    }

    /// Reports whether a port of an object gets traffic.
    fn is_served(&self, name: &ObjectRef) -> bool {
        let first = BackendId {
            object: name.clone(),
            port: 0,
            tls: None,
            for_grpc: false,
        };
        let ports = self.resolved.range(first..);
        let mut own = ports.take_while(|(id, _)| id.object == *name);
        own.any(|(_, resolved)| resolved.served > 0)
    }
}
