//! Limits of requests: what is counted together, and how much of it is admitted. Must not know counters.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, StatusCode};
use serde::Serialize;

use super::ObjectRef;
use super::authentication::Authentication;
use super::cidr::CidrSet;
use super::claim_name::ClaimName;
use super::request_match::Match;
use super::serialized;

/// The limits of a policy. Each counts all requests that the policy applies to, whatever its targets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Limits {
    /// The policy.
    pub policy: ObjectRef,
    /// Limits, in order. A request must meet all of them.
    pub limits: Vec<Arc<Limit>>,
    /// Why rules that would refuse nothing are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Box<str>>,
    /// The status of refused requests.
    #[serde(serialize_with = "serialized::status")]
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
    /// What authentication has established and distinguishes requests, too. Unless it is empty, requests are counted after
    /// authentication and authorization.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub identity: Vec<IdentityPart>,
    /// Requests per period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// What a request takes of the rate.
    #[serde(skip_serializing_if = "Cost::is_request")]
    pub cost: Cost,
    /// Concurrent requests, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u32>,
    /// Whose requests are counted together.
    #[serde(skip_serializing_if = "Scope::is_replica")]
    pub scope: Scope,
    /// Clients that are neither counted nor refused.
    #[serde(skip_serializing_if = "CidrSet::is_empty")]
    pub exempt: CidrSet,
    /// Whether requests over the limit are only counted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_audit: bool,
}

/// Whose requests a limit counts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum Scope {
    /// Those of each data plane.
    #[default]
    Replica,
    /// Those of all pods of the Gateway.
    Gateway,
}

impl Scope {
    /// Reports whether each data plane counts alone.
    pub fn is_replica(&self) -> bool {
        *self == Self::Replica
    }
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
    /// The value of a header, of which several lines are one; requests without it are counted together.
    #[serde(serialize_with = "serialized::name")]
    Header(HeaderName),
    /// The first cookie of this name; requests without it are counted together.
    Cookie(Arc<str>),
    /// The host.
    Hostname,
}

/// A part of a key that authentication establishes. Never what a client only claims to be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum IdentityPart {
    /// The name of the user or of the client with an API key, or else the issuer and the subject of the token. Requests
    /// without any are counted together.
    Client,
    /// The issuer of the token and the values of this claim. Requests without a token, and those without the claim, are
    /// counted together.
    Claim(ClaimName),
}

impl fmt::Display for IdentityPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client => f.write_str("Client"),
            Self::Claim(name) => write!(f, "Claim {name}"),
        }
    }
}

/// What a request takes of a rate. All but `Request` is known only at the end of its response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum Cost {
    /// One.
    #[default]
    Request,
    /// The bytes of its body.
    RequestBytes,
    /// The bytes of the body of its response, as the client gets them.
    ResponseBytes,
    /// The number in a header of the backend's response; one without it.
    #[serde(serialize_with = "serialized::name")]
    ResponseHeader(HeaderName),
}

impl Cost {
    /// Reports whether each request takes one.
    pub fn is_request(&self) -> bool {
        *self == Self::Request
    }
}

/// A rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Rate {
    /// Requests per `per`, or the sum of what they cost, 1 or more.
    pub requests: u64,
    /// The time, 1 s or longer.
    pub per: Duration,
    /// Requests that are admitted at once after a time without any, 1 or more.
    pub burst: u64,
}

impl Limit {
    /// Reports whether it counts some requests apart from others.
    pub fn has_key(&self) -> bool {
        !self.key.is_empty() || !self.identity.is_empty()
    }

    /// Reports whether it counts requests by what authentication establishes.
    pub fn needs_identity(&self) -> bool {
        !self.identity.is_empty()
    }

    /// Returns the first part of its key that no request has with these credentials; `None` if requests may have all.
    pub fn lacking_identity(&self, required: Option<&Authentication>) -> Option<&IdentityPart> {
        let mut parts = self.identity.iter();
        parts.find(|part| match part {
            IdentityPart::Client => required.is_none_or(|it| !it.names_clients()),
            IdentityPart::Claim(_) => required.is_none_or(|it| !it.have_claims()),
        })
    }
}
