//! Pod, with the fields that define endpoints: labels, ports of containers, the ports that it serves of a pool, addresses,
//! readiness and whether it has ended. Other fields are not read, so that a change of them does not change the object.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::inference_pool::ACTIVE_PORTS;
use super::meta::ObjectMeta;

/// A Pod, without other annotations than [`ACTIVE_PORTS`].
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Pod {
    /// Metadata.
    #[serde(deserialize_with = "without_others")]
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: PodSpec,
    /// Status.
    #[serde(default)]
    pub status: PodStatus,
}

/// Spec of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Containers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
    /// Init containers. Those with restart policy `Always` are sidecars: they keep running beside the others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub init_containers: Vec<Container>,
}

/// A container of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Ports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<ContainerPort>,
    /// `Always` makes an init container a sidecar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
}

/// A port of a [`Container`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Name, to which the `targetPort` of a Service can refer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number.
    pub container_port: u16,
    /// `TCP` (the default), `UDP` or `SCTP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// Status of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Whether the condition `Ready` is true.
    #[serde(
        rename = "conditions",
        deserialize_with = "ready_condition",
        serialize_with = "as_conditions"
    )]
    pub is_ready: bool,
    /// Whether the phase is `Succeeded` or `Failed`. Another pod may have the address by then.
    #[serde(
        rename = "phase",
        deserialize_with = "ended_phase",
        serialize_with = "as_phase",
        skip_serializing_if = "std::ops::Not::not"
    )]
    pub has_ended: bool,
    /// The first address.
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    /// All addresses of the pod, at most one of each family.
    #[serde(rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<PodIp>,
}

/// An address of a [`Pod`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PodIp {
    /// The address.
    pub ip: String,
}

impl Pod {
    /// Returns the containers that run as long as the pod does.
    pub fn running_containers(&self) -> impl Iterator<Item = &Container> {
        let sidecars = self.spec.init_containers.iter();
        let sidecars = sidecars.filter(|it| it.restart_policy.as_deref() == Some("Always"));
        self.spec.containers.iter().chain(sidecars)
    }
}

/// Reads metadata without the annotations that are not used here: they can be long.
fn without_others<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let mut metadata = ObjectMeta::deserialize(deserializer)?;
    let ports = metadata.annotations.get(ACTIVE_PORTS);
    let ports = ports.map(|ports| (ACTIVE_PORTS.to_owned(), ports.clone()));
    metadata.annotations = ports.into_iter().collect::<BTreeMap<_, _>>().into();
    Ok(metadata)
}

/// A condition. Heartbeat, message and other fields are not read, so that they do not change the object.
#[derive(Deserialize, Serialize)]
struct PodCondition {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    status: String,
}

fn ready_condition<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let conditions: Option<Vec<PodCondition>> = Option::deserialize(deserializer)?;
    let is_ready = |it: &PodCondition| it.kind == "Ready" && it.status == "True";
    Ok(conditions.iter().flatten().any(is_ready))
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde gives a reference to the field"
)]
fn as_conditions<S: serde::Serializer>(is_ready: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    let ready = PodCondition {
        kind: "Ready".to_owned(),
        status: if *is_ready { "True" } else { "False" }.to_owned(),
    };
    [ready].serialize(serializer)
}

fn ended_phase<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let phase: Option<String> = Option::deserialize(deserializer)?;
    Ok(matches!(phase.as_deref(), Some("Succeeded" | "Failed")))
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde gives a reference to the field"
)]
fn as_phase<S: serde::Serializer>(has_ended: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    let phase = if *has_ended { "Failed" } else { "Running" };
    phase.serialize(serializer)
}
