//! Parses and validates the TLS settings of a policy or of a backend: authorities, names, pins and options.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustls::pki_types::DnsName;

use crate::api::backend_tls_policy::{BackendTlsSpec, BackendTlsValidation, SubjectAltName};
use crate::api::core::{ConfigMap, Secret};
use crate::ir::tls::{
    AlpnProtocol, Authorities, Authority, KeyPin, SubjectName, TlsVersion, Verification,
};
use crate::ir::{Certificate, ClientTls, ObjectRef, UpstreamProtocol};
use crate::settings::permissions::InsecureBackend;

use crate::translate::gateway::authority;
use crate::translate::input::{Input, Mode};
use crate::translate::reason::{Fault, Reason, all, merge};

/// Prefix of our options. Options of other domains are ignored.
const OPTION_PREFIX: &str = "portcullis.dev/";

/// The settings of a policy.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settings {
    /// Plain text, also if policies of other levels ask for TLS.
    Plain,
    /// TLS.
    Tls(TlsSettings),
}

/// A way in which a policy weakens TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weakening {
    /// Plain text.
    Plain,
    /// TLS to any backend that has one of the pinned keys.
    PinsOnly,
    /// TLS to any backend.
    SkipVerify,
}

impl Weakening {
    /// Returns the setting that weakens TLS, for messages. `field` is the path of the validation.
    pub(super) fn asked_at(self, field: &str) -> String {
        match self {
            Self::Plain => "spec.mode None".to_owned(),
            Self::PinsOnly => format!("{field}.pins without certificate authorities"),
            Self::SkipVerify => format!("{field}.insecureSkipVerify"),
        }
    }

    /// Returns the permission that the operator must give.
    fn permission(self) -> InsecureBackend {
        match self {
            Self::Plain => InsecureBackend::None,
            Self::PinsOnly => InsecureBackend::PinsOnly,
            Self::SkipVerify => InsecureBackend::SkipVerify,
        }
    }
}

impl Settings {
    /// Returns how they weaken TLS, if they do.
    pub(super) fn weakening(&self) -> Option<Weakening> {
        match self {
            Self::Plain => Some(Weakening::Plain),
            Self::Tls(settings) => settings.weakening(),
        }
    }
}

/// TLS settings for a target of the policy, independent of the consumer.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::translate) struct TlsSettings {
    server_name: Box<str>,
    verification: Verification,
    min_version: TlsVersion,
    /// `None` means the default for the port's protocol.
    alpn: Option<Vec<AlpnProtocol>>,
}

/// The settings of a policy with their faults.
pub(super) struct ReadSettings {
    pub(super) settings: Result<Settings, Fault>,
    pub(super) unresolved: Option<Fault>,
}

impl TlsSettings {
    fn weakening(&self) -> Option<Weakening> {
        let Verification {
            authorities, pins, ..
        } = &self.verification;
        match (authorities, pins.is_empty()) {
            (Authorities::System | Authorities::Certificates(_), _) => None,
            (Authorities::Unverified, false) => Some(Weakening::PinsOnly),
            (Authorities::Unverified, true) => Some(Weakening::SkipVerify),
        }
    }

    /// Returns the settings for a port with this protocol.
    pub(in crate::translate) fn with(
        &self,
        protocol: UpstreamProtocol,
        client_certificate: Option<Arc<Certificate>>,
    ) -> ClientTls {
        let alpn = match (protocol, &self.alpn) {
            (UpstreamProtocol::H2c, _) => vec![AlpnProtocol::H2],
            (UpstreamProtocol::Http1, Some(alpn)) => alpn.clone(),
            (UpstreamProtocol::Http1, None) => vec![AlpnProtocol::Http11],
            (UpstreamProtocol::Tcp | UpstreamProtocol::Udp, _) => Vec::new(),
        };
        ClientTls {
            server_name: self.server_name.clone(),
            verification: self.verification.clone(),
            client_certificate,
            min_version: self.min_version,
            alpn,
        }
    }
}

/// Reads the settings of a policy in `namespace`.
pub(super) fn read(input: &Input<'_>, namespace: &str, spec: &BackendTlsSpec) -> ReadSettings {
    let mut unresolved = Vec::new();
    let settings = match spec.mode.as_deref() {
        None | Some("" | "TLS") => tls(input, namespace, spec, &mut unresolved).map(Settings::Tls),
        Some("None") => Ok(Settings::Plain),
        Some(other) => Err(invalid(format!(
            "spec.mode is {other:?}; it must be TLS or None"
        ))),
    };
    ReadSettings {
        settings,
        unresolved: merge(&unresolved),
    }
}

