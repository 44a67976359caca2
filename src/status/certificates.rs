//! Certificates of listeners that clients refuse, now or soon: for other hosts, expired, or not yet valid. Pure: the caller
//! passes the time.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use crate::ir::{Certificate, Hostname, ServerTls};

/// Time before its expiry from which a certificate is reported.
const SOON: SignedDuration = SignedDuration::from_hours(7 * 24);
/// Names of certificates that a message has at most.
const MAX_NAMES: usize = 8;

/// Returns a message about a certificate that is not valid now, or not for long.
pub fn validity(certificate: &Certificate, now: Timestamp) -> Option<String> {
    invalid(certificate, now).or_else(|| ends_soon(certificate, now))
}

/// Returns why clients that ask for a host refuse the certificate that they get.
pub fn refused(tls: &ServerTls, host: &str, now: Timestamp) -> Vec<String> {
    let host = Hostname::Exact(host.into());
    let other_names = other_names(tls, &host);
    let certificates = tls.certificates.iter().filter(|certificate| {
        let mut names = certificate.names.iter();
        other_names.is_some() || names.any(|name| is_for(name, &host))
    });
    let invalid = certificates.filter_map(|it| invalid(it, now));
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

/// Returns a message about a certificate that is not valid now.
fn invalid(certificate: &Certificate, now: Timestamp) -> Option<String> {
    let source = &certificate.source;
    let end = Timestamp::from_second(certificate.not_after).ok()?;
    if end < now {
        return Some(format!("the certificate of {source} expired at {end}"));
    }
    let begin = Timestamp::from_second(certificate.not_before).ok()?;
    (now < begin).then(|| format!("the certificate of {source} is not valid before {begin}"))
}

/// Returns a message about a certificate that is not valid for long.
fn ends_soon(certificate: &Certificate, now: Timestamp) -> Option<String> {
    let end = Timestamp::from_second(certificate.not_after).ok()?;
    let is_soon = now.saturating_add(SOON).is_ok_and(|then| end <= then);
    is_soon.then(|| format!("the certificate of {} expires at {end}", certificate.source))
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
