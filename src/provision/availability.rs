//! Number of pods of a Gateway: its PodDisruptionBudget and HorizontalPodAutoscaler.

use serde_json::json;

use super::child::{Child, ChildKind};
use super::child_plan::{Plan, set};
use crate::api::parameters::{Autoscaling, WorkloadKind};

/// Default number of replicas.
const REPLICAS: u32 = 2;
/// Default maximum of the autoscaler.
const MAX_REPLICAS: u32 = 10;
/// Default target of the autoscaler, in percent of the requested CPU.
const TARGET_CPU: u32 = 80;

impl Plan<'_> {
    /// Reports whether a DaemonSet runs one pod per node.
    pub(super) fn is_daemon_set(&self) -> bool {
        self.parameters.workload.kind == Some(WorkloadKind::DaemonSet)
    }

    /// Returns the fixed number of replicas; `None` if a DaemonSet or autoscaler decides.
    pub(super) fn replicas(&self) -> Option<u32> {
        let is_fixed = !self.is_daemon_set() && self.parameters.autoscaling.is_none();
        is_fixed.then(|| self.parameters.workload.replicas.unwrap_or(REPLICAS))
    }

    fn autoscaling(&self) -> Option<&Autoscaling> {
        let autoscaling = self.parameters.autoscaling.as_ref();
        autoscaling.filter(|_| !self.is_daemon_set())
    }
}

/// Returns the minimum and maximum of the autoscaler. Adjusts a missing bound to the given one.
fn bounds(autoscaling: &Autoscaling) -> (u32, u32) {
    match (autoscaling.min_replicas, autoscaling.max_replicas) {
        (Some(min), max) => (min, max.unwrap_or(MAX_REPLICAS.max(min))),
        (None, max) => {
            let max = max.unwrap_or(MAX_REPLICAS);
            (REPLICAS.min(max), max)
        }
    }
}

/// Builds the PodDisruptionBudget. A single replica gets none: a budget would either block every
/// eviction or have no effect.
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
        // A pod that is not ready must not block the drain of its node.
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

/// Builds the autoscaler, if the parameters configure one.
pub(super) fn autoscaler(plan: &Plan<'_>) -> Option<Child> {
    let autoscaling = plan.autoscaling()?;
    let (min, max) = bounds(autoscaling);
    let utilization = || {
        json!([{
            "type": "Resource",
            "resource": {
                "name": "cpu",
                "target": {
                    "type": "Utilization",
                    "averageUtilization": autoscaling.target_cpu.unwrap_or(TARGET_CPU),
                },
            },
        }])
    };
    let asked = autoscaling.metrics.as_ref();
    let mut spec = json!({
        "scaleTargetRef": {
            "apiVersion": ChildKind::Deployment.api_version(),
            "kind": ChildKind::Deployment.name(),
            "name": plan.name,
        },
        "minReplicas": min,
        "maxReplicas": max,
        "metrics": asked.map_or_else(utilization, |metrics| json!(metrics)),
    });
    set(&mut spec, "behavior", autoscaling.behavior.as_ref());
    let kind = ChildKind::HorizontalPodAutoscaler;
    Some(plan.child(kind, &plan.name, None, json!({"spec": spec})))
}
