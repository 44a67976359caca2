//! Provisioning: the desired objects of a Gateway in a cluster, and the reconciliation that applies
//! them (server-side apply). The same input produces the same bytes.

mod apply;
mod availability;
mod child;
mod child_plan;
mod class;
pub mod data_plane;
mod desired;
mod failure_reporter;
mod inventory;
mod managed_fields;
mod metadata;
mod name;
mod network_policy;
mod nodes;
mod ownership;
mod partial;
pub mod patch;
mod plan;
mod pod;
mod queue;
mod reconcile;
mod response;
mod revision;
mod rollout;
mod service;
mod workload;

use serde_json::json;

use self::child_plan::{Plan, certificates_name};
use self::data_plane::DataPlane;
use crate::api::gateway::Gateway;

pub use child::{Child, ChildKind};
pub use child_plan::StreamEndpoint;
pub use class::{ClassUsage, keep_finalizers};
pub use desired::{
    DesiredChange, DesiredState, Failure, FailureReason, Failures, Inputs, RolloutOptions,
};
pub use metadata::{GATEWAY_CLASS_LABEL, GATEWAY_LABEL, MANAGED_BY, MANAGED_BY_LABEL, is_made_for};
pub use nodes::watch_nodes;
pub use ownership::is_owned_by;
pub use reconcile::reconcile;
pub use revision::Revision;

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
    children.extend(network_policy::network_policy(&plan));
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

#[cfg(test)]
mod tests;
