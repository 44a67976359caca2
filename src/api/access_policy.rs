//! AccessPolicy, a CRD of Portcullis: who may send requests. Its CRD is deploy/crds/accesspolicies.yaml.

use serde::{Deserialize, Serialize};

use super::inherited_policy::{InheritedPolicy, SectionTargetRef, Strategy};
use super::meta::{ObjectMeta, resource};
use super::parameters::GROUP;

/// Who may send requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct AccessPolicy {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: AccessSpec,
}
resource!(AccessPolicy, GROUP, "AccessPolicy");

/// Spec of an AccessPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessSpec {
    /// Gateways, ListenerSets and routes in the policy's namespace.
    pub target_refs: Vec<SectionTargetRef>,
    /// How it relates to policies of more specific targets.
    pub strategy: Strategy,
    /// Addresses of clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_rules: Option<IpRules>,
}

/// Addresses that may send requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct IpRules {
    /// CIDRs; absent means every address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
    /// CIDRs that are refused in any case.
    pub deny: Vec<String>,
}

impl InheritedPolicy for AccessPolicy {
    fn target_refs(&self) -> &[SectionTargetRef] {
        &self.spec.target_refs
    }

    fn overrides(&self) -> bool {
        self.spec.strategy == Strategy::Overrides
    }
}