fn tls(
    input: &Input<'_>,
    namespace: &str,
    spec: &BackendTlsSpec,
    unresolved: &mut Vec<Fault>,
) -> Result<TlsSettings, Fault> {
    let validation = (&spec.validation, "spec.validation");
    let settings = validated(input, namespace, validation, unresolved)?;
    let (min_version, alpn) = options(&spec.options)?;
    Ok(TlsSettings {
        min_version,
        alpn,
        ..settings
    })
}

/// Returns the settings of a validation at a field of an object in `namespace`. Adds references that cannot be resolved
/// to `unresolved`.
pub(in crate::translate) fn validated(
    input: &Input<'_>,
    namespace: &str,
    (validation, field): (&BackendTlsValidation, &str),
    unresolved: &mut Vec<Fault>,
) -> Result<TlsSettings, Fault> {
    let pins = pins(&validation.pins, field)?;
    let is_unverified = is_unverified(validation, field)?;
    let authorities = if is_unverified {
        Authorities::Unverified
    } else {
        authorities(input, namespace, (validation, field), unresolved)?
    };
    let server_name = hostname(&validation.hostname, field)?;
    let names = if is_unverified {
        Vec::new()
    } else {
        names(&server_name, &validation.subject_alt_names, field)?
    };
    let settings = TlsSettings {
        server_name,
        verification: Verification {
            authorities,
            names,
            pins,
        },
        min_version: TlsVersion::Tls12,
        alpn: None,
    };
    permit(input, &settings, field)?;
    Ok(settings)
}

/// Reports whether neither issuer nor names of the certificate are verified.
fn is_unverified(validation: &BackendTlsValidation, field: &str) -> Result<bool, Fault> {
    let has_authorities = !validation.ca_certificate_refs.is_empty()
        || validation
            .well_known_ca_certificates
            .as_ref()
            .is_some_and(|it| !it.is_empty());
    let is_skipped = validation.insecure_skip_verify;
    if is_skipped && has_authorities {
        return Err(invalid(format!(
            "{field}.insecureSkipVerify excludes caCertificateRefs and wellKnownCACertificates; remove it to verify \
             certificates"
        )));
    }
    let is_unverified = is_skipped || (!has_authorities && !validation.pins.is_empty());
    if is_unverified && !validation.subject_alt_names.is_empty() {
        return Err(invalid(format!(
            "{field}.subjectAltNames are verified with caCertificateRefs or wellKnownCACertificates only; name \
             authorities or remove the names"
        )));
    }
    Ok(is_unverified)
}

/// Refuses settings that the operator does not permit.
fn permit(input: &Input<'_>, settings: &TlsSettings, field: &str) -> Result<(), Fault> {
    let Some(weakening) = settings.weakening() else {
        return Ok(());
    };
    let needed = weakening.permission();
    if needed <= input.options.permissions.insecure_backend {
        return Ok(());
    }
    let message = format!(
        "{} is not permitted; name authorities in caCertificateRefs or wellKnownCACertificates, or have the operator set \
         --allow-insecure-backend={needed}",
        weakening.asked_at(field)
    );
    Err(Fault::new(Reason::NotAllowed, message))
}

/// Parses the pinned keys. Returns each once.
fn pins(pins: &[String], field: &str) -> Result<Vec<KeyPin>, Fault> {
    let pin = |(index, pin): (usize, &String)| {
        let read = pin.parse::<KeyPin>();
        read.map_err(|problem| invalid(format!("{field}.pins[{index}] {problem}")))
    };
    let pins = pins.iter().enumerate().map(pin);
    let distinct: BTreeSet<_> = all(pins)?;
    Ok(distinct.into_iter().collect())
}

fn invalid(message: String) -> Fault {
    Fault::new(Reason::Invalid, message)
}

/// Returns the trusted authorities: all that can be read. If none can be read, fails instead of trusting any issuer.
fn authorities(
    input: &Input<'_>,
    namespace: &str,
    (validation, field): (&BackendTlsValidation, &str),
    unresolved: &mut Vec<Fault>,
) -> Result<Authorities, Fault> {
    let references = &validation.ca_certificate_refs;
    match validation.well_known_ca_certificates.as_deref() {
        Some("System") if references.is_empty() => return Ok(Authorities::System),
        None | Some("") => {}
        Some(other) => {
            return Err(invalid(format!(
                "{field}.wellKnownCACertificates is {other:?}; only System is supported, and only without \
                 caCertificateRefs"
            )));
        }
    }
    let mut found = authority::Union::default();
    for (index, reference) in references.iter().enumerate() {
        let field = format!("{field}.caCertificateRefs[{index}]");
        match bundle(input, &reference.object_ref(namespace), &field) {
            Ok(authorities) => found.add(authorities),
            Err(fault) => unresolved.push(fault),
        }
    }
    if found.is_empty() {
        let why = merge(unresolved).map(|fault| fault.message);
        let why = why.unwrap_or_else(|| format!("{field} names none"));
        let message = format!("no usable CA certificate: {why}");
        return Err(Fault::new(Reason::NoValidCACertificate, message));
    }
    Ok(Authorities::Certificates(found.into_list()))
}

