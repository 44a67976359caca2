//! Certificates of listeners that clients refuse, now or soon: for other hosts, expired, or not yet valid. Pure: the caller
//! passes the time.

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;

use crate::ir::{Certificate, Hostname, ServerTls};

/// Seconds before its expiry from which a certificate is reported, or a third of its life if that is shorter. Certificates of
/// 90 days are normally renewed 30 days before expiry, certificates of 6 days 3 days before.
const SOON: i64 = 7 * 24 * 60 * 60;
/// Names of certificates that a message has at most.
const MAX_NAMES: usize = 8;

/// A certificate that is not valid now, or not for long. Shown as what is said of the certificate, with what to do. In the
/// order of weight, then of time.
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

    /// Reports whether clients refuse the certificate now.
    fn is_refused(self) -> bool {
        match self {
            Self::Expired(_) | Self::NotYetValid(_) => true,
            Self::EndsSoon(_) => false,
        }
    }
}

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired(end) => write!(f, "has expired at {end}: clients refuse it; renew it"),
            Self::NotYetValid(begin) => write!(
                f,
                "is not valid before {begin}: clients refuse it until then; issue it again, or check the clock of this host"
            ),
            Self::EndsSoon(end) => write!(f, "expires at {end}; renew it"),
        }
    }
}

/// Returns a message about a certificate that is not valid now, or not for long.
pub fn validity(certificate: &Certificate, now: Timestamp) -> Option<String> {
    Validity::of(certificate, now).map(|validity| message(certificate, validity))
}

/// Returns why clients that ask for a host refuse the certificate that they get.
pub fn refused(tls: &ServerTls, host: &str, now: Timestamp) -> Vec<String> {
    let host = Hostname::Exact(host.into());
    let other_names = other_names(tls, &host);
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

/// Returns why clients refuse the certificates of a listener for every host of a hostname.
pub(super) fn other_names(tls: &ServerTls, hostname: &Hostname) -> Option<String> {
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
    Some(format!(
        "no certificate is for {hostname}, {names}: clients refuse it; tls.certificateRefs needs one for this hostname"
    ))
}

fn message(certificate: &Certificate, validity: Validity) -> String {
    format!("the certificate of {} {validity}", certificate.source)
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
