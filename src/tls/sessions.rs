//! TLS sessions with a backend. A handshake that resumes one verifies no certificate, so that none is resumed once one of
//! the certificates has expired that full handshakes have verified. Must not know verifiers.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use rustls::NamedGroup;
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Maximum number of tickets: all have the same server name.
const TICKETS: usize = 8;

/// The sessions of one configuration.
#[derive(Debug)]
pub(super) struct Sessions {
    cache: ClientSessionMemoryCache,
    /// Until when they may be resumed, in seconds since 1970.
    end: AtomicI64,
    time: Arc<dyn TimeProvider>,
}

impl Sessions {
    /// Creates a store without sessions.
    pub(super) fn new(time: Arc<dyn TimeProvider>) -> Self {
        Self {
            cache: ClientSessionMemoryCache::new(TICKETS),
            end: AtomicI64::new(i64::MIN),
            time,
        }
    }

    /// Called once a full handshake has verified a chain that is valid until `end`, in seconds since 1970.
    pub(super) fn on_verified(&self, server: &ServerName<'_>, end: i64, now: UnixTime) {
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

    fn forget(&self, server: &ServerName<'static>) {
        while self.cache.take_tls13_ticket(server).is_some() {}
        self.cache.remove_tls12_session(server);
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
        if !self.have_ended() {
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
        if !self.have_ended() {
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
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["a.com".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, 1, 1);
        let leaf = params.signed_by(&key, issuer).unwrap();
        let private = key.serialize_der().try_into().unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![leaf.der().clone()], private);
        config.unwrap().into()
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
}
