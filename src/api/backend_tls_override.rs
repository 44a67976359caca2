//! BackendTLSOverride, a CRD of Portcullis: TLS settings for Services, chosen by the senders of requests (GEP-3875). Its CRD
//! is deploy/crds/backendtlsoverrides.yaml.

use serde::{Deserialize, Serialize};

use super::meta::{ObjectMeta, resource};
use super::parameters::GROUP;
use super::policy::{BackendTlsSpec, TlsPolicy};

/// TLS settings for Services, chosen by the senders of requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BackendTlsOverride {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: BackendTlsSpec,
}
resource!(BackendTlsOverride, GROUP, "BackendTLSOverride");

impl TlsPolicy for BackendTlsOverride {
    fn spec(&self) -> &BackendTlsSpec {
        &self.spec
    }
}
