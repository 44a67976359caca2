//! TLS handshakes of clients that fail for a cause in the configuration.

use super::in_service::{InService, minutes};
use crate::admin::recent::Process;
use crate::finding::{Finding, Kind};
use crate::telemetry::metrics::HandshakeFailure;

/// Failures below which they are no trouble: every public address is scanned.
const MIN_FAILURES: u64 = 10;
/// Percent of the handshakes from which on failures are a trouble.
const MANY: u64 = 10;

/// Returns the reasons for which many handshakes fail.
pub(super) fn of_clients(service: &InService<'_>) -> Vec<Finding> {
    let before = &service.before.process;
    let now = Process::now(service.stats, service.dropped);
    let time = minutes(before.age());
    let trouble = |failure: HandshakeFailure| {
        let (why, remedy) = cause(failure)?;
        let shares = now.handshakes(failure, before);
        let is_trouble = shares.failed >= MIN_FAILURES && shares.are_percent(MANY);
        let finding = || {
            let cause = format!(
                "{} of {} in the {time} failed: {why}",
                shares.failed, shares.all
            );
            let object = "TLS handshakes of clients".to_owned();
            Finding::of_service(Kind::Clients, object, cause).with_remedy(remedy)
        };
        is_trouble.then(finding)
    };
    HandshakeFailure::ALL
        .into_iter()
        .filter_map(trouble)
        .collect()
}

/// Returns what is wrong and what to do; `None` if the configuration is not the cause.
fn cause(failure: HandshakeFailure) -> Option<(&'static str, &'static str)> {
    Some(match failure {
        HandshakeFailure::ServerName => (
            "no listener has the name that they ask for",
            "add a listener for it, or correct their DNS",
        ),
        HandshakeFailure::NoCertificate => (
            "the certificate of the listener cannot be used",
            "see its conditions",
        ),
        HandshakeFailure::Incompatible => (
            "they have no version, cipher or group of TLS in common with the listener",
            "change the policy of its TLS, or update them",
        ),
        HandshakeFailure::Refused => (
            "they do not trust the certificate of the listener",
            "use one of an authority that they trust, with the whole chain in tls.crt",
        ),
        HandshakeFailure::ClientCertificate => (
            "their certificates are missing or not valid",
            "compare these with the authorities of the listener",
        ),
        HandshakeFailure::Closed
        | HandshakeFailure::Timeout
        | HandshakeFailure::Evicted
        | HandshakeFailure::NotTls
        | HandshakeFailure::Policy
        | HandshakeFailure::Alert
        | HandshakeFailure::Protocol => return None,
    })
}
