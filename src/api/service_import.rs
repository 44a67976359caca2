//! ServiceImport, a Service that is shared by a set of clusters (Multi-Cluster Services API, KEP-1645). Its CRD is part
//! of neither Kubernetes nor the Gateway API.

use serde::{Deserialize, Serialize};

use super::core::{SERVICE_NAME_LABEL, ServicePort};
use super::meta::ObjectMeta;

/// Group of the Multi-Cluster Services API.
pub const MULTICLUSTER_GROUP: &str = "multicluster.x-k8s.io";

/// Label of an EndpointSlice that names its ServiceImport.
pub const SERVICE_IMPORT_LABEL: &str = "multicluster.kubernetes.io/service-name";

/// The labels by which an EndpointSlice names the objects whose endpoints it has.
pub const OWNER_LABELS: [&str; 2] = [SERVICE_NAME_LABEL, SERVICE_IMPORT_LABEL];

/// A Service of a set of clusters, as seen from one of them. Its type is not read: it says how clients reach the
/// Service, but Portcullis connects to the endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ServiceImport {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: ServiceImportSpec,
}

/// Spec of a [`ServiceImport`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ServiceImportSpec {
    /// Ports.
    pub ports: Vec<ServicePort>,
}
