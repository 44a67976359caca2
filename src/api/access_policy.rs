//! AccessPolicy, a CRD of Portcullis: who may send requests. Its CRD is deploy/crds/accesspolicies.yaml.

use std::collections::BTreeMap;
use std::fmt::Arguments;

use serde::{Deserialize, Serialize};
use thin_vec::ThinVec;

use super::filter::ExternalAuth;
use super::http_route::{NameValueMatch, PathMatch};
use super::inherited_policy::{
    InheritedPolicy, SectionTargetRef, Strategy, Unreadable, inherited, targets,
};
use super::meta::ObjectMeta;
use super::reference::{
    BackendObjectRef, ConfigMapRef, Credential, Found, ReferenceField, Role, SecretRef,
};

/// Who may send requests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct AccessPolicy {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: AccessSpec,
    /// Present if the policy is not valid: its requests are refused. Not a field of the CRD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<Box<Unreadable>>,
    /// What is not valid of the policy, if this is the version before: its further targets, whose requests are refused. Only
    /// a folder leaves the version before in service.
    #[serde(skip)]
    pub pending: Option<Box<Self>>,
    /// Why a pod gets none of the credentials that the policy names. Not a field of the CRD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<Box<str>>,
}

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
    /// Sign-in at an OpenID provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oidc: Option<Oidc>,
    /// The permission of an authorization server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// Which credentials a request needs: `All` or `Any`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require: Option<String>,
    /// Which clients may send which requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization: Option<Authorization>,
}

/// Takes the fields with credentials, each with its path.
pub type FoundCredentials<'f> = dyn FnMut(Arguments<'_>, ReferenceField<'_>) + 'f;

impl AccessSpec {
    /// Visits the fields that refer to other objects.
    pub fn references(&self, found: &mut Found<'_>) {
        targets(&self.target_refs, found);
        self.credentials(&mut |_, field| found(field));
        let providers = self.jwt.iter().flat_map(|it| &it.providers);
        let remotes = providers.filter_map(|it| it.jwks.remote.as_ref());
        for server in remotes.filter_map(|it| it.backend_ref.as_ref()) {
            found(server.in_role(Role::KeyServer));
        }
        if let Some(external) = &self.external {
            found(external.auth.backend_ref.in_role(Role::Server));
        }
    }

    /// Visits the fields that refer to credentials, in their order, each with its path.
    pub fn credentials(&self, found: &mut FoundCredentials<'_>) {
        if let Some(basic) = &self.basic {
            let field = basic
                .secret_ref
                .in_role(Role::Credential(Credential::Users));
            found(format_args!("spec.basic.secretRef"), field);
        }
        let secrets = self.api_key.iter().flat_map(|it| &it.secret_refs);
        for (index, secret) in secrets.enumerate() {
            let field = secret.in_role(Role::Credential(Credential::ApiKeys));
            found(format_args!("spec.apiKey.secretRefs[{index}]"), field);
        }
        let providers = self.jwt.iter().flat_map(|it| &it.providers);
        for (index, provider) in providers.enumerate() {
            let jwks = &provider.jwks;
            jwks.credentials(format_args!("spec.jwt.providers[{index}].jwks"), found);
        }
        let Some(oidc) = &self.oidc else {
            return;
        };
        if let Some(secret) = &oidc.client_secret_ref {
            let field = secret.in_role(Role::Credential(Credential::ClientSecret));
            found(format_args!("spec.oidc.clientSecretRef"), field);
        }
        if let Some(map) = &oidc.ca_config_map_ref {
            let field = map.in_role(Role::Credential(Credential::Authorities));
            found(format_args!("spec.oidc.caConfigMapRef"), field);
        }
    }
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
    pub headers: ThinVec<NameValueMatch>,
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
    /// The header `typ` of its tokens; absent for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub typ: Option<String>,
    /// Algorithms of signatures; empty for all that the keys have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<String>,
}

