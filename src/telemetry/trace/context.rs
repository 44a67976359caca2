//! The identity of a span, as requests carry it (W3C Trace Context), and the decision whether a request is sampled.

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use rand::RngExt;

use crate::ir::Tracing;
use crate::ir::hex;

/// The header with the ids of a span.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header with what other tracing systems know of the trace.
pub const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Length of a value of version 0.
const LENGTH: usize = 55;
/// Flag of a trace that is sampled.
const SAMPLED: u8 = 1;
/// Flag of a trace id with random bits (level 2 of the recommendation).
const RANDOM: u8 = 2;

/// The identity of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span.
    pub span_id: [u8; 8],
    flags: u8,
}

impl TraceContext {
    /// Reads the parent of a request; `None` if there is none, or if it is not valid.
    pub fn of_request(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let value = values.next()?.as_bytes();
        if values.next().is_some() {
            return None;
        }
        Self::parse(value)
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let is_longer = value.len() > LENGTH;
        let (fields, rest) = value.split_at_checked(LENGTH)?;
        let version: [u8; 1] = bytes(&fields[..2])?;
        // A later version may append fields.
        let is_known = match version[0] {
            0 => !is_longer,
            0xff => false,
            _ => !is_longer || rest[0] == b'-',
        };
        let is_divided = fields[2] == b'-' && fields[35] == b'-' && fields[52] == b'-';
        if !is_known || !is_divided {
            return None;
        }
        let context = Self {
            trace_id: bytes(&fields[3..35])?,
            span_id: bytes(&fields[36..52])?,
            flags: bytes::<1>(&fields[53..])?[0],
        };
        (context.trace_id != [0; 16] && context.span_id != [0; 8]).then_some(context)
    }

    /// Reports whether the trace is sampled.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Decides whether a request with this parent is sampled. Returns the identity of its span if it is.
    pub fn sample(tracing: &Tracing, parent: Option<Self>) -> Option<Self> {
        let share = match (parent, tracing.parent_sampling) {
            (Some(parent), Some(_)) if !parent.is_sampled() => return None,
            (Some(_), Some(share)) => share,
            _ => tracing.sampling,
        };
        let mut rng = rand::rng();
        if !share.contains(rng.random()) {
            return None;
        }
        let (trace_id, flags) = match parent {
            Some(parent) => (parent.trace_id, parent.flags & RANDOM),
            None => (rng.random::<u128>().to_ne_bytes(), RANDOM),
        };
        Some(Self {
            trace_id,
            span_id: rng.random::<u64>().to_ne_bytes(),
            flags: flags | SAMPLED,
        })
    }

    /// Returns the identity of another span of the trace.
    pub fn child(&self) -> Self {
        Self {
            span_id: rand::rng().random::<u64>().to_ne_bytes(),
            ..*self
        }
    }

    /// Returns the value of `traceparent`.
    pub fn to_header(&self) -> HeaderValue {
        let mut text = *b"00-................................-................-..";
        write(&mut text[3..35], &self.trace_id);
        write(&mut text[36..52], &self.span_id);
        write(&mut text[53..], &[self.flags]);
        HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
    }
}

/// Parses lower-case hexadecimal digits.
fn bytes<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(pair[0])? << 4 | value(pair[1])?;
    }
    Some(bytes)
}

fn write(text: &mut [u8], bytes: &[u8]) {
    for (digits, byte) in text.chunks_exact_mut(2).zip(bytes) {
        digits.copy_from_slice(&hex::DIGITS[usize::from(*byte)]);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ir::telemetry::{OtlpProtocol, Share};
    use crate::ir::{BackendId, ObjectRef};

    const VALUE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    pub(in crate::telemetry::trace) fn tracing() -> Tracing {
        Tracing {
            policy: ObjectRef::new("portcullis.dev", "TelemetryPolicy", "infra", "p"),
            collector: BackendId::new(ObjectRef::core("Service", "infra", "otel"), 4318),
            protocol: OtlpProtocol::Http,
            headers: Vec::new(),
            sampling: Share::ALL,
            parent_sampling: Some(Share::ALL),
            access_log: false,
            service_name: "web".into(),
            span_name: None,
            attributes: Vec::new(),
        }
    }

    const NONE: Share = Share {
        numerator: 0,
        denominator: 1,
    };

    #[test]
    fn value_survives_a_round_trip() {
        let context = TraceContext::parse(VALUE.as_bytes()).unwrap();
        assert!(context.is_sampled());
        assert_eq!(context.to_header(), VALUE);
    }

    #[test]
    fn values_that_are_not_valid_are_no_parents() {
        let replaced = |at: usize, text: &str| {
            let mut value = VALUE.to_owned();
            value.replace_range(at..at + text.len(), text);
            value
        };
        for value in [
            String::new(),
            replaced(0, "ff"),
            replaced(2, "_"),
            replaced(3, "A"),
            replaced(3, &"0".repeat(32)),
            replaced(36, &"0".repeat(16)),
            VALUE[..54].to_owned(),
            format!("{VALUE}-more"),
            format!("{}more", replaced(0, "01")),
        ] {
            assert_eq!(TraceContext::parse(value.as_bytes()), None, "{value}");
        }
        let later = format!("{}-more", replaced(0, "01"));
        assert!(TraceContext::parse(later.as_bytes()).is_some());
        let mut headers = HeaderMap::new();
        headers.append(TRACEPARENT, HeaderValue::from_static(VALUE));
        assert!(TraceContext::of_request(&headers).is_some());
        headers.append(TRACEPARENT, HeaderValue::from_static(VALUE));
        assert!(TraceContext::of_request(&headers).is_none());
    }

    #[test]
    fn decision_of_the_parent_counts_unless_the_policy_says_otherwise() {
        let parent = TraceContext::parse(VALUE.as_bytes());
        let unsampled = TraceContext::parse(VALUE.replace("-01", "-00").as_bytes());
        let sample = |sampling, parent_sampling, parent| {
            let tracing = Tracing {
                sampling,
                parent_sampling,
                ..tracing()
            };
            TraceContext::sample(&tracing, parent)
        };
        let all = Share::ALL;
        let sampled = sample(NONE, Some(all), parent).unwrap();
        assert_eq!(sampled.trace_id, parent.unwrap().trace_id);
        assert_ne!(sampled.span_id, parent.unwrap().span_id);
        assert_eq!(sample(all, Some(all), unsampled), None);
        assert_eq!(sample(all, Some(NONE), parent), None);
        assert_eq!(sample(NONE, Some(all), None), None);
        assert_eq!(sample(NONE, None, parent), None);
        assert!(sample(all, None, unsampled).unwrap().is_sampled());
        assert!(sample(all, None, None).is_some());
    }
}
