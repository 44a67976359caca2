//! XBackend, a backend by its name in DNS (GEP-4894). Experimental: its CRD is in the experimental channel of the Gateway
//! API only.

use serde::{Deserialize, Serialize};

use super::meta::{ObjectMeta, resource};
use super::policy::BackendTlsValidation;
use super::reference::SecretRef;

/// Group of the Gateway API's experimental kinds.
pub const EXPERIMENTAL_GROUP: &str = "gateway.networking.x-k8s.io";

/// A backend outside of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct XBackend {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: XBackendSpec,
}
resource!(XBackend, EXPERIMENTAL_GROUP, "XBackend");

/// Spec of an XBackend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct XBackendSpec {
    /// `ExternalHostname`, the only type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Port.
    pub port: XBackendPort,
    /// Where it is, of the type `ExternalHostname`.
    pub external_hostname: Option<ExternalHostname>,
    /// `TCP`, `HTTP`, `HTTP2`, `HTTP11`, `H2C` or `MCP`; absent means what the route asks for.
    pub protocol: Option<String>,
    /// TLS; absent means plain text.
    pub tls: Option<XBackendTls>,
}

/// Port of an XBackend. Its name means nothing here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct XBackendPort {
    /// Number.
    pub port: u16,
}

/// Where an XBackend is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExternalHostname {
    /// A fully qualified DNS name.
    pub hostname: String,
}

/// TLS to an XBackend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct XBackendTls {
    /// `None`, `ServerOnly` or `ClientAndServer`.
    pub mode: String,
    /// What is presented in the mode `ClientAndServer`.
    pub client_certificate_ref: Option<SecretRef>,
    /// What the certificate of the backend has to satisfy.
    pub validation: Option<BackendTlsValidation>,
}
