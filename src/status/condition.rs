//! Conditions of the Gateway API: type, status, reason, message, observed generation. The only
//! place that spells condition types and reasons.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::ir::named::named;

/// A condition of an object, a listener or a route's parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Condition type.
    #[serde(rename = "type")]
    pub kind: ConditionType,
    /// Condition status.
    pub status: ConditionStatus,
    /// Machine-readable reason.
    pub reason: Reason,
    /// Human-readable message; may be empty.
    pub message: String,
    /// Generation of the object that the condition was computed from.
    pub observed_generation: i64,
}

impl Condition {
    /// Creates a condition with status True and an empty message.
    pub fn holds(kind: ConditionType, reason: Reason, generation: i64) -> Self {
        Self {
            kind,
            status: ConditionStatus::True,
            reason,
            message: String::new(),
            observed_generation: generation,
        }
    }

    /// Creates a condition with status False.
    pub fn fails(kind: ConditionType, reason: Reason, message: &str, generation: i64) -> Self {
        Self {
            kind,
            status: ConditionStatus::False,
            reason,
            message: message.to_owned(),
            observed_generation: generation,
        }
    }

    /// Creates a condition of an object that waits for a controller: status Unknown and reason Pending, as the API server
    /// sets them in a new object.
    pub fn unknown(kind: ConditionType, message: &str, generation: i64) -> Self {
        Self {
            status: ConditionStatus::Unknown,
            ..Self::fails(kind, Reason::Pending, message, generation)
        }
    }

    /// Sets the message.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// Reports whether it is of this type and has the status True.
    pub fn is_true(&self, kind: ConditionType) -> bool {
        self.kind == kind && self.status == ConditionStatus::True
    }

    /// Reports whether the condition is a problem: status False for a positive condition, True for a
    /// negative one.
    pub fn is_problem(&self) -> bool {
        match self.kind {
            ConditionType::Accepted
            | ConditionType::Programmed
            | ConditionType::ResolvedRefs
            | ConditionType::SupportedVersion => self.status != ConditionStatus::True,
            ConditionType::Conflicted | ConditionType::PartiallyInvalid => {
                self.status == ConditionStatus::True
            }
            // Listeners may overlap on purpose. The API requires the condition, but nothing has to
            // be repaired.
            ConditionType::OverlappingTLSConfig
            // The user asked for these.
            | ConditionType::AccessPolicyAffected
            | ConditionType::BackendPolicyAffected
            | ConditionType::ClientPolicyAffected
            | ConditionType::DefaultGateway
            | ConditionType::HTTP3Off
            | ConditionType::InsecureBackend
            | ConditionType::InsecureFrontendValidationMode
            | ConditionType::LacksIdentity
            | ConditionType::LoosensInherited
            | ConditionType::Overridden
            | ConditionType::PlaintextToBackend
            | ConditionType::RateLimitPolicyAffected
            | ConditionType::RoutePolicyAffected
            // May be on purpose, while a route replaces another one.
            | ConditionType::Shadowed => false,
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {:?} ({})", self.kind, self.status, self.reason)?;
        if self.message.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.message)
    }
}

named! {
    /// Condition types, spelled as in the API.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[expect(missing_docs, reason = "the Gateway API documents all others")]
    pub enum ConditionType {
        Accepted = "Accepted",
        /// Not of the Gateway API: AccessPolicies target the object.
        AccessPolicyAffected = "portcullis.dev/AccessPolicyAffected",
        /// Not of the Gateway API: BackendPolicies target the object.
        BackendPolicyAffected = "portcullis.dev/BackendPolicyAffected",
        /// Not of the Gateway API: ClientPolicies target the object.
        ClientPolicyAffected = "portcullis.dev/ClientPolicyAffected",
        Conflicted = "Conflicted",
        DefaultGateway = "DefaultGateway",
        /// Not of the Gateway API: HTTP/3 is off where a policy asks for it.
        HTTP3Off = "portcullis.dev/HTTP3Off",
        InsecureBackend = "InsecureBackend",
        InsecureFrontendValidationMode = "InsecureFrontendValidationMode",
        /// Not of the Gateway API: requests have no identity that limits of a policy count them by.
        LacksIdentity = "portcullis.dev/LacksIdentity",
        /// Not of the Gateway API: a policy permits more than one above it.
        LoosensInherited = "portcullis.dev/LoosensInherited",
        Overridden = "Overridden",
        OverlappingTLSConfig = "OverlappingTLSConfig",
        PartiallyInvalid = "PartiallyInvalid",
        PlaintextToBackend = "PlaintextToBackend",
        Programmed = "Programmed",
        /// Not of the Gateway API: RateLimitPolicies target the object.
        RateLimitPolicyAffected = "portcullis.dev/RateLimitPolicyAffected",
        ResolvedRefs = "ResolvedRefs",
        /// Not of the Gateway API: RoutePolicies target the object.
        RoutePolicyAffected = "portcullis.dev/RoutePolicyAffected",
        /// Not of the Gateway API: matches of a route get no request.
        Shadowed = "portcullis.dev/Shadowed",
        SupportedVersion = "SupportedVersion",
    }
}

impl ConditionType {
    /// Parses a condition type; `None` for types that this controller does not write.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for ConditionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for ConditionType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Condition status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the Kubernetes API documents each")]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// Condition reasons, spelled as in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the Gateway API documents each")]
pub enum Reason {
    Accepted,
    AddressNotAssigned,
    AddressNotUsable,
    BackendNotFound,
    ConfigurationChanged,
    Conflicted,
    CredentialLimitExceeded,
    DefaultGateway,
    /// Not of the Gateway API: clients use HTTP/2 and HTTP/1.1 only.
    HTTP3Off,
    HostnameConflict,
    IncompatibleFilters,
    Invalid,
    InvalidCACertificateKind,
    InvalidCACertificateRef,
    InvalidCertificateRef,
    InvalidClientCertificateRef,
    InvalidConfigMapRef,
    InvalidExtensionRef,
    InvalidKeySet,
    InvalidKind,
    InvalidParameters,
    InvalidRouteKinds,
    InvalidSecretRef,
    KeySetNotFetched,
    ListenersNotValid,
    LoosensInherited,
    ModeNone,
    NameTaken,
    NoAuthentication,
    NoMatchingListenerHostname,
    NoMatchingParent,
    NoValidCACertificate,
    NotAllowed,
    NotAllowedByListeners,
    NotSupportedByParent,
    Overridden,
    OverlappingCertificates,
    OverlappingHostnames,
    ParentNotAccepted,
    ParentNotProgrammed,
    PartiallyProgrammed,
    PatternLimitExceeded,
    Pending,
    PinsOnly,
    /// Not of the Gateway API: the object waits for policies that may be older.
    PoliciesPending,
    PolicyAffected,
    PortUnavailable,
    Precedence,
    Programmed,
    ProtocolConflict,
    RefNotPermitted,
    ResolvedRefs,
    SkipVerify,
    SupportedVersion,
    TargetNotFound,
    TooManyListeners,
    Unsupported,
    UnsupportedAddress,
    UnsupportedProtocol,
    UnsupportedValue,
    UnsupportedVersion,
    Unused,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
