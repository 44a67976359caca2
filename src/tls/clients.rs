//! Verifies client certificates: during the handshake, and afterwards where rustls has not done so.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, HandshakeKind, RootCertStore,
    ServerConnection, SignatureScheme,
};
use webpki::EndEntityCert;

use crate::ir::tls::{ClientValidation, ClientValidationMode};

/// Maximum bytes of issuer names in a CertificateRequest. The list is only a hint. A longer list does not fit into the
/// message (RFC 8446, 4.2.4) and is omitted.
const MAX_HINTS: usize = 16 * 1024;

/// The verifier of one [`ClientValidation`].
#[derive(Debug)]
pub(super) struct ClientVerifier {
    strict: Arc<dyn ClientCertVerifier>,
    mode: ClientValidationMode,
}

impl ClientVerifier {
    /// Creates the verifier.
    /// # Errors
    /// When no authority is usable, which translation rules out.
    pub(super) fn new(
        validation: &ClientValidation,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, Error> {
        let mut roots = RootCertStore::empty();
        for authority in &validation.authorities {
            roots.add(authority.certificate.clone())?;
        }
        let names = roots.subjects();
        let hints: usize = names.iter().map(|name| name.as_ref().len() + 2).sum();
        let mut builder =
            WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        if hints > MAX_HINTS {
            builder = builder.clear_root_hint_subjects();
        }
        let strict = builder
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        Ok(Self {
            strict,
            mode: validation.mode,
        })
    }

    /// Reports whether no client is served without a valid certificate.
    pub(super) fn is_strict(&self) -> bool {
        self.mode == ClientValidationMode::AllowValidOnly
    }

    /// Returns the verifier that rustls calls during a handshake.
    pub(super) fn handshake_verifier(&self) -> Arc<dyn ClientCertVerifier> {
        let strict = self.strict.clone();
        match self.mode {
            ClientValidationMode::AllowValidOnly => strict,
            ClientValidationMode::AllowInsecureFallback => Arc::new(Lenient(strict)),
        }
    }

    /// Returns the certificate of a client if it is valid; `None` for a client that is served without one.
    ///
    /// Verifies the certificate of a resumed session again, because it may have expired since the full handshake.
    ///
    /// # Errors
    /// When the client must not be served.
    pub(super) fn verified<'c>(
        &self,
        connection: &'c ServerConnection,
        now: UnixTime,
    ) -> Result<Option<&'c CertificateDer<'static>>, Error> {
        let chain = connection.peer_certificates().unwrap_or_default();
        // rustls has verified the certificate in a full handshake. On resumption it calls no verifier.
        let is_verified = connection.handshake_kind() != Some(HandshakeKind::Resumed);
        self.verified_chain(chain, is_verified, now)
    }

    /// Does what [`Self::verified`] does, for a chain that a strict verifier has verified in the handshake, or not.
    pub(super) fn verified_chain<'c>(
        &self,
        chain: &'c [CertificateDer<'static>],
        is_verified: bool,
        now: UnixTime,
    ) -> Result<Option<&'c CertificateDer<'static>>, Error> {
        let is_strict = self.is_strict();
        let Some((leaf, intermediates)) = chain.split_first() else {
            return if is_strict {
                Err(Error::NoCertificatesPresented)
            } else {
                Ok(None)
            };
        };
        if is_strict && is_verified {
            return Ok(Some(leaf));
        }
        match self.strict.verify_client_cert(leaf, intermediates, now) {
            Ok(_) => Ok(Some(leaf)),
            Err(error) if is_strict => Err(error),
            Err(_) => Ok(None),
        }
    }
}

/// Accepts any certificate, since [`ClientVerifier::verified`] decides after the handshake whether it is valid.
/// Verifies that the client has the key, except for a certificate that cannot be parsed, which is never valid.
#[derive(Debug)]
struct Lenient(Arc<dyn ClientCertVerifier>);

impl Lenient {
    fn signature(
        certificate: &CertificateDer<'_>,
        verify: impl FnOnce() -> Result<HandshakeSignatureValid, Error>,
    ) -> Result<HandshakeSignatureValid, Error> {
        match EndEntityCert::try_from(certificate) {
            Ok(_) => verify(),
            Err(_) => Ok(HandshakeSignatureValid::assertion()),
        }
    }
}