/// Sign-in of browsers at an OpenID provider, with the authorization code flow of OpenID Connect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Oidc {
    /// The provider: its discovery document is below this URL, and has the same issuer.
    pub issuer: String,
    /// The client that the provider knows.
    #[serde(rename = "clientID")]
    pub client_id: String,
    /// A Secret with the secret of the client; absent for a public client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret_ref: Option<SecretRef>,
    /// Scopes in addition to `openid`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Parameters of authorization requests in addition, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub authorization_parameters: BTreeMap<String, String>,
    /// Where the provider sends browsers back to; absent means `/oauth2/callback`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redirect_path: Option<String>,
    /// Where browsers sign out; absent means `/oauth2/logout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logout_path: Option<String>,
    /// Where the provider ends sessions; absent means nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_channel_logout_path: Option<String>,
    /// Cookies of sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<OidcCookie>,
    /// Header with the access token, for backends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_access_token: Option<String>,
    /// Header with the ID token, for backends.
    #[serde(rename = "forwardIDToken", skip_serializing_if = "Option::is_none")]
    pub forward_id_token: Option<String>,
    /// Headers with claims of the ID token, for backends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim_to_headers: Vec<ClaimHeader>,
    /// Media types: requests that accept one of them by name are redirected; empty means `text/html`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redirect_only_for: Vec<String>,
    /// Whether a bearer token that `jwt` accepts is enough.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pass_through_bearer: bool,
    /// When a session ends at the latest; absent means 24 hours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absolute_timeout: Option<String>,
    /// A ConfigMap with the authorities of the provider's certificates; absent means those that the platform trusts.
    #[serde(rename = "caConfigMapRef", skip_serializing_if = "Option::is_none")]
    pub ca_config_map_ref: Option<ConfigMapRef>,
}

/// Cookies of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OidcCookie {
    /// Name; absent means one that no other policy has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Attribute `Domain`; absent means the host alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Attribute `SameSite`: `Lax`, `Strict` or `None`; absent means `Lax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_site: Option<String>,
    /// Attribute `Path`; absent means `/`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// The permission of an authorization server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct External {
    /// The server, and what it gets of a request: the fields of the ExternalAuth filter.
    #[serde(flatten)]
    pub auth: ExternalAuth,
    /// Where browsers sign in whose requests the server refuses with 401.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sign_in_redirect: Option<String>,
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
    /// A JSON Web Key Set that the issuer publishes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteJwks>,
}

impl Jwks {
    fn credentials(&self, path: Arguments<'_>, found: &mut FoundCredentials<'_>) {
        if let Some(map) = &self.config_map_ref {
            let field = map.in_role(Role::Credential(Credential::KeySet));
            found(format_args!("{path}.configMapRef"), field);
        }
        if let Some(secret) = &self.secret_ref {
            let field = secret.in_role(Role::Credential(Credential::SharedKey));
            found(format_args!("{path}.secretRef"), field);
        }
        let remote = self.remote.as_ref();
        if let Some(map) = remote.and_then(|it| it.ca_config_map_ref.as_ref()) {
            let field = map.in_role(Role::Credential(Credential::Authorities));
            found(format_args!("{path}.remote.caConfigMapRef"), field);
        }
    }
}

/// A JSON Web Key Set that is fetched.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteJwks {
    /// Where it is: `https://…`, or `http://` with a loopback address or a backend.
    pub uri: String,
    /// After which time at the latest it is fetched again; absent means 5 minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_duration: Option<String>,
    /// A ConfigMap with the authorities of the server's certificate; absent means those that the platform trusts.
    #[serde(rename = "caConfigMapRef", skip_serializing_if = "Option::is_none")]
    pub ca_config_map_ref: Option<ConfigMapRef>,
    /// The Service that is asked; absent means the addresses of the host of `uri`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_ref: Option<BackendObjectRef>,
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

inherited!(AccessPolicy, pending);
