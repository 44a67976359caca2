//! Describes the verified certificate of a client for backends: one element of `X-Forwarded-Client-Cert` in Envoy's
//! format, built once per connection.

use std::fmt::Write;

use http::HeaderValue;
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Name};

use crate::ir::hex;
use crate::ir::tls::sha256;

/// Length in bytes after which no more alternative names are added, since backends limit their headers.
const MAX_LENGTH: usize = 4096;

/// Attribute types with a short name (RFC 4514, 3, and the e-mail address of PKCS #9).
const ATTRIBUTES: [(&str, &str); 10] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// Returns the element for a certificate.
pub(in crate::proxy) fn describe(certificate: &CertificateDer<'_>) -> Option<HeaderValue> {
    let mut text = "Hash=".to_owned();
    text.push_str(&hex::encode(&sha256(certificate)?));
    // rustls has parsed the certificate. If x509-parser cannot, the element has the hash only.
    if let Ok((_, certificate)) = X509Certificate::from_der(certificate) {
        let _ = write!(text, ";Subject=\"{}\"", subject(certificate.subject()));
        let alternatives = certificate.subject_alternative_name().ok().flatten();
        let names = alternatives.map_or(&[][..], |it| &it.value.general_names);
        let uris = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Some(("URI", *uri)),
            _ => None,
        });
        let hosts = names.iter().filter_map(|name| match name {
            GeneralName::DNSName(host) => Some(("DNS", *host)),
            _ => None,
        });
        for (key, value) in uris.chain(hosts) {
            append(&mut text, key, value);
        }
    }
    HeaderValue::try_from(text).ok()
}

/// Appends a name, quoted if it has a delimiter. Skips a name that is not valid in a header.
fn append(text: &mut String, key: &str, value: &str) {
    let is_visible = value.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_visible || text.len() + value.len() > MAX_LENGTH {
        return;
    }
    // Writing to a `String` cannot fail.
    let _ = if value.contains([',', ';', '=', '"', '\\']) {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        write!(text, ";{key}=\"{value}\"")
    } else {
        write!(text, ";{key}={value}")
    };
}

/// Formats a name as in RFC 2253: the last part first. Escapes non-ASCII bytes, so that the result is valid in a
/// header.
fn subject(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> = name.iter_rdn().map(part).collect();
    parts.reverse();
    parts.join(",")
}

fn part(part: &RelativeDistinguishedName<'_>) -> String {
    let attributes: Vec<String> = part.iter().map(attribute).collect();
    attributes.join("+")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let kind = attribute.attr_type().to_id_string();
    let known = ATTRIBUTES.iter().find(|(id, _)| *id == kind);
    match (known, attribute.as_str()) {
        (Some((_, name)), Ok(value)) => format!("{name}={}", escaped(value)),
        (None, Ok(value)) => format!("{kind}={}", escaped(value)),
        // RFC 2253, 2.4: a value that is not a string is written in hexadecimal.
        (known, Err(_)) => {
            let name = known.map_or(&*kind, |(_, name)| name);
            format!("{name}=#{}", hex::encode(attribute.as_slice()))
        }
    }
}

/// Escapes a value (RFC 2253, 2.4).
fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let last = value.len().saturating_sub(1);
    for (index, byte) in value.bytes().enumerate() {
        let is_edge =
            (byte == b' ' && (index == 0 || index == last)) || (byte == b'#' && index == 0);
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => {
                text.push('\\');
                text.push(char::from(byte));
            }
            _ if is_edge => {
                text.push('\\');
                text.push(char::from(byte));
            }
            b' '..=b'~' => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\{byte:02X}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    fn described(subject: &[(DnType, &str)], names: Vec<SanType>) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.subject_alt_names = names;
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let value = describe(certificate.der()).unwrap();
        let digest = sha256(certificate.der()).unwrap();
        let digest = hex::encode(&digest);
        let text = value.to_str().unwrap().to_owned();
        let rest = text.strip_prefix(&format!("Hash={digest};"));
        rest.unwrap_or_else(|| panic!("{text}")).to_owned()
    }

    fn dns(name: &str) -> SanType {
        SanType::DnsName(name.try_into().unwrap())
    }

    fn uri(uri: &str) -> SanType {
        SanType::URI(uri.try_into().unwrap())
    }

    #[test]
    fn lists_subject_then_uris_then_hosts() {
        let subject = [
            (DnType::CountryName, "CH"),
            (DnType::OrganizationName, "Example, Inc."),
            (DnType::CommonName, "client"),
        ];
        let names = vec![
            dns("a.example.com"),
            uri("spiffe://example.com/a"),
            dns("b.example.com"),
        ];
        assert_eq!(
            described(&subject, names),
            "Subject=\"CN=client,O=Example\\, Inc.,C=CH\";URI=spiffe://example.com/a;DNS=a.example.com;DNS=b.example.com"
        );
        assert_eq!(described(&[], Vec::new()), "Subject=\"\"");
    }

    #[test]
    fn values_cannot_end_their_quotes_or_add_keys() {
        let common = [(DnType::CommonName, "a\";URI=spiffe://admin;X=\"\\")];
        assert_eq!(
            described(&common, Vec::new()),
            "Subject=\"CN=a\\\"\\;URI=spiffe://admin\\;X=\\\"\\\\\""
        );
        let names = vec![uri("spiffe://a;DNS=admin,Hash=\"\\")];
        assert_eq!(
            described(&[], names),
            "Subject=\"\";URI=\"spiffe://a;DNS=admin,Hash=\\\"\\\\\""
        );
        let line = [(DnType::CommonName, " #b\r\nX-Admin: ü ")];
        assert_eq!(
            described(&line, vec![uri("spiffe://a b")]),
            "Subject=\"CN=\\ #b\\0D\\0AX-Admin: \\C3\\BC\\ \""
        );
    }

    #[test]
    fn length_is_bounded() {
        let names = (0..500).map(|number| dns(&format!("{number:03}.example.com")));
        let text = described(&[], names.collect());
        assert!(
            text.len() < MAX_LENGTH && text.ends_with(".example.com"),
            "{text}"
        );
    }
}
