//! AccessPolicy, a CRD of Portcullis: who may send requests. Its CRD is deploy/crds/accesspolicies.yaml.

use serde::{Deserialize, Serialize};

use super::http_route::{NameValueMatch, PathMatch};
use super::inherited_policy::{InheritedPolicy, SectionTargetRef, Strategy};
use super::meta::{ObjectMeta, resource};
use super::parameters::GROUP;
use super::reference::{ConfigMapRef, SecretRef};

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
    /// JSON Web Tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwt: Option<Jwt>,
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
    /// All of these claims of a token.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<ClaimMatch>,
}

/// A condition on a claim.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ClaimMatch {
    /// Name of the claim. Names in an object follow its own name and a dot.
    pub name: String,
    /// The claim has one of these values, or is a list with one of them.
    pub values: Vec<String>,
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

/// A place of an API key or token in requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeySource {
    /// `Header`, `Query` or `Cookie`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the header, query parameter or cookie.
    pub name: String,
}

/// JSON Web Tokens (RFC 7519) that are signed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Jwt {
    /// Who issues them.
    pub providers: Vec<JwtProvider>,
}

/// An issuer of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JwtProvider {
    /// The claim `iss` of its tokens, which no other provider of the policy has.
    pub issuer: String,
    /// The claim `aud` has one of these; empty for any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
    /// The keys that verify its signatures.
    pub jwks: Jwks,
    /// Where requests have the token; absent means the header `Authorization`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub from: Vec<KeySource>,
    /// Headers with claims, for backends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim_to_headers: Vec<ClaimHeader>,
    /// By how much clocks may differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leeway: Option<String>,
    /// Algorithms of signatures; empty for all that the keys have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<String>,
}

/// Keys that verify signatures: one of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Jwks {
    /// A JSON Web Key Set (RFC 7517).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
    /// A ConfigMap with a JSON Web Key Set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapRef>,
    /// A Secret with a key that issuer and verifier share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// A header with a claim.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ClaimHeader {
    /// Name of the claim.
    pub claim: String,
    /// Name of the header.
    pub header: String,
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
