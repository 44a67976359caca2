//! What to do about a problem of a report whose message names the cause only.

use super::condition::Reason;

/// What messages say of an object that is absent.
const ABSENT: &str = "does not exist";
/// What some of them say about it.
const ADVICE: &str = "create it";

impl Reason {
    /// Returns what to do about a condition with this reason; `None` if its message says it.
    pub fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::BackendNotFound => "correct the reference, or create what it names",
            Self::InvalidCertificateRef => {
                "create the Secret, repair it, or name another one: it has type kubernetes.io/tls, with tls.crt and tls.key"
            }
            Self::InvalidCACertificateRef | Self::NoValidCACertificate => {
                "create the ConfigMap, repair it, or name another one: ca.crt has the certificates of the authorities as PEM"
            }
            Self::KeySetNotFetched => {
                "check that the issuer responds, and that this pod may connect to it"
            }
            Self::NoMatchingListenerHostname => "change spec.hostnames, or add a listener for them",
            _ => return None,
        })
    }
}

/// Returns what to do about a problem with this reason and message; `None` if the message says it.
pub(super) fn of(reason: Option<Reason>, message: &str) -> Option<&'static str> {
    let of_reason = reason.and_then(Reason::remedy);
    of_reason.or_else(|| {
        let is_absent = message.contains(ABSENT) && !message.contains(ADVICE);
        is_absent.then_some("correct the name, or create it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_objects_get_advice_once() {
        let of = |message: &str| of(None, message);
        let remedy = Some("correct the name, or create it");
        assert_eq!(of("Secret a/b does not exist"), remedy);
        let parameters =
            "names GatewayParameters a/b, which does not exist; create it or remove the field";
        assert_eq!(of(parameters), None);
        assert_eq!(of("Secret a/b has no key auth"), None);
    }
}
