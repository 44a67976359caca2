//! The goldens of the project as a source of objects, with certificates where they have placeholders for them. Knows
//! nothing of what they translate to.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::Value;

use crate::objects;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden");

static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut texts = Vec::new();
    read(Path::new(FOLDER), &mut texts);
    texts
});

/// Certificate and key by the names that a placeholder of a golden has. Others are not made, so that what an input means
/// does not depend on the inputs before it.
static CERTIFICATES: LazyLock<BTreeMap<String, (String, String)>> = LazyLock::new(|| {
    let placeholders = TEXTS.iter().flat_map(|text| text.split("${").skip(1));
    let names = placeholders.filter_map(|text| text.split_once('}')?.0.split_once(':'));
    names
        .map(|(_, names)| (names.to_owned(), generate(names)))
        .collect()
});

/// The documents of every golden, without what they are expected to come to.
pub static ALL: LazyLock<Vec<Vec<Value>>> = LazyLock::new(|| {
    let of_objects = |text: &String| {
        let mut values = objects::documents(text).expect("a golden is YAML");
        values.retain(|value| value.get("kind").is_some());
        values
    };
    TEXTS.iter().map(of_objects).collect()
});

fn read(folder: &Path, texts: &mut Vec<String>) {
    let entries = fs::read_dir(folder).expect("the goldens are there");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            read(&path, texts);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            texts.push(fs::read_to_string(path).expect("a golden is readable"));
        }
    }
}

/// Puts certificates and keys where `value` has placeholders for those of a golden.
pub fn with_certificates(value: &mut Value) {
    match value {
        Value::String(text) if text.contains("${") => *text = expanded(text),
        Value::Array(items) => items.iter_mut().for_each(with_certificates),
        Value::Object(fields) => fields.values_mut().for_each(with_certificates),
        _ => {}
    }
}

fn expanded(text: &str) -> String {
    let mut parts = text.split("${");
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part
            .split_once('}')
            .and_then(|(it, after)| Some((filling(it)?, after)))
        {
            Some((filling, after)) => whole.extend([&filling, after]),
            None => whole.extend(["${", part]),
        }
    }
    whole
}

fn filling(placeholder: &str) -> Option<String> {
    let (kind, names) = placeholder.split_once(':')?;
    let (certificate, key) = CERTIFICATES.get(names)?;
    match kind {
        "cert" => Some(certificate.clone()),
        "key" => Some(key.clone()),
        "cert64" => Some(BASE64_STANDARD.encode(certificate)),
        "key64" => Some(BASE64_STANDARD.encode(key)),
        "encrypted" => Some(key.replace(" PRIVATE KEY", " ENCRYPTED PRIVATE KEY")),
        _ => None,
    }
}

/// A self-signed certificate for these names, of which `cn=NAME` is the subject's.
fn generate(names: &str) -> (String, String) {
    let mut parameters = CertificateParams::default();
    let mut alternative = Vec::new();
    for name in names.split(',') {
        match name.strip_prefix("cn=") {
            Some(name) => parameters.distinguished_name.push(DnType::CommonName, name),
            None => alternative.push(name.to_owned()),
        }
    }
    let named = CertificateParams::new(alternative).expect("the names are DNS names");
    parameters.subject_alt_names = named.subject_alt_names;
    let key = KeyPair::generate().expect("a key is made");
    let certificate = parameters.self_signed(&key).expect("a certificate is made");
    (certificate.pem(), key.serialize_pem())
}
