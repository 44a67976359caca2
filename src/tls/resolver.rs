//! Selects the certificate of a handshake: by server name, then by the signature schemes of the client, then by order.
//! Must not know listeners.

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::ir::Certificate;
use crate::ir::keyed::KeyedMap;

/// The certificates of one listener, in order, with an index of their names.
#[derive(Debug)]
pub(super) struct Resolver {
    keys: Box<[Arc<CertifiedKey>]>,
    /// Indices of the keys by exact name.
    exact: KeyedMap<Box<str>, Vec<usize>>,
    /// Indices of the keys by wildcard name without its `*.`.
    wildcards: KeyedMap<Box<str>, Vec<usize>>,
}

impl Resolver {
    /// Indexes the names of the certificates.
    pub(super) fn new(certificates: &[Arc<Certificate>]) -> Self {
        let mut exact: KeyedMap<Box<str>, Vec<usize>> = KeyedMap::default();
        let mut wildcards: KeyedMap<Box<str>, Vec<usize>> = KeyedMap::default();
        // The only certificate is selected without its names.
        let indexed = certificates.iter().enumerate();
        for (index, certificate) in indexed.filter(|_| certificates.len() > 1) {
            for name in &certificate.names {
                let list = match name.strip_prefix("*.") {
                    Some(suffix) => wildcards.entry(suffix.into()),
                    None => exact.entry(name.clone()),
                };
                list.or_default().push(index);
            }
        }
        Self {
            keys: certificates.iter().map(|it| it.key.clone()).collect(),
            exact,
            wildcards,
        }
    }

    fn choose(
        &self,
        name: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> Option<&Arc<CertifiedKey>> {
        if let [only] = &*self.keys {
            // Even if the client supports none of its schemes: rustls then sends handshake_failure.
            return Some(only);
        }
        let usable = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(schemes).is_some();
        let exact = name.and_then(|name| self.exact.get(name));
        // A wildcard in a certificate stands for exactly one label (RFC 6125, 6.4.3).
        let wildcard = name
            .and_then(|name| name.split_once('.'))
            .filter(|(label, _)| !label.is_empty())
            .and_then(|(_, suffix)| self.wildcards.get(suffix));
        let named = [exact, wildcard].into_iter().flatten().flatten();
        named
            .filter_map(|index| self.keys.get(*index))
            .find(usable)
            .or_else(|| self.keys.iter().find(usable))
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        self.choose(name.as_deref(), hello.signature_schemes())
            .cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::fixtures::{ECDSA, ED25519, certificate};

    const ALL: [SignatureScheme; 2] = [
        SignatureScheme::ED25519,
        SignatureScheme::ECDSA_NISTP256_SHA256,
    ];

    #[test]
    fn prefers_exact_names_then_wildcards_of_one_label_then_order() {
        let certificates = [
            certificate(ECDSA, &["first.org"]),
            certificate(ECDSA, &["*.a.com"]),
            certificate(ECDSA, &["x.a.com"]),
        ];
        let resolver = Resolver::new(&certificates);
        let rows = [
            (Some("x.a.com"), 2),
            (Some("y.a.com"), 1),
            (Some("z.y.a.com"), 0),
            (Some("a.com"), 0),
            (Some(".a.com"), 0),
            (Some("unknown.org"), 0),
            (None, 0),
        ];
        for (name, index) in rows {
            let chosen = resolver.choose(name, &ALL).unwrap();
            assert_eq!(chosen.cert, certificates[index].chain(), "{name:?}");
        }
    }

    #[test]
    fn selects_the_first_certificate_whose_signature_the_client_supports() {
        let certificates = [
            certificate(ED25519, &["a.com"]),
            certificate(ECDSA, &["a.com"]),
            certificate(ECDSA, &["b.com"]),
        ];
        let resolver = Resolver::new(&certificates);
        let chosen = |schemes: &[_]| resolver.choose(Some("a.com"), schemes).unwrap();
        assert_eq!(chosen(&ALL).cert, certificates[0].chain());
        assert_eq!(chosen(&ALL[1..]).cert, certificates[1].chain());
        let rsa_only = [SignatureScheme::RSA_PSS_SHA256];
        assert!(resolver.choose(Some("a.com"), &rsa_only).is_none());
    }
}
