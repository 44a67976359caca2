//! Provisioning: the desired objects of a Gateway in a cluster, and the reconciliation that applies
//! them (server-side apply). The same input produces the same bytes.

mod apply;
mod availability;
mod class;
mod desired;
mod failure_reporter;
mod inventory;
mod legacy_rbac;
mod managed_fields;
mod metadata;
mod name;
mod nodes;
mod ownership;
mod partial;
mod plan;
mod pod;
mod queue;
mod reconcile;
mod response;
mod revision;
mod rollout;
mod service;
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

/// Kinds of provisioned objects.
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
    /// All kinds, in apply order.
    pub const ALL: [Self; 7] = [
        Self::ServiceAccount,
        Self::ConfigMap,
        Self::Service,
        Self::PodDisruptionBudget,
        Self::Deployment,
        Self::DaemonSet,
        Self::HorizontalPodAutoscaler,
    ];

    /// API group; empty for the core group.
    pub const fn group(self) -> &'static str {
        match self {
            Self::ServiceAccount | Self::ConfigMap | Self::Service => "",
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
            Self::PodDisruptionBudget => "poddisruptionbudgets",
            Self::Deployment => "deployments",
            Self::DaemonSet => "daemonsets",
            Self::HorizontalPodAutoscaler => "horizontalpodautoscalers",
        }
    }

    /// Kind as spelled in the API.
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

    /// `apiVersion` of the kind.
    pub fn api_version(self) -> String {
        match self.group() {
            "" => self.version().to_owned(),
            group => format!("{group}/{}", self.version()),
        }
    }
}

/// The controller's data for all pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamEndpoint {
    /// URL of the controller's stream Service. Its host is the name in the serving certificate.
    pub url: String,
    /// CA bundle of the controller as PEM.
    pub ca: String,
    /// Command-line arguments for all pods.
    pub arguments: Vec<String>,
}

/// Builds the desired objects of `gateway` in apply order. Pods run `image` unless the parameters
/// set one.
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

/// Returns the name of the ServiceAccount of a Gateway's pods. Most of its other objects have the
/// same name.
pub fn service_account_name(gateway: &Gateway) -> String {
    let class = &gateway.spec.gateway_class_name;
    name::dns_label(&format!("{}-{class}", gateway.metadata.name))
}

/// Input for all objects of one Gateway.
struct Plan<'a> {
    gateway: &'a Gateway,
    data_plane: &'a DataPlane,
    parameters: &'a Parameters,
    image: &'a str,
    stream: &'a StreamEndpoint,
    /// Name of most of the objects.
    name: String,
}

impl Plan<'_> {
    /// Reports whether pods use the host network.
    fn is_on_host(&self) -> bool {
        self.parameters.workload.host_network == Some(true)
    }
}

fn service_account(plan: &Plan<'_>) -> Child {
    // The ServiceAccount has no permissions: pods get a projected token for the controller only.
    let fields = json!({"automountServiceAccountToken": false});
    plan.child(ChildKind::ServiceAccount, &plan.name, None, fields)
}

/// Builds the ConfigMap with the controller's CA bundle. Pods see a rotation of it without a
/// restart.
fn certificates(plan: &Plan<'_>) -> Child {
    let name = certificates_name(plan);
    let fields = json!({"data": {pod::CA_FILE: plan.stream.ca}});
    plan.child(ChildKind::ConfigMap, &name, None, fields)
}

fn certificates_name(plan: &Plan<'_>) -> String {
    name::dns_label(&format!("{}-controller-ca", plan.name))
}

/// Sets a field if there is a value.
fn set(object: &mut Value, field: &str, value: Option<impl serde::Serialize>) {
    if let (Some(fields), Some(value)) = (object.as_object_mut(), value) {
        fields.insert(field.to_owned(), json!(value));
    }
}

#[cfg(test)]
mod tests;
