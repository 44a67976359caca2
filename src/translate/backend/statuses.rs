//! Statuses of backends that have one, and notes on those that have none.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::api::reference::ParentRef;
use crate::ir::ObjectRef;
use crate::status::{Condition, Note, ParentStatus};

use super::super::input::Input;
use super::{Backends, sources};
use crate::translate::backend::kind::Users;
use crate::translate::changes::Changes;
use crate::translate::report::{Report, put};
use crate::translate::source::Source;

impl Backends {
    /// Updates the statuses and notes of backends that have changed, or to which other requests are sent. `senders`
    /// returns the Gateways that send requests to a backend.
    pub(in crate::translate) fn report(
        &mut self,
        input: &Input<'_>,
        changes: &Changes,
        senders: impl Fn(&ObjectRef) -> BTreeSet<ObjectRef>,
        report: &mut Report,
    ) {
        let mut changed: FxHashSet<&ObjectRef> = FxHashSet::default();
        let claimed = std::mem::take(&mut self.claimed);
        changed.extend(&claimed);
        changed.extend(changes.sources().iter().filter_map(|source| match source {
            Source::Backend(object)
            | Source::EndpointsOf(object)
            | Source::RequestsTo(object)
            | Source::BackendPolicyOf(object) => Some(object),
            _ => None,
        }));
        for object in changed {
            let Some(enabled) = self.enabled(object) else {
                continue;
            };
            if enabled.kind.has_status {
                self.report_one(input, object, &senders(object), report);
            } else {
                report
                    .notes
                    .replace(object, self.note(input, object).into_iter().collect());
            }
        }
    }

    fn report_one(
        &self,
        input: &Input<'_>,
        object: &ObjectRef,
        senders: &BTreeSet<ObjectRef>,
        report: &mut Report,
    ) {
        let Some(enabled) = self.enabled(object) else {
            return;
        };
        let users = Users {
            gateways: senders,
            is_served: self.of_object(object).any(|(_, it)| it.served > 0),
        };
        let mut status = enabled.resolver.status(object, &users);
        if let Some(status) = &mut status {
            self.add_policies(object, &mut status.conditions);
        }
        put(
            &mut report.statuses.release_backends,
            object,
            status.map(Into::into),
        );
        let mut conditions = enabled.resolver.conditions(object);
        if let Some(conditions) = &mut conditions {
            self.add_picker(object, conditions);
            self.add_policies(object, conditions);
        }
        let entries = conditions
            .filter(|_| !senders.is_empty())
            .map(|conditions| {
                let entry = |gateway| ParentStatus {
                    parent_ref: ParentRef::to(gateway),
                    controller_name: input.options.controller_name.clone(),
                    conditions: conditions.clone(),
                };
                Arc::new(senders.iter().map(entry).collect::<Vec<_>>())
            });
        put(&mut report.statuses.backends, object, entries);
    }

    /// Adds the condition that names the policies on a backend. All conditions are about the same generation.
    fn add_policies(&self, object: &ObjectRef, conditions: &mut Vec<Condition>) {
        let generation = conditions.first().map(|it| it.observed_generation);
        let affected = generation.and_then(|it| self.policies.affecting(object, it));
        conditions.extend(affected);
    }

    /// Returns the note on an object that routes refer to, and that is served nevertheless.
    fn note(&self, input: &Input<'_>, object: &ObjectRef) -> Option<Note> {
        let sources = sources(input, &self.slices);
        let message = self.enabled(object)?.resolver.note(&sources, object)?;
        let is_claimed = self.of_object(object).any(|(_, it)| it.claims > 0);
        is_claimed.then(|| Note {
            object: object.clone(),
            message,
        })
    }
}
