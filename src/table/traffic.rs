//! The traffic policy of a backend at run time. It has its own cell, so that a policy changes without a new table.

use std::sync::Arc;

use super::optional_cell::OptionalCell;
use super::retry_budget::RetryBudget;
use crate::ir::session::SessionPersistence;
use crate::ir::traffic::TrafficPolicy;
use crate::runtime::monotonic;

/// The traffic policy of a backend.
#[derive(Debug)]
pub struct Traffic {
    ir: Arc<TrafficPolicy>,
    budget: Option<RetryBudget>,
}

impl Traffic {
    /// Counts the first attempt of a request, if there is a retry budget.
    pub fn count_request(&self) {
        if let Some(budget) = &self.budget {
            budget.count_request(monotonic::now().get());
        }
    }

    /// Reports whether there is a retry budget.
    pub fn has_retry_budget(&self) -> bool {
        self.budget.is_some()
    }

    /// Counts a retry if the retry budget permits it. Returns whether it does.
    pub fn try_retry(&self) -> bool {
        let budget = self.budget.as_ref();
        budget.is_none_or(|budget| budget.try_retry(monotonic::now().get()))
    }

    /// Returns the session persistence for rules that do not configure it.
    pub fn session(&self) -> Option<&SessionPersistence> {
        self.ir.session.as_ref()
    }
}

/// The present policy.
#[derive(Debug, Default)]
pub(super) struct TrafficCell(OptionalCell<Traffic>);

impl TrafficCell {
    /// Creates the cell of a backend that replaces one with the cell `previous`.
    pub(super) fn new(ir: Option<&Arc<TrafficPolicy>>, previous: Option<&Self>) -> Self {
        let cell = Self::default();
        if let Some(previous) = previous {
            cell.0.set(previous.get());
        }
        cell.set(ir);
        cell
    }

    /// Replaces the policy. The budget keeps its counts if the intervals are the same. Only one thread at a time may
    /// call this.
    pub(super) fn set(&self, ir: Option<&Arc<TrafficPolicy>>) {
        let previous = self.get();
        let previous = previous.as_deref();
        if previous.map(|previous| &previous.ir) == ir {
            return;
        }
        let previous = previous.and_then(|previous| previous.budget.as_ref());
        let traffic = |ir: &Arc<TrafficPolicy>| {
            let limits = ir.retry_budget;
            Arc::new(Traffic {
                ir: ir.clone(),
                budget: limits.map(|limits| RetryBudget::new(limits, previous)),
            })
        };
        self.0.set(ir.map(traffic));
    }

    #[inline]
    pub(super) fn is_set(&self) -> bool {
        self.0.is_set()
    }

    #[inline]
    pub(super) fn get(&self) -> Option<Arc<Traffic>> {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ir::ObjectRef;
    use crate::ir::traffic::RetryBudget as Limits;

    fn policy(min_retries: u32) -> Arc<TrafficPolicy> {
        let hour = Duration::from_secs(3600);
        Arc::new(TrafficPolicy {
            policy: ObjectRef::core("Policy", "ns", "one"),
            session_policy: None,
            retry_budget: Some(Limits {
                percent: 0,
                interval: hour,
                min_retries,
                min_interval: hour,
            }),
            session: None,
        })
    }

    fn retries(cell: &TrafficCell) -> usize {
        let traffic = cell.get().unwrap();
        (0..100).filter(|_| traffic.try_retry()).count()
    }

    #[test]
    fn counts_survive_changes_of_the_policy_and_of_the_backend() {
        let cell = TrafficCell::new(Some(&policy(2)), None);
        assert_eq!(retries(&cell), 2);
        cell.set(Some(&policy(2)));
        assert_eq!(retries(&cell), 0);
        cell.set(Some(&policy(3)));
        assert_eq!(retries(&cell), 1);
        let successor = TrafficCell::new(Some(&policy(5)), Some(&cell));
        assert_eq!(retries(&successor), 2);
    }

    #[test]
    fn backend_without_a_policy_has_no_limit() {
        let cell = TrafficCell::new(None, None);
        assert!(cell.get().is_none());
        cell.set(Some(&policy(1)));
        assert!(cell.get().is_some());
        cell.set(None);
        assert!(cell.get().is_none());
        let session_only = TrafficPolicy {
            retry_budget: None,
            ..TrafficPolicy::clone(&policy(1))
        };
        cell.set(Some(&Arc::new(session_only)));
        assert_eq!(retries(&cell), 100);
    }
}
