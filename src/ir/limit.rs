//! Limits of requests: what is counted together, and how much of it is admitted. Must not know counters.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};
use serde::{Serialize, Serializer};

use super::ObjectRef;
use super::cidr::CidrSet;
use super::request_match::Match;

/// The limits of a policy. Each counts all requests that the policy applies to, whatever its targets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Limits {
    /// The policy.
    pub policy: ObjectRef,
    /// Limits, in order. A request must meet all of them.
    pub limits: Vec<Arc<Limit>>,
    /// The status of refused requests.
    #[serde(serialize_with = "status")]
    pub status: StatusCode,
    /// Whether responses have the headers RateLimit and RateLimit-Policy.
    pub has_headers: bool,
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Limit {
    /// Its name, unique within the policy.
    pub name: Arc<str>,
    /// The requests that it is for; `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<Match>,
    /// What distinguishes requests that are counted apart; empty if all are counted together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<KeyPart>,
    /// Requests in a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Requests at the same time, 1 or more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u32>,
    /// Clients that are neither counted nor refused.
    #[serde(skip_serializing_if = "CidrSet::is_empty")]
    pub exempt: CidrSet,
    /// Whether requests over the limit are only counted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_audit: bool,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum KeyPart {
    /// The network of the client, with these lengths of the prefix.
    ClientIp {
        /// For IPv4, 0 to 32.
        v4: u8,
        /// For IPv6, 0 to 128.
        v6: u8,
    },
    /// The first value of a header; requests without it are counted together.
    #[serde(serialize_with = "header")]
    Header(HeaderName),
    /// The first cookie of this name; requests without it are counted together.
    Cookie(Arc<str>),
    /// The host.
    Hostname,
}

/// A rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Rate {
    /// Requests per `per`, 1 or more.
    pub requests: u32,
    /// The time, 1 s or longer.
    pub per: Duration,
    /// Requests that are admitted at once after a time without any, 1 or more.
    pub burst: u32,
}

fn status<S: Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

fn header<S: Serializer>(name: &HeaderName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}
