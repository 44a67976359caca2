//! An issuer of JSON Web Tokens, and policies that accept them.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::client::Client;

pub(crate) const ISSUER: &str = "https://login.example.com";
pub(crate) const SHARED: &str = "a key of more than thirty-two bytes";
/// Bytes of PKCS #8 in front of an RSA key of 2048 bits.
pub(crate) const PKCS8_PREFIX: usize = 26;

/// An issuer of tokens with one key.
pub(crate) struct Issuer {
    pub(crate) id: &'static str,
    pub(crate) algorithm: Algorithm,
    pub(crate) key: EncodingKey,
}

impl Issuer {
    pub(crate) fn new(id: &'static str, algorithm: Algorithm) -> Self {
        let random = SystemRandom::new();
        let key = match algorithm {
            Algorithm::ES256 => {
                let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
                EncodingKey::from_ec_der(key.expect("valid").as_ref())
            }
            Algorithm::ES384 => {
                let key = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &random);
                EncodingKey::from_ec_der(key.expect("valid").as_ref())
            }
            Algorithm::EdDSA => {
                let key = Ed25519KeyPair::generate_pkcs8v1(&random).expect("valid");
                EncodingKey::from_ed_der(key.as_ref())
            }
            Algorithm::HS256 => EncodingKey::from_secret(SHARED.as_bytes()),
            _ => {
                let key = aws_lc_rs::rsa::KeyPair::generate(KeySize::Rsa2048).expect("valid");
                let key = AsDer::<Pkcs8V1Der<'_>>::as_der(&key).expect("valid");
                EncodingKey::from_rsa_der(&key.as_ref()[PKCS8_PREFIX..])
            }
        };
        Self { id, algorithm, key }
    }

    pub(crate) fn jwk(&self) -> Value {
        let mut key = Jwk::from_encoding_key(&self.key, self.algorithm).expect("valid");
        key.common.key_id = Some(self.id.to_owned());
        serde_json::to_value(key).expect("valid")
    }

    pub(crate) fn header(&self) -> Header {
        let mut header = Header::new(self.algorithm);
        header.kid = Some(self.id.to_owned());
        header
    }

    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(&self.header(), claims)
    }

    pub(crate) fn token_with(&self, header: &Header, claims: &Value) -> String {
        encode(header, claims, &self.key).expect("valid")
    }
}

pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("valid");
    now.as_secs()
}

/// Claims of a valid token, with changes; null removes a claim.
pub(crate) fn claims(changes: &Value) -> Value {
    let mut claims = json!({
        "iss": ISSUER, "aud": "shop", "sub": "alice", "exp": now() + 600,
        "groups": ["staff", "readers"], "realm_access": {"roles": ["clerk"]},
    });
    for (name, value) in changes.as_object().expect("valid") {
        claims[name] = value.clone();
    }
    let object = claims.as_object_mut().expect("valid");
    object.retain(|_, value| !value.is_null());
    claims
}

/// A section that accepts tokens with these keys.
pub(crate) fn jwt(keys: &[Value]) -> Value {
    let set = json!({"keys": keys}).to_string();
    provider(&json!({"inline": set}))
}

pub(crate) fn provider(jwks: &Value) -> Value {
    json!({"jwt": {"providers": [{
        "issuer": ISSUER, "audiences": ["shop"], "jwks": jwks,
        "claimToHeaders": [
            {"claim": "sub", "header": "X-User"}, {"claim": "groups", "header": "X-Groups"},
            {"claim": "realm_access.roles", "header": "X-Roles"},
        ],
    }]}})
}

pub(crate) fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

pub(crate) async fn status(client: &mut Client, token: &str) -> u16 {
    let value = bearer(token);
    let headers = [("authorization", &*value)];
    client.get_with("a.com", "/", &headers).await.status
}

/// Returns the parts of a token with another header, signed by `sign`.
pub(crate) fn signed(header: &Value, sign: impl FnOnce(&str) -> String) -> String {
    let base64 = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", base64(header), base64(&claims(&json!({}))));
    let signature = sign(&message);
    format!("{message}.{signature}")
}

pub(crate) fn with_hmac(key: &[u8], message: &str) -> String {
    let key = EncodingKey::from_secret(key);
    jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).expect("valid")
}
