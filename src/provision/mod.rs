//! The objects that a Gateway needs in a cluster, as server-side apply takes them: one set of bytes for one input.

mod apply;
mod availability;
mod class;
mod metadata;
mod name;
mod nodes;
mod pod;
mod service;
mod workload;

use serde_json::{Value, json};

use crate::api::gateway::Gateway;
use crate::api::parameters::Parameters;
use crate::data_plane::DataPlane;

pub use apply::{DesiredState, Failures, reconcile};
pub use class::{ClassUsage, keep_finalizers};
pub use metadata::{
    GATEWAY_CLASS_LABEL, GATEWAY_LABEL, MANAGED_BY, MANAGED_BY_LABEL, is_made_for, is_owned_by,
};
pub use nodes::follow_nodes;

/// An object that a Gateway needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Kind.
    pub kind: ChildKind,
    /// Namespace, that of the Gateway.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The whole object.
    pub object: Value,
}

/// Kinds of objects that Gateways need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "Kubernetes documents each")]
pub enum ChildKind {
    ServiceAccount,
    Service,
    PodDisruptionBudget,
    Deployment,
    DaemonSet,
    HorizontalPodAutoscaler,
}

impl ChildKind {
    /// All kinds, in the order in which objects are applied.
    pub const ALL: [Self; 6] = [
        Self::ServiceAccount,
        Self::Service,
        Self::PodDisruptionBudget,
        Self::Deployment,
        Self::DaemonSet,
        Self::HorizontalPodAutoscaler,
    ];

    /// API group, empty for the core group.
    pub const fn group(self) -> &'static str {
        match self {
            Self::ServiceAccount | Self::Service => "",
            Self::PodDisruptionBudget => "policy",
            Self::Deployment | Self::DaemonSet => "apps",
            Self::HorizontalPodAutoscaler => "autoscaling",
        }
    }

    /// Version of the group.
    pub const fn version(self) -> &'static str {
        match self {
            Self::HorizontalPodAutoscaler => "v2",
            _ => "v1",
        }
    }

    /// Name of the resource.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::ServiceAccount => "serviceaccounts",
            Self::Service => "services",
            Self::PodDisruptionBudget => "poddisruptionbudgets",
            Self::Deployment => "deployments",
            Self::DaemonSet => "daemonsets",
            Self::HorizontalPodAutoscaler => "horizontalpodautoscalers",
        }
    }

    /// Kind, in the API's spelling.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::ServiceAccount => "ServiceAccount",
            Self::Service => "Service",
            Self::PodDisruptionBudget => "PodDisruptionBudget",
            Self::Deployment => "Deployment",
            Self::DaemonSet => "DaemonSet",
            Self::HorizontalPodAutoscaler => "HorizontalPodAutoscaler",
        }
    }

    /// Group and version as objects name them.
    pub fn api_version(self) -> String {
        match self.group() {
            "" => self.version().to_owned(),
            group => format!("{group}/{}", self.version()),
        }
    }
}

/// The objects that `gateway` needs, in the order in which to apply them. Pods run `image` unless parameters name one.
pub fn children(gateway: &Gateway, data_plane: &DataPlane, image: &str) -> Vec<Child> {
    let plan = Plan {
        gateway,
        data_plane,
        parameters: &data_plane.parameters,
        image,
        name: service_account_name(gateway),
    };
    let mut children = vec![service_account(&plan)];
    children.extend(service::services(&plan));
    children.extend(availability::disruption_budget(&plan));
    children.push(workload::workload(&plan));
    children.extend(availability::autoscaler(&plan));
    children
}

/// The name of the ServiceAccount of a Gateway's pods, which most of its other objects have too.
pub fn service_account_name(gateway: &Gateway) -> String {
    let class = &gateway.spec.gateway_class_name;
    name::dns_label(&format!("{}-{class}", gateway.metadata.name))
}

/// What all objects of one Gateway are made from.
struct Plan<'a> {
    gateway: &'a Gateway,
    data_plane: &'a DataPlane,
    parameters: &'a Parameters,
    image: &'a str,
    /// The name that most of the objects have.
    name: String,
}

impl Plan<'_> {
    /// Whether pods share the network of their node.
    fn is_on_host(&self) -> bool {
        self.parameters.workload.host_network == Some(true)
    }
}

fn service_account(plan: &Plan<'_>) -> Child {
    // Other pods under this account get its token only if they ask for it.
    let fields = json!({"automountServiceAccountToken": false});
    plan.child(ChildKind::ServiceAccount, &plan.name, None, fields)
}

/// A field that is left out when there is no value.
fn set(object: &mut Value, field: &str, value: Option<impl serde::Serialize>) {
    if let (Some(fields), Some(value)) = (object.as_object_mut(), value) {
        fields.insert(field.to_owned(), json!(value));
    }
}

#[cfg(test)]
mod tests;
