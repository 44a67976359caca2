//! The parts of gRPC that the proxy implements: the status of local responses and the deadline of the client.

use std::fmt::Write;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TIMEOUT: &str = "grpc-timeout";

/// gRPC status codes that the proxy uses (gRPC, "Status codes and their use").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcStatus {
    /// The deadline expired before the call completed.
    DeadlineExceeded = 4,
    /// The client has no permission.
    PermissionDenied = 7,
    /// The call exceeds a limit.
    ResourceExhausted = 8,
    /// No route matches the method.
    Unimplemented = 12,
    /// The call violated the protocol.
    Internal = 13,
    /// The service is currently unavailable.
    Unavailable = 14,
    /// The client is not authenticated.
    Unauthenticated = 16,
}

impl GrpcStatus {
    /// Returns the name in the specification of gRPC.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }

    /// Inserts the status and a message.
    pub(super) fn insert_into(self, headers: &mut HeaderMap, message: &str) {
        CallStatus(self as u32).insert_into(headers, message);
    }
}

/// The code of a status that another server has decided, as an extension of its response. Only calls get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallStatus(pub(super) u32);

impl CallStatus {
    /// Inserts the status and a message.
    pub(super) fn insert_into(self, headers: &mut HeaderMap, message: &str) {
        headers.insert(GRPC_STATUS, HeaderValue::from(self.0));
        headers.insert(GRPC_MESSAGE, encode(message));
    }
}

impl From<StatusCode> for GrpcStatus {
    fn from(status: StatusCode) -> Self {
        match status.as_u16() {
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 | 405 => Self::Unimplemented,
            408 | 504 => Self::DeadlineExceeded,
            413 | 429 | 431 => Self::ResourceExhausted,
            // Another connection may serve the host.
            421 => Self::Unavailable,
            400..500 => Self::Internal,
            _ => Self::Unavailable,
        }
    }
}

/// Percent-encodes a message (gRPC over HTTP/2, "Percent-Encoded").
fn encode(message: &str) -> HeaderValue {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' | 0..b' ' | 0x7f.. => {
                // Writing to a string cannot fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
            _ => encoded.push(char::from(byte)),
        }
    }
    HeaderValue::try_from(encoded).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Returns the timeout that the client sets (gRPC over HTTP/2, "Timeout"); `None` without one. A
/// malformed timeout is the backend's to reject.
pub(super) fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(GRPC_TIMEOUT)?.as_bytes();
    let (unit, digits) = value.split_last()?;
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    let timeout = match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    };
    Some(timeout).filter(|timeout| !timeout.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_timeouts_strictly() {
        let parsed = |value: &'static str| {
            let value = HeaderValue::from_static(value);
            timeout(&HeaderMap::from_iter([(
                HeaderName::from_static(GRPC_TIMEOUT),
                value,
            )]))
        };
        let hours = Duration::from_secs(99_999_999 * 3600);
        for (value, expected) in [
            ("99999999H", hours),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("100m", Duration::from_millis(100)),
            ("7u", Duration::from_micros(7)),
            ("00000001n", Duration::from_nanos(1)),
        ] {
            assert_eq!(parsed(value), Some(expected), "{value}");
        }
        for value in [
            "",
            "S",
            "1",
            "0S",
            "123456789S",
            "+1S",
            "-1S",
            "1s",
            "1 S",
            " 1S",
            "1.5S",
            "1SS",
        ] {
            assert_eq!(parsed(value), None, "{value:?}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }

    #[test]
    fn percent_encodes_messages() {
        for (message, encoded) in [
            ("no route matches", "no route matches"),
            ("100 %", "100 %25"),
            ("é\n", "%C3%A9%0A"),
        ] {
            assert_eq!(encode(message), encoded);
        }
    }
}
