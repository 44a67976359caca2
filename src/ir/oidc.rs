//! Sign-in at an OpenID provider, as a policy asks for it. Never prints the secret of the client. Must not know requests.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use http::{HeaderName, Uri};
use serde::{Serialize, Serializer};

use super::ObjectRef;
use super::named::named;
use super::serialized::optional_name;
use super::tls::Authorities;
use super::token::Provider;

/// For how long a sign-in may take, in seconds.
pub const SIGN_IN_LIFETIME: u64 = 600;

/// The section `oidc` of an AccessPolicy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Oidc {
    /// The policy.
    pub policy: ObjectRef,
    /// The client that the provider knows.
    pub client_id: Box<str>,
    /// Its secret; `None` for a public client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<ClientSecret>,
    /// What verifies ID tokens. Their audience is the client.
    pub id_token: Provider,
    /// The endpoints of the provider; `None` as long as they are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Endpoints>,
    /// The authorities of the provider's certificates.
    pub authorities: Authorities,
    /// Scopes, with spaces between them.
    pub scope: Box<str>,
    /// Parameters of authorization requests in addition, by name. None is one of the protocol.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub authorization_parameters: BTreeMap<Box<str>, Box<str>>,
    /// Where the provider sends browsers back to.
    pub redirect_path: Box<str>,
    /// Where browsers sign out.
    pub logout_path: Box<str>,
    /// Where the provider ends sessions; `None` if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_channel_logout_path: Option<Box<str>>,
    /// Cookies of sessions.
    pub cookie: CookieSettings,
    /// Header with the access token. In `Authorization` it follows the scheme `Bearer`.
    #[serde(
        serialize_with = "optional_name",
        skip_serializing_if = "Option::is_none"
    )]
    pub access_token_header: Option<HeaderName>,
    /// Header with the ID token, likewise.
    #[serde(
        serialize_with = "optional_name",
        skip_serializing_if = "Option::is_none"
    )]
    pub id_token_header: Option<HeaderName>,
    /// Media types: requests that accept one of them by name are redirected. Lower case; never empty.
    pub redirect_only_for: Box<[Box<str>]>,
    /// Whether a bearer token that `jwt` accepts is enough.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub pass_through_bearer: bool,
    /// When a session ends at the latest.
    pub absolute_timeout: Duration,
}

impl Oidc {
    /// Returns the URL of the provider.
    pub fn issuer(&self) -> &str {
        &self.id_token.issuer
    }

    /// Reports whether a path is one of those of sign-ins and sign-outs, which backends do not get.
    pub fn has_path(&self, path: &str) -> bool {
        let own = [&self.redirect_path, &self.logout_path].into_iter();
        let mut own = own.chain(&self.back_channel_logout_path);
        own.any(|it| **it == *path)
    }
}

#[cfg(test)]
impl Oidc {
    /// Returns a section for tests: the client `shop`, without a secret and without endpoints.
    pub(crate) fn sample() -> Self {
        Self {
            policy: ObjectRef::new("portcullis.dev", "AccessPolicy", "ns", "policy"),
            client_id: "shop".into(),
            client_secret: None,
            id_token: Provider {
                issuer: "https://a.example".into(),
                audiences: ["shop".into()].into(),
                keys: Box::default(),
                key_set: None,
                key_server_tls: None,
                from: Box::default(),
                claim_headers: Box::default(),
                leeway: 60,
                token_type: None,
            },
            endpoints: None,
            authorities: Authorities::System,
            scope: "openid".into(),
            authorization_parameters: BTreeMap::new(),
            redirect_path: "/callback".into(),
            logout_path: "/logout".into(),
            back_channel_logout_path: None,
            cookie: CookieSettings {
                name: "oidc".into(),
                domain: None,
                same_site: SameSite::Lax,
                path: "/".into(),
            },
            access_token_header: None,
            id_token_header: None,
            redirect_only_for: ["text/html".into()].into(),
            pass_through_bearer: false,
            absolute_timeout: Duration::from_secs(3600),
        }
    }
}

/// The endpoints of a provider.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Endpoints {
    /// Where browsers sign in.
    #[serde(serialize_with = "uri")]
    pub authorization: Uri,
    /// Where codes are exchanged for tokens.
    #[serde(serialize_with = "uri")]
    pub token: Uri,
    /// Where browsers sign out.
    #[serde(
        serialize_with = "optional_uri",
        skip_serializing_if = "Option::is_none"
    )]
    pub end_session: Option<Uri>,
    /// Whether the secret of the client is sent in the form instead of the header.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub secret_in_form: bool,
    /// Whether every response to an authorization request has `iss` (RFC 9207).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sends_issuer: bool,
}

/// The prefix of names of cookies that browsers accept from their own host alone: over HTTPS, without `Domain`, and for all of its
/// paths (RFC 6265bis, 4.1.3.2).
pub const HOST_PREFIX: &str = "__Host-";

/// Attributes of cookies of sessions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CookieSettings {
    /// Name, without the prefix [`HOST_PREFIX`].
    pub name: Box<str>,
    /// Attribute `Domain`: lower case, without a dot in front; `None` for the host alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<Box<str>>,
    /// Attribute `SameSite`.
    pub same_site: SameSite,
    /// Attribute `Path`.
    pub path: Box<str>,
}

impl CookieSettings {
    /// Returns the name over HTTPS: with the prefix, if the attributes permit that.
    pub fn secure_name(&self) -> Box<str> {
        match self.domain.is_none() && &*self.path == "/" {
            true => format!("{HOST_PREFIX}{}", self.name).into(),
            false => self.name.clone(),
        }
    }
}

named! {
    /// With which requests of other sites browsers send a cookie. Its name is the value of the attribute.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
    pub enum SameSite {
        /// With those that show a page.
        Lax = "Lax",
        /// With none.
        Strict = "Strict",
        /// With all.
        None = "None",
    }
}

/// The secret of a client. Does not print it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ClientSecret(Box<str>);

impl ClientSecret {
    /// Creates it from its text.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns its text: never to be printed.
    pub fn secret_text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Known")
    }
}

impl Serialize for ClientSecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

fn uri<S: Serializer>(uri: &Uri, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(uri)
}

fn optional_uri<S: Serializer>(uri: &Option<Uri>, serializer: S) -> Result<S::Ok, S::Error> {
    uri.as_ref().map(ToString::to_string).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_no_client_secret() {
        let secret = ClientSecret::new("hunter2");
        let texts = [
            format!("{secret:?}"),
            serde_json::to_string(&secret).unwrap(),
        ];
        assert_eq!(texts, ["Known", "\"Known\""]);
    }
}
