//! The public keys of ServiceAccount tokens, as the API server publishes them at `/openid/v1/jwks`. A signature that
//! does not match rejects a token without a TokenReview.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::token::Claims;

/// Sizes of an RSA modulus that can be verified, and size of a point of P-256, in bytes.
const RSA_BYTES: RangeInclusive<usize> = 256..=1024;
const POINT_BYTES: usize = 65;

/// A JWK set (RFC 7517, 5).
#[derive(Debug, Default, Deserialize)]
pub(super) struct KeySet {
    #[serde(default)]
    keys: Vec<Jwk>,
}

/// A key with the parameters of RFC 7518, 6.2 and 6.3.
#[derive(Debug, Deserialize)]
struct Jwk {
    kid: Option<String>,
    kty: String,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
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
pub(super) struct Keys(BTreeMap<String, PublicKey>);

#[derive(Debug)]
enum PublicKey {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    P256(UnparsedPublicKey<Vec<u8>>),
}

impl Keys {
    /// Parses a key set. Skips keys of other types.
    pub(super) fn new(set: &KeySet) -> Self {
        let keys = set.keys.iter();
        let keys = keys.filter_map(|key| Some((key.kid.clone()?, key.parse()?)));
        Self(keys.collect())
    }

    /// Verifies the signature of a token.
    pub(super) fn verify(&self, claims: &Claims<'_>) -> Verdict {
        if self.0.is_empty() {
            return Verdict::NoKeys;
        }
        let key = claims.key.as_ref().and_then(|key| self.0.get(key));
        let algorithm = claims.algorithm.as_deref();
        let (Some(key), Some(algorithm)) = (key, algorithm) else {
            return Verdict::UnknownKey;
        };
        let (message, signature) = (claims.signed.as_bytes(), &claims.signature);
        let verified = match (key, algorithm) {
            (PublicKey::Rsa(key), "RS256") => {
                key.verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            }
            (PublicKey::P256(key), "ES256") => key.verify(message, signature),
            _ => return Verdict::UnknownKey,
        };
        match verified {
            Ok(()) => Verdict::Valid,
            Err(_) => Verdict::Invalid,
        }
    }
}

impl Jwk {
    fn parse(&self) -> Option<PublicKey> {
        let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_ref()?).ok();
        match (self.kty.as_str(), self.crv.as_deref()) {
            ("RSA", _) => {
                let number = |text| {
                    let bytes = bytes(text)?;
                    let first = bytes.iter().position(|byte| *byte != 0)?;
                    Some(bytes[first..].to_vec())
                };
                let (n, e) = (number(&self.n)?, number(&self.e)?);
                let key = RsaPublicKeyComponents { n, e };
                RSA_BYTES
                    .contains(&key.n.len())
                    .then_some(PublicKey::Rsa(key))
            }
            ("EC", Some("P-256")) => {
                // An uncompressed point (SEC 1, 2.3.3).
                let point = [vec![4], bytes(&self.x)?, bytes(&self.y)?].concat();
                let key = || UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point.clone());
                (point.len() == POINT_BYTES).then(|| PublicKey::P256(key()))
            }
            _ => None,
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
