//! Certificates and long texts for the placeholders in goldens. Certificates are generated on first use.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::Value;

thread_local! {
    /// Certificate and key by names. Generated, so that the repository contains no key.
    static CERTIFICATES: RefCell<BTreeMap<String, (String, String)>> = const { RefCell::new(BTreeMap::new()) };
}

/// Replaces `${cert:NAME,NAME}`, `${key:NAME,NAME}` and their base64 forms `${cert64:…}`, `${key64:…}`, and `${text:LENGTH}`.
pub(crate) fn with_certificates(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(expand(&text)),
        Value::Array(items) => items.into_iter().map(with_certificates).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (name, with_certificates(value)))
            .collect(),
        leaf => leaf,
    }
}

fn expand(text: &str) -> String {
    let Some((before, rest)) = text.split_once("${") else {
        return text.to_owned();
    };
    let (placeholder, after) = rest.split_once('}').expect("a placeholder ends");
    let (kind, names) = placeholder
        .split_once(':')
        .expect("a placeholder has names");
    if kind == "text" {
        let text = "x".repeat(names.parse().expect("a length"));
        return format!("{before}{text}{}", expand(after));
    }
    let (certificate, key) = CERTIFICATES.with_borrow_mut(|known| {
        known
            .entry(names.to_owned())
            .or_insert_with(|| generate(names))
            .clone()
    });
    let value = match kind {
        "cert" => certificate,
        "key" => key,
        "cert64" => base64(certificate.as_bytes()),
        "key64" => base64(key.as_bytes()),
        "encrypted" => key.replace(" PRIVATE KEY", " ENCRYPTED PRIVATE KEY"),
        other => panic!("unknown placeholder {other}"),
    };
    format!("{before}{value}{}", expand(after))
}

/// Generates a self-signed certificate. A part `cn=NAME` is the subject's common name and not an alternative name.
fn generate(names: &str) -> (String, String) {
    let (common, alternative): (Vec<&str>, Vec<&str>) =
        names.split(',').partition(|name| name.starts_with("cn="));
    let alternative: Vec<String> = alternative.into_iter().map(str::to_owned).collect();
    let mut parameters = rcgen::CertificateParams::new(alternative).expect("names are valid");
    for name in common {
        let name = name.trim_start_matches("cn=");
        parameters
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
    }
    let key = rcgen::KeyPair::generate().expect("a key is made");
    let certificate = parameters.self_signed(&key).expect("a certificate is made");
    (certificate.pem(), key.serialize_pem())
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .fold(0u32, |group, byte| group << 8 | u32::from(*byte));
        let group = group << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let symbol = ALPHABET[(group >> (18 - 6 * place) & 63) as usize];
            text.push(if place > chunk.len() {
                '='
            } else {
                char::from(symbol)
            });
        }
    }
    text
}
