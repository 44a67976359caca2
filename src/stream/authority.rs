//! The certificate authority of the stream: its Secret data, its renewal, and the serving
//! certificates that it signs. Pure: the caller passes the date.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber,
};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::settings::session_key::{MIN_SECRET, random_secret};
use crate::wire::SessionSecrets;

/// Secret key with all trusted CA certificates.
const BUNDLE: &str = "ca.crt";
const SIGNER: (&str, &str) = ("tls.crt", "tls.key");
const NEXT: (&str, &str) = ("next.crt", "next.key");
/// Secret key with the master secret of session tokens.
const SESSION: &str = "session.key";
/// Secret key with another master secret, whose session tokens are accepted. Only operators write it.
const ACCEPTED: &str = "session.accepted.key";

/// Validity of a CA in days.
const CA_DAYS: i64 = 365;
/// Days before expiry at which the next CA is created.
const RENEWAL_DAYS: i64 = 120;
/// Days for which pods trust the next CA before it signs. ConfigMaps reach pods within minutes.
const OVERLAP_DAYS: i64 = 1;
/// Validity of a serving certificate in days. A new one is issued every day.
const SERVING_DAYS: i64 = 7;
/// Days by which certificates are backdated, for clocks that are behind.
const BACKDATE_DAYS: i64 = 1;

/// Subject name of the CA.
const NAME: &str = "Portcullis configuration stream";

/// The signing CA, the next one, and previous ones that are still trusted.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Authority {
    signer: Certified,
    next: Option<Certified>,
    /// Certificates of previous CAs that have not expired.
    previous: Vec<String>,
    /// Master secret of session tokens, which outlives the CAs.
    session: Option<String>,
    /// Another one, whose session tokens are accepted.
    accepted: Option<String>,
}

/// Never prints a private key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A certificate and its private key as PEM.
#[derive(Clone, PartialEq, Eq)]
struct Certified {
    certificate: String,
    key: String,
}

impl Authority {
    /// Creates a new CA on this day.
    pub(super) fn new(today: Date) -> Result<Self, rcgen::Error> {
        Ok(Self {
            signer: Certified::new(today)?,
            next: None,
            previous: Vec::new(),
            session: Some(random_secret()),
            accepted: None,
        })
    }

