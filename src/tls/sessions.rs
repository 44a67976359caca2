//! TLS sessions with a backend, as far as they are small. A handshake that resumes one verifies no certificate, so that none is resumed once one of
//! the certificates has expired that full handshakes have verified. Must not know verifiers.

use std::fmt::{self, Debug, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

use rustls::NamedGroup;
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Maximum number of tickets: all have the same server name.
const TICKETS: usize = 8;
/// Longest ticket that is kept, in bytes. One with a client certificate has a few thousand.
const MAX_TICKET: usize = 8 * 1024;
/// Longest chain of certificates with which sessions are kept, in bytes: each session has a copy.
const MAX_CHAIN: usize = 16 * 1024;
/// The field in the text of a session that follows the ticket.
const CHAIN: &str = "server_cert_chain";

/// The sessions of one configuration.
#[derive(Debug)]
pub(super) struct Sessions {
    cache: ClientSessionMemoryCache,
    /// Until when they may be resumed, in seconds since 1970.
    end: AtomicI64,
    /// Bytes of the longest chain that was verified.
    longest_chain: AtomicUsize,
    time: Arc<dyn TimeProvider>,
}

impl Sessions {
    /// Creates a store without sessions.
    pub(super) fn new(time: Arc<dyn TimeProvider>) -> Self {
        Self {
            cache: ClientSessionMemoryCache::new(TICKETS),
            end: AtomicI64::new(i64::MIN),
            longest_chain: AtomicUsize::new(0),
            time,
        }
    }

    /// Called once a full handshake has verified a chain of `length` bytes that is valid until `end`, in seconds since 1970.
    pub(super) fn on_verified(
        &self,
        server: &ServerName<'_>,
        (length, end): (usize, i64),
        now: UnixTime,
    ) {
        self.longest_chain.fetch_max(length, Relaxed);
        let now = seconds(now);
        // Before the new end is set: until then, no other handshake resumes them.
        if self.end.load(Relaxed) <= now {
            self.forget(&server.to_owned());
        }
        let earliest = |known: i64| Some(if known <= now { end } else { known.min(end) });
        let _ = self.end.fetch_update(Relaxed, Relaxed, earliest);
    }

    fn have_ended(&self) -> bool {
        let now = self.time.current_time();
        now.is_none_or(|now| self.end.load(Relaxed) <= seconds(now))
    }

    /// Reports whether a session may be kept.
    fn admits(&self, session: &impl Debug) -> bool {
        !self.have_ended()
            && self.longest_chain.load(Relaxed) <= MAX_CHAIN
            && has_short_ticket(session)
    }

    fn forget(&self, server: &ServerName<'static>) {
        while self.cache.take_tls13_ticket(server).is_some() {}
        self.cache.remove_tls12_session(server);
    }
}

/// Reports whether the ticket of a session is short. rustls tells its length by its digits only, two for each byte.
fn has_short_ticket(session: &impl Debug) -> bool {
    let mut digits = Digits(0);
    // Fails behind the ticket, too.
    let _ = write!(digits, "{session:?}");
    digits.are_few()
}

/// Counts what is written of a session up to its certificates.
struct Digits(usize);

impl Digits {
    fn are_few(&self) -> bool {
        self.0 <= 2 * MAX_TICKET
    }
}

impl Write for Digits {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        match text != CHAIN && self.are_few() {
            true => Ok(()),
            false => Err(fmt::Error),
        }
    }
}

/// Returns until when a chain that was verified is valid, in seconds since 1970. Intermediates that have expired are not
/// what it was verified by.
pub(super) fn valid_until(
    leaf: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
) -> i64 {
    let now = seconds(now);
    let leaf = end_of(leaf).unwrap_or(i64::MIN);
    let intermediates = intermediates.iter().filter_map(end_of);
    intermediates.filter(|end| *end > now).fold(leaf, i64::min)
}

