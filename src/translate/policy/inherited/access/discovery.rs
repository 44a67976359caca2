//! Discovery documents of OpenID providers (OpenID Connect Discovery 1.0): where they are, and what they say. Must not fetch
//! them.

use http::Uri;
use serde::Deserialize;

use crate::api::key_set::Discovery;
use crate::ir::oidc::Endpoints;

use super::server_uri;
use crate::translate::reason::{Fault, Reason};

const PATH: &str = "/.well-known/openid-configuration";
/// Maximum length of a URL in a document.
const MAX_URL: usize = 2048;

/// The parts of a document that are used.
#[derive(Deserialize)]
struct Document {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    end_session_endpoint: Option<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    code_challenge_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// Returns where the document of an issuer is.
pub(super) fn uri(issuer: &str) -> Result<Uri, Fault> {
    let parsed = match issuer.contains('?') {
        true => Err("has a query"),
        // Without the slash at its end (4.1).
        false => server_uri::uri(&format!("{}{PATH}", issuer.trim_end_matches('/'))),
    };
    parsed.map_err(|why| Fault::new(Reason::Invalid, format!("spec.oidc.issuer: {why}")))
}

/// Reads the document of an issuer. Returns what it says, and where the keys of the issuer are.
///
/// # Errors
/// When it cannot be used. The message continues a sentence that begins with its place, and has nothing of its text.
pub fn read_discovery(text: &str, issuer: &str) -> Result<(Discovery, Uri), String> {
    let document: Document = serde_json::from_str(text)
        .map_err(|_| "is not a discovery document with issuer, authorization_endpoint, token_endpoint and jwks_uri")?;
    if document.issuer != issuer {
        return Err("has another issuer than the policy".to_owned());
    }
    let challenges = document.code_challenge_methods_supported;
    if challenges.is_some_and(|methods| !methods.iter().any(|it| it == "S256")) {
        return Err("has no S256 in code_challenge_methods_supported".to_owned());
    }
    let methods = document.token_endpoint_auth_methods_supported;
    let takes = |method: &str| {
        let mut methods = methods.iter().flatten();
        methods.any(|it| it == method)
    };
    let discovery = Discovery {
        // Of both, the header is the default (3).
        secret_in_form: takes("client_secret_post") && !takes("client_secret_basic"),
        authorization_endpoint: document.authorization_endpoint,
        token_endpoint: document.token_endpoint,
        end_session_endpoint: document.end_session_endpoint,
        sends_issuer: document.authorization_response_iss_parameter_supported,
    };
    endpoints(&discovery)?;
    let keys = endpoint(&document.jwks_uri, "jwks_uri")?;
    Ok((discovery, keys))
}

/// Returns the endpoints of a provider. The message continues a sentence that begins with the place of its document.
pub(super) fn endpoints(discovery: &Discovery) -> Result<Endpoints, String> {
    let Discovery {
        authorization_endpoint,
        token_endpoint,
        end_session_endpoint,
        secret_in_form,
        sends_issuer,
    } = discovery;
    let end_session = end_session_endpoint.as_deref();
    let end_session = end_session.map(|text| endpoint(text, "end_session_endpoint"));
    Ok(Endpoints {
        authorization: endpoint(authorization_endpoint, "authorization_endpoint")?,
        token: endpoint(token_endpoint, "token_endpoint")?,
        end_session: end_session.transpose()?,
        secret_in_form: *secret_in_form,
        sends_issuer: *sends_issuer,
    })
}

fn endpoint(text: &str, name: &str) -> Result<Uri, String> {
    if text.len() > MAX_URL {
        return Err(format!("has a {name} of more than {MAX_URL} bytes"));
    }
    server_uri::uri(text).map_err(|why| format!("has a {name} that {why}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn document(changes: &Value) -> String {
        let mut document = json!({
            "issuer": "https://a.example", "authorization_endpoint": "https://a.example/auth?b=c",
            "token_endpoint": "https://a.example/token", "jwks_uri": "https://b.example/keys",
        });
        for (name, value) in changes.as_object().unwrap() {
            document[name] = value.clone();
        }
        document.to_string()
    }

    #[test]
    fn document_is_below_the_issuer() {
        for (issuer, expected) in [
            (
                "https://a.example",
                "https://a.example/.well-known/openid-configuration",
            ),
            (
                "https://a.example/b/",
                "https://a.example/b/.well-known/openid-configuration",
            ),
        ] {
            assert_eq!(uri(issuer).unwrap(), expected);
        }
        for issuer in [
            "https://a.example?b",
            "http://a.example",
            "https://10.0.0.1",
            "a",
        ] {
            assert!(uri(issuer).is_err(), "{issuer}");
        }
    }

    #[test]
    fn documents_say_where_endpoints_are() {
        for (changes, in_form, sends_issuer) in [
            (json!({}), false, false),
            (
                json!({"token_endpoint_auth_methods_supported": ["client_secret_post"]}),
                true,
                false,
            ),
            (
                json!({"token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"]}),
                false,
                false,
            ),
            (
                json!({"authorization_response_iss_parameter_supported": true}),
                false,
                true,
            ),
            (
                json!({"code_challenge_methods_supported": ["plain", "S256"]}),
                false,
                false,
            ),
        ] {
            let (discovery, keys) =
                read_discovery(&document(&changes), "https://a.example").unwrap();
            assert_eq!(keys, "https://b.example/keys");
            let found = (discovery.secret_in_form, discovery.sends_issuer);
            assert_eq!(found, (in_form, sends_issuer), "{changes}");
        }
    }

    #[test]
    fn refuses_documents_of_others_and_endpoints_that_anybody_could_read() {
        for (changes, expected) in [
            (json!({"issuer": "https://b.example"}), "another issuer"),
            (json!({"issuer": "https://a.example/"}), "another issuer"),
            (
                json!({"token_endpoint": "http://a.example/token"}),
                "token_endpoint that has http",
            ),
            (
                json!({"token_endpoint": "https://10.0.0.1/token"}),
                "not a DNS name",
            ),
            (
                json!({"authorization_endpoint": "javascript:alert(1)"}),
                "authorization_endpoint",
            ),
            (json!({"jwks_uri": "https://a@b.example/"}), "jwks_uri"),
            (
                json!({"end_session_endpoint": "/logout"}),
                "end_session_endpoint",
            ),
            (
                json!({"code_challenge_methods_supported": ["plain"]}),
                "S256",
            ),
            (json!({"token_endpoint": 1}), "not a discovery document"),
            (
                json!({"token_endpoint": format!("https://a.example/{}", "a".repeat(2048))}),
                "more than",
            ),
        ] {
            let read = read_discovery(&document(&changes), "https://a.example");
            let problem = read.err().unwrap_or_default();
            assert!(problem.contains(expected), "{changes}: {problem}");
        }
        assert!(read_discovery("{}", "https://a.example").is_err());
    }
}
