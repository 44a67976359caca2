//! AccessPolicy, a CRD of Portcullis: who may send requests. Its CRD is deploy/crds/accesspolicies.yaml.

use serde::{Deserialize, Serialize};

use super::http_route::{NameValueMatch, PathMatch};
use super::inherited_policy::{InheritedPolicy, SectionTargetRef, Strategy};
use super::meta::{ObjectMeta, resource};
use super::parameters::GROUP;
use super::reference::SecretRef;

/// Who may send requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct AccessPolicy {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: AccessSpec,
}
resource!(AccessPolicy, GROUP, "AccessPolicy");

/// Spec of an AccessPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessSpec {
    /// Gateways, ListenerSets and routes in the policy's namespace.
    pub target_refs: Vec<SectionTargetRef>,
    /// How it relates to policies of more specific targets.
    pub strategy: Strategy,
    /// Addresses of clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip_rules: Option<IpRules>,
    /// User names and passwords.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic: Option<Basic>,
    /// API keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ApiKey>,
    /// Which credentials a request needs: `All` or `Any`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require: Option<String>,
    /// Which clients may send which requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization: Option<Authorization>,
}

/// Which clients may send which requests. The first rule that a request meets decides.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Authorization {
    /// Rules, in order.
    pub rules: Vec<AuthorizationRule>,
    /// `Allow` or `Deny`, for requests that meet no rule; absent means `Deny`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

/// A rule of an authorization.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct AuthorizationRule {
    /// Name, unique within the policy.
    pub name: String,
    /// `Allow` or `Deny`.
    pub action: String,
    /// Conditions, which must all hold; absent means every request.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub condition: Option<AccessMatch>,
}

/// Conditions on requests and clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct AccessMatch {
    /// One of these methods.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// One of these paths.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathMatch>,
    /// All of these headers.
    #[serde(skip_serializing_if = "<[NameValueMatch]>::is_empty")]
    pub headers: Box<[NameValueMatch]>,
    /// An address in one of these CIDRs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cidrs: Vec<String>,
    /// One of these users or clients with API keys.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<String>,
}

/// User names and passwords of HTTP's Basic authentication (RFC 7617).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Basic {
    /// Secret with the users, as lines of an htpasswd file.
    pub secret_ref: SecretRef,
    /// What clients are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub realm: Option<String>,
    /// Header with the name of the user, for backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_user: Option<String>,
}

/// API keys.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Secrets with the key of each client.
    pub secret_refs: Vec<SecretRef>,
    /// Where requests have the key.
    pub from: Vec<KeySource>,
    /// Header with the name of the client, for backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_client: Option<String>,
    /// Whether backends get the key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
}

/// A place of an API key in requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeySource {
    /// `Header`, `Query` or `Cookie`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the header, query parameter or cookie.
    pub name: String,
}

/// Addresses that may send requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct IpRules {
    /// CIDRs; absent means every address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<Vec<String>>,
    /// CIDRs that are refused in any case.
    pub deny: Vec<String>,
}

impl InheritedPolicy for AccessPolicy {
    fn target_refs(&self) -> &[SectionTargetRef] {
        &self.spec.target_refs
    }

    fn overrides(&self) -> bool {
        self.spec.strategy == Strategy::Overrides
    }
}
