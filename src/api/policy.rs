//! Kinds that are read and validated but not served yet: other routes and policies. Their parents and targets are
//! known, so that status can say so.

use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use super::reference::{LocalObjectReference, ParentRef};

/// A route of a kind without a translator: GRPCRoute, TLSRoute, TCPRoute, UDPRoute.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct UnservedRoute {
    /// Kind; filled in by the provider from the object's `kind`.
    #[serde(default)]
    pub kind: String,
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: UnservedRouteSpec,
}

/// What all routes have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UnservedRouteSpec {
    /// Parents.
    pub parent_refs: Vec<ParentRef>,
    /// Hostnames, where the kind has them.
    pub hostnames: Vec<String>,
}

/// A policy without a translator, such as BackendTLSPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BackendTlsPolicy {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: BackendTlsPolicySpec,
}
super::meta::resource!(
    BackendTlsPolicy,
    crate::ir::object_ref::GATEWAY_GROUP,
    "BackendTLSPolicy"
);

/// Spec of a [`BackendTlsPolicy`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsPolicySpec {
    /// Targets, in the policy's namespace.
    pub target_refs: Vec<PolicyTargetRef>,
    /// What the backend's certificate has to satisfy.
    pub validation: BackendTlsValidation,
}

/// What a backend's certificate has to satisfy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsValidation {
    /// ConfigMaps or Secrets with the authorities that are trusted, in the policy's namespace.
    pub ca_certificate_refs: Vec<LocalObjectReference>,
}

/// A target of a policy in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyTargetRef {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Section, such as a port's name.
    pub section_name: Option<String>,
}

impl PolicyTargetRef {
    /// Whether the target is the Service of this name.
    pub fn is_service(&self, name: &str) -> bool {
        self.group.is_empty() && self.kind == "Service" && self.name == name
    }
}
