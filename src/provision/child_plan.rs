//! What the desired objects of a Gateway are made from.

use serde_json::{Value, json};

use super::data_plane::DataPlane;
use super::name;
use crate::api::gateway::Gateway;
use crate::api::parameters::Parameters;

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

/// Input for all objects of one Gateway.
pub(super) struct Plan<'a> {
    pub(super) gateway: &'a Gateway,
    pub(super) data_plane: &'a DataPlane,
    pub(super) parameters: &'a Parameters,
    pub(super) image: &'a str,
    pub(super) stream: &'a StreamEndpoint,
    /// Name of most of the objects.
    pub(super) name: String,
}

impl Plan<'_> {
    /// Reports whether pods use the host network.
    pub(super) fn is_on_host(&self) -> bool {
        self.parameters.workload.host_network == Some(true)
    }
}

/// Returns the name of the ConfigMap with the controller's CA bundle.
pub(super) fn certificates_name(plan: &Plan<'_>) -> String {
    name::dns_label(&format!("{}-controller-ca", plan.name))
}

/// Sets a field if there is a value.
pub(super) fn set(object: &mut Value, field: &str, value: Option<impl serde::Serialize>) {
    if let (Some(fields), Some(value)) = (object.as_object_mut(), value) {
        fields.insert(field.to_owned(), json!(value));
    }
}
