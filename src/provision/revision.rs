//! What tells versions of a Gateway's pods apart: one hash of their template, and one of what users decide of it. Their
//! difference tells whose change replaces pods.

use serde_json::{Map, Value, json};

use super::{Plan, name};

/// A version of a workload's pods. Hashes are the same in every process and version of this program, as long as it
/// makes the same of the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// Hash of the pod template: pods are replaced when it changes.
    pub template: String,
    /// Hash of what the Gateway and its parameters say about the workload. Where it stays the same, a change of the
    /// template is the controller's own.
    pub parameters: String,
}

impl Revision {
    /// The version that a plan asks for.
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
        // None of these is about pods.
        for field in ["autoscaling", "disruptionBudget", "service"] {
            fields.remove(field);
        }
    }
    let infrastructure = plan.gateway.spec.infrastructure.as_ref();
    let texts = infrastructure.map(|asked| (&asked.labels, &asked.annotations));
    let mut all = json!({
        "parameters": parameters,
        "infrastructure": texts,
        // Ports of listeners count where they decide about rights.
        "ports": plan.needs_privileged_ports(),
    });
    strip(&mut all);
    all
}

/// Takes away what is null or empty: fields that a later version of this program adds.
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
