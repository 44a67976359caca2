//! A desired object of a Gateway. Must not know how it is made or applied.

use serde_json::Value;

use super::revision::Revision;
use crate::ir::named::named;
use crate::ir::object_ref::api_version;

/// A desired object of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Kind.
    pub kind: ChildKind,
    /// Namespace of the Gateway.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID of the owning Gateway.
    pub gateway_uid: String,
    /// The complete object.
    pub object: Value,
    /// Version of the pod template, for workloads.
    pub revision: Option<Revision>,
}

named! {
    /// Kinds of provisioned objects, in apply order. Their names are those of the API.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[expect(missing_docs, reason = "Kubernetes documents each")]
    pub enum ChildKind {
        ServiceAccount = "ServiceAccount",
        ConfigMap = "ConfigMap",
        Service = "Service",
        NetworkPolicy = "NetworkPolicy",
        PodDisruptionBudget = "PodDisruptionBudget",
        Deployment = "Deployment",
        DaemonSet = "DaemonSet",
        HorizontalPodAutoscaler = "HorizontalPodAutoscaler",
    }
}

impl ChildKind {
    /// API group; empty for the core group.
    pub const fn group(self) -> &'static str {
        match self {
            Self::ServiceAccount | Self::ConfigMap | Self::Service => "",
            Self::NetworkPolicy => "networking.k8s.io",
            Self::PodDisruptionBudget => "policy",
            Self::Deployment | Self::DaemonSet => "apps",
            Self::HorizontalPodAutoscaler => "autoscaling",
        }
    }

    /// API version without the group.
    pub const fn version(self) -> &'static str {
        match self {
            Self::HorizontalPodAutoscaler => "v2",
            _ => "v1",
        }
    }

    /// Plural resource name.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceaccounts",
            Self::ConfigMap => "configmaps",
            Self::Service => "services",
            Self::NetworkPolicy => "networkpolicies",
            Self::PodDisruptionBudget => "poddisruptionbudgets",
            Self::Deployment => "deployments",
            Self::DaemonSet => "daemonsets",
            Self::HorizontalPodAutoscaler => "horizontalpodautoscalers",
        }
    }

    /// `apiVersion` of the kind.
    pub fn api_version(self) -> String {
        api_version(self.group(), self.version())
    }
}
