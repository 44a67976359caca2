//! What fails, told in three ways: to whoever writes conditions, as events on Gateways, and in the log, each once until it
//! changes.

use crate::events::{Events, Warning};
use crate::ir::ObjectRef;

use super::desired::{Failure, FailureReason, Failures};

/// Reasons of events.
const NAME_TAKEN: &str = "NameTaken";
const REFUSED: &str = "ProvisioningRefused";
const STALLED: &str = "RolloutStalled";

/// What fails.
pub(super) struct Troubles {
    failures: Failures,
    events: Events,
}

impl Troubles {
    pub(super) fn new(events: Events) -> Self {
        Self {
            failures: Failures::new(),
            events,
        }
    }

    pub(super) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Whether there is something of which nobody knows how it is.
    pub(super) fn is_any_unreachable(&self) -> bool {
        let mut reasons = self.failures.values().map(|failure| failure.reason);
        reasons.any(|reason| reason == FailureReason::Unreachable)
    }

    /// The objects of a Gateway are as desired.
    pub(super) fn succeed(&mut self, gateway: &ObjectRef) {
        if self.failures.remove(gateway).is_some() {
            tracing::info!("{gateway}: its objects are applied");
            self.events.clear(gateway, NAME_TAKEN);
            self.events.clear(gateway, REFUSED);
        }
    }

    /// The objects of a Gateway cannot be as desired; it has a UID as long as any are desired.
    pub(super) fn fail(&mut self, gateway: &ObjectRef, uid: Option<&str>, failure: Failure) {
        if self.failures.get(gateway) != Some(&failure) {
            tracing::warn!("{gateway}: {}; it is retried", failure.message);
        }
        let Some(uid) = uid else {
            return;
        };
        let reason = match failure.reason {
            FailureReason::NameTaken => Some(NAME_TAKEN),
            FailureReason::Refused => Some(REFUSED),
            FailureReason::Unreachable => None,
        };
        if let Some(reason) = reason {
            self.warn(gateway, uid, reason, "Provision", &failure.message);
        }
        self.failures.insert(gateway.clone(), failure);
    }

    /// The rollout of a Gateway takes too long.
    pub(super) fn stall(&self, gateway: &ObjectRef, uid: Option<&str>, message: &str) {
        tracing::warn!("{gateway}: {message}");
        if let Some(uid) = uid {
            self.warn(gateway, uid, STALLED, "Rollout", message);
        }
    }

    /// The rollout of a Gateway has come to its end.
    pub(super) fn end_stall(&self, gateway: &ObjectRef) {
        self.events.clear(gateway, STALLED);
    }

    /// A Gateway is gone.
    pub(super) fn forget(&mut self, gateway: &ObjectRef) {
        if self.failures.remove(gateway).is_some() {
            self.events.clear(gateway, NAME_TAKEN);
            self.events.clear(gateway, REFUSED);
        }
    }

    fn warn(
        &self,
        gateway: &ObjectRef,
        uid: &str,
        reason: &'static str,
        action: &'static str,
        message: &str,
    ) {
        self.events.warn(Warning {
            object: gateway.clone(),
            version: "v1",
            uid: uid.to_owned(),
            reason,
            action,
            message: message.to_owned(),
        });
    }
}
