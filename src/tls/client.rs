//! Client configurations: TLS to backends, each with its own verifier. Must not know
//! sockets, handshakes in progress, or which policy requested TLS.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature,
    verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, DnsName, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use webpki::EndEntityCert;

use super::sessions::{Sessions, valid_until};
use super::versions;
use crate::ir::ClientTls;
use crate::ir::tls::{Authorities, KeyPin, SubjectName, Verification, sha256};

/// The parameters of a TLS handshake with a backend.
#[derive(Debug)]
pub struct Client {
    /// Verifier, client certificate, ALPN and a separate session store.
    pub config: Arc<ClientConfig>,
    /// The name that is sent as SNI.
    pub server_name: ServerName<'static>,
}

/// Builds the configuration for these settings.
///
/// # Errors
/// When the name, an authority or the client certificate is unusable. Translation rejects such settings.
pub fn client_config(tls: &ClientTls) -> Result<Client, Error> {
    client_config_at(tls, Arc::new(DefaultTimeProvider))
}

/// Does what [`client_config`] does, with another time.
pub(super) fn client_config_at(
    tls: &ClientTls,
    time: Arc<dyn TimeProvider>,
) -> Result<Client, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let sessions = Arc::new(Sessions::new(time.clone()));
    let verifier = Verifier::new(&tls.verification, &provider, sessions.clone())?;
    let builder = ClientConfig::builder_with_details(provider, time)
        .with_protocol_versions(versions(tls.min_version))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &tls.client_certificate {
        None => builder.with_no_client_auth(),
        Some(certificate) => {
            let key = CertifiedKey::clone(&certificate.key);
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key)))
        }
    };
    config.resumption = Resumption::store(sessions);
    let protocols = tls.alpn.iter();
    config.alpn_protocols = protocols.map(|it| it.name().as_bytes().to_vec()).collect();
    Ok(Client {
        config: Arc::new(config),
        server_name: ServerName::DnsName(dns_name(&tls.server_name)?),
    })
}

fn dns_name(name: &str) -> Result<DnsName<'static>, Error> {
    let name = DnsName::try_from(name.to_owned());
    name.map_err(|_| Error::General("the server name is not a DNS name".to_owned()))
}

/// Returns the certificates that the platform trusts. Reads them when the first policy needs them.
fn system_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let read = || {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        // Skips certificates that rustls cannot parse. Without any root, no backend is trusted.
        let (usable, _) = roots.add_parsable_certificates(found.certs);
        if usable == 0 {
            tracing::error!(
                errors = ?found.errors,
                "the platform has no trusted certificates: backends with wellKnownCACertificates System are refused; \
                 add them to the image, or name them by SSL_CERT_FILE"
            );
        }
        Arc::new(roots)
    };
    ROOTS.get_or_init(read).clone()
}

/// Verifies the issuer, the name and the key of a backend's certificate, as far as the policy requires. The signature
/// that proves possession of the key is always verified.
#[derive(Debug)]
struct Verifier {
    /// `None` if the policy verifies neither issuer nor name.
    trust: Option<Trust>,
    /// The accepted keys; empty accepts any key.
    pins: Vec<KeyPin>,
    algorithms: WebPkiSupportedAlgorithms,
    /// The sessions that begin with what it verifies.
    sessions: Arc<Sessions>,
}

/// The trusted authorities, and the names of which the certificate must have one.
#[derive(Debug)]
struct Trust {
    roots: Arc<RootCertStore>,
    names: Vec<Name>,
}

#[derive(Debug)]
enum Name {
    Hostname(ServerName<'static>),
    Wildcard(Box<str>),
    Uri(Box<str>),
}

impl Verifier {
    fn new(
        verification: &Verification,
        provider: &CryptoProvider,
        sessions: Arc<Sessions>,
    ) -> Result<Self, Error> {
        let Verification {
            authorities,
            names,
            pins,
        } = verification;
        Ok(Self {
            trust: Trust::new(authorities, names)?,
            pins: pins.clone(),
            algorithms: provider.signature_verification_algorithms,
            sessions,
        })
    }

    /// Reports whether the backend's key is pinned. Pins do not apply to issuers: without authorities, nothing proves
    /// that an issuer in the chain issued the certificate.
    fn has_pin(&self, parsed: &ParsedCertificate<'_>) -> bool {
        let digest = sha256(&parsed.subject_public_key_info());
        digest.is_some_and(|digest| self.pins.contains(&KeyPin(digest)))
    }
}

impl Trust {
    fn new(authorities: &Authorities, names: &[SubjectName]) -> Result<Option<Self>, Error> {
        let roots = match authorities {
            Authorities::Unverified => return Ok(None),
            Authorities::System => system_roots(),
            Authorities::Certificates(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots.add(authority.certificate.clone())?;
                }
                Arc::new(roots)
            }
        };
        let name = |name: &SubjectName| {
            Ok(match name {
                SubjectName::Hostname(name) => Name::Hostname(ServerName::DnsName(dns_name(name)?)),
                SubjectName::Wildcard(name) => Name::Wildcard(name.clone()),
                SubjectName::Uri(uri) => Name::Uri(uri.clone()),
            })
        };
        let names = names.iter().map(name).collect::<Result<_, Error>>()?;
        Ok(Some(Self { roots, names }))
    }

    fn has_name(&self, leaf: &CertificateDer<'_>, parsed: &ParsedCertificate<'_>) -> bool {
        let certificate = || EndEntityCert::try_from(leaf).ok();
        self.names.iter().any(|name| match name {
            Name::Hostname(name) => verify_server_name(parsed, name).is_ok(),
            Name::Wildcard(name) => certificate().is_some_and(|certificate| {
                let mut names = certificate.valid_dns_names();
                names.any(|found| found.eq_ignore_ascii_case(name))
            }),
            Name::Uri(uri) => certificate()
                .is_some_and(|certificate| certificate.valid_uri_names().any(|it| it == &**uri)),
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        // SNI. The policy's names are verified instead, and SNI may differ from all of them.
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(leaf)?;
        if let Some(trust) = &self.trust {
            verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &trust.roots,
                intermediates,
                now,
                self.algorithms.all,
            )?;
            if !trust.has_name(leaf, &parsed) {
                return Err(CertificateError::NotValidForName.into());
            }
        }
        if !self.pins.is_empty() && !self.has_pin(&parsed) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        let end = match self.trust {
            Some(_) => valid_until(leaf, intermediates, now),
            None => i64::MAX,
        };
        let others: usize = intermediates.iter().map(|it| it.len()).sum();
        let length = leaf.len() + others;
        self.sessions.on_verified(server_name, (length, end), now);
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
