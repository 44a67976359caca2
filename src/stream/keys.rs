//! The public keys of ServiceAccount tokens, as the API server publishes them at `/openid/v1/jwks`. A signature that
//! does not match rejects a token without a TokenReview.

use std::collections::BTreeMap;

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, crypto};
use serde::Deserialize;
use serde_json::Value;

use super::token::Claims;

/// A JWK set (RFC 7517, 5).
#[derive(Debug, Default, Deserialize)]
pub(super) struct KeySet {
    #[serde(default)]
    keys: Vec<Value>,
}

/// Result of the verification of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The signature matches.
    Valid,
    /// The signature does not match its key.
    Invalid,
    /// The key or the algorithm is not among the known ones.
    UnknownKey,
    /// No key is known.
    NoKeys,
}

/// Public keys by `kid`.
#[derive(Debug, Default)]
pub(super) struct Keys(BTreeMap<String, DecodingKey>);

impl Keys {
    /// Reads a key set. Skips what is no public key that tokens are verified with.
    pub(super) fn new(set: &KeySet) -> Self {
        let keys = set.keys.iter();
        let keys = keys.filter_map(|key| Jwk::deserialize(key).ok());
        let keys = keys.filter_map(|key| {
            let read = DecodingKey::from_jwk(&key).ok()?;
            let is_public = read.family() != AlgorithmFamily::Hmac;
            Some((key.common.key_id?, read)).filter(|_| is_public)
        });
        Self(keys.collect())
    }

    /// Verifies the signature of a token.
    pub(super) fn verify(&self, claims: &Claims<'_>) -> Verdict {
        if self.0.is_empty() {
            return Verdict::NoKeys;
        }
        let key = claims.key.as_ref().and_then(|key| self.0.get(key));
        let algorithm = claims.algorithm.as_ref();
        let algorithm = algorithm.and_then(|name| name.parse::<Algorithm>().ok());
        let (Some(key), Some(algorithm)) = (key, algorithm) else {
            return Verdict::UnknownKey;
        };
        if algorithm.family() != key.family() {
            return Verdict::UnknownKey;
        }
        match crypto::verify(claims.signature, claims.signed.as_bytes(), key, algorithm) {
            Ok(true) => Verdict::Valid,
            Ok(false) => Verdict::Invalid,
            // The key is none that can verify, such as an RSA key of 1024 bits.
            Err(_) => Verdict::UnknownKey,
        }
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256,
    };
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::{Value, json};

    use super::super::token;
    use super::*;
    use crate::wire::AUDIENCE;

    fn encode(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn unsigned(algorithm: &str) -> String {
        let header = json!({"alg": algorithm, "kid": "k"});
        let payload = json!({"aud": AUDIENCE, "exp": 2000});
        format!(
            "{}.{}",
            encode(header.to_string()),
            encode(payload.to_string())
        )
    }

    fn verdict(keys: &Value, text: &str, signature: &[u8]) -> Verdict {
        let keys = Keys::new(&serde_json::from_value(keys.clone()).unwrap());
        let token = format!("{text}.{}", encode(signature));
        keys.verify(&token::claims(&token, 1000).unwrap())
    }

    #[test]
    fn verifies_rsa_and_ecdsa_signatures() {
        let random = SystemRandom::new();
        let rsa = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        // RSAPublicKey (RFC 8017, A.1.1) with a modulus of 2048 bits and an exponent of three bytes.
        let public = rsa.public_key().as_ref();
        let (n, e) = (encode(&public[9..265]), encode(&public[267..270]));
        let keys = json!({"keys": [{"kid": "k", "kty": "RSA", "alg": "RS256", "n": n, "e": e}]});
        let text = unsigned("RS256");
        let mut signature = vec![0; rsa.public_modulus_len()];
        rsa.sign(&RSA_PKCS1_SHA256, &random, text.as_bytes(), &mut signature)
            .unwrap();
        assert_eq!(verdict(&keys, &text, &signature), Verdict::Valid);
        signature[7] ^= 1;
        assert_eq!(verdict(&keys, &text, &signature), Verdict::Invalid);
        let other = unsigned("ES256");
        assert_eq!(verdict(&keys, &other, b"x"), Verdict::UnknownKey);
        assert_eq!(verdict(&json!({}), &text, &signature), Verdict::NoKeys);

        let ecdsa = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let point = ecdsa.public_key().as_ref();
        let (x, y) = (encode(&point[1..33]), encode(&point[33..]));
        let other = json!({"kid": "other", "kty": "oct"});
        let key = json!({"kid": "k", "kty": "EC", "crv": "P-256", "x": x, "y": y});
        let keys = json!({"keys": [other, key]});
        let text = unsigned("ES256");
        let signature = ecdsa.sign(&random, text.as_bytes()).unwrap();
        assert_eq!(verdict(&keys, &text, signature.as_ref()), Verdict::Valid);
        assert_eq!(verdict(&keys, &text, b"forged"), Verdict::Invalid);
    }
}
