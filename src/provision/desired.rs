//! Input and output of provisioning: desired objects of Gateways, and failures to apply them. Plain
//! data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use imbl::ordmap::DiffItem;
use imbl::{OrdMap, OrdSet};
use tokio::sync::watch;

use super::child::Child;
use crate::ir::ObjectRef;

/// Desired objects of all Gateways. Versions share what is equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// Desired objects by Gateway. An unchanged list is shared with the previous state.
    pub children: OrdMap<ObjectRef, Arc<[Child]>>,
    /// Gateways whose objects must not change, because their desired state is unknown or they are
    /// being deleted.
    pub retained: OrdSet<ObjectRef>,
}

/// A Gateway whose desired objects differ.
#[derive(Debug)]
pub struct DesiredChange<'a> {
    /// The Gateway.
    pub gateway: &'a ObjectRef,
    /// Its previous objects; `None` if it had none.
    pub previous: Option<&'a Arc<[Child]>>,
    /// Its objects now; `None` if they are deleted or retained.
    pub now: Option<&'a Arc<[Child]>>,
}

impl DesiredState {
    /// Returns the Gateways whose desired objects differ from `previous`. Skips what both share.
    pub fn changes_since<'a>(&'a self, previous: &'a Self) -> Vec<DesiredChange<'a>> {
        let change = |gateway, previous, now| DesiredChange {
            gateway,
            previous,
            now,
        };
        let changes = previous
            .children
            .diff(&self.children)
            .map(|item| match item {
                DiffItem::Add(gateway, now) => change(gateway, None, Some(now)),
                DiffItem::Remove(gateway, previous) => change(gateway, Some(previous), None),
                DiffItem::Update { old, new } => change(new.0, Some(old.1), Some(new.1)),
            });
        changes.collect()
    }
}

/// Inputs of provisioning.
pub struct Inputs {
    /// Desired state. Nothing is written before it is known.
    pub desired: watch::Receiver<Option<Arc<DesiredState>>>,
    /// Gateways whose ready replicas all serve their latest revision.
    pub serving: watch::Receiver<OrdSet<ObjectRef>>,
}

/// How the controller's own changes, such as a new image, are rolled out to Gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutOptions {
    /// Maximum number of Gateways whose pods are replaced at the same time.
    pub concurrent: usize,
    /// Maximum wait for a Gateway that did not serve before its rollout began.
    pub progress_deadline: Duration,
}

impl Default for RolloutOptions {
    fn default() -> Self {
        Self {
            concurrent: 1,
            progress_deadline: Duration::from_secs(600),
        }
    }
}

/// Why the objects of a Gateway could not be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Kind of failure.
    pub reason: FailureReason,
    /// Message that names the object and the error.
    pub message: String,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureReason {
    /// An object of another owner has the name of a desired object.
    NameTaken,
    /// The API server rejects an object: it is invalid, exceeds a quota, a webhook denies it, or
    /// the controller lacks permission.
    Refused,
    /// The API server did not respond, or failed to process the request.
    Unreachable,
}

/// Failures by Gateway.
pub type Failures = BTreeMap<ObjectRef, Failure>;
