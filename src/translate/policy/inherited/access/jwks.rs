//! JSON Web Key Sets (RFC 7517, RFC 7518): the keys that verify signatures of tokens. Must not know policies.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, EllipticCurveKeyParameters, Jwk, OctetKeyPairParameters,
    PublicKeyUse, RSAKeyParameters,
};
use serde_json::Value;

use crate::ir::token::{KeyMaterial, VerificationKey};

/// Maximum number of keys of a set: providers have a few.
const MAX_KEYS: usize = 32;
/// Least and greatest length of an RSA modulus, in bytes. Shorter ones are broken (RFC 7518, 3.3), and longer ones take too
/// long.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=512;

/// The algorithms that verify with public keys.
pub(super) const PUBLIC: [Algorithm; 9] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
    Algorithm::ES256,
    Algorithm::ES384,
    Algorithm::EdDSA,
];

/// Returns the keys of a set that verify signatures of `permitted` algorithms, and the problems of those that are left out.
///
/// # Errors
/// When there is none. The message continues a sentence that begins with the place of the set.
pub(super) fn read(
    text: &str,
    permitted: &[Algorithm],
) -> Result<(Box<[VerificationKey]>, Vec<String>), String> {
    let set: Value = serde_json::from_str(text).map_err(|_| "is not JSON")?;
    let keys = set.get("keys").and_then(Value::as_array);
    let keys = keys.ok_or("is not a JSON Web Key Set: it has no list of keys")?;
    if keys.len() > MAX_KEYS {
        return Err(format!("has more than {MAX_KEYS} keys"));
    }
    let (mut read, mut problems) = (Vec::new(), Vec::new());
    for (index, key) in keys.iter().enumerate() {
        match self::key(key, permitted) {
            Ok(Some(key)) => read.push(key),
            Ok(None) => {}
            Err(problem) => problems.push(format!("keys[{index}] {problem}")),
        }
    }
    if read.is_empty() {
        let why = problems.first().map(|it| format!(": {it}"));
        let why = why.unwrap_or_default();
        return Err(format!("has no key for signatures of tokens{why}"));
    }
    Ok((read.into(), problems))
}

/// Reports why a set has no key that verifies signatures of tokens. The message continues a sentence that begins with the
/// place of the set.
pub(super) fn check(text: &str) -> Result<(), String> {
    read(text, &PUBLIC).map(drop)
}

/// Returns a key; `None` if it is for something else.
fn key(value: &Value, permitted: &[Algorithm]) -> Result<Option<VerificationKey>, String> {
    let key: Jwk = serde_json::from_value(value.clone()).map_err(|_| "is not a JSON Web Key")?;
    let is_for_signatures = matches!(
        key.common.public_key_use,
        None | Some(PublicKeyUse::Signature)
    );
    if !is_for_signatures {
        return Ok(None);
    }
    let (of_type, material) = match key.algorithm {
        AlgorithmParameters::RSA(key) => (&PUBLIC[..6], rsa(key)?),
        AlgorithmParameters::EllipticCurve(key) => elliptic(key)?,
        AlgorithmParameters::OctetKeyPair(key) => (&[Algorithm::EdDSA][..], edwards(key)?),
        AlgorithmParameters::OctetKey(_) => {
            return Err("is a shared key, which has to be in a Secret".to_owned());
        }
        _ => return Err("is of an unknown type".to_owned()),
    };
    let own = key.common.key_algorithm.map(|own| own.to_string());
    let own = own.as_deref();
    let is_usable = |algorithm: &&Algorithm| {
        let is_own = own.is_none_or(|own| own == format!("{algorithm:?}"));
        is_own && permitted.contains(algorithm)
    };
    let algorithms: Box<[_]> = of_type.iter().filter(is_usable).copied().collect();
    Ok((!algorithms.is_empty()).then(|| VerificationKey {
        id: key.common.key_id.map(String::into_boxed_str),
        algorithms,
        material,
    }))
}

fn rsa(key: RSAKeyParameters) -> Result<KeyMaterial, String> {
    let RSAKeyParameters { key_type: _, n, e } = key;
    let modulus = decoded(&n)?;
    let bytes = modulus.iter().skip_while(|byte| **byte == 0).count();
    if !RSA_BYTES.contains(&bytes) {
        return Err("is an RSA key of less than 2048 or more than 4096 bits".to_owned());
    }
    let exponent = decoded(&e)?;
    let is_odd = exponent.last().is_some_and(|byte| byte % 2 == 1);
    if !is_odd || exponent.len() > 4 || exponent == [1] {
        return Err("is an RSA key with an unusual exponent".to_owned());
    }
    Ok(KeyMaterial::Rsa {
        n: n.into(),
        e: e.into(),
    })
}

