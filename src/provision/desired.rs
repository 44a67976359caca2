//! What provisioning is given and what it tells: the objects that Gateways need, and why some cannot be applied. Plain
//! data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::Child;
use crate::ir::ObjectRef;

/// The objects that Gateways need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredState {
    /// By Gateway. The same list means the same objects.
    pub children: BTreeMap<ObjectRef, Arc<[Child]>>,
    /// Gateways whose objects stay as they are: those whose needs are unknown, and those that are being deleted.
    pub retained: BTreeSet<ObjectRef>,
}

/// What provisioning follows.
pub struct Inputs {
    /// The objects that Gateways need; nothing is touched before they are known.
    pub desired: watch::Receiver<Option<Arc<DesiredState>>>,
    /// Gateways whose ready replicas all serve their latest state.
    pub serving: watch::Receiver<BTreeSet<ObjectRef>>,
}

/// How changes of the controller itself, such as a new image, reach Gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutOptions {
    /// Gateways whose pods are replaced at the same time.
    pub concurrent: usize,
    /// The longest wait for a Gateway that did not serve before its pods were replaced.
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
    /// What kind of failure it is.
    pub reason: FailureReason,
    /// The object and what is wrong with it, for people.
    pub message: String,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailureReason {
    /// An object of a needed name exists and belongs to another owner.
    NameTaken,
    /// The API server refuses an object: it is invalid, a quota is used up, a webhook denies it, or rights are missing.
    Refused,
    /// The API server gave no answer, or could not give one.
    Unreachable,
}

/// Failures by Gateway.
pub type Failures = BTreeMap<ObjectRef, Failure>;
