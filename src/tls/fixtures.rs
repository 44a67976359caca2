//! Certificates for the tests of this module.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, SignatureAlgorithm};

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection};

use crate::ir::{Certificate, ObjectRef};

pub(super) const ECDSA: &SignatureAlgorithm = &rcgen::PKCS_ECDSA_P256_SHA256;
pub(super) const ED25519: &SignatureAlgorithm = &rcgen::PKCS_ED25519;

/// Returns a self-signed certificate for these names.
pub(super) fn certificate(
    algorithm: &'static SignatureAlgorithm,
    names: &[&str],
) -> Arc<Certificate> {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let owned: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let signed = CertificateParams::new(owned).unwrap();
    let signed = signed.self_signed(&key).unwrap();
    let private = key.serialize_der().try_into().unwrap();
    let private = any_supported_type(&private).unwrap();
    Arc::new(Certificate {
        source: ObjectRef::core("Secret", "ns", names[0]),
        key: Arc::new(CertifiedKey::new(vec![signed.der().clone()], private)),
        names: names.iter().map(|name| (*name).into()).collect(),
        not_before: 0,
        not_after: i64::MAX,
        fingerprint: names.concat().into(),
    })
}

/// Performs a complete handshake for a.com.
pub(super) fn handshake(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
) -> Result<(ClientConnection, ServerConnection), Error> {
    let name = "a.com".try_into().unwrap();
    let mut client = ClientConnection::new(client.clone(), name)?;
    let mut server = ServerConnection::new(server.clone())?;
    while client.wants_write() || server.wants_write() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        let mut left = wire.as_slice();
        while !left.is_empty() {
            server.read_tls(&mut left).unwrap();
            server.process_new_packets()?;
        }
        wire.clear();
        server.write_tls(&mut wire).unwrap();
        let mut left = wire.as_slice();
        while !left.is_empty() {
            client.read_tls(&mut left).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok((client, server))
}
