//! The counters of a limit. Versions of a policy that are in force at the same time share those of a limit that all of them have:
//! otherwise a change of the policy would give the clients of its former targets another burst. Must not know what is admitted.

use std::collections::hash_map::RandomState;
use std::sync::Arc;

use super::arrivals::Arrivals;
use super::group::Group;
use super::leases::Leases;
use super::memory::{LimitMemory, NamespaceBudget};
use super::slots::Slots;
use crate::ir::ObjectRef;
use crate::ir::limit::{Limit, Scope};

/// Keys that a limit counts in one table at most.
pub(super) const KEYS: usize = 65_536;

/// The policy, whatever its version, and the limit.
pub(super) type CountersId = (ObjectRef, Arc<Limit>);

/// The counters of a limit.
#[derive(Debug)]
pub(super) struct Counters {
    pub(super) hasher: RandomState,
    /// What it shares with other pods, if it counts for all of them.
    pub(super) shared: Option<Shared>,
    pub(super) arrivals: Arrivals,
    pub(super) in_progress: Slots,
    /// What its keys take.
    pub(super) memory: Arc<LimitMemory>,
}

/// What a limit shares with the other pods of the Gateway.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) group: Arc<Group>,
    /// Keys that others own, if it has keys and there may be others.
    pub(super) leases: Option<Leases>,
}

impl Counters {
    /// Creates those of a limit without requests.
    pub(super) fn new(ir: &Limit, budget: Arc<NamespaceBudget>, group: &Arc<Group>) -> Self {
        let memory = LimitMemory::new(budget);
        let keys = if ir.has_key() { KEYS } else { 1 };
        let shared = (ir.scope == Scope::Gateway).then(|| Shared {
            leases: (ir.has_key() && group.is_open()).then(|| Leases::new(keys, &memory)),
            group: group.clone(),
        });
        Self {
            arrivals: Arrivals::new(keys, &memory),
            in_progress: Slots::new(keys, &memory),
            hasher: RandomState::new(),
            shared,
            memory,
        }
    }
}
