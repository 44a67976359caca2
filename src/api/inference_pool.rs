//! InferencePool, a pool of model servers with an endpoint picker (Inference Extension of the Gateway API). Its CRD is part of
//! neither Kubernetes nor the Gateway API. Where the kind is named: its group may change with a later release.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::meta::ObjectMeta;
use super::reference::{Found, ReferenceField, Role, service_kind};
use crate::ir::sharing::Text;

/// Group of the Inference Extension.
pub const INFERENCE_GROUP: &str = "inference.networking.k8s.io";

/// Annotation of a pod with the target ports that it serves, such as `8000,8001`; without it, it serves all.
pub const ACTIVE_PORTS: &str = "inference.networking.k8s.io/active-ports";

/// A pool of model servers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct InferencePool {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: InferencePoolSpec,
}

/// Spec of an [`InferencePool`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InferencePoolSpec {
    /// The pods, in the namespace of the pool.
    pub selector: PodSelector,
    /// The ports of each pod. Each is an endpoint of its own.
    pub target_ports: Vec<PoolPort>,
    /// `http` (the default) or `kubernetes.io/h2c`, for all ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
    /// The picker; absent means that requests are balanced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint_picker_ref: Option<EndpointPickerRef>,
}

/// Selects pods by labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSelector {
    /// Labels that a pod must have, all of them.
    pub match_labels: BTreeMap<String, String>,
}

/// A port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct PoolPort {
    /// Number.
    pub number: u16,
}

/// A reference to an endpoint picker, in the namespace of the pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointPickerRef {
    /// Group, core by default.
    pub group: Text,
    /// Kind, `Service` by default.
    #[serde(default = "service_kind")]
    pub kind: Text,
    /// Name.
    pub name: Text,
    /// Port of the Service; required for a Service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<PoolPort>,
    /// `FailOpen` or `FailClose` (the default): what happens to requests while the picker cannot be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_mode: Option<String>,
}

impl InferencePoolSpec {
    /// Visits the field that refers to another object.
    pub fn references(&self, found: &mut Found<'_>) {
        if let Some(picker) = &self.endpoint_picker_ref {
            found(picker.field());
        }
    }
}

impl EndpointPickerRef {
    /// Returns the reference.
    pub fn field(&self) -> ReferenceField<'_> {
        ReferenceField {
            role: Role::Server,
            group: &self.group,
            kind: &self.kind,
            namespace: None,
            name: &self.name,
            port: self.port.map(|port| port.number),
        }
    }
}