    /// Parses the data of a Secret.
    pub(super) fn from_data(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, String> {
        let text = |key: &str| {
            let bytes = data.get(key).ok_or_else(|| format!("{key} is missing"))?;
            String::from_utf8(bytes.clone()).map_err(|_| format!("{key} is not UTF-8"))
        };
        let certified = |(certificate, key)| {
            let read = Certified {
                certificate: text(certificate)?,
                key: text(key)?,
            };
            read.validity()?;
            KeyPair::from_pem(&read.key).map_err(|error| format!("{key}: {error}"))?;
            Ok::<_, String>(read)
        };
        let signer = certified(SIGNER)?;
        let next = data
            .contains_key(NEXT.0)
            .then(|| certified(NEXT))
            .transpose()?;
        let is_known = |one: &String| {
            *one == signer.certificate || next.as_ref().is_some_and(|next| *one == next.certificate)
        };
        let mut previous = certificates(&text(BUNDLE)?);
        previous.retain(|one| !is_known(one));
        // Operators write these. One that cannot be used must not cost the CA, and others can guess what a short one derives.
        let secret = |key: &str| {
            let text = std::str::from_utf8(data.get(key)?).ok();
            let text = text.filter(|text| text.trim_ascii().len() >= MIN_SECRET);
            if text.is_none() {
                tracing::error!(
                    "{key} is no text of at least {MIN_SECRET} bytes and is ignored: no session uses it"
                );
            }
            text.map(str::to_owned)
        };
        Ok(Self {
            signer,
            next,
            previous,
            session: secret(SESSION),
            accepted: secret(ACCEPTED),
        })
    }

    /// Returns the data of the Secret.
    pub(super) fn data(&self) -> BTreeMap<String, Vec<u8>> {
        let mut data = BTreeMap::from([(BUNDLE.to_owned(), self.bundle().into_bytes())]);
        let next = self.next.as_ref().map(|next| (NEXT, next));
        for (keys, one) in std::iter::once((SIGNER, &self.signer)).chain(next) {
            data.insert(keys.0.to_owned(), one.certificate.clone().into_bytes());
            data.insert(keys.1.to_owned(), one.key.clone().into_bytes());
        }
        for (key, secret) in [(SESSION, &self.session), (ACCEPTED, &self.accepted)] {
            if let Some(secret) = secret {
                data.insert(key.to_owned(), secret.clone().into_bytes());
            }
        }
        data
    }

    /// Returns the master secrets of session tokens.
    pub(super) fn session_secrets(&self) -> Option<SessionSecrets> {
        Some(SessionSecrets {
            secret: self.session.clone()?,
            accepted: self.accepted.clone(),
        })
    }

    /// Returns all trusted CA certificates as PEM.
    pub(super) fn bundle(&self) -> String {
        let next = self.next.iter().map(|next| &next.certificate);
        let all = std::iter::once(&self.signer.certificate).chain(next);
        all.chain(&self.previous).map(String::as_str).collect()
    }

    /// Returns the CA after the renewal that is due on this day; `None` if none is due.
    pub(super) fn renewed(&self, today: Date) -> Result<Option<Self>, String> {
        let mut renewed = self.clone();
        let is_over =
            |certificate: &str| validity(certificate).is_ok_and(|(_, until)| until < today);
        renewed.previous.retain(|previous| !is_over(previous));
        renewed.session.get_or_insert_with(random_secret);
        let (_, until) = self.signer.validity()?;
        if renewed.next.is_none() && days(today, until) < RENEWAL_DAYS {
            let next = Certified::new(today).map_err(|error| error.to_string())?;
            renewed.next = Some(next);
        }
        if let Some(next) = &renewed.next {
            let (since, _) = next.validity()?;
            // A next CA that pods do not trust any more cannot start to sign.
            if days(since, today) > BACKDATE_DAYS + OVERLAP_DAYS || until < today {
                let next = next.clone();
                let previous = std::mem::replace(&mut renewed.signer, next);
                renewed.next = None;
                renewed.previous.push(previous.certificate);
                renewed.previous.retain(|previous| !is_over(previous));
            }
        }
        Ok((renewed != *self).then_some(renewed))
    }

    /// Issues a serving certificate for `host` and returns its TLS configuration.
    pub(super) fn serve(&self, host: &str, today: Date) -> Result<Arc<ServerConfig>, String> {
        let (chain, key) = self.issue(host, today).map_err(|error| error.to_string())?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| error.to_string())?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    fn issue(
        &self,
        host: &str,
        today: Date,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), rcgen::Error> {
        let issuer = Issuer::new(authority_params(), KeyPair::from_pem(&self.signer.key)?);
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::DnsName(host.try_into()?)];
        params.distinguished_name = DistinguishedName::new();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_dates(&mut params, today, SERVING_DAYS);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der());
        let key = key.map_err(|_| rcgen::Error::CouldNotParseKeyPair)?;
        Ok((vec![certificate.der().clone()], key))
    }
}

impl Certified {
    fn new(today: Date) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = authority_params();
        set_dates(&mut params, today, CA_DAYS);
        params.serial_number = Some(SerialNumber::from(rand::random::<u64>() >> 1));
        Ok(Self {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        })
    }

    fn validity(&self) -> Result<(Date, Date), String> {
        validity(&self.certificate)
    }
}

/// Returns the parameters of all CAs. CAs differ in their keys only.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    params
}

/// Sets the validity: from yesterday, for `life` days.
fn set_dates(params: &mut CertificateParams, today: Date, life: i64) {
    let date = |days: i64| {
        let date = today.saturating_add(days.days());
        let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
        rcgen::date_time_ymd(i32::from(date.year()), month, day)
    };
    params.not_before = date(-BACKDATE_DAYS);
    params.not_after = date(life);
}

/// First and last day of a certificate's validity.
fn validity(pem: &str) -> Result<(Date, Date), String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|error| format!("the certificate is not valid PEM: {error}"))?;
    let (_, certificate) = X509Certificate::from_der(&der)
        .map_err(|error| format!("the certificate cannot be parsed: {error}"))?;
    let date = |seconds: i64| {
        let at = Timestamp::from_second(seconds).unwrap_or_default();
        at.to_zoned(TimeZone::UTC).date()
    };
    let validity = certificate.validity();
    Ok((
        date(validity.not_before.timestamp()),
        date(validity.not_after.timestamp()),
    ))
}

fn days(from: Date, to: Date) -> i64 {
    from.until(to).map_or(0, |span| i64::from(span.get_days()))
}

