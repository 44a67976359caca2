//! JSON Web Tokens that requests need: their issuers, and the keys that verify signatures. Never prints a shared key. Must
//! not know requests.

use std::fmt;

use http::HeaderName;
use jsonwebtoken::Algorithm;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::ObjectRef;
use super::claim_name::ClaimName;
use super::key_place::KeyPlace;

/// The issuers of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Tokens {
    /// The policy.
    pub policy: ObjectRef,
    /// The issuers, each once; never empty.
    pub providers: Box<[Provider]>,
}

/// An issuer of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Provider {
    /// The claim `iss`.
    pub issuer: Box<str>,
    /// One of these is a claim `aud`; empty for any.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub audiences: Box<[Box<str>]>,
    /// The keys that verify its signatures; empty only as long as those of `key_set` are unknown.
    pub keys: Box<[VerificationKey]>,
    /// The KeySet that has the keys, if they are fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_set: Option<ObjectRef>,
    /// The policy that asks for TLS to the Service that the keys are fetched from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_server_tls: Option<ObjectRef>,
    /// Where requests have the token. The first place that is not empty counts. In the header `Authorization`, it follows
    /// the scheme `Bearer`.
    pub from: Box<[KeyPlace]>,
    /// Headers with claims.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub claim_headers: Box<[ClaimHeader]>,
    /// By how much clocks may differ, in seconds.
    pub leeway: u64,
    /// The type that tokens have; `None` for any.
    #[serde(rename = "typ", skip_serializing_if = "Option::is_none")]
    pub token_type: Option<TokenType>,
}

/// The type of a token: a media type, which a token may have without `application/` (RFC 7515, 4.1.9).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct TokenType(Box<str>);

impl TokenType {
    /// Reads a type. Types are the same whatever the case of their letters (RFC 2045, 5.1).
    pub fn new(text: &str) -> Self {
        let text = text.to_ascii_lowercase();
        let short = text.strip_prefix("application/");
        let short = short.filter(|short| !short.contains('/'));
        Self(short.unwrap_or(&text).into())
    }

    /// Reports whether the header `typ` of a token, if it has one, is this type.
    pub fn is_that_of(&self, typ: Option<&str>) -> bool {
        typ.is_some_and(|typ| Self::new(typ) == *self)
    }
}

impl fmt::Display for TokenType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A header with a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimHeader {
    /// Name of the claim.
    pub claim: ClaimName,
    /// Name of the header.
    pub header: HeaderName,
}

impl Serialize for ClaimHeader {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { claim, header } = self;
        serializer.collect_str(&format_args!("{header}: {claim}"))
    }
}

/// A key that verifies signatures.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VerificationKey {
    /// `kid`. Tokens that name a key are verified with that one only.
    pub id: Option<Box<str>>,
    /// What it can verify; never empty.
    pub algorithms: Box<[Algorithm]>,
    /// The key.
    pub material: KeyMaterial,
}

impl Serialize for VerificationKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            id,
            algorithms,
            material: _,
        } = self;
        let mut key = serializer.serialize_struct("VerificationKey", 2)?;
        key.serialize_field("algorithms", algorithms)?;
        match id {
            Some(id) => key.serialize_field("id", id)?,
            None => key.skip_field("id")?,
        }
        key.end()
    }
}

/// A key. Text is base64url without padding.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum KeyMaterial {
    /// Modulus and exponent.
    Rsa {
        /// `n`.
        n: Box<str>,
        /// `e`.
        e: Box<str>,
    },
    /// A point on P-256 or P-384.
    Elliptic {
        /// `x`.
        x: Box<str>,
        /// `y`.
        y: Box<str>,
    },
    /// A point on Ed25519.
    Edwards {
        /// `x`.
        x: Box<str>,
    },
    /// A key that the issuer has, too: never to be printed.
    Shared(Box<[u8]>),
}

impl fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rsa { .. } => "Rsa",
            Self::Elliptic { .. } => "Elliptic",
            Self::Edwards { .. } => "Edwards",
            Self::Shared(_) => "Shared",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_tokens_are_media_types() {
        for (wanted, typ, expected) in [
            ("at+jwt", Some("at+jwt"), true),
            ("at+jwt", Some("AT+JWT"), true),
            ("at+jwt", Some("application/at+jwt"), true),
            ("Application/AT+JWT", Some("at+jwt"), true),
            ("at+jwt", Some("JWT"), false),
            ("at+jwt", Some(""), false),
            ("at+jwt", Some("text/at+jwt"), false),
            ("at+jwt", Some("application/application/at+jwt"), false),
            ("at+jwt", None, false),
            ("example/at", Some("application/example/at"), false),
            ("example/at", Some("example/AT"), true),
        ] {
            let found = TokenType::new(wanted).is_that_of(typ);
            assert_eq!(found, expected, "{wanted} {typ:?}");
        }
    }

    #[test]
    fn prints_no_shared_key() {
        let key = VerificationKey {
            id: Some("one".into()),
            algorithms: [Algorithm::HS256].into(),
            material: KeyMaterial::Shared(b"hunter2".to_vec().into()),
        };
        let texts = [format!("{key:?}"), serde_json::to_string(&key).unwrap()];
        for text in texts {
            assert!(text.contains("HS256") && !text.contains("104"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
