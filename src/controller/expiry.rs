//! Certificates of listeners that are about to expire: somebody's renewal does not work, and clients will notice. Knows
//! the time, which is given, and not who is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use crate::ir::{Ir, ObjectRef};

/// How long before its end a certificate is reported. Those that last 90 days are renewed 30 days before, and those that
/// last 6 days 3 days before.
const NOTICE: SignedDuration = SignedDuration::from_hours(2 * 24);
/// How often certificates are looked at while nothing changes.
const PERIOD: Duration = Duration::from_secs(60 * 60);

/// When certificates are looked at.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    next: Option<Instant>,
    reported: BTreeSet<ObjectRef>,
}

/// What there is to tell.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    /// What is about to expire, by Gateway.
    pub(super) expiring: BTreeMap<ObjectRef, String>,
    /// Gateways whose certificates are all good again.
    pub(super) renewed: Vec<ObjectRef>,
}

impl Expiry {
    /// When to look again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Looks, if that is due or there is a new configuration.
    pub(super) fn look(&mut self, ir: &Ir, is_new: bool, now: (Instant, Timestamp)) -> Report {
        let (instant, time) = now;
        if !is_new && self.next.is_some_and(|next| instant < next) {
            return Report::default();
        }
        self.next = Some(instant + PERIOD);
        let expiring = expiring(ir, time);
        let now: BTreeSet<_> = expiring.keys().cloned().collect();
        let before = std::mem::replace(&mut self.reported, now);
        let renewed = before.difference(&self.reported).cloned().collect();
        Report { expiring, renewed }
    }
}

/// What is about to expire, or has, by Gateway.
fn expiring(ir: &Ir, now: Timestamp) -> BTreeMap<ObjectRef, String> {
    let mut found: BTreeMap<ObjectRef, BTreeSet<String>> = BTreeMap::new();
    for port in &ir.ports {
        let tls = port.listeners.iter().filter_map(|listener| listener.tls());
        for certificate in tls.flat_map(|tls| &tls.certificates) {
            let Ok(end) = Timestamp::from_second(certificate.not_after) else {
                continue;
            };
            if now.saturating_add(NOTICE).is_ok_and(|then| end < then) {
                let verb = if end < now { "expired" } else { "expires" };
                let source = &certificate.source;
                let text = format!("the certificate of {source} {verb} at {end}; renew it");
                found.entry(port.gateway.clone()).or_default().insert(text);
            }
        }
    }
    let text = |texts: BTreeSet<String>| texts.into_iter().collect::<Vec<_>>().join("; ");
    found
        .into_iter()
        .map(|(gateway, texts)| (gateway, text(texts)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::api::Kind;
    use crate::snapshot::Snapshot;
    use crate::translate::{Options, translate};

    const DAY: i64 = 24 * 60 * 60;

    /// A Gateway with one HTTPS listener, whose certificate ends on the first day of 2030.
    fn ir() -> Ir {
        let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let objects = [
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "cert", "namespace": "shop"},
                "type": "kubernetes.io/tls",
                "stringData": {"tls.crt": certificate.pem(), "tls.key": key.serialize_pem()},
            }),
            json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "metadata": {"name": "web", "namespace": "shop"},
                "spec": {"gatewayClassName": "portcullis", "listeners": [{
                    "name": "https", "port": 443, "protocol": "HTTPS",
                    "tls": {"certificateRefs": [{"name": "cert"}]},
                }]},
            }),
        ];
        let mut snapshot = Snapshot::default();
        for object in objects {
            let text = |field: &str| object[field].as_str().unwrap().to_owned();
            let kind = Kind::find(&text("apiVersion"), &text("kind")).unwrap();
            snapshot.insert(kind.decode(&object).unwrap());
        }
        translate(&Arc::new(snapshot), None, &Options::default()).ir
    }

    fn at(days: i64) -> Timestamp {
        let end: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        Timestamp::from_second(end.as_second() + days * DAY).unwrap()
    }

    #[test]
    fn certificates_are_reported_some_days_before_they_expire() {
        let ir = ir();
        assert!(expiring(&ir, at(-3)).is_empty());
        let text = |days| expiring(&ir, at(days)).into_values().next().unwrap();
        let expected =
            "the certificate of Secret shop/cert expires at 2030-01-01T00:00:00Z; renew it";
        assert_eq!(text(-1), expected);
        assert!(text(1).contains("expired at"));
    }

    #[test]
    fn looks_when_it_is_due_or_there_is_something_new() {
        let (ir, now) = (ir(), Instant::now());
        let mut expiry = Expiry::default();
        let mut count = |instant: Instant, is_new| {
            let report = expiry.look(&ir, is_new, (instant, at(-1)));
            report.expiring.len()
        };
        assert_eq!(count(now, false), 1);
        assert_eq!(count(now, false), 0);
        assert_eq!(count(now, true), 1);
        assert_eq!(count(now + PERIOD, false), 1);
        let renewed = expiry.look(&Ir::default(), true, (now, at(-1))).renewed;
        assert_eq!(renewed.len(), 1);
    }
}