fn elliptic(
    key: EllipticCurveKeyParameters,
) -> Result<(&'static [Algorithm], KeyMaterial), String> {
    let EllipticCurveKeyParameters {
        key_type: _,
        curve,
        x,
        y,
    } = key;
    let (algorithms, length): (&[_], _) = match curve {
        EllipticCurve::P256 => (&[Algorithm::ES256], 32),
        EllipticCurve::P384 => (&[Algorithm::ES384], 48),
        _ => return Err("is on a curve that is neither P-256 nor P-384".to_owned()),
    };
    if decoded(&x)?.len() != length || decoded(&y)?.len() != length {
        return Err("is not a point on its curve".to_owned());
    }
    let (x, y) = (x.into(), y.into());
    Ok((algorithms, KeyMaterial::Elliptic { x, y }))
}

fn edwards(key: OctetKeyPairParameters) -> Result<KeyMaterial, String> {
    let OctetKeyPairParameters {
        key_type: _,
        curve,
        x,
    } = key;
    if curve != EllipticCurve::Ed25519 || decoded(&x)?.len() != 32 {
        return Err("is not a point on Ed25519".to_owned());
    }
    Ok(KeyMaterial::Edwards { x: x.into() })
}

fn decoded(text: &str) -> Result<Vec<u8>, String> {
    let bytes = URL_SAFE_NO_PAD.decode(text);
    bytes.map_err(|_| "has a value that is not base64url without padding".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn base64(bytes: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn rsa(bytes: usize) -> Value {
        let (n, e) = (base64(&vec![0xc1; bytes]), base64(&[1, 0, 1]));
        json!({"kty": "RSA", "n": n, "e": e, "kid": "one"})
    }

    fn read(keys: &[Value]) -> Result<(Box<[VerificationKey]>, Vec<String>), String> {
        super::read(&json!({"keys": keys}).to_string(), &PUBLIC)
    }

    #[test]
    fn type_and_alg_decide_what_a_key_verifies() {
        let point = |length: usize| base64(&vec![7; length]);
        let p256 = json!({"kty": "EC", "crv": "P-256", "x": point(32), "y": point(32)});
        let p384 = json!({"kty": "EC", "crv": "P-384", "x": point(48), "y": point(48)});
        let edwards = json!({"kty": "OKP", "crv": "Ed25519", "x": point(32)});
        let mut only = rsa(256);
        only["alg"] = json!("PS384");
        only["use"] = json!("sig");
        let (keys, problems) = read(&[rsa(512), p256, p384, edwards, only]).unwrap();
        let algorithms: Vec<_> = keys.iter().map(|key| &*key.algorithms).collect();
        let expected = [
            &PUBLIC[..6],
            &[Algorithm::ES256],
            &[Algorithm::ES384],
            &[Algorithm::EdDSA],
            &[Algorithm::PS384],
        ];
        assert_eq!((algorithms, problems), (expected.to_vec(), Vec::new()));
        let text = json!({"keys": [rsa(256)]}).to_string();
        let (keys, _) = super::read(&text, &[Algorithm::RS512, Algorithm::ES256]).unwrap();
        assert_eq!(*keys[0].algorithms, [Algorithm::RS512]);
    }

    #[test]
    fn leaves_out_keys_that_verify_nothing() {
        let mut encrypts = rsa(256);
        encrypts["use"] = json!("enc");
        let mut even = rsa(256);
        even["e"] = json!(base64(&[1, 0, 0]));
        let mut padded = rsa(256);
        padded["n"] = json!("AQAB=");
        for (key, expected) in [
            (rsa(128), "less than 2048"),
            (rsa(1024), "more than 4096"),
            (even, "unusual exponent"),
            (padded, "not base64url"),
            (encrypts, ""),
            (json!({"kty": "oct", "k": "c2VjcmV0"}), "in a Secret"),
            (
                json!({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}),
                "not a point",
            ),
            (
                json!({"kty": "OKP", "crv": "Ed25519", "x": "AA"}),
                "not a point",
            ),
            (json!({"kty": "new"}), "unknown type"),
            (json!("key"), "not a JSON Web Key"),
        ] {
            let (keys, problems) = read(&[rsa(256), key.clone()]).unwrap();
            assert_eq!(keys.len(), 1, "{key}");
            let problem = problems.first().map_or("", String::as_str);
            assert!(problem.contains(expected), "{key}: {problem}");
            assert!(read(&[key]).is_err());
        }
        for text in ["", "[]", "{}", r#"{"keys": {}}"#, r#"{"keys": []}"#] {
            assert!(super::read(text, &PUBLIC).is_err(), "{text}");
        }
        assert!(read(&vec![rsa(256); MAX_KEYS + 1]).is_err());
    }
}