/// Returns the certificates of a ConfigMap or Secret.
fn bundle(input: &Input<'_>, name: &ObjectRef, field: &str) -> Result<Vec<Authority>, Fault> {
    let bad = |problem: &str| {
        let message = format!("{field}: {name} {problem}");
        Fault::new(Reason::InvalidCACertificateRef, message)
    };
    let read = match (&*name.group, &*name.kind) {
        ("", "ConfigMap") => {
            let found = input.find::<ConfigMap>(name);
            authority::of_config_map(found.ok_or_else(|| bad(input.absence(name)))?, name)
        }
        ("", "Secret") if input.options.mode != Mode::Dedicated => {
            let found = input.find::<Secret>(name);
            authority::of_secret(found.ok_or_else(|| bad(input.absence(name)))?, name)
        }
        ("", "Secret") => {
            let message = format!(
                "{field} names {name}: policies cannot give the pods of a Gateway access to a Secret; put ca.crt into a ConfigMap"
            );
            return Err(Fault::new(Reason::InvalidKind, message));
        }
        (group, kind) => {
            let message = format!(
                "{field} names a {kind} of group {group:?}; name a ConfigMap of the core group with the key ca.crt"
            );
            return Err(Fault::new(Reason::InvalidKind, message));
        }
    };
    read.map_err(|problem| bad(&problem))
}

/// Parses a name for SNI, which cannot be an IP address (RFC 6066, 3).
fn hostname(name: &str, field: &str) -> Result<Box<str>, Fault> {
    if !is_dns_name(name) {
        return Err(invalid(format!(
            "{field}.hostname {name:?} is not a DNS name without wildcard"
        )));
    }
    Ok(name.to_ascii_lowercase().into())
}

/// Reports whether text is a DNS name without wildcard, and not an IP address.
pub(in crate::translate) fn is_dns_name(name: &str) -> bool {
    DnsName::try_from(name).is_ok() && name.parse::<std::net::IpAddr>().is_err()
}

/// Returns the names of which the certificate must have one. Alternative names replace the hostname.
fn names(
    hostname: &str,
    alternatives: &[SubjectAltName],
    field: &str,
) -> Result<Vec<SubjectName>, Fault> {
    if alternatives.is_empty() {
        return Ok(vec![SubjectName::Hostname(hostname.into())]);
    }
    let name = |(index, name): (usize, &SubjectAltName)| {
        let wanted = match name.kind.as_str() {
            "Hostname" => name.hostname.as_deref().and_then(subject_hostname),
            "URI" => {
                let uri = name.uri.as_deref().filter(|uri| !uri.is_empty());
                uri.map(|uri| SubjectName::Uri(uri.into()))
            }
            _ => None,
        };
        wanted.ok_or_else(|| {
            invalid(format!(
                "{field}.subjectAltNames[{index}] must be of type Hostname with a DNS name in hostname, or of \
                 type URI with a URI in uri"
            ))
        })
    };
    all(alternatives.iter().enumerate().map(name))
}

fn subject_hostname(name: &str) -> Option<SubjectName> {
    let lower = name.to_ascii_lowercase().into_boxed_str();
    match name.strip_prefix("*.") {
        Some(rest) => is_dns_name(rest).then_some(SubjectName::Wildcard(lower)),
        None => is_dns_name(name).then_some(SubjectName::Hostname(lower)),
    }
}

fn options(
    options: &BTreeMap<String, String>,
) -> Result<(TlsVersion, Option<Vec<AlpnProtocol>>), Fault> {
    let (mut min_version, mut alpn) = (TlsVersion::Tls12, None);
    for (key, value) in options {
        let Some(name) = key.strip_prefix(OPTION_PREFIX) else {
            continue;
        };
        match (name, value.as_str()) {
            ("min-tls-version", "1.2") => min_version = TlsVersion::Tls12,
            ("min-tls-version", "1.3") => min_version = TlsVersion::Tls13,
            ("alpn", "h2") => alpn = Some(vec![AlpnProtocol::H2]),
            ("alpn", "http/1.1") => alpn = Some(vec![AlpnProtocol::Http11]),
            ("alpn", "h2,http/1.1") => alpn = Some(vec![AlpnProtocol::H2, AlpnProtocol::Http11]),
            _ => {
                return Err(invalid(format!(
                    "spec.options: {key}: {value:?} is not supported; options are {OPTION_PREFIX}min-tls-version \
                     (\"1.2\" or \"1.3\") and {OPTION_PREFIX}alpn (\"h2\", \"http/1.1\" or \"h2,http/1.1\")"
                )));
            }
        }
    }
    Ok((min_version, alpn))
}
