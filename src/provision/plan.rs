//! Plans the steps after which a Gateway has exactly its desired objects. Pure.

use std::collections::{BTreeSet, HashMap};

use super::child::{Child, ChildKind};
use super::inventory::{ChildKey, Existing, Inventory};
use super::rollout::{Permission, Record};
use crate::ir::{ObjectRef, fingerprint};

/// The last apply of an object and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Applied {
    /// Hash of the applied object.
    pub(super) desired_hash: u64,
    /// [`Existing::hash`] after the apply.
    pub(super) hash: u64,
    /// UID of the object.
    pub(super) uid: String,
    /// UID of the Gateway that owned it at that time.
    pub(super) owner_uid: String,
}

/// Last apply by object.
pub(super) type AppliedObjects = HashMap<ChildKey, Applied>;

/// A step of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Creates an object if its name is free.
    Create(Write),
    /// Applies an object of this controller.
    Apply {
        write: Write,
        /// UID of the object.
        uid: String,
        /// Whether managedFields has Update entries of this controller.
        has_updated_fields: bool,
    },
    /// Deletes an object of this controller.
    Delete(Delete),
}

/// An object to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Write {
    /// Index of the child.
    pub(super) index: usize,
    /// Rollout record of a workload.
    pub(super) record: Option<Record>,
    /// Hash of the child and the record.
    pub(super) desired_hash: u64,
}

/// An object to delete, as last observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Delete {
    pub(super) key: ChildKey,
    pub(super) uid: String,
    pub(super) resource_version: String,
    /// UID of the Gateway that owned it.
    pub(super) owner_uid: String,
}

/// All steps for a Gateway, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Whether the workload waits for its turn in a rollout.
    pub(super) waits: bool,
}

/// Plans the steps for a Gateway with these children. `permit` decides whether an existing workload
/// may change.
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
        // Objects of a previous Gateway of this name are handled when a create finds the name
        // taken.
        let existing = existing.filter(|existing| existing.owner_uid == child.gateway_uid);
        let Some(existing) = existing else {
            let write = write(index, child, None);
            plan.steps.push(Step::Create(write));
            continue;
        };
        if existing.is_deleting {
            // The missing object is created first. The object that it replaces stays until then.
            is_complete = false;
            continue;
        }
        let started = match permit(child, existing) {
            Permission::Wait => {
                plan.waits = true;
                continue;
            }
            Permission::Immediate => None,
            Permission::Rollout(started) => Some(started),
        };
        let write = write(index, child, started);
        let last = applied.get(&key);
        if last.is_none_or(|last| {
            (last.desired_hash, last.hash) != (write.desired_hash, existing.hash)
        }) {
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
    let superfluous: Vec<_> = superfluous.collect();
    let is_replaced = superfluous.iter().any(|(key, _)| is_workload(key.kind));
    if is_replaced && awaits_workload(children, inventory) {
        // Its pods serve until those that replace them do, and need its other objects until then.
        return plan;
    }
    // In reverse of the order in which they are applied: pods must not outlive their ServiceAccount. One with the same
    // name that replaces it does not make their tokens valid again.
    let deletes = superfluous.into_iter().rev().map(|(key, existing)| {
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

const fn is_workload(kind: ChildKind) -> bool {
    matches!(kind, ChildKind::Deployment | ChildKind::DaemonSet)
}

/// Reports whether the workload of a Gateway does not have all its pods yet. One on the host network may need the ports of the
/// pods that it replaces, so that nothing waits for it.
fn awaits_workload(children: &[Child], inventory: &Inventory) -> bool {
    let mut workloads = children.iter().filter(|child| is_workload(child.kind));
    workloads.any(|child| {
        let existing = inventory.get(&ChildKey::of(child));
        let existing = existing.filter(|existing| existing.owner_uid == child.gateway_uid);
        let is_on_host = child.object["spec"]["template"]["spec"]["hostNetwork"] == true;
        !is_on_host && existing.is_none_or(|it| !it.is_complete)
    })
}

fn write(index: usize, child: &Child, rollout: Option<super::rollout::Started>) -> Write {
    let revision = child.revision.as_ref();
    let record = revision.map(|revision| Record::new(revision, rollout));
    Write {
        index,
        desired_hash: fingerprint::of(&(&child.object, &record)),
        record,
    }
}
