//! OpenAPI formats of values that the watched kinds use.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// A signed integer of 32 bits.
    Int32,
    /// A signed integer of 64 bits.
    Int64,
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// A network in CIDR notation.
    Cidr,
    /// A time of RFC 3339.
    #[serde(rename = "date-time")]
    DateTime,
    /// Base64.
    Byte,
}

impl Format {
    /// The format's name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Cidr => "cidr",
            Self::DateTime => "date-time",
            Self::Byte => "byte",
        }
    }

    /// Reports whether a value has the format. A format does not apply to values of other types.
    pub(super) fn admits(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Int32, Value::Number(number)) => number
                .as_i64()
                .is_some_and(|number| i32::try_from(number).is_ok()),
            (Self::Int64, Value::Number(number)) => number.as_i64().is_some(),
            (Self::Ipv4, Value::String(text)) => text.parse::<Ipv4Addr>().is_ok(),
            (Self::Ipv6, Value::String(text)) => text.parse::<Ipv6Addr>().is_ok(),
            (Self::Cidr, Value::String(text)) => text.parse::<IpNet>().is_ok(),
            (Self::DateTime, Value::String(text)) => text.parse::<jiff::Timestamp>().is_ok(),
            (Self::Byte, Value::String(text)) => is_base64(text),
            _ => true,
        }
    }
}

/// Reports whether text is padded standard base64. Ignores line breaks, like Go's decoder.
fn is_base64(text: &str) -> bool {
    let significant = || text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n'));
    let body = significant()
        .take_while(|byte| *byte != b'=')
        .collect::<Vec<_>>();
    let padding = significant().skip(body.len()).collect::<Vec<_>>();
    body.iter()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
        && padding.len() <= 2
        && padding.iter().all(|byte| *byte == b'=')
        && (body.len() + padding.len()).is_multiple_of(4)
}
