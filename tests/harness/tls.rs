//! Certificates generated at run time, and client configurations that accept any certificate, so
//! that tests can inspect it.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rcgen::{CertificateParams, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

/// A self-signed certificate and its key.
pub(crate) struct Certificate {
    pub(crate) pem: String,
    pub(crate) key: String,
    pub(crate) der: CertificateDer<'static>,
}

impl Certificate {
    /// Returns a certificate with an ECDSA key for these names.
    pub(crate) fn new(names: &[&str]) -> Self {
        Self::with(names, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    /// Returns a certificate that is no longer valid.
    pub(crate) fn expired(names: &[&str]) -> Self {
        Self::made(names, &rcgen::PKCS_ECDSA_P256_SHA256, |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        })
    }

    /// Returns a certificate that is not valid yet.
    pub(crate) fn early(names: &[&str]) -> Self {
        Self::made(names, &rcgen::PKCS_ECDSA_P256_SHA256, |params| {
            params.not_before = rcgen::date_time_ymd(4000, 1, 1);
        })
    }

    /// Returns a certificate that expires in some days.
    pub(crate) fn ending(names: &[&str]) -> Self {
        let days = Duration::from_secs(4 * 24 * 3600);
        let now = UNIX_EPOCH.elapsed().expect("after 1970");
        Self::made(names, &rcgen::PKCS_ECDSA_P256_SHA256, |params| {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(1970, 1, 1) + now + days;
        })
    }

    /// Returns a certificate with a key of this algorithm.
    pub(crate) fn with(names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
        Self::made(names, algorithm, |_| {})
    }

    fn made(
        names: &[&str],
        algorithm: &'static rcgen::SignatureAlgorithm,
        tune: impl FnOnce(&mut CertificateParams),
    ) -> Self {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let mut params = CertificateParams::new(names).expect("valid names");
        tune(&mut params);
        let signed = params.self_signed(&key).expect("signed");
        Self {
            pem: signed.pem(),
            key: key.serialize_pem(),
            der: signed.der().clone(),
        }
    }
}

/// Returns a client that offers these ALPN protocols and accepts any certificate.
pub(crate) fn client(protocols: &[&str]) -> Arc<ClientConfig> {
    client_of(rustls::ALL_VERSIONS, protocols)
}

/// Like [`client`], for these TLS versions.
pub(crate) fn client_of(
    versions: &[&'static rustls::SupportedProtocolVersion],
    protocols: &[&str],
) -> Arc<ClientConfig> {
    let provider = aws_lc_rs::default_provider();
    let all = provider
        .signature_verification_algorithms
        .supported_schemes();
    client_verifying(versions, protocols, &all)
}

/// A client that trusts no certificate.
pub(crate) fn client_without_trust() -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("known versions")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    Arc::new(config)
}

/// Like [`client_of`], for these signature schemes only.
pub(crate) fn client_verifying(
    versions: &[&'static rustls::SupportedProtocolVersion],
    protocols: &[&str],
    schemes: &[SignatureScheme],
) -> Arc<ClientConfig> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = config(provider, versions, schemes);
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    Arc::new(config)
}

/// Like [`client_of`], with this cryptography and without ALPN.
pub(crate) fn client_with(
    provider: Arc<CryptoProvider>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let algorithms = provider.signature_verification_algorithms;
    let all = algorithms.supported_schemes();
    Arc::new(config(provider, versions, &all))
}

fn config(
    provider: Arc<CryptoProvider>,
    versions: &[&'static rustls::SupportedProtocolVersion],
    schemes: &[SignatureScheme],
) -> ClientConfig {
    ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .expect("known versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trusting(provider, schemes.to_vec())))
        .with_no_client_auth()
}

#[derive(Debug)]
struct Trusting(Arc<CryptoProvider>, Vec<SignatureScheme>);

impl ServerCertVerifier for Trusting {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.1.clone()
    }
}
