//! What events are about. Must not know how they are published.

use std::fmt;
use std::time::Duration;

use crate::ir::ObjectRef;

/// A notice about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The object that the event is about.
    pub object: ObjectRef,
    /// Version of the object's API group, such as `v1`.
    pub version: &'static str,
    /// `apiVersion` and kind under which the cluster serves the object, if other ones.
    pub served_as: Option<(String, String)>,
    /// UID of the object, without which `kubectl describe` does not show the event.
    pub uid: String,
    /// What it is about.
    pub reason: EventReason,
    /// Action in CamelCase, such as `Provision`.
    pub action: &'static str,
    /// What happened and what to do.
    pub message: String,
}

/// What has an event, spelled as the reason of the event. An event about several has the first of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventReason {
    /// An object with a required name is not owned by the Gateway.
    NameTaken,
    /// The API server refuses an object.
    ProvisioningRefused,
    /// New pods of an upgrade do not serve.
    RolloutStalled,
    /// A replica does not serve the current configuration.
    ReplicaBehind,
    /// A certificate of a listener expires soon.
    CertificateExpiring,
    /// The object, or a part of it, is no longer accepted.
    NotAccepted,
    /// A reference of the object is no longer resolved.
    ReferencesNotResolved,
    /// The object, or a part of it, is no longer programmed.
    NotProgrammed,
    /// A policy now permits more than one above it.
    AccessLoosened,
    /// The object is accepted again.
    Accepted,
    /// References of the object are resolved again.
    ReferencesResolved,
    /// The object is programmed.
    Programmed,
    /// A policy no longer permits more than one above it.
    AccessRestored,
}

impl EventReason {
    /// The problem that it is about. Its begin and its end have one topic.
    pub(super) fn topic(self) -> Self {
        match self {
            Self::Accepted => Self::NotAccepted,
            Self::ReferencesResolved => Self::ReferencesNotResolved,
            Self::Programmed => Self::NotProgrammed,
            Self::AccessRestored => Self::AccessLoosened,
            problem => problem,
        }
    }

    /// Whether it is about a problem, and not about the end of one.
    pub(super) fn is_problem(self) -> bool {
        self == self.topic()
    }

    /// Whether it is about a state, which a new leader finds again, and not about a change of the status.
    pub(super) fn is_state(self) -> bool {
        self <= Self::CertificateExpiring
    }

    /// How long a problem must last.
    pub(super) fn patience(self) -> Duration {
        match self {
            // Replicas lag once the leader has waited 5 s for them.
            Self::ReplicaBehind => Duration::from_secs(25),
            _ => Duration::ZERO,
        }
    }
}

impl fmt::Display for EventReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