fn end_of(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

fn seconds(time: UnixTime) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

impl ClientSessionStore for Sessions {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.cache.set_kx_hint(server_name, group);
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.cache.kx_hint(server_name)
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        if self.admits(&value) {
            self.cache.set_tls12_session(server_name, value);
        }
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        match self.have_ended() {
            true => None,
            false => self.cache.tls12_session(server_name),
        }
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        self.cache.remove_tls12_session(server_name);
    }

    fn insert_tls13_ticket(
        &self,
        server_name: ServerName<'static>,
        value: Tls13ClientSessionValue,
    ) {
        if self.admits(&value) {
            self.cache.insert_tls13_ticket(server_name, value);
        }
    }

    fn take_tls13_ticket(
        &self,
        server_name: &ServerName<'static>,
    ) -> Option<Tls13ClientSessionValue> {
        match self.have_ended() {
            true => None,
            false => self.cache.take_tls13_ticket(server_name),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::server::ProducesTickets;
    use rustls::{
        CertificateError, ClientConfig, Error, HandshakeKind, ServerConfig,
        SupportedProtocolVersion, version,
    };

    use super::*;
    use crate::ir::tls::{
        AlpnProtocol, Authorities, Authority, SubjectName, TlsVersion, Verification,
    };
    use crate::ir::{ClientTls, ObjectRef};
    use crate::tls::client::client_config_at;
    use crate::tls::fixtures::handshake;

    /// The year at whose beginning a certificate expires, and that in seconds since 1970.
    const YEAR: i32 = 2100;
    const END: u64 = 4_102_444_800;
    const HOUR: u64 = 60 * 60;

    #[derive(Debug)]
    struct TestTime(AtomicU64);

    impl TimeProvider for TestTime {
        fn current_time(&self) -> Option<UnixTime> {
            let now = Duration::from_secs(self.0.load(Relaxed));
            Some(UnixTime::since_unix_epoch(now))
        }
    }

    fn authority() -> (CertificateDer<'static>, Issuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let signed = params.self_signed(&key).unwrap();
        (signed.der().clone(), Issuer::new(params, key))
    }

    /// Returns a server whose certificate expires at the beginning of a year.
    fn server(
        issuer: &Issuer<'static, KeyPair>,
        year: i32,
        version: &'static SupportedProtocolVersion,
    ) -> Arc<ServerConfig> {
        server_with(issuer, (year, version), Vec::new()).into()
    }

    /// Does what [`server`] does, with further certificates in the chain.
    fn server_with(
        issuer: &Issuer<'static, KeyPair>,
        (year, version): (i32, &'static SupportedProtocolVersion),
        others: Vec<CertificateDer<'static>>,
    ) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["a.com".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let leaf = params.signed_by(&key, issuer).unwrap();
        let private = key.serialize_der().try_into().unwrap();
        let mut chain = vec![leaf.der().clone()];
        chain.extend(others);
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, private);
        config.unwrap()
    }

    /// Makes tickets longer by some bytes, and encrypts nothing.
    #[derive(Debug)]
    struct Padding(usize);

    impl ProducesTickets for Padding {
        fn enabled(&self) -> bool {
            true
        }

        fn lifetime(&self) -> u32 {
            HOUR as u32
        }

        fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
            let mut ticket = plain.to_vec();
            ticket.resize(plain.len() + self.0, 0);
            Some(ticket)
        }

        fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
            let length = ticket.len().checked_sub(self.0)?;
            Some(ticket[..length].to_vec())
        }
    }

    fn client(authority: CertificateDer<'static>, time: &Arc<TestTime>) -> Arc<ClientConfig> {
        let authority = Authority {
            source: ObjectRef::core("ConfigMap", "ns", "ca"),
            fingerprint: "ca".into(),
            certificate: authority,
        };
        let tls = ClientTls {
            server_name: "a.com".into(),
            verification: Verification {
                authorities: Authorities::Certificates(vec![authority]),
                names: vec![SubjectName::Hostname("a.com".into())],
                pins: Vec::new(),
            },
            client_certificate: None,
            min_version: TlsVersion::Tls12,
            alpn: vec![AlpnProtocol::Http11],
        };
        client_config_at(&tls, time.clone()).unwrap().config
    }

    #[test]
    fn session_is_not_resumed_once_its_certificate_has_expired() {
        for version in [&version::TLS12, &version::TLS13] {
            let (authority, issuer) = authority();
            let time = Arc::new(TestTime(AtomicU64::new(END - HOUR)));
            let client = client(authority, &time);
            let kind = |server: &Arc<ServerConfig>| {
                let connected = handshake(&client, server);
                connected.map(|(client, _)| client.handshake_kind())
            };
            let (old, renewed) = (
                server(&issuer, YEAR, version),
                server(&issuer, 2200, version),
            );
            assert_eq!(kind(&old), Ok(Some(HandshakeKind::Full)));
            assert_eq!(kind(&old), Ok(Some(HandshakeKind::Resumed)));
            time.0.store(END + HOUR, Relaxed);
            let expired = kind(&old).unwrap_err();
            let is_expired = matches!(
                expired,
                Error::InvalidCertificate(
                    CertificateError::Expired | CertificateError::ExpiredContext { .. }
                )
            );
            assert!(is_expired, "{version:?}: {expired:?}");
            assert_eq!(kind(&renewed), Ok(Some(HandshakeKind::Full)));
            assert_eq!(kind(&renewed), Ok(Some(HandshakeKind::Resumed)));
        }
    }

    #[test]
    fn large_sessions_are_not_kept() {
        for version in [&version::TLS12, &version::TLS13] {
            let (root, issuer) = authority();
            for (chain, ticket, kind) in [
                (
                    MAX_CHAIN * 3 / 4,
                    MAX_TICKET * 3 / 4,
                    HandshakeKind::Resumed,
                ),
                (MAX_CHAIN, 0, HandshakeKind::Full),
                (0, MAX_TICKET, HandshakeKind::Full),
            ] {
                let time = Arc::new(TestTime(AtomicU64::new(END - HOUR)));
                let client = client(root.clone(), &time);
                let others = vec![root.clone(); chain.div_ceil(root.len())];
                let mut server = server_with(&issuer, (YEAR, version), others);
                server.ticketer = Arc::new(Padding(ticket));
                let server = Arc::new(server);
                handshake(&client, &server).unwrap();
                let (second, _) = handshake(&client, &server).unwrap();
                let found = second.handshake_kind();
                assert_eq!(found, Some(kind), "{version:?}: {chain}, {ticket}");
            }
        }
    }
}
