//! Identity of a Gateway's pods: a hash of the pod template, and a hash of the user's settings in
//! it. Together they show whether the user or the controller caused a change.

use serde_json::{Map, Value, json};

use super::child_plan::Plan;
use super::name;

/// Version of a workload's pods. Hashes are stable across processes and across versions of this
/// program while the hashed content is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Hash of the pod template: pods are replaced when it changes.
    pub template: String,
    /// Hash of the workload settings from the Gateway and its parameters. If it is unchanged, the
    /// controller caused a template change.
    pub parameters: String,
}

impl Revision {
    /// Returns the version of a plan.
    pub(super) fn of(plan: &Plan<'_>, template: &Value) -> Self {
        Self {
            template: hash(template),
            parameters: hash(&parameters(plan)),
        }
    }
}

fn parameters(plan: &Plan<'_>) -> Value {
    let mut parameters = json!(plan.parameters);
    if let Some(fields) = parameters.as_object_mut() {
        // These parameters do not affect pods.
        for field in [
            "autoscaling",
            "disruptionBudget",
            "networkPolicy",
            "service",
        ] {
            fields.remove(field);
        }
    }
    let infrastructure = plan.gateway.spec.infrastructure.as_ref();
    let texts = infrastructure.map(|asked| (&asked.labels, &asked.annotations));
    let mut all = json!({
        "parameters": parameters,
        "infrastructure": texts,
        // Listener ports count only where they affect the container's capabilities.
        "ports": plan.needs_privileged_ports(),
    });
    strip(&mut all);
    all
}

/// Removes null and empty values, since a later version of this program may add such fields.
fn strip(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.values_mut().for_each(strip);
        fields.retain(|_, value| {
            !value.is_null() && value.as_object().is_none_or(|map| !Map::is_empty(map))
        });
    }
}

fn hash(value: &Value) -> String {
    format!("{:016x}", name::fnv1a(&value.to_string()))
}
