//! Listener certificates that expire soon because their renewal has failed. Pure: the caller passes
//! the time.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::ir::{Bind, ObjectRef, Port};
use crate::status::certificates::validity;

/// Interval between checks without a configuration change.
const PERIOD: Duration = Duration::from_secs(60 * 60);

/// Schedule of checks, and the reported certificates.
#[derive(Debug, Default)]
pub(super) struct Expiry {
    next: Option<Instant>,
    /// The ports that were checked last, in order.
    ports: Vec<Arc<Port>>,
    /// Messages about certificates that expire soon or have expired.
    messages: BTreeMap<(ObjectRef, Bind), BTreeSet<String>>,
    reported: BTreeSet<ObjectRef>,
}

/// Result of a check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ExpiryReport {
    /// A message about certificates that expire soon or have expired, by Gateway.
    pub(super) expiring: BTreeMap<ObjectRef, String>,
    /// Gateways whose reported certificates were all renewed.
    pub(super) renewed: Vec<ObjectRef>,
}

impl Expiry {
    /// Returns when to check again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Checks all certificates if a check is due, and those of changed ports if the configuration is new.
    pub(super) fn check(
        &mut self,
        ports: &[Arc<Port>],
        is_new: bool,
        now: (Instant, Timestamp),
    ) -> ExpiryReport {
        let (instant, time) = now;
        let is_due = self.next.is_none_or(|next| instant >= next);
        if is_due {
            self.next = Some(instant + PERIOD);
            self.ports.clear();
            self.messages.clear();
        } else if !is_new {
            return ExpiryReport::default();
        }
        let (gone, new) = differences(&self.ports, ports);
        for port in gone {
            self.messages.remove(&(port.gateway.clone(), port.bind));
        }
        for port in new {
            let messages = messages(port, time);
            if !messages.is_empty() {
                let key = (port.gateway.clone(), port.bind);
                self.messages.insert(key, messages);
            }
        }
        self.ports = ports.to_vec();
        let expiring = self.expiring();
        let now: BTreeSet<_> = expiring.keys().cloned().collect();
        let previous = std::mem::replace(&mut self.reported, now);
        let renewed = previous.difference(&self.reported).cloned().collect();
        ExpiryReport { expiring, renewed }
    }

    /// Returns a message about certificates that expire soon or have expired, by Gateway.
    fn expiring(&self) -> BTreeMap<ObjectRef, String> {
        let mut found: BTreeMap<ObjectRef, BTreeSet<&str>> = BTreeMap::new();
        for ((gateway, _), messages) in &self.messages {
            let texts = found.entry(gateway.clone()).or_default();
            texts.extend(messages.iter().map(String::as_str));
        }
        let text = |texts: BTreeSet<&str>| texts.into_iter().collect::<Vec<_>>().join("; ");
        found
            .into_iter()
            .map(|(gateway, texts)| (gateway, text(texts)))
            .collect()
    }
}

/// Returns the ports that only one of two sorted lists has: those of the first, and those of the second. A changed port is
/// among both.
fn differences<'a>(
    previous: &'a [Arc<Port>],
    now: &'a [Arc<Port>],
) -> (Vec<&'a Port>, Vec<&'a Port>) {
    let (mut gone, mut new) = (Vec::new(), Vec::new());
    let (mut previous, mut now) = (previous.iter().peekable(), now.iter().peekable());
    loop {
        let order = match (previous.peek(), now.peek()) {
            (Some(old), Some(port)) if Arc::ptr_eq(old, port) => {
                previous.next();
                now.next();
                continue;
            }
            (Some(old), Some(port)) => (old.bind, &old.gateway).cmp(&(port.bind, &port.gateway)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return (gone, new),
        };
        if order.is_le() {
            gone.extend(previous.next().map(AsRef::as_ref));
        }
        if order.is_ge() {
            new.extend(now.next().map(AsRef::as_ref));
        }
    }
}

/// Returns messages about the certificates of a port that expire soon or have expired.
fn messages(port: &Port, now: Timestamp) -> BTreeSet<String> {
    let certificates = port.certificates();
    certificates.filter_map(|it| validity(it, now)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Kind;
    use crate::ir::Ir;
    use crate::snapshot::Snapshot;
    use crate::translate::{Options, translate};

    const DAY: i64 = 24 * 60 * 60;

    /// Returns a Gateway with one HTTPS listener whose certificate expires on 2030-01-01, after this many days.
    fn ir(days: i32) -> Ir {
        let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_before = match days {
            6 => rcgen::date_time_ymd(2029, 12, 26),
            _ => rcgen::date_time_ymd(2029, 10, 3),
        };
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
    fn reports_certificates_a_week_or_a_third_of_their_life_before_expiry() {
        let (ir, short) = (ir(90), ir(6));
        let check = |ir: &Ir, days| {
            let now = (Instant::now(), at(days));
            Expiry::default().check(&ir.ports, true, now).expiring
        };
        let expiring = |days| check(&ir, days);
        assert!(expiring(-7).is_empty());
        assert!(!expiring(-6).is_empty());
        assert!(check(&short, -2).is_empty());
        assert!(!check(&short, -1).is_empty());
        let text = |days| expiring(days).into_values().next().unwrap();
        let expected =
            "the certificate of Secret shop/cert expires at 2030-01-01T00:00:00Z; renew it";
        assert_eq!(text(-1), expected);
        assert!(text(1).contains("expired at"));
    }

    #[test]
    fn checks_when_due_or_when_the_configuration_is_new() {
        let (ir, now) = (ir(90), Instant::now());
        let mut expiry = Expiry::default();
        let mut count = |instant: Instant, is_new| {
            let report = expiry.check(&ir.ports, is_new, (instant, at(-1)));
            report.expiring.len()
        };
        assert_eq!(count(now, false), 1);
        assert_eq!(count(now, false), 0);
        assert_eq!(count(now, true), 1);
        assert_eq!(count(now + PERIOD, false), 1);
        let renewed = expiry.check(&[], true, (now, at(-1))).renewed;
        assert_eq!(renewed.len(), 1);
    }
}
