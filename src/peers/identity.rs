//! How pods of one Gateway know each other: by TLS 1.3 with raw public keys (RFC 7250) on both sides. The key is derived from
//! the secret that the controller gives to the pods of the Gateway and to nobody else. Must not know messages.

use std::sync::Arc;

use aws_lc_rs::hmac;
use aws_lc_rs::signature::Ed25519KeyPair;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};

/// Name and version of the protocol of leases.
const LEASES: &[u8] = b"portcullis-limits/1";
/// Likewise, of logout tokens.
pub(super) const LOGOUTS: &[u8] = b"portcullis-logouts/1";

/// The TLS configurations of the pods of a Gateway.
#[derive(Clone)]
pub(super) struct Identity {
    /// For connections of leases.
    pub(super) client: Arc<ClientConfig>,
    /// For connections of logout tokens.
    pub(super) logouts: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
}

impl Identity {
    /// Derives the identity from the secret of the Gateway.
    ///
    /// # Errors
    /// When no key can be made of it.
    pub(super) fn from_secret(secret: &str) -> Result<Self, Error> {
        let fault = || Error::General("cannot derive the key of pods".to_owned());
        let key = Ed25519KeyPair::from_seed_unchecked(&derived(secret, "the key of pods"));
        let key = key.map_err(|_| fault())?;
        let key = key.to_pkcs8().map_err(|_| fault())?;
        let key = provider::sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(key.as_ref()))?;
        let public = key
            .public_key()
            .ok_or_else(|| Error::General("the key of pods has no public key".to_owned()))?;
        let public = CertificateDer::from(public.as_ref().to_vec());
        let certified = Arc::new(CertifiedKey::new(vec![public.clone()], key));
        let provider = Arc::new(provider::default_provider());
        let known = Arc::new(KnownKey {
            public,
            provider: provider.clone(),
        });
        let versions = &[&rustls::version::TLS13];
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)?
            .dangerous()
            .with_custom_certificate_verifier(known.clone())
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(
                certified.clone(),
            )));
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let mut logouts = client.clone();
        client.alpn_protocols = vec![LEASES.to_vec()];
        logouts.alpn_protocols = vec![LOGOUTS.to_vec()];
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)?
            .with_client_cert_verifier(known)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![LEASES.to_vec(), LOGOUTS.to_vec()];
        Ok(Self {
            client: Arc::new(client),
            logouts: Arc::new(logouts),
            server: Arc::new(server),
        })
    }
}

/// Returns the secret that keys of limits are hashed with.
pub(super) fn hash_secret(secret: &str) -> [u64; 2] {
    let derived = derived(secret, "the hash of keys of limits");
    let half = |at: usize| {
        let bytes = derived.get(at..).and_then(|rest| rest.first_chunk());
        u64::from_be_bytes(*bytes.unwrap_or(&[0; 8]))
    };
    [half(0), half(8)]
}

/// Derives 32 bytes for each purpose.
fn derived(secret: &str, purpose: &str) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, purpose.as_bytes());
    let mut bytes = [0; 32];
    bytes.copy_from_slice(tag.as_ref());
    bytes
}

/// Accepts the one key that all pods of the Gateway have.
#[derive(Debug)]
struct KnownKey {
    /// Its `SubjectPublicKeyInfo`.
    public: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl KnownKey {
    fn check(&self, presented: &CertificateDer<'_>) -> Result<(), Error> {
        match presented.as_ref() == self.public.as_ref() {
            true => Ok(()),
            false => Err(CertificateError::UnknownIssuer.into()),
        }
    }
}

/// The functions that verifiers of servers and of clients have in common.
macro_rules! signatures_of_raw_keys {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::General("only TLS 1.3".to_owned()))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            key: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            let key = SubjectPublicKeyInfoDer::from(key.as_ref());
            verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for KnownKey {
    fn verify_server_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(presented)
            .map(|()| ServerCertVerified::assertion())
    }

    signatures_of_raw_keys!();
}

impl ClientCertVerifier for KnownKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        presented: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(presented)
            .map(|()| ClientCertVerified::assertion())
    }

    signatures_of_raw_keys!();
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use rustls::{ClientConnection, ServerConnection};

    use super::*;

    /// Runs a handshake in memory.
    fn handshake(client: &Identity, server: &Identity) -> Result<(), Error> {
        let name = ServerName::try_from("10.0.0.1").unwrap();
        let mut client = ClientConnection::new(client.client.clone(), name)?;
        let mut server = ServerConnection::new(server.server.clone())?;
        for _ in 0..4 {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            while !bytes.is_empty() {
                let read = server.read_tls(&mut &*bytes).unwrap();
                bytes.drain(..read);
            }
            server.process_new_packets()?;
            let mut bytes = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            while !bytes.is_empty() {
                let read = client.read_tls(&mut &*bytes).unwrap();
                bytes.drain(..read);
            }
            client.process_new_packets()?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        client.writer().write_all(b"x").unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut &*bytes).unwrap();
        server.process_new_packets()?;
        let mut received = [0];
        assert_eq!(server.reader().read(&mut received).unwrap(), 1);
        Ok(())
    }

    #[test]
    fn pods_of_one_gateway_know_each_other_and_no_others() {
        let identity = |secret| Identity::from_secret(secret).unwrap();
        let (one, same, other) = (identity("a"), identity("a"), identity("b"));
        assert_eq!(handshake(&one, &same), Ok(()));
        assert!(handshake(&one, &other).is_err());
        assert!(handshake(&other, &one).is_err());
        // A client without a key, and one that trusts the server but has another key.
        let mixed = Identity {
            client: Arc::new({
                let mut config = (*one.client).clone();
                config.client_auth_cert_resolver = other.client.client_auth_cert_resolver.clone();
                config
            }),
            ..one.clone()
        };
        assert!(handshake(&mixed, &one).is_err());
        let provider = Arc::new(provider::default_provider());
        let without = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let without = Identity {
            client: Arc::new(without),
            ..one.clone()
        };
        assert!(handshake(&without, &one).is_err());
    }

    #[test]
    fn hash_secrets_differ() {
        assert_eq!(hash_secret("a"), hash_secret("a"));
        assert_ne!(hash_secret("a"), hash_secret("b"));
        let [one, other] = hash_secret("a");
        assert_ne!(one, other);
    }
}
