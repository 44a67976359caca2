//! Policies on TLS to Services: BackendTLSPolicy and BackendTLSOverride, which have the same fields.

use std::collections::BTreeMap;
use std::iter;

use serde::{Deserialize, Serialize};

use super::inherited_policy::Unreadable;
use super::meta::{ObjectMeta, Resource};
use super::reference::{
    Found, LocalObjectReference, Purpose, ReferenceField, Role, gateway_group, shapes,
};

/// Declares a kind of [`TlsPolicy`].
macro_rules! tls_policy {
    ($(#[$doc:meta])+ $type:ident) => {
        $(#[$doc])+
        #[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
        pub struct $type {
            /// Metadata.
            pub metadata: ObjectMeta,
            /// Spec.
            #[serde(default)]
            pub spec: BackendTlsSpec,
            /// Present if the policy is not valid: requests to its targets are refused. Not a field of the CRD.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub unreadable: Option<Box<Unreadable>>,
            /// What is not valid of the policy, if this is the version before: its further targets, whose requests are
            /// refused. Only a folder leaves the version before in service.
            #[serde(skip)]
            pub pending: Option<Box<Self>>,
        }

        impl TlsPolicy for $type {
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
    };
}

tls_policy! {
    /// A BackendTLSPolicy: TLS settings for Services, chosen by their owners.
    BackendTlsPolicy
}
tls_policy! {
    /// A BackendTLSOverride, a CRD of Portcullis (deploy/crds/backendtlsoverrides.yaml): TLS settings for Services, chosen by
    /// the senders of requests (GEP-3875).
    BackendTlsOverride
}

/// A kind of policy on TLS to Services. All such kinds have the same spec.
pub trait TlsPolicy: Resource + Eq {
    /// Returns the spec.
    fn spec(&self) -> &BackendTlsSpec;

    /// Returns why it is not valid; `None` if it is.
    fn unreadable(&self) -> Option<&Unreadable>;

    /// Returns the further targets of a later version that is not valid.
    fn pending(&self) -> Option<&Self>;

    /// Returns the targets, each with why its requests are refused if only a later version has it, which is not valid.
    fn targets(&self) -> impl Iterator<Item = (&PolicyTargetRef, Option<&Unreadable>)> {
        let pending = self.pending().into_iter();
        let pending = pending.flat_map(|it| {
            it.spec()
                .target_refs
                .iter()
                .zip(iter::repeat(it.unreadable()))
        });
        let own = self.spec().target_refs.iter().map(|target| (target, None));
        own.chain(pending)
    }
}

/// Spec of a policy on TLS to Services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsSpec {
    /// Targets.
    pub target_refs: Vec<PolicyTargetRef>,
    /// `TLS` (the default) or `None` for plain text (GEP-3875).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// How the backend's certificate is verified.
    pub validation: BackendTlsValidation,
    /// Options under a domain prefix.
    pub options: BTreeMap<String, String>,
}

impl BackendTlsSpec {
    /// Visits the fields that refer to other objects.
    pub fn references(&self, found: &mut Found<'_>) {
        for target in &self.target_refs {
            found(target.in_role(Role::Target));
            target
                .from
                .iter()
                .for_each(|it| found(it.in_role(Role::Sender)));
        }
        self.validation.references(found);
    }
}

/// How a backend's certificate is verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTlsValidation {
    /// ConfigMaps or Secrets with trusted CA certificates, in the policy's namespace.
    pub ca_certificate_refs: Vec<LocalObjectReference>,
    /// `System` trusts the authorities that the platform trusts.
    #[serde(rename = "wellKnownCACertificates")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub well_known_ca_certificates: Option<String>,
    /// The name that is sent as SNI. The certificate must have it, unless `subjectAltNames` are set.
    pub hostname: String,
    /// Names; the certificate must have one of them.
    pub subject_alt_names: Vec<SubjectAltName>,
    /// Whether verification by authorities and names is skipped.
    pub insecure_skip_verify: bool,
    /// `sha256/` and the base64 of the SHA-256 of a SubjectPublicKeyInfo. The certificate must have one of these keys.
    pub pins: Vec<String>,
}

impl BackendTlsValidation {
    /// Visits the fields that refer to other objects.
    pub fn references(&self, found: &mut Found<'_>) {
        for authority in &self.ca_certificate_refs {
            found(authority.in_role(Role::Contents(Purpose::Authority)));
        }
    }
}

/// A name of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SubjectAltName {
    /// `Hostname` or `URI`.
    #[serde(rename = "type")]
    pub kind: String,
    /// A DNS name, for the type `Hostname`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// A URI, for the type `URI`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// A target of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyTargetRef {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace; absent means the policy's own (GEP-3875).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// Name of a port; absent means every port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
    /// The sender whose requests the policy applies to; absent means every sender (GEP-3875).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<FromRef>,
}

/// A sender of requests, in the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FromRef {
    /// Group, the Gateway API's by default.
    #[serde(default = "gateway_group")]
    pub group: String,
    /// Kind: a Gateway, a ListenerSet or a kind of route.
    pub kind: String,
    /// Name.
    pub name: String,
    /// A listener, or a rule of a route; absent means the whole object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_name: Option<String>,
}

shapes! {
    PolicyTargetRef: it => it.namespace.as_deref().filter(|it| !it.is_empty()), None;
    FromRef: it => None, None;
}
