//! Counts the failed attempts at an endpoint, and names the cause and the remedy of the last one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::stats::TlsFailure;

/// Why an attempt at an endpoint failed, as far as the endpoint or the way to it is the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointFault {
    /// Nothing listens on the port.
    Refused,
    /// No way leads to the address.
    Unreachable,
    /// The connection was not established in time.
    ConnectTimeout,
    /// The connection could not be established for another reason.
    Connect,
    /// TLS was not established in time, after the connection was.
    HandshakeTimeout,
    /// The connection closed before the response.
    Closed,
    /// The connection closed before the end of the response.
    Truncated,
    /// The response violated the protocol.
    Protocol,
    /// The response did not arrive in time.
    Timeout,
    /// TLS failed.
    Tls(TlsFailure),
}

/// What to do about a port that does not speak TLS.
const NO_TLS: &str = "check that the port speaks TLS, or remove its BackendTLSPolicy";

impl EndpointFault {
    /// Every fault without those of TLS, in the order of their codes.
    const PLAIN: [Self; 9] = [
        Self::Refused,
        Self::Unreachable,
        Self::ConnectTimeout,
        Self::Connect,
        Self::HandshakeTimeout,
        Self::Closed,
        Self::Truncated,
        Self::Protocol,
        Self::Timeout,
    ];

    fn all() -> impl Iterator<Item = Self> {
        let plain = Self::PLAIN.into_iter();
        plain.chain(TlsFailure::ALL.into_iter().map(Self::Tls))
    }

    /// What is wrong, as text after the endpoint.
    pub fn cause(self) -> &'static str {
        match self {
            Self::Refused => "refuses connections",
            Self::Unreachable => "cannot be reached",
            Self::ConnectTimeout => "accepts no connection in time",
            Self::Connect => "ends connections before they are established",
            Self::HandshakeTimeout => "accepts connections, but does not complete TLS in time",
            Self::Closed => "closes connections before it responds",
            Self::Truncated => "closes connections before the end of its responses",
            Self::Protocol => "sends responses that violate the protocol",
            Self::Timeout => "does not respond within the backendRequest timeout",
            Self::Tls(failure) => failure.cause(),
        }
    }

    /// What to do.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Refused => {
                "check that the pods listen on this port, and targetPort of the Service"
            }
            Self::Unreachable => "check routes and network policies on the way to it",
            Self::ConnectTimeout => {
                "check its node, and network policies and firewalls on the way to it"
            }
            Self::Connect | Self::Closed | Self::Truncated => {
                "check its log, and what stands before it"
            }
            Self::HandshakeTimeout => NO_TLS,
            Self::Protocol => "check that the port speaks HTTP, and appProtocol of the Service",
            Self::Timeout => "check its load and its log, or raise the timeout",
            Self::Tls(failure) => match failure {
                TlsFailure::Name
                | TlsFailure::UnknownAuthority
                | TlsFailure::Pin
                | TlsFailure::Certificate => "compare its certificate with its BackendTLSPolicy",
                TlsFailure::Expired => "renew its certificate",
                TlsFailure::NotYetValid => "check its certificate, and the clock of this host",
                TlsFailure::Refused => {
                    "check its log: it may require a client certificate, or another version of TLS"
                }
                TlsFailure::Protocol | TlsFailure::Ended => NO_TLS,
            },
        }
    }
}

/// The failed attempts at an endpoint: their number, and the code of the last one in the lowest byte. One word, so that
/// a failure needs no lock and no memory.
#[derive(Debug, Default)]
pub struct EndpointFaults(AtomicU64);

impl EndpointFaults {
    const CODE_BITS: u32 = 8;

    /// Counts a failed attempt.
    #[cold]
    pub fn add(&self, fault: EndpointFault) {
        let code = EndpointFault::all().position(|it| it == fault);
        let code = code.unwrap_or_default() as u64;
        let next = |word: u64| Some((((word >> Self::CODE_BITS) + 1) << Self::CODE_BITS) | code);
        // The update cannot fail: `next` always returns a value.
        let _ = self.0.fetch_update(Relaxed, Relaxed, next);
    }

    /// Returns the number of failed attempts.
    pub fn count(&self) -> u64 {
        self.0.load(Relaxed) >> Self::CODE_BITS
    }

    /// Returns why the last attempt that failed did; `None` if none has.
    pub fn last(&self) -> Option<EndpointFault> {
        let word = self.0.load(Relaxed);
        let code = word & ((1 << Self::CODE_BITS) - 1);
        (word > 0).then(|| EndpointFault::all().nth(code as usize))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_faults_and_keeps_the_last_one() {
        let faults = EndpointFaults::default();
        assert_eq!((faults.count(), faults.last()), (0, None));
        for (index, fault) in EndpointFault::all().enumerate() {
            faults.add(fault);
            assert_eq!(faults.count(), index as u64 + 1);
            assert_eq!(faults.last(), Some(fault));
        }
    }
}
