//! What is to be done so that a Gateway has the objects that it needs and no others. Decides only; pure.

use std::collections::{BTreeSet, HashMap};

use super::Child;
use super::inventory::{ChildKey, Existing, Inventory};
use super::rollout::{Permission, Record};
use crate::ir::{ObjectRef, fingerprint};

/// What was applied last, and what the API server made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Applied {
    /// Hash of what was applied.
    pub(super) wanted: u64,
    /// [`Existing::hash`] after that.
    pub(super) hash: u64,
    /// UID of the object.
    pub(super) uid: String,
    /// UID of the Gateway that it was applied for.
    pub(super) owner_uid: String,
}

/// By object, what was applied last.
pub(super) type AppliedObjects = HashMap<ChildKey, Applied>;

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Makes an object, unless there is one of its name.
    Create(Write),
    /// Applies an object that is ours.
    Apply {
        write: Write,
        /// UID of the object.
        uid: String,
        /// Whether fields are recorded as updated by us.
        has_updated_fields: bool,
    },
    /// Deletes an object that is ours.
    Delete(Delete),
}

/// What to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    /// Which of the Gateway's children it is.
    pub(super) index: usize,
    /// What a workload remembers of its version.
    pub(super) record: Option<Record>,
    /// Hash of both.
    pub(super) wanted: u64,
}

/// What to delete: an object as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delete {
    pub(super) key: ChildKey,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// UID of the Gateway that owned it.
    pub(super) owner_uid: String,
}

/// All that is to be done for a Gateway, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Whether the workload waits until it is this Gateway's turn.
    pub(super) waits: bool,
}

/// Plans what is to be done for a Gateway that needs `children`. `permit` says whether a workload that exists may change.
pub(super) fn plan(
    gateway: &ObjectRef,
    children: &[Child],
    inventory: &Inventory,
    applied: &AppliedObjects,
    permit: impl Fn(&Child, &Existing) -> Permission,
) -> Plan {
    let mut plan = Plan::default();
    let mut is_complete = true;
    for (index, child) in children.iter().enumerate() {
        let key = ChildKey::of(child);
        let existing = inventory.get(&key);
        // An object of a former Gateway of this name is looked at when its name turns out to be taken.
        let existing = existing.filter(|existing| existing.owner_uid == child.gateway_uid);
        let Some(existing) = existing else {
            let write = write(index, child, None);
            plan.steps.push(Step::Create(write));
            continue;
        };
        if existing.is_deleting {
            // It is made anew when it is gone, and what it replaces stays until then.
            is_complete = false;
            continue;
        }
        let started = match permit(child, existing) {
            Permission::Wait => {
                plan.waits = true;
                continue;
            }
            Permission::Free => None,
            Permission::Rollout(started) => Some(started),
        };
        let write = write(index, child, started);
        let last = applied.get(&key);
        if last.is_none_or(|last| (last.wanted, last.hash) != (write.wanted, existing.hash)) {
            plan.steps.push(Step::Apply {
                write,
                uid: existing.uid.clone(),
                has_updated_fields: existing.has_updated_fields,
            });
        }
    }
    if !is_complete {
        return plan;
    }
    let needed: BTreeSet<_> = children.iter().map(ChildKey::of).collect();
    let superfluous = inventory
        .of(gateway)
        .filter(|(key, existing)| !needed.contains(key) && !existing.is_deleting);
    let deletes = superfluous.map(|(key, existing)| {
        Step::Delete(Delete {
            key: key.clone(),
            uid: existing.uid.clone(),
            resource_version: existing.resource_version.clone(),
            owner_uid: existing.owner_uid.clone(),
        })
    });
    plan.steps.extend(deletes);
    plan
}

fn write(index: usize, child: &Child, rollout: Option<super::rollout::Started>) -> Write {
    let revision = child.revision.as_ref();
    let record = revision.map(|revision| Record::new(revision, rollout));
    Write {
        index,
        wanted: fingerprint::of(&(&child.object, &record)),
        record,
    }
}
