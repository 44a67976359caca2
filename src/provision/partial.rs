//! The parts of existing objects that provisioning reads beside metadata: a hash of the spec, and the status of
//! workloads.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::rollout::Progress;
use crate::ir::fingerprint;

/// The parsed part of a spec.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialSpec {
    pub(super) replicas: Option<i64>,
    pub(super) hash: u64,
}

impl<'de> Deserialize<'de> for PartialSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spec = Value::deserialize(deserializer)?;
        Ok(Self {
            replicas: spec["replicas"].as_i64(),
            hash: fingerprint::of(&spec),
        })
    }
}

/// The parsed part of a status.
#[derive(Clone, Debug, Default)]
pub(super) struct PartialStatus {
    pub(super) progress: Progress,
    /// Why a workload cannot create pods.
    pub(super) failure: Option<String>,
}

impl<'de> Deserialize<'de> for PartialStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let status = Value::deserialize(deserializer)?;
        Ok(Self {
            failure: failure(&status),
            progress: Progress::deserialize(status).map_err(D::Error::custom)?,
        })
    }
}

/// Returns why a workload cannot create pods. A Deployment has the API server's message in a condition; a DaemonSet has it
/// in Events only.
fn failure(status: &Value) -> Option<String> {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let failure = conditions.find(|one| one["type"] == "ReplicaFailure" && one["status"] == "True");
    if let Some(failure) = failure {
        let message = failure["message"].as_str().unwrap_or_default();
        return Some(format!("the API server refuses its pods: {message}"));
    }
    let count = |field: &str| status[field].as_i64();
    let wanted = count("desiredNumberScheduled")?;
    let existing = count("currentNumberScheduled")?;
    (existing < wanted).then(|| {
        format!(
            "{existing} of {wanted} pods exist: if this lasts, its Events say what refuses them"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failure(status: Value) -> Option<String> {
        let status: PartialStatus = serde_json::from_value(status).unwrap();
        status.failure
    }

    #[test]
    fn deployment_has_the_message_of_the_api_server() {
        let condition = |kind: &str, status: &str| {
            json!({"conditions": [
                {"type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable"},
                {"type": kind, "status": status, "message": "exceeded quota: small"},
            ]})
        };
        let found = failure(condition("ReplicaFailure", "True")).unwrap();
        assert!(found.ends_with("exceeded quota: small"), "{found}");
        assert_eq!(failure(condition("ReplicaFailure", "False")), None);
        assert_eq!(failure(condition("Progressing", "True")), None);
        assert_eq!(failure(json!({})), None);
    }

    #[test]
    fn daemon_set_counts_the_pods_that_exist() {
        let daemon_set = |wanted: i64, existing: i64| json!({"desiredNumberScheduled": wanted, "currentNumberScheduled": existing});
        assert_eq!(failure(daemon_set(2, 2)), None);
        assert!(
            failure(daemon_set(2, 1))
                .unwrap()
                .starts_with("1 of 2 pods")
        );
    }
}
