//! The objects that a Gateway needs in a cluster, as server-side apply takes them: one set of bytes for one input.

mod apply;
mod availability;
mod class;
mod desired;
mod fields;
mod former;
mod inventory;
mod metadata;
mod name;
mod nodes;
mod ownership;
mod plan;
mod pod;
mod queue;
mod reconcile;
mod response;
mod revision;
mod rollout;
mod service;
mod trouble;
mod workload;

use serde_json::{Value, json};

use crate::api::gateway::Gateway;
use crate::api::parameters::Parameters;
use crate::data_plane::DataPlane;

pub use class::{ClassUsage, keep_finalizers};
pub use desired::{DesiredState, Failure, FailureReason, Failures, Inputs, RolloutOptions};
pub use metadata::{GATEWAY_CLASS_LABEL, GATEWAY_LABEL, MANAGED_BY, MANAGED_BY_LABEL, is_made_for};
pub use nodes::follow_nodes;
pub use ownership::is_owned_by;
pub use reconcile::reconcile;
pub use revision::Revision;

/// An object that a Gateway needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Kind.
    pub kind: ChildKind,
    /// Namespace, that of the Gateway.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID of the Gateway that owns it.
    pub gateway_uid: String,
    /// The whole object.
    pub object: Value,
    /// Of a workload, what tells its pods from those of other versions.
    pub revision: Option<Revision>,
}

/// Kinds of objects that Gateways need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "Kubernetes documents each")]
pub enum ChildKind {
    ServiceAccount,
    ConfigMap,
    Service,
    PodDisruptionBudget,
    Deployment,
    DaemonSet,
    HorizontalPodAutoscaler,
}

impl ChildKind {
    /// All kinds, in the order in which objects are applied.
    pub const ALL: [Self; 7] = [
        Self::ServiceAccount,
        Self::ConfigMap,
        Self::Service,
        Self::PodDisruptionBudget,
        Self::Deployment,
        Self::DaemonSet,
        Self::HorizontalPodAutoscaler,
    ];

    /// API group, empty for the core group.
    pub const fn group(self) -> &'static str {
        match self {
            Self::ServiceAccount | Self::ConfigMap | Self::Service => "",
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
            Self::ConfigMap => "configmaps",
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
            Self::ConfigMap => "ConfigMap",
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

/// What pods need of the controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamEndpoint {
    /// URL of the controller's stream Service; its host is the name in the serving certificate.
    pub url: String,
    /// All certificates of the controller's CA that are trusted, as PEM.
    pub ca: String,
    /// Arguments that the controller gives to all pods.
    pub arguments: Vec<String>,
}

/// The objects that `gateway` needs, in the order in which to apply them. Pods run `image` unless parameters name one.
pub fn children(
    gateway: &Gateway,
    data_plane: &DataPlane,
    image: &str,
    stream: &StreamEndpoint,
) -> Vec<Child> {
    let plan = Plan {
        gateway,
        data_plane,
        parameters: &data_plane.parameters,
        image,
        stream,
        name: service_account_name(gateway),
    };
    let mut children = vec![service_account(&plan), certificates(&plan)];
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
    stream: &'a StreamEndpoint,
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
    // It has no rights: pods get a token for the controller alone.
    let fields = json!({"automountServiceAccountToken": false});
    plan.child(ChildKind::ServiceAccount, &plan.name, None, fields)
}

/// The CA of the controller, in a ConfigMap so that pods follow its rotation without being replaced.
fn certificates(plan: &Plan<'_>) -> Child {
    let name = certificates_name(plan);
    let fields = json!({"data": {pod::CA_FILE: plan.stream.ca}});
    plan.child(ChildKind::ConfigMap, &name, None, fields)
}

fn certificates_name(plan: &Plan<'_>) -> String {
    name::dns_label(&format!("{}-controller-ca", plan.name))
}

/// A field that is left out when there is no value.
fn set(object: &mut Value, field: &str, value: Option<impl serde::Serialize>) {
    if let (Some(fields), Some(value)) = (object.as_object_mut(), value) {
        fields.insert(field.to_owned(), json!(value));
    }
}

#[cfg(test)]
mod tests;
