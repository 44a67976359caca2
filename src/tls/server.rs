//! Server configurations: built once per distinct setting, and reused from table to table so that their session tickets
//! stay valid. Must not know listeners or handshakes.

use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::{CipherSuite, Error, ServerConfig, ServerConnection};

use super::clients::ClientVerifier;
use super::resolver::Resolver;
use super::versions;
use crate::ir::ServerTls;
use crate::ir::keyed::KeyedMap;
use crate::ir::tls::{CipherPolicy, ClientValidation};
use crate::ir::tls_parameters::{self, Group};
use crate::quic::QuicTls;

/// The TLS configuration of a listener, and the verifier of its clients.
#[derive(Debug)]
pub struct Server {
    /// Certificates, verifier of clients, ALPN and a separate ticket key: a ticket is valid for the same settings only,
    /// and no ticket survives a change of the authorities that verify clients.
    pub config: Arc<ServerConfig>,
    pub(super) clients: Option<Arc<ClientVerifier>>,
    /// The same for QUIC, made for its first connection: most listeners have none.
    quic: OnceLock<Option<Arc<QuicTls>>>,
}

impl Server {
    /// Reports whether no client is served without a valid certificate.
    #[inline]
    pub fn needs_certificates(&self) -> bool {
        let clients = self.clients.as_ref();
        clients.is_some_and(|clients| clients.is_strict())
    }

    /// Returns the same configuration for QUIC; `None` if it does not permit TLS 1.3.
    pub fn quic(&self) -> Option<&Arc<QuicTls>> {
        let made = || QuicTls::new(&self.config).ok().map(Arc::new);
        self.quic.get_or_init(made).as_ref()
    }

    /// Returns the valid certificate of a client with this chain, if it has one, also where no handshake has verified it.
    ///
    /// # Errors
    /// When the client must not be served.
    pub fn verified_chain<'c>(
        &self,
        chain: &'c [CertificateDer<'static>],
    ) -> Result<Option<&'c CertificateDer<'static>>, Error> {
        let clients = self.clients.as_ref();
        clients.map_or(Ok(None), |clients| {
            clients.verified_chain(chain, false, UnixTime::now())
        })
    }

    /// Returns the valid certificate of a client whose handshake is complete, if it has one.
    ///
    /// # Errors
    /// When the client must not be served.
    pub fn verified_client<'c>(
        &self,
        connection: &'c ServerConnection,
    ) -> Result<Option<&'c CertificateDer<'static>>, Error> {
        let clients = self.clients.as_ref();
        clients.map_or(Ok(None), |clients| {
            clients.verified(connection, UnixTime::now())
        })
    }
}

/// The server configurations of one table.
#[derive(Debug, Default)]
pub struct ServerConfigs {
    verifiers: KeyedMap<Arc<ClientValidation>, Arc<ClientVerifier>>,
    servers: KeyedMap<Arc<ServerTls>, Arc<Server>>,
}

impl ServerConfigs {
    /// Builds the configurations for `wanted` and reuses those of `previous`. Omits what cannot be built.
    pub fn build<'a>(wanted: impl Iterator<Item = &'a Arc<ServerTls>>, previous: &Self) -> Self {
        let mut built = Self::default();
        let mut providers = Providers::default();
        for tls in wanted {
            if built.servers.contains_key(tls) {
                continue;
            }
            // Verifiers depend on neither suites nor groups.
            let clients = built.verifier(tls, previous, usual(tls.ciphers));
            let server = match previous.servers.get(tls) {
                Some(server) => Some(server.clone()),
                None => clients.ok().and_then(|clients| {
                    let provider = providers.provider(tls).clone();
                    server(tls, clients, provider).ok()
                }),
            };
            if let Some(server) = server {
                built.servers.insert(tls.clone(), server);
            }
        }
        built
    }

    /// Returns the configuration for these settings.
    pub fn get(&self, tls: &ServerTls) -> Option<&Arc<Server>> {
        self.servers.get(tls)
    }

    /// Returns the verifier of clients, if clients are verified. Listeners with the same validation share it.
    fn verifier(
        &mut self,
        tls: &ServerTls,
        previous: &Self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Arc<ClientVerifier>>, Error> {
        let Some(validation) = &tls.client_validation else {
            return Ok(None);
        };
        if let Some(known) = self.verifiers.get(validation) {
            return Ok(Some(known.clone()));
        }
        let verifier = match previous.verifiers.get(validation) {
            Some(known) => known.clone(),
            None => Arc::new(ClientVerifier::new(validation, provider)?),
        };
        self.verifiers.insert(validation.clone(), verifier.clone());
        Ok(Some(verifier))
    }
}

