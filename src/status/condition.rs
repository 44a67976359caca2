//! Conditions as the Gateway API has them: type, status, reason, message, generation. The closed sets of types and
//! reasons are spelled here and nowhere else.

use std::fmt;

use serde::Serialize;

/// One condition of an object, a listener or a route's parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it speaks of.
    #[serde(rename = "type")]
    pub kind: ConditionType,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, for programs.
    pub reason: Reason,
    /// Why, for people; empty when there is nothing to tell.
    pub message: String,
    /// Generation of the object that was judged.
    pub observed_generation: i64,
}

impl Condition {
    /// A condition that holds.
    pub fn holds(kind: ConditionType, reason: Reason, generation: i64) -> Self {
        Self {
            kind,
            status: ConditionStatus::True,
            reason,
            message: String::new(),
            observed_generation: generation,
        }
    }

    /// A condition that does not hold, and why.
    pub fn fails(kind: ConditionType, reason: Reason, message: &str, generation: i64) -> Self {
        Self {
            kind,
            status: ConditionStatus::False,
            reason,
            message: message.to_owned(),
            observed_generation: generation,
        }
    }

    /// The same condition with something to tell.
    #[must_use]
    pub fn telling(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// Whether something is wrong: a good condition that does not hold, or a bad one that does.
    pub fn is_problem(&self) -> bool {
        match self.kind {
            ConditionType::Accepted
            | ConditionType::Programmed
            | ConditionType::ResolvedRefs
            | ConditionType::SupportedVersion => self.status != ConditionStatus::True,
            ConditionType::Conflicted | ConditionType::PartiallyInvalid => {
                self.status == ConditionStatus::True
            }
            // Two listeners may share hosts on purpose; the API asks for the condition, not for a repair.
            ConditionType::OverlappingTLSConfig
            // These are what somebody asked for.
            | ConditionType::InsecureBackend
            | ConditionType::Overridden
            | ConditionType::PlaintextToBackend => false,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is {:?} ({})", self.kind, self.status, self.reason)?;
        if self.message.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.message)
    }
}

/// Types of conditions, spelled as the API spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[expect(missing_docs, reason = "the Gateway API documents each")]
pub enum ConditionType {
    Accepted,
    Conflicted,
    InsecureBackend,
    Overridden,
    OverlappingTLSConfig,
    PartiallyInvalid,
    PlaintextToBackend,
    Programmed,
    ResolvedRefs,
    SupportedVersion,
}

impl ConditionType {
    const ALL: [Self; 10] = [
        Self::Accepted,
        Self::Conflicted,
        Self::InsecureBackend,
        Self::Overridden,
        Self::OverlappingTLSConfig,
        Self::PartiallyInvalid,
        Self::PlaintextToBackend,
        Self::Programmed,
        Self::ResolvedRefs,
        Self::SupportedVersion,
    ];

    /// The type of this name; `None` for those that are not ours to write.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| format!("{kind:?}") == name)
    }
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[expect(missing_docs, reason = "the Kubernetes API documents each")]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// Reasons of conditions, spelled as the API spells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[expect(missing_docs, reason = "the Gateway API documents each")]
pub enum Reason {
    Accepted,
    AddressNotAssigned,
    AddressNotUsable,
    BackendNotFound,
    Conflicted,
    HostnameConflict,
    IncompatibleFilters,
    Invalid,
    InvalidCACertificateRef,
    InvalidCertificateRef,
    InvalidClientCertificateRef,
    InvalidKind,
    InvalidParameters,
    InvalidRouteKinds,
    ListenersNotValid,
    ModeNone,
    NameTaken,
    NoMatchingListenerHostname,
    NoMatchingParent,
    NoResources,
    NoValidCACertificate,
    NotAllowed,
    NotAllowedByListeners,
    Overridden,
    OverlappingCertificates,
    OverlappingHostnames,
    ParentNotAccepted,
    ParentNotProgrammed,
    Pending,
    PinsOnly,
    PortUnavailable,
    Programmed,
    ProtocolConflict,
    RefNotPermitted,
    ResolvedRefs,
    SkipVerify,
    SupportedVersion,
    TargetNotFound,
    Unsupported,
    UnsupportedAddress,
    UnsupportedProtocol,
    UnsupportedValue,
    UnsupportedVersion,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
