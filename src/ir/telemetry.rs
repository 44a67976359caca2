//! Traces of the requests through a Gateway: which requests are traced, and the collector that receives their spans.

use std::fmt;
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use serde::{Serialize, Serializer};

use super::{BackendId, ObjectRef, serialized};

/// Traces of the requests through a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Tracing {
    /// The policy object.
    pub policy: ObjectRef,
    /// The backend that receives spans.
    pub collector: BackendId,
    /// Its protocol.
    pub protocol: OtlpProtocol,
    /// Headers of requests to it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<SecretHeader>,
    /// Share of the requests without a parent span that are traced.
    pub sampling: Share,
    /// Share of the requests with a sampled parent that are traced; `None` if the decision of the parent does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_sampling: Option<Share>,
    /// Whether the collector gets the access log, too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub access_log: bool,
    /// The resource attribute `service.name`.
    pub service_name: Arc<str>,
    /// The name of the span of a request; `None` for that of the semantic conventions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub span_name: Option<Box<[NamePart]>>,
    /// Further attributes of the span of a request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attributes: Vec<(Arc<str>, AttributeSource)>,
}

/// The protocol of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum OtlpProtocol {
    /// OTLP over HTTP with binary protobuf.
    Http,
    /// OTLP over gRPC.
    Grpc,
}

/// A header whose value may be a credential. Prints its name only.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SecretHeader {
    /// Name.
    pub name: HeaderName,
    /// Value.
    pub value: HeaderValue,
}

impl fmt::Debug for SecretHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.as_str())
    }
}

impl Serialize for SecretHeader {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name.as_str())
    }
}

/// A share of requests. Prints as `numerator/denominator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// Numerator, at most the denominator.
    pub numerator: u32,
    /// Denominator, 1 or more.
    pub denominator: u32,
}

impl Share {
    /// No request.
    pub const NONE: Self = Self {
        numerator: 0,
        denominator: 1,
    };
    /// All requests.
    pub const ALL: Self = Self {
        numerator: 1,
        denominator: 1,
    };

    /// Reports whether a number that is drawn evenly from all of its type is within the share.
    pub const fn contains(self, drawn: u32) -> bool {
        (drawn as u64 * self.denominator as u64) < (self.numerator as u64) << u32::BITS
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}/{}", self.numerator, self.denominator))
    }
}

/// The source of the value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum AttributeSource {
    /// A header of the request as the client sent it.
    Header(#[serde(serialize_with = "serialized::name")] HeaderName),
    /// A literal.
    Literal(Arc<str>),
    /// Another attribute of the span.
    Attribute(&'static str),
}

/// A part of the name of a span.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum NamePart {
    /// Text.
    Text(Box<str>),
    /// The value of an attribute of the span.
    Attribute(&'static str),
}

/// Attributes of the span of a request.
pub const SPAN_ATTRIBUTES: [&str; 17] = [
    "client.address",
    "client.port",
    "error.type",
    "http.request.method",
    "http.request.method_original",
    "http.response.status_code",
    "http.route",
    "network.protocol.version",
    "portcullis.route",
    "portcullis.rule",
    "rpc.response.status_code",
    "rpc.system.name",
    "server.address",
    "server.port",
    "url.path",
    "url.scheme",
    "user_agent.original",
];

/// Those that may be in names of spans: they have few values, whatever clients send.
pub const NAME_ATTRIBUTES: [&str; 7] = [
    "http.request.method",
    "http.response.status_code",
    "http.route",
    "network.protocol.version",
    "portcullis.route",
    "portcullis.rule",
    "url.scheme",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_exact_at_their_ends() {
        let share = |numerator, denominator| Share {
            numerator,
            denominator,
        };
        assert!(Share::ALL.contains(u32::MAX) && Share::ALL.contains(0));
        assert!(!share(0, 100).contains(0));
        assert!(share(1, 2).contains(u32::MAX / 2) && !share(1, 2).contains(u32::MAX / 2 + 1));
        assert!(share(1_000_000_000, 1_000_000_000).contains(u32::MAX));
    }

    #[test]
    fn values_of_headers_do_not_print() {
        let header = SecretHeader {
            name: HeaderName::from_static("authorization"),
            value: HeaderValue::from_static("Bearer canary"),
        };
        let json = serde_json::to_string(&header).unwrap();
        assert!(!format!("{json}{header:?}").contains("canary"), "{json}");
    }
}