fn server(
    tls: &ServerTls,
    clients: Option<Arc<ClientVerifier>>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<Server>, Error> {
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions(tls.min_version))?;
    let builder = match &clients {
        None => builder.with_no_client_auth(),
        Some(clients) => builder.with_client_cert_verifier(clients.handshake_verifier()),
    };
    let mut config = builder.with_cert_resolver(Arc::new(Resolver::new(&tls.certificates)));
    let protocols = tls.alpn.iter();
    config.alpn_protocols = protocols.map(|it| it.name().as_bytes().to_vec()).collect();
    // Resumes by ticket only: no memory per session, and workers share nothing but the ticket key.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = Arc::new(Ticketer::default());
    // One ticket per handshake: each resumption issues the next ticket, and every further one costs an encryption and
    // 200 bytes.
    config.send_tls13_tickets = 1;
    Ok(Arc::new(Server {
        config: Arc::new(config),
        clients,
        quic: OnceLock::new(),
    }))
}

/// The cryptography of configurations with suites or groups of their own.
#[derive(Default)]
struct Providers<'a>(FxHashMap<Parameters<'a>, Arc<CryptoProvider>>);

/// What distinguishes cryptography: its policy, suites and groups.
type Parameters<'a> = (CipherPolicy, &'a [tls_parameters::CipherSuite], &'a [Group]);

impl<'a> Providers<'a> {
    /// Returns the cryptography of a configuration.
    fn provider(&mut self, tls: &'a ServerTls) -> &Arc<CryptoProvider> {
        let ServerTls {
            ciphers,
            suites,
            groups,
            ..
        } = tls;
        if suites.is_empty() && groups.is_empty() {
            return usual(*ciphers);
        }
        let made = self.0.entry((*ciphers, suites, groups));
        made.or_insert_with(|| Arc::new(provider(*ciphers, suites, groups)))
    }
}

fn provider(
    ciphers: CipherPolicy,
    suites: &[tls_parameters::CipherSuite],
    groups: &[Group],
) -> CryptoProvider {
    let mut provider = CryptoProvider::clone(usual(ciphers));
    if !suites.is_empty() {
        provider.cipher_suites = aws_lc_rs::ALL_CIPHER_SUITES.to_vec();
        provider.cipher_suites.retain(|suite| {
            let number = u16::from(suite.suite());
            suites.iter().any(|it| it.number() == number)
        });
    }
    if !groups.is_empty() {
        provider.kx_groups = aws_lc_rs::ALL_KX_GROUPS.to_vec();
        provider.kx_groups.retain(|group| {
            let number = u16::from(group.name());
            groups.iter().any(|it| it.number() == number)
        });
    }
    provider
}

/// Returns the cryptography of a policy, which all configurations without suites and groups of their own share.
fn usual(policy: CipherPolicy) -> &'static Arc<CryptoProvider> {
    static DEFAULT: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    static AES_GCM: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = match policy {
        CipherPolicy::Default => &DEFAULT,
        CipherPolicy::AesGcm => &AES_GCM,
    };
    provider.get_or_init(|| {
        let mut provider = aws_lc_rs::default_provider();
        provider
            .cipher_suites
            .retain(|suite| is_allowed(policy, suite.suite()));
        Arc::new(provider)
    })
}

/// The ticket keys of a configuration, made for its first handshake: of thousands of configurations, most have none for a
/// long time.
#[derive(Debug, Default)]
struct Ticketer(OnceLock<Option<Arc<dyn ProducesTickets>>>);

