//! TLS settings of listeners and backends. Never prints key material: certificates show as fingerprints.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::SupportedCipherSuite;
use rustls::crypto::aws_lc_rs::cipher_suite;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use serde::{Serialize, Serializer};

use super::ObjectRef;
use super::named::named;
use super::tls_parameters::{CipherSuite, Group};

pub use super::tls_parameters::TlsVersion;

/// TLS termination of one listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ServerTls {
    /// Protocols to offer by ALPN, in order of preference. Empty on listeners of protocol TLS, whose clients speak any
    /// protocol.
    #[serde(skip)]
    pub alpn: Vec<AlpnProtocol>,
    /// Certificates; never empty. SNI decides which one a client gets, then the signature algorithm, then the order.
    pub certificates: Vec<Arc<Certificate>>,
    /// The oldest protocol version to accept.
    pub min_version: TlsVersion,
    /// Which cipher suites to offer.
    pub ciphers: CipherPolicy,
    /// The cipher suites to offer instead; empty for those of [`Self::ciphers`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suites: Vec<CipherSuite>,
    /// Groups for key exchange; empty for those that the library prefers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// How client certificates are verified; `None` means that clients are not asked for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_validation: Option<Arc<ClientValidation>>,
}

/// How client certificates are verified.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClientValidation {
    /// Trusted issuers, each once, in order of their fingerprints; never empty.
    pub authorities: Vec<Authority>,
    /// What happens to clients without a valid certificate.
    pub mode: ClientValidationMode,
}

/// What happens to clients without a valid certificate (`validation.mode` of a Gateway).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum ClientValidationMode {
    /// They are refused.
    AllowValidOnly,
    /// They are served as clients without a certificate.
    AllowInsecureFallback,
}

/// TLS to the endpoints of a backend. Two connections with different settings are never shared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClientTls {
    /// DNS name that is sent as SNI.
    pub server_name: Box<str>,
    /// How the backend's certificate is verified.
    pub verification: Verification,
    /// Certificate for backends that ask for one.
    pub client_certificate: Option<Arc<Certificate>>,
    /// The oldest protocol version to offer.
    pub min_version: TlsVersion,
    /// Protocols to offer, in order of preference; never empty.
    pub alpn: Vec<AlpnProtocol>,
}

/// How a backend's certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Verification {
    /// Trusted issuers.
    pub authorities: Authorities,
    /// The certificate must have one of these names. Empty only with [`Authorities::Unverified`].
    pub names: Vec<SubjectName>,
    /// The certificate must have one of these keys, in order; empty permits any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pins: Vec<KeyPin>,
}

/// Trusted issuers of certificates.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Authorities {
    /// Those that the platform trusts.
    System,
    /// These, each once, in order of their fingerprints; never empty.
    Certificates(Vec<Authority>),
    /// Any: neither issuer nor names nor validity are verified. A policy needs the operator's permission for this.
    Unverified,
}

/// SHA-256 of the SubjectPublicKeyInfo of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyPin(pub [u8; 32]);

/// Returns the SHA-256 of some bytes; `None` if rustls has no hash for the cipher suite. Using the hash of rustls
/// avoids another crypto library.
pub fn sha256(bytes: &[u8]) -> Option<[u8; 32]> {
    let SupportedCipherSuite::Tls13(suite) = cipher_suite::TLS13_AES_128_GCM_SHA256 else {
        return None;
    };
    let digest = suite.common.hash_provider.hash(bytes);
    digest.as_ref().try_into().ok()
}

impl KeyPin {
    const PREFIX: &str = "sha256/";
}

impl FromStr for KeyPin {
    type Err = &'static str;

    /// Parses `sha256/` and base64.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SHAPE: &str = "must be sha256/ and 44 characters of base64";
        let encoded = text.strip_prefix(Self::PREFIX).ok_or(SHAPE)?;
        let bytes = STANDARD.decode(encoded).map_err(|_| SHAPE)?;
        bytes.try_into().map(Self).map_err(|_| SHAPE)
    }
}

impl fmt::Display for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, STANDARD.encode(self.0))
    }
}

impl fmt::Debug for KeyPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for KeyPin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The certificate of an issuer.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Authority {
    /// Where it came from.
    pub source: ObjectRef,
    /// SHA-256 of the certificate, in lower-case hexadecimal.
    #[serde(rename = "sha256")]
    pub fingerprint: Box<str>,
    /// The certificate.
    #[serde(skip)]
    pub certificate: CertificateDer<'static>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({} sha256:{})", self.source, self.fingerprint)
    }
}

/// A name of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum SubjectName {
    /// A DNS name. A certificate with a matching wildcard has it too.
    Hostname(Box<str>),
    /// A DNS name with a wildcard, which the certificate must have literally.
    Wildcard(Box<str>),
    /// A URI, such as a SPIFFE ID, which the certificate must have literally.
    Uri(Box<str>),
}

named! {
    /// A protocol of HTTP within TLS, in the usual order of preference.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
    pub enum AlpnProtocol {
        /// HTTP/2.
        H2 = "h2",
        /// HTTP/1.1.
        Http11 = "http/1.1",
    }
}

/// A set of cipher suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum CipherPolicy {
    /// Every suite that the library considers safe.
    Default,
    /// AES-GCM suites only, for installations that must not use ChaCha20.
    AesGcm,
}

/// A certificate chain with its key. Translation has checked that they belong together.
pub struct Certificate {
    /// Where it came from.
    pub source: ObjectRef,
    /// The chain, leaf first and never empty, and its private key as handshakes use it.
    pub key: Arc<CertifiedKey>,
    /// DNS names of the leaf, lower-case; wildcards as `*.suffix`.
    pub names: Vec<Box<str>>,
    /// Begin of the leaf's validity, in seconds since 1970.
    pub not_before: i64,
    /// End of the leaf's validity, in seconds since 1970.
    pub not_after: i64,
    /// SHA-256 of the leaf, in lower-case hexadecimal.
    pub fingerprint: Box<str>,
}

impl Certificate {
    /// Returns the chain, leaf first; never empty.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }
}

/// Equal if the chains are: the key belongs to the leaf, and the rest is read from the leaf.
impl PartialEq for Certificate {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source && self.chain() == other.chain()
    }
}

impl Eq for Certificate {}

impl Hash for Certificate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.source.hash(state);
        self.fingerprint.hash(state);
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Certificate({} sha256:{})",
            self.source, self.fingerprint
        )
    }
}

impl Serialize for Certificate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            source: &'a ObjectRef,
            names: &'a [Box<str>],
            not_after: i64,
            sha256: &'a str,
        }
        let shown = Shown {
            source: &self.source,
            names: &self.names,
            not_after: self.not_after,
            sha256: &self.fingerprint,
        };
        shown.serialize(serializer)
    }
}