impl ClientCertVerifier for Lenient {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::signature(certificate, || {
            self.0
                .verify_tls12_signature(message, certificate, signature)
        })
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Self::signature(certificate, || {
            self.0
                .verify_tls13_signature(message, certificate, signature)
        })
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::{ClientConfig, SupportedProtocolVersion, version};

    use super::*;
    use crate::ir::tls::{AlpnProtocol, Authority, CipherPolicy, TlsVersion};
    use crate::ir::{ObjectRef, ServerTls};
    use crate::tls::fixtures::{ECDSA, certificate, handshake};
    use crate::tls::{Server, ServerConfigs};

    fn authority(name: &str) -> (Authority, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let signed = params.self_signed(&key).unwrap();
        let authority = Authority {
            source: ObjectRef::core("ConfigMap", "ns", name),
            fingerprint: name.into(),
            certificate: signed.der().clone(),
        };
        (authority, Issuer::new(params, key))
    }

    /// Returns a server with this validation, and a client with a certificate of this issuer.
    fn pair(
        authorities: Vec<Authority>,
        mode: ClientValidationMode,
        issuer: &Issuer<'static, KeyPair>,
        version: &'static SupportedProtocolVersion,
    ) -> (Arc<Server>, Arc<ClientConfig>) {
        let shown = certificate(ECDSA, &["a.com"]);
        let mut roots = RootCertStore::empty();
        roots.add(shown.chain()[0].clone()).unwrap();
        let tls = Arc::new(ServerTls {
            alpn: AlpnProtocol::ALL.to_vec(),
            suites: Vec::new(),
            groups: Vec::new(),
            certificates: vec![shown],
            min_version: TlsVersion::Tls12,
            ciphers: CipherPolicy::Default,
            client_validation: Some(Arc::new(ClientValidation { authorities, mode })),
        });
        let configs = ServerConfigs::build([&tls].into_iter(), &ServerConfigs::default());
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["client".to_owned()]).unwrap();
        let leaf = params.signed_by(&key, issuer).unwrap();
        let private = key.serialize_der().try_into().unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![leaf.der().clone()], private);
        (configs.get(&tls).unwrap().clone(), client.unwrap().into())
    }

    #[test]
    fn resumed_session_needs_a_certificate_that_is_still_valid() {
        // rcgen's certificates are valid until 4096.
        let later = UnixTime::since_unix_epoch(Duration::from_secs(100_000_000_000));
        for mode in [
            ClientValidationMode::AllowValidOnly,
            ClientValidationMode::AllowInsecureFallback,
        ] {
            for version in [&version::TLS12, &version::TLS13] {
                let (trusted, issuer) = authority("ca");
                let (server, client) = pair(vec![trusted], mode, &issuer, version);
                let (_, first) = handshake(&client, &server.config).unwrap();
                assert!(server.verified_client(&first).unwrap().is_some());
                let (_, second) = handshake(&client, &server.config).unwrap();
                assert_eq!(second.handshake_kind(), Some(HandshakeKind::Resumed));
                assert!(server.verified_client(&second).unwrap().is_some());
                let verifier = server.clients.as_ref().unwrap();
                match (mode, verifier.verified(&second, later)) {
                    (ClientValidationMode::AllowValidOnly, Err(_)) => {}
                    (ClientValidationMode::AllowInsecureFallback, Ok(None)) => {}
                    (_, other) => panic!("{mode:?} {version:?}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn omits_a_long_list_of_issuers() {
        let mode = ClientValidationMode::AllowValidOnly;
        for (count, are_listed) in [(2, true), (60, false)] {
            let names = (0..count).map(|number| format!("{number}{}", "x".repeat(300)));
            let (mut trusted, mut issuers) = (Vec::new(), Vec::new());
            for name in names {
                let (authority, issuer) = authority(&name);
                trusted.push(authority);
                issuers.push(issuer);
            }
            let last = issuers.last().unwrap();
            let (server, client) = pair(trusted, mode, last, &version::TLS13);
            let verifier = server.clients.as_ref().unwrap().handshake_verifier();
            assert_eq!(!verifier.root_hint_subjects().is_empty(), are_listed);
            let (_, connection) = handshake(&client, &server.config).unwrap();
            assert!(server.verified_client(&connection).unwrap().is_some());
        }
    }
}
