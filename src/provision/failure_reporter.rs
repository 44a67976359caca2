//! Reports failures in three ways: as data for conditions, as events on Gateways, and in the log.
//! Logs each failure once until it changes.

use crate::cluster::events::{EventReason, Events, Notice};
use crate::ir::ObjectRef;

use super::desired::{Failure, FailureReason, Failures};

/// Current failures.
pub(super) struct FailureReporter {
    failures: Failures,
    events: Events,
}

impl FailureReporter {
    pub(super) fn new(events: Events) -> Self {
        Self {
            failures: Failures::new(),
            events,
        }
    }

    pub(super) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Clears the failure of a Gateway whose objects are as desired.
    pub(super) fn clear(&mut self, gateway: &ObjectRef) {
        if self.failures.remove(gateway).is_some() {
            tracing::info!("{gateway}: all objects are applied");
            self.events.clear(gateway, EventReason::NameTaken);
            self.events.clear(gateway, EventReason::ProvisioningRefused);
        }
    }

    /// Records the failure of a Gateway. `uid` is known while the Gateway has desired objects.
    pub(super) fn fail(&mut self, gateway: &ObjectRef, uid: Option<&str>, failure: Failure) {
        if self.failures.get(gateway) != Some(&failure) {
            tracing::warn!("{gateway}: {}; retrying", failure.message);
        }
        let Some(uid) = uid else {
            return;
        };
        let reason = match failure.reason {
            FailureReason::NameTaken => Some(EventReason::NameTaken),
            FailureReason::Refused => Some(EventReason::ProvisioningRefused),
            FailureReason::Unreachable => None,
        };
        if let Some(reason) = reason {
            self.warn(gateway, uid, reason, "Provision", &failure.message);
        }
        self.failures.insert(gateway.clone(), failure);
    }

    /// Reports that the rollout of a Gateway is overdue.
    pub(super) fn stall(&self, gateway: &ObjectRef, uid: Option<&str>, message: &str) {
        tracing::warn!("{gateway}: {message}");
        if let Some(uid) = uid {
            self.warn(
                gateway,
                uid,
                EventReason::RolloutStalled,
                "Rollout",
                message,
            );
        }
    }

    /// Clears the event about an overdue rollout.
    pub(super) fn end_stall(&self, gateway: &ObjectRef) {
        self.events.clear(gateway, EventReason::RolloutStalled);
    }

    /// Forgets a deleted Gateway.
    pub(super) fn forget(&mut self, gateway: &ObjectRef) {
        if self.failures.remove(gateway).is_some() {
            self.events.clear(gateway, EventReason::NameTaken);
            self.events.clear(gateway, EventReason::ProvisioningRefused);
        }
    }

    fn warn(
        &self,
        gateway: &ObjectRef,
        uid: &str,
        reason: EventReason,
        action: &'static str,
        message: &str,
    ) {
        self.events.notify(Notice {
            object: gateway.clone(),
            version: "v1",
            served_as: None,
            uid: uid.to_owned(),
            reason,
            action,
            message: message.to_owned(),
        });
    }
}
