//! XBackend, a backend with a DNS name (GEP-4894). Experimental: its CRD is in the experimental channel of the Gateway
//! API only.

use serde::{Deserialize, Serialize};

use super::backend_tls_policy::BackendTlsValidation;
use super::meta::ObjectMeta;
use super::reference::{Found, Purpose, Role, SecretRef};

/// Group of the Gateway API's experimental kinds.
pub const EXPERIMENTAL_GROUP: &str = "gateway.networking.x-k8s.io";

/// A backend outside the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct XBackend {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: XBackendSpec,
}

/// Spec of an XBackend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct XBackendSpec {
    /// `ExternalHostname`, the only type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Port.
    pub port: XBackendPort,
    /// Its DNS name, for the type `ExternalHostname`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_hostname: Option<ExternalHostname>,
    /// `TCP`, `HTTP`, `HTTP2`, `HTTP11`, `H2C` or `MCP`; absent means the protocol that the route needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// TLS; absent means plain text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<XBackendTls>,
}

impl XBackendSpec {
    /// Visits the fields that refer to other objects.
    pub fn references(&self, found: &mut Found<'_>) {
        if let Some(tls) = &self.tls {
            if let Some(client) = &tls.client_certificate_ref {
                found(client.in_role(Role::Contents(Purpose::Certificate)));
            }
            tls.validation.iter().for_each(|it| it.references(found));
        }
    }
}

/// Port of an XBackend. Its name is not read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct XBackendPort {
    /// Number.
    pub port: u16,
}

/// The DNS name of an XBackend.
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
    /// Client certificate for the mode `ClientAndServer`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate_ref: Option<SecretRef>,
    /// How the backend's certificate is verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<BackendTlsValidation>,
}
