//! `tls` of a ClientPolicy.

use std::fmt::Display;
use std::sync::Arc;

use crate::api::client_policy::ClientTls;
use crate::ir::ObjectRef;
use crate::ir::client::TlsSettings;
use crate::ir::tls::{AlpnProtocol, TlsVersion};
use crate::ir::tls_parameters::{CipherSuite, Group};

use super::super::policy::Content;
use crate::translate::reason::{Fault, Faults, invalid};

pub(super) fn tls(policy: &ObjectRef, section: &ClientTls) -> Result<Content, Fault> {
    let ClientTls {
        min_version,
        cipher_suites,
        groups,
        alpn,
    } = section;
    let min_version = min_version.as_deref().map(version).transpose()?;
    let is_12_accepted = min_version != Some(TlsVersion::Tls13);
    let suites = named(
        cipher_suites,
        "spec.tls.cipherSuites",
        CipherSuite::named,
        CipherSuite::all(),
    )?;
    let has = |version| suites.iter().any(|it| it.version() == version);
    if !suites.is_empty() && !has(TlsVersion::Tls13) {
        return invalid("spec.tls.cipherSuites: has no suite of TLS 1.3".to_owned());
    }
    if !suites.is_empty() && is_12_accepted && !has(TlsVersion::Tls12) {
        return invalid(
            "spec.tls.cipherSuites: has no suite of TLS 1.2, which minVersion: \"1.3\" excludes"
                .to_owned(),
        );
    }
    let groups = named(groups, "spec.tls.groups", Group::named, Group::all())?;
    let mut oldest = groups.iter().map(|it| it.oldest_version());
    if !groups.is_empty() && is_12_accepted && !oldest.any(|it| it == TlsVersion::Tls12) {
        return invalid(
            "spec.tls.groups: has no group of TLS 1.2, which minVersion: \"1.3\" excludes"
                .to_owned(),
        );
    }
    Ok(Content::Tls(Arc::new(TlsSettings {
        min_version,
        suites,
        groups,
        alpn: named(
            alpn,
            "spec.tls.alpn",
            |name| AlpnProtocol::ALL.into_iter().find(|it| it.name() == name),
            AlpnProtocol::ALL.into_iter().map(AlpnProtocol::name),
        )?,
        policy: policy.clone(),
    })))
}

fn version(text: &str) -> Result<TlsVersion, Fault> {
    match text {
        "1.2" => Ok(TlsVersion::Tls12),
        "1.3" => Ok(TlsVersion::Tls13),
        other => invalid(format!(
            "spec.tls.minVersion: {other:?} is neither \"1.2\" nor \"1.3\""
        )),
    }
}

/// Parses a list of names, each of which counts once. An empty list would refuse every client.
fn named<T: PartialEq>(
    names: &Option<Vec<String>>,
    field: &str,
    parse: impl Fn(&str) -> Option<T>,
    all: impl Iterator<Item = impl Display>,
) -> Result<Vec<T>, Fault> {
    let mut values = Vec::new();
    let Some(names) = names else {
        return Ok(values);
    };
    if names.is_empty() {
        return invalid(format!("{field}: is empty"));
    }
    let all: Vec<_> = all.map(|it| it.to_string()).collect();
    let mut faults = Faults::default();
    for (index, name) in names.iter().enumerate() {
        let wrong = || format!("{field}[{index}]: {name:?} is none of {}", all.join(", "));
        let value = parse(name).map_or_else(|| invalid(wrong()), Ok);
        let value = faults.keep(value);
        values.extend(value.filter(|it| !values.contains(it)));
    }
    faults.finish(values)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fault(section: Value) -> String {
        let policy = ObjectRef::core("Policy", "ns", "name");
        let section = serde_json::from_value(section).unwrap();
        let fault = tls(&policy, &section).err();
        fault.map(|fault| fault.message).unwrap_or_default()
    }

    #[test]
    fn faults_name_the_field() {
        let of_13 = "TLS_AES_128_GCM_SHA256";
        let of_12 = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        for (section, expected) in [
            (json!({}), ""),
            (json!({"cipherSuites": [of_13, of_12]}), ""),
            (json!({"cipherSuites": [of_13], "minVersion": "1.3"}), ""),
            (
                json!({"groups": ["X25519MLKEM768"], "minVersion": "1.3"}),
                "",
            ),
            (
                json!({"minVersion": "1.1"}),
                "spec.tls.minVersion: \"1.1\" is neither \"1.2\" nor \"1.3\"",
            ),
            (
                json!({"cipherSuites": [of_12]}),
                "spec.tls.cipherSuites: has no suite of TLS 1.3",
            ),
            (
                json!({"cipherSuites": [of_13], "minVersion": "1.2"}),
                "spec.tls.cipherSuites: has no suite of TLS 1.2",
            ),
            (
                json!({"cipherSuites": [of_13, "TLS_RSA_WITH_AES_128_CBC_SHA"]}),
                "spec.tls.cipherSuites[1]: \"TLS_RSA_WITH_AES_128_CBC_SHA\" is none of TLS_AES_128",
            ),
            (
                json!({"cipherSuites": []}),
                "spec.tls.cipherSuites: is empty",
            ),
            (
                json!({"groups": ["X25519MLKEM768"]}),
                "spec.tls.groups: has no group of TLS 1.2",
            ),
            (
                json!({"groups": ["P-256"]}),
                "spec.tls.groups[0]: \"P-256\" is none of x25519, secp256r1",
            ),
            (
                json!({"alpn": ["h2", "h3"]}),
                "spec.tls.alpn[1]: \"h3\" is none of h2, http/1.1",
            ),
        ] {
            let found = fault(section.clone());
            assert!(found.starts_with(expected), "{section}: {found}");
            assert_eq!(found.is_empty(), expected.is_empty(), "{section}: {found}");
        }
    }
}
