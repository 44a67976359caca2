//! KeySet, a kind without a CRD: a JSON Web Key Set that was fetched for the AccessPolicies of a namespace, for OpenID providers
//! with the endpoints of their discovery document. The process that
//! fetches it puts it beside the objects of the cluster or folder, and a controller streams it to pods as one of these.

use serde::{Deserialize, Serialize};

use super::access_policy::{Oidc, RemoteJwks};
use super::meta::ObjectMeta;
use super::reference::ConfigMapRef;

/// A fetched key set. Its namespace is that of the policies, and its name is [`KeySet::name_of`] what they refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeySet {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// The last valid response; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<String>,
    /// What the discovery document of an OpenID provider says; absent for other key sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<Discovery>,
    /// Why the last fetch failed; absent if it did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// What the discovery document of an OpenID provider says (OpenID Connect Discovery 1.0, 3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Discovery {
    /// Where browsers sign in.
    pub authorization_endpoint: String,
    /// Where codes are exchanged for tokens.
    pub token_endpoint: String,
    /// Where browsers sign out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_session_endpoint: Option<String>,
    /// Whether clients send their secret in the form, since the provider does not take it in the header.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub secret_in_form: bool,
    /// Whether every response to an authorization request has `iss` (RFC 9207).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sends_issuer: bool,
}

impl KeySet {
    /// Returns the name of the key set that a policy refers to. A URI with other authorities or another backend is another
    /// key set.
    pub fn name_of(remote: &RemoteJwks) -> String {
        let RemoteJwks {
            uri,
            cache_duration: _,
            ca_config_map_ref,
            backend_ref,
        } = remote;
        let Some(backend) = backend_ref else {
            return with_authorities(uri.clone(), ca_config_map_ref.as_ref());
        };
        // Names of objects have no `#` and no `/`.
        let map = ca_config_map_ref.as_ref();
        let map = map.map_or("", |map| &*map.name);
        let namespace = backend.namespace.as_deref().unwrap_or_default();
        let port = backend.port.unwrap_or_default();
        format!("{uri}#{map}#{namespace}/{}:{port}", backend.name)
    }

    /// Returns the name of the key set of an OpenID provider. No URI of a key set has this scheme.
    pub fn name_of_provider(oidc: &Oidc) -> String {
        let name = format!("openid:{}", oidc.issuer);
        with_authorities(name, oidc.ca_config_map_ref.as_ref())
    }
}

fn with_authorities(uri: String, map: Option<&ConfigMapRef>) -> String {
    match map {
        // URIs have no fragment here.
        Some(map) => format!("{uri}#{}", map.name),
        None => uri,
    }
}
