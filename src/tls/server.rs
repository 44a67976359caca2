//! Server configurations: built once per distinct setting, kept from table to table so that their tickets stay good.
//! Knows nothing of listeners or handshakes.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, Error, ServerConfig, SupportedProtocolVersion, version};

use super::resolver::Resolver;
use crate::ir::tls::{CipherPolicy, TlsVersion};
use crate::ir::{Certificate, ServerTls};

/// The server configurations of one table.
#[derive(Debug, Default)]
pub struct ServerConfigs {
    keys: FxHashMap<Arc<Certificate>, Arc<CertifiedKey>>,
    configs: FxHashMap<Arc<ServerTls>, Arc<ServerConfig>>,
}

impl ServerConfigs {
    /// Builds what `wanted` asks for, using what `previous` has. What cannot be built is left out.
    pub fn build<'a>(wanted: impl Iterator<Item = &'a Arc<ServerTls>>, previous: &Self) -> Self {
        let mut built = Self::default();
        let mut provider = None;
        for tls in wanted {
            if built.configs.contains_key(tls) {
                continue;
            }
            let provider = provider.get_or_insert_with(aws_lc_rs::default_provider);
            let keys = built.keys(tls, previous, provider);
            let config = match previous.configs.get(tls) {
                Some(config) => Some(config.clone()),
                None => keys.and_then(|keys| server_config(tls, keys, provider).ok()),
            };
            if let Some(config) = config {
                built.configs.insert(tls.clone(), config);
            }
        }
        built
    }

    /// The configuration for these settings.
    pub fn get(&self, tls: &ServerTls) -> Option<&Arc<ServerConfig>> {
        self.configs.get(tls)
    }

    /// The keys of all certificates, in order; none when one of them is unusable.
    fn keys(
        &mut self,
        tls: &ServerTls,
        previous: &Self,
        provider: &CryptoProvider,
    ) -> Option<Vec<Arc<CertifiedKey>>> {
        let mut key = |certificate: &Arc<Certificate>| {
            if let Some(known) = self.keys.get(certificate) {
                return Some(known.clone());
            }
            let key = match previous.keys.get(certificate) {
                Some(known) => known.clone(),
                None => Arc::new(certified_key(certificate, provider).ok()?),
            };
            self.keys.insert(certificate.clone(), key.clone());
            Some(key)
        };
        tls.certificates.iter().map(&mut key).collect()
    }
}

fn certified_key(
    certificate: &Certificate,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Error> {
    let key = certificate.key.clone_key();
    let key = provider.key_provider.load_private_key(key)?;
    Ok(CertifiedKey::new(certificate.chain.clone(), key))
}

fn server_config(
    tls: &ServerTls,
    keys: Vec<Arc<CertifiedKey>>,
    provider: &CryptoProvider,
) -> Result<Arc<ServerConfig>, Error> {
    let mut provider = provider.clone();
    provider
        .cipher_suites
        .retain(|suite| is_allowed(tls.ciphers, suite.suite()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(versions(tls.min_version))?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Resolver::new(&tls.certificates, keys)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Resumption is by ticket alone: no memory per session, and nothing shared between workers but the ticket key.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = aws_lc_rs::Ticketer::new()?;
    // One per handshake: each resumption brings the next, and every further one costs an encryption and 200 bytes.
    config.send_tls13_tickets = 1;
    Ok(Arc::new(config))
}

fn versions(oldest: TlsVersion) -> &'static [&'static SupportedProtocolVersion] {
    static FROM_12: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
    static FROM_13: [&SupportedProtocolVersion; 1] = [&version::TLS13];
    match oldest {
        TlsVersion::Tls12 => &FROM_12,
        TlsVersion::Tls13 => &FROM_13,
    }
}

fn is_allowed(policy: CipherPolicy, suite: CipherSuite) -> bool {
    match policy {
        CipherPolicy::Default => true,
        CipherPolicy::AesGcm => matches!(
            suite,
            CipherSuite::TLS13_AES_128_GCM_SHA256
                | CipherSuite::TLS13_AES_256_GCM_SHA384
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
                | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
        ),
    }
}
