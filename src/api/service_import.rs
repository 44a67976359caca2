//! ServiceImport, a Service that clusters of a set share (Multi-Cluster Services API, KEP-1645). Its CRD is no part of
//! Kubernetes or the Gateway API.

use serde::{Deserialize, Serialize};

use super::core::ServicePort;
use super::meta::{ObjectMeta, resource};

/// Group of the Multi-Cluster Services API.
pub const MULTICLUSTER_GROUP: &str = "multicluster.x-k8s.io";

/// Label of an EndpointSlice that names its ServiceImport.
pub const SERVICE_IMPORT_LABEL: &str = "multicluster.kubernetes.io/service-name";

/// A Service of a set of clusters, as one of them sees it. Its type says how clients in the cluster reach it, which does not
/// matter to a proxy that connects to endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ServiceImport {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: ServiceImportSpec,
}
resource!(ServiceImport, MULTICLUSTER_GROUP, "ServiceImport");

/// Spec of a [`ServiceImport`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct ServiceImportSpec {
    /// Ports.
    pub ports: Vec<ServicePort>,
}
