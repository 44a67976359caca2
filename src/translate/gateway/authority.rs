//! CA certificates: reads the bundle of a ConfigMap or Secret (`ca.crt`). Must not know who trusts them.

use std::collections::BTreeMap;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::api::core::{BUNDLE, ConfigMap, Secret};
use crate::ir::ObjectRef;
use crate::ir::tls::Authority;

use super::certificate;

/// Maximum size of a bundle, in bytes: the limit of a ConfigMap.
const MAX_BUNDLE: usize = 1 << 20;
/// Maximum number of certificates in a bundle.
const MAX_AUTHORITIES: usize = 1024;

/// The certificates of several bundles, each once, in order of their fingerprints. Bundles often share certificates.
#[derive(Default)]
pub(in crate::translate) struct Union(BTreeMap<Box<str>, Authority>);

impl Union {
    /// Adds the certificates of a bundle.
    pub(in crate::translate) fn add(&mut self, bundle: impl IntoIterator<Item = Authority>) {
        let bundle = bundle.into_iter();
        self.0
            .extend(bundle.map(|authority| (authority.fingerprint.clone(), authority)));
    }

    /// Reports whether there are no certificates.
    pub(in crate::translate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns all certificates.
    pub(in crate::translate) fn into_list(self) -> Vec<Authority> {
        self.0.into_values().collect()
    }
}

/// Returns the certificates of a ConfigMap. The error continues a sentence that begins with its name.
pub(in crate::translate) fn of_config_map(
    map: &ConfigMap,
    name: &ObjectRef,
) -> Result<Vec<Authority>, String> {
    let pem = map.data.get(BUNDLE).ok_or("has no ca.crt")?;
    read(pem.as_bytes(), name)
}

/// Returns the certificates of a Secret. The error continues a sentence that begins with its name.
pub(in crate::translate) fn of_secret(
    secret: &Secret,
    name: &ObjectRef,
) -> Result<Vec<Authority>, String> {
    read(certificate::value(secret, BUNDLE)?, name)
}

fn read(pem: &[u8], source: &ObjectRef) -> Result<Vec<Authority>, String> {
    if pem.len() > MAX_BUNDLE {
        return Err(format!(
            "has a ca.crt of more than {} KiB",
            MAX_BUNDLE / 1024
        ));
    }
    let certificates = CertificateDer::pem_slice_iter(pem).take(MAX_AUTHORITIES + 1);
    let certificates: Vec<_> = certificates
        .collect::<Result<_, _>>()
        .map_err(|_| "has a ca.crt that is not PEM".to_owned())?;
    match certificates.len() {
        0 => return Err("has no PEM certificate in ca.crt".to_owned()),
        length if length > MAX_AUTHORITIES => {
            return Err(format!(
                "has more than {MAX_AUTHORITIES} certificates in ca.crt"
            ));
        }
        _ => {}
    }
    let mut roots = RootCertStore::empty();
    let authority = |(index, certificate): (usize, CertificateDer<'static>)| {
        // Parses the certificate as a trust anchor: what passes here can be added to the root store of a verifier.
        let added = roots.add(certificate.clone());
        added.map_err(|_| format!("has a ca.crt whose certificate {} is not X.509", index + 1))?;
        Ok(Authority {
            source: source.clone(),
            fingerprint: certificate::sha256(&certificate)?,
            certificate,
        })
    };
    certificates
        .into_iter()
        .enumerate()
        .map(authority)
        .collect()
}
