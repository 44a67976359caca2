//! Self-signed certificates for `quickstart` and `echo --tls`, generated at start. Never for production traffic.

use anyhow::Context;
use rcgen::{CertificateParams, DnType, KeyPair};

/// A certificate and its private key, as PEM.
pub struct DemoCertificate {
    /// Certificate.
    pub certificate: String,
    /// Private key.
    pub key: String,
}

/// Generates a certificate for DNS names and addresses.
pub fn self_signed(names: &[&str]) -> anyhow::Result<DemoCertificate> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params =
        CertificateParams::new(names).context("the demo certificate's names are not valid")?;
    params
        .distinguished_name
        .push(DnType::CommonName, "Portcullis demo");
    let key = KeyPair::generate().context("cannot generate a key")?;
    let certificate = params
        .self_signed(&key)
        .context("the demo certificate cannot be signed")?;
    Ok(DemoCertificate {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    })
}