/// Splits a bundle into certificates.
fn certificates(bundle: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let mut certificates: Vec<String> = Vec::new();
    let mut current = String::new();
    for line in bundle.split_inclusive('\n') {
        current.push_str(line);
        if line.trim_end() == END {
            certificates.push(std::mem::take(&mut current));
        }
    }
    certificates
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    const FIRST: Date = date(2026, 3, 1);

    fn after(days: i64) -> Date {
        FIRST.saturating_add(days.days())
    }

    #[test]
    fn reads_what_it_writes() {
        let mut authority = Authority::new(FIRST).unwrap();
        assert_eq!(
            Authority::from_data(&authority.data()),
            Ok(authority.clone())
        );
        for days in [CA_DAYS - RENEWAL_DAYS + 1, CA_DAYS - RENEWAL_DAYS + 3] {
            authority = authority.renewed(after(days)).unwrap().unwrap();
            assert_eq!(
                Authority::from_data(&authority.data()),
                Ok(authority.clone())
            );
        }
        assert_eq!(authority.previous.len(), 1);
    }

    #[test]
    fn renewal_keeps_the_secrets_of_sessions() {
        let mut data = Authority::new(FIRST).unwrap().data();
        let first = Authority::from_data(&data).unwrap().session_secrets();
        assert_eq!(first.unwrap().accepted, None);
        for key in [SESSION, ACCEPTED] {
            data.insert(key.to_owned(), key.repeat(4).into());
        }
        let renewed = Authority::from_data(&data).unwrap();
        let renewed = renewed.renewed(after(CA_DAYS)).unwrap().unwrap();
        let read = Authority::from_data(&renewed.data()).unwrap();
        let expected = SessionSecrets {
            secret: SESSION.repeat(4),
            accepted: Some(ACCEPTED.repeat(4)),
        };
        assert_eq!(read.session_secrets(), Some(expected));
    }

    #[test]
    fn secrets_that_cannot_be_used_are_ignored() {
        let mut data = Authority::new(FIRST).unwrap().data();
        for wrong in [&b""[..], b"short", &[0xff; 40]] {
            data.insert(ACCEPTED.to_owned(), wrong.to_vec());
            let read = Authority::from_data(&data).unwrap();
            assert_eq!(read.session_secrets().unwrap().accepted, None);
        }
    }

    #[test]
    fn reports_invalid_secret_data() {
        let data = Authority::new(FIRST).unwrap().data();
        for key in [BUNDLE, SIGNER.0, SIGNER.1] {
            let mut without = data.clone();
            without.remove(key);
            let error = Authority::from_data(&without).unwrap_err();
            assert!(error.contains(key), "{error}");
            let mut broken = data.clone();
            broken.insert(key.to_owned(), vec![0xff]);
            assert!(Authority::from_data(&broken).is_err());
        }
    }

    #[test]
    fn rotation_overlaps_trust_of_next_and_previous_ca() {
        let first = Authority::new(FIRST).unwrap();
        assert_eq!(first.renewed(after(CA_DAYS - RENEWAL_DAYS)), Ok(None));
        let second = first
            .renewed(after(CA_DAYS - RENEWAL_DAYS + 1))
            .unwrap()
            .unwrap();
        assert!(second.signer == first.signer);
        assert!(second.bundle().starts_with(&first.bundle()));
        assert_eq!(certificates(&second.bundle()).len(), 2);
        assert_eq!(second.renewed(after(CA_DAYS - RENEWAL_DAYS + 2)), Ok(None));
        let third = second
            .renewed(after(CA_DAYS - RENEWAL_DAYS + 3))
            .unwrap()
            .unwrap();
        assert!(Some(&third.signer) == second.next.as_ref());
        assert_eq!(third.previous, [first.signer.certificate]);
        assert_eq!(third.renewed(after(CA_DAYS)), Ok(None));
        let fourth = third.renewed(after(CA_DAYS + 1)).unwrap().unwrap();
        assert!(fourth.previous.is_empty());
    }

    #[test]
    fn replaces_an_expired_ca_at_once() {
        let first = Authority::new(FIRST).unwrap();
        let second = first.renewed(after(CA_DAYS + 100)).unwrap().unwrap();
        assert!(second.signer != first.signer);
        assert_eq!(certificates(&second.bundle()).len(), 1);
    }

    #[test]
    fn signs_for_the_server_name() {
        let authority = Authority::new(FIRST).unwrap();
        assert!(authority.serve("controller.example.svc", FIRST).is_ok());
        let (chain, _) = authority.issue("controller.example.svc", FIRST).unwrap();
        let (_, certificate) = X509Certificate::from_der(&chain[0]).unwrap();
        let ca = CertificateDer::from_pem_slice(authority.bundle().as_bytes()).unwrap();
        let (_, ca) = X509Certificate::from_der(&ca).unwrap();
        assert_eq!(certificate.issuer(), ca.subject());
        assert!(ca.is_ca());
    }
}
