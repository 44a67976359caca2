//! How many pods there are and may be missing: the disruption budget and the autoscaler of a Gateway.

use serde_json::json;

use super::{Child, ChildKind, Plan, set};
use crate::api::parameters::{Autoscaling, WorkloadKind};

/// Pods without a word in the parameters.
const REPLICAS: u32 = 2;
/// The greatest number of pods by load.
const MAX_REPLICAS: u32 = 10;
/// Percent of the requested CPU that the autoscaler aims at.
const TARGET_CPU: u32 = 80;

impl Plan<'_> {
    /// Whether there is a pod on each node.
    pub(super) fn is_daemon_set(&self) -> bool {
        self.parameters.workload.kind == Some(WorkloadKind::DaemonSet)
    }

    /// The fixed number of pods; `None` where somebody else decides it.
    pub(super) fn replicas(&self) -> Option<u32> {
        let is_fixed = !self.is_daemon_set() && self.parameters.autoscaling.is_none();
        is_fixed.then(|| self.parameters.workload.replicas.unwrap_or(REPLICAS))
    }

    fn autoscaling(&self) -> Option<&Autoscaling> {
        let autoscaling = self.parameters.autoscaling.as_ref();
        autoscaling.filter(|_| !self.is_daemon_set())
    }
}

/// The least and the greatest number of pods. A bound that is not given makes room for the other.
fn bounds(autoscaling: &Autoscaling) -> (u32, u32) {
    match (autoscaling.min_replicas, autoscaling.max_replicas) {
        (Some(min), max) => (min, max.unwrap_or(MAX_REPLICAS.max(min))),
        (None, max) => {
            let max = max.unwrap_or(MAX_REPLICAS);
            (REPLICAS.min(max), max)
        }
    }
}

/// The budget of evictions. A single pod has none: it could never be evicted, or the budget would say nothing.
pub(super) fn disruption_budget(plan: &Plan<'_>) -> Option<Child> {
    let most = match (plan.autoscaling(), plan.replicas()) {
        (Some(autoscaling), _) => bounds(autoscaling).1,
        (None, fixed) => fixed.unwrap_or(0),
    };
    if most < 2 {
        return None;
    }
    let mut spec = json!({
        "selector": {"matchLabels": plan.selector()},
        // A pod that does not serve anyway must not hold up the drain of its node.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    });
    let budget = plan.parameters.disruption_budget.as_ref();
    let min = budget.and_then(|budget| budget.min_available.as_ref());
    match min {
        Some(min) => set(&mut spec, "minAvailable", Some(min)),
        None => {
            let max = budget.and_then(|budget| budget.max_unavailable.clone());
            set(&mut spec, "maxUnavailable", Some(max.unwrap_or(json!(1))));
        }
    }
    let kind = ChildKind::PodDisruptionBudget;
    Some(plan.child(kind, &plan.name, None, json!({"spec": spec})))
}

/// The autoscaler, where parameters ask for one.
pub(super) fn autoscaler(plan: &Plan<'_>) -> Option<Child> {
    let autoscaling = plan.autoscaling()?;
    let (min, max) = bounds(autoscaling);
    let spec = json!({
        "scaleTargetRef": {
            "apiVersion": ChildKind::Deployment.api_version(),
            "kind": ChildKind::Deployment.kind(),
            "name": plan.name,
        },
        "minReplicas": min,
        "maxReplicas": max,
        "metrics": [{
            "type": "Resource",
            "resource": {
                "name": "cpu",
                "target": {
                    "type": "Utilization",
                    "averageUtilization": autoscaling.target_cpu.unwrap_or(TARGET_CPU),
                },
            },
        }],
    });
    let kind = ChildKind::HorizontalPodAutoscaler;
    Some(plan.child(kind, &plan.name, None, json!({"spec": spec})))
}
