//! The Deployment or DaemonSet of a Gateway: replicas, update strategy and patch.

use serde_json::json;

use super::child::{Child, ChildKind};
use super::child_plan::{Plan, set};
use super::patch::{Patched, merge};
use super::{Revision, pod};

/// Builds the workload.
pub(super) fn workload(plan: &Plan<'_>) -> Child {
    let kind = if plan.is_daemon_set() {
        ChildKind::DaemonSet
    } else {
        ChildKind::Deployment
    };
    let field = match kind {
        ChildKind::DaemonSet => "updateStrategy",
        _ => "strategy",
    };
    // Two pods of one Gateway cannot bind the same host ports: the old pod must end before the new
    // one starts.
    let (unavailable, surge) = match plan.is_on_host() {
        true => (1, 0),
        false => (0, 1),
    };
    let mut spec = json!({
        "selector": {"matchLabels": plan.selector()},
        "template": pod::template(plan),
    });
    spec[field] = json!({
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge},
    });
    set(&mut spec, "replicas", plan.replicas());
    let mut fields = json!({"spec": spec});
    if let Some(patch) = &plan.parameters.workload.patch {
        merge(Patched::Workload, &mut fields, patch);
    }
    let revision = Revision::of(plan, &fields["spec"]["template"]);
    Child {
        revision: Some(revision),
        ..plan.child(kind, &plan.name, None, fields)
    }
}
