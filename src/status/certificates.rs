//! Certificates of listeners that clients refuse, now or soon: for other hosts, expired, or not yet valid. Pure: the caller
//! passes the time.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::finding::{Finding, Kind};
use crate::ir::{Certificate, Hostname, Listener, ObjectRef, ServerTls};

/// Seconds before its expiry from which a certificate is reported, or a third of its life if that is shorter. Certificates of
/// 90 days are normally renewed 30 days before expiry, certificates of 6 days 3 days before.
const SOON: i64 = 7 * 24 * 60 * 60;
/// Names of certificates that a message has at most.
const MAX_NAMES: usize = 8;
/// What clients do with a certificate for other hosts, and what to do about it.
const REFUSED: &str = "clients refuse it";
const NEEDED: &str = "tls.certificateRefs needs one for this hostname";

/// A certificate that is not valid now, or not for long. In the order of weight, then of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Validity {
    /// It ended at this time.
    Expired(Timestamp),
    /// It begins at this time.
    NotYetValid(Timestamp),
    /// It ends at this time, and should have been renewed.
    EndsSoon(Timestamp),
}

impl Validity {
    /// Returns what is wrong with the time of a certificate; `None` if it is valid for long enough.
    pub fn of(certificate: &Certificate, now: Timestamp) -> Option<Self> {
        let (begin, end, now) = (
            certificate.not_before,
            certificate.not_after,
            now.as_second(),
        );
        let left = end.saturating_sub(now);
        let at = |seconds| Timestamp::from_second(seconds).ok();
        if end < now {
            at(end).map(Self::Expired)
        } else if now < begin {
            at(begin).map(Self::NotYetValid)
        } else if left < SOON && left < end.saturating_sub(begin) / 3 {
            at(end).map(Self::EndsSoon)
        } else {
            None
        }
    }

    /// Returns the finding about an object that has the certificate, which is called so.
    pub fn finding(self, object: &ObjectRef, certificate: &str) -> Finding {
        let (kind, cause, effect, remedy) = self.parts();
        Finding::of_object(kind, object, format!("{certificate} {cause}"))
            .with_effect(effect)
            .with_remedy(remedy)
    }

    /// Returns of which kind that is, what is said of the certificate, the effect, and what to do.
    fn parts(self) -> (Kind, String, &'static str, &'static str) {
        match self {
            Self::Expired(end) => (
                Kind::Expired,
                format!("has expired at {end}"),
                REFUSED,
                "renew it",
            ),
            Self::NotYetValid(begin) => (
                Kind::NotYetValid,
                format!("is not valid before {begin}"),
                "clients refuse it until then",
                "issue it again, or check the clock of this host",
            ),
            Self::EndsSoon(end) => (Kind::Expires, format!("expires at {end}"), "", "renew it"),
        }
    }

    /// Reports whether clients refuse the certificate now.
    fn is_refused(self) -> bool {
        match self {
            Self::Expired(_) | Self::NotYetValid(_) => true,
            Self::EndsSoon(_) => false,
        }
    }
}

/// Returns a message about a certificate that is not valid now, or not for long.
pub fn validity(certificate: &Certificate, now: Timestamp) -> Option<String> {
    let validity = Validity::of(certificate, now)?;
    Some(message(certificate, validity))
}

/// Returns why clients that ask for a host refuse the certificate that they get.
pub fn refused(tls: &ServerTls, host: &str, now: Timestamp) -> Vec<String> {
    let host = Hostname::Exact(host.into());
    let other_names = other_names(tls, &host).map(|why| format!("{why}: {REFUSED}; {NEEDED}"));
    let certificates = tls.certificates.iter().filter(|certificate| {
        let mut names = certificate.names.iter();
        other_names.is_some() || names.any(|name| is_for(name, &host))
    });
    let invalid = certificates.filter_map(|certificate| {
        let validity = Validity::of(certificate, now).filter(|it| it.is_refused())?;
        Some(message(certificate, validity))
    });
    let invalid: Vec<_> = invalid.collect();
    invalid.into_iter().chain(other_names).collect()
}

/// Returns the finding about a listener whose certificates clients refuse for every host.
pub(super) fn of_names(listener: &Listener) -> Option<Finding> {
    let why = other_names(listener.tls()?, &listener.hostname)?;
    let cause = format!("listener {}: {why}", listener.key.name);
    let finding = Finding::of_object(Kind::Hostname, &listener.key.origin, cause);
    Some(finding.with_effect(REFUSED).with_remedy(NEEDED))
}

/// Returns that no certificate is for a hostname, with the names that there are.
fn other_names(tls: &ServerTls, hostname: &Hostname) -> Option<String> {
    let names = tls.certificates.iter().flat_map(|it| &it.names);
    let names: BTreeSet<&str> = names.map(AsRef::as_ref).collect();
    if tls.certificates.is_empty() || names.iter().any(|name| is_for(name, hostname)) {
        return None;
    }
    let mut shown: Vec<_> = names.iter().copied().take(MAX_NAMES).collect();
    if names.len() > MAX_NAMES {
        shown.push("others");
    }
    let names = match shown.is_empty() {
        true => "it has no DNS name".to_owned(),
        false => format!("only for {}", shown.join(", ")),
    };
    Some(format!("no certificate is for {hostname}, {names}"))
}

fn message(certificate: &Certificate, validity: Validity) -> String {
    let source = &certificate.source;
    let finding = validity.finding(source, &format!("the certificate of {source}"));
    finding.message()
}

/// Reports whether a name of a certificate is for some host of a listener.
fn is_for(name: &str, hostname: &Hostname) -> bool {
    let wildcard = name.strip_prefix("*.");
    match hostname {
        Hostname::Any => true,
        Hostname::Exact(host) => {
            name == &**host
                || wildcard.is_some_and(|suffix| {
                    host.split_once('.').is_some_and(|(_, rest)| rest == suffix)
                })
        }
        Hostname::Wildcard(suffix) => {
            let below = wildcard.unwrap_or(name);
            wildcard == Some(suffix)
                || below
                    .strip_suffix(&**suffix)
                    .is_some_and(|rest| rest.ends_with('.'))
        }
    }
}
