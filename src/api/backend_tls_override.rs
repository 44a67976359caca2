//! BackendTLSOverride, a CRD of Portcullis: TLS settings for Services, chosen by the senders of requests (GEP-3875). Its CRD
//! is deploy/crds/backendtlsoverrides.yaml.

use serde::{Deserialize, Serialize};

use super::backend_tls_policy::{BackendTlsSpec, TlsPolicy};
use super::inherited_policy::Unreadable;
use super::meta::ObjectMeta;

/// TLS settings for Services, chosen by the senders of requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct BackendTlsOverride {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: BackendTlsSpec,
    /// Present if the policy is not valid: requests to its targets are refused. Not a field of the CRD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<Box<Unreadable>>,
    /// What is not valid of the policy, if this is the version before: its further targets, whose requests are refused. Only
    /// a folder leaves the version before in service.
    #[serde(skip)]
    pub pending: Option<Box<Self>>,
}

impl TlsPolicy for BackendTlsOverride {
    fn spec(&self) -> &BackendTlsSpec {
        &self.spec
    }

    fn unreadable(&self) -> Option<&Unreadable> {
        self.unreadable.as_deref()
    }

    fn pending(&self) -> Option<&Self> {
        self.pending.as_deref()
    }
}