impl Ticketer {
    /// Returns the keys; `None` without randomness, which fails every handshake too.
    fn keys(&self) -> Option<&Arc<dyn ProducesTickets>> {
        let keys = self.0.get_or_init(|| aws_lc_rs::Ticketer::new().ok());
        keys.as_ref()
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        self.keys().map_or(0, |keys| keys.lifetime())
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.keys()?.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.keys()?.decrypt(cipher)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::tls::{AlpnProtocol, TlsVersion};
    use crate::tls::fixtures::{self, ECDSA, certificate};
    use rustls::{
        ClientConfig, ClientConnection, HandshakeKind, RootCertStore, SupportedProtocolVersion,
        version,
    };

    fn settings(min_version: TlsVersion, ciphers: CipherPolicy) -> Arc<ServerTls> {
        Arc::new(ServerTls {
            alpn: AlpnProtocol::ALL.to_vec(),
            suites: Vec::new(),
            groups: Vec::new(),
            certificates: vec![certificate(ECDSA, &["a.com"])],
            min_version,
            ciphers,
            client_validation: None,
        })
    }

    fn built(tls: &Arc<ServerTls>) -> Arc<ServerConfig> {
        let configs = ServerConfigs::build([tls].into_iter(), &ServerConfigs::default());
        configs.get(tls).unwrap().config.clone()
    }

    fn client(
        tls: &ServerTls,
        versions: &[&'static SupportedProtocolVersion],
        suites: impl Fn(CipherSuite) -> bool,
    ) -> Arc<ClientConfig> {
        let mut provider = aws_lc_rs::default_provider();
        provider.cipher_suites.retain(|suite| suites(suite.suite()));
        let mut roots = RootCertStore::empty();
        roots.add(tls.certificates[0].chain()[0].clone()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config.into()
    }

    fn handshake(
        client: &Arc<ClientConfig>,
        server: &Arc<ServerConfig>,
    ) -> Result<ClientConnection, Error> {
        fixtures::handshake(client, server).map(|(client, _)| client)
    }

    #[test]
    fn resumes_by_ticket_in_both_versions() {
        let tls = settings(TlsVersion::Tls12, CipherPolicy::Default);
        let server = built(&tls);
        for version in [&version::TLS12, &version::TLS13] {
            let client = client(&tls, &[version], |_| true);
            let first = handshake(&client, &server).unwrap();
            assert_eq!(first.handshake_kind(), Some(HandshakeKind::Full));
            assert_eq!(first.alpn_protocol(), Some(&b"h2"[..]));
            assert_eq!(first.protocol_version(), Some(version.version));
            let second = handshake(&client, &server).unwrap();
            assert_eq!(second.handshake_kind(), Some(HandshakeKind::Resumed));
            let third = handshake(&client, &server).unwrap();
            assert_eq!(third.handshake_kind(), Some(HandshakeKind::Resumed));
        }
    }

    #[test]
    fn tickets_survive_a_new_table_but_not_new_settings() {
        let tls = settings(TlsVersion::Tls12, CipherPolicy::Default);
        let empty = ServerConfigs::default();
        let first = ServerConfigs::build([&tls].into_iter(), &empty);
        let again = Arc::new((*tls).clone());
        let second = ServerConfigs::build([&again].into_iter(), &first);
        let config = |configs: &ServerConfigs| Arc::as_ptr(configs.get(&tls).unwrap());
        assert_eq!(config(&first), config(&second));

        let mut changed = (*tls).clone();
        changed.min_version = TlsVersion::Tls13;
        let changed = Arc::new(changed);
        let third = ServerConfigs::build([&changed].into_iter(), &second);
        assert!(third.get(&tls).is_none());
        assert_ne!(Arc::as_ptr(third.get(&changed).unwrap()), config(&second));
    }

    #[test]
    fn rejects_versions_and_suites_that_are_not_allowed() {
        let tls = settings(TlsVersion::Tls13, CipherPolicy::AesGcm);
        let server = built(&tls);
        let only_12 = client(&tls, &[&version::TLS12], |_| true);
        assert!(handshake(&only_12, &server).is_err());
        let chacha = |suite| suite == CipherSuite::TLS13_CHACHA20_POLY1305_SHA256;
        let only_chacha = client(&tls, &[&version::TLS13], chacha);
        assert!(handshake(&only_chacha, &server).is_err());
        let usual = client(&tls, &[&version::TLS13], |_| true);
        assert!(handshake(&usual, &server).is_ok());
    }

    #[test]
    fn offers_all_suites_and_groups_that_have_a_name() {
        let offers = |suites: &[tls_parameters::CipherSuite], groups: &[Group]| {
            let made = provider(CipherPolicy::AesGcm, suites, groups);
            (made.cipher_suites.len(), made.kx_groups.len())
        };
        let (usual_suites, usual_groups) = offers(&[], &[]);
        for suite in tls_parameters::CipherSuite::all() {
            assert_eq!(offers(&[suite], &[]), (1, usual_groups), "{suite}");
            let named = tls_parameters::CipherSuite::named(suite.name());
            assert_eq!(named, Some(suite));
        }
        for group in Group::all() {
            assert_eq!(offers(&[], &[group]), (usual_suites, 1), "{group}");
            assert_eq!(Group::named(group.name()), Some(group));
        }
    }

    #[test]
    fn omits_unusable_configurations() {
        let of_tls12 = |suite: &tls_parameters::CipherSuite| suite.name().starts_with("TLS_ECDHE");
        let suites = tls_parameters::CipherSuite::all().filter(of_tls12);
        let tls = Arc::new(ServerTls {
            alpn: AlpnProtocol::ALL.to_vec(),
            suites: suites.collect(),
            groups: Vec::new(),
            certificates: vec![certificate(ECDSA, &["a.com"])],
            min_version: TlsVersion::Tls13,
            ciphers: CipherPolicy::Default,
            client_validation: None,
        });
        let configs = ServerConfigs::build([&tls].into_iter(), &ServerConfigs::default());
        assert!(configs.get(&tls).is_none());
    }
}
