//! RateLimitPolicy, a CRD of Portcullis: how many requests clients may send. Its CRD is deploy/crds/ratelimitpolicies.yaml.

use serde::{Deserialize, Serialize};

use super::http_route::HttpMatch;
use super::inherited_policy::{InheritedPolicy, SectionTargetRef, Strategy, Unreadable, inherited};
use super::meta::ObjectMeta;

/// How many requests clients may send.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RateLimitPolicy {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: RateLimitSpec,
    /// Present if the policy is not valid: its requests are refused. Not a field of the CRD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<Box<Unreadable>>,
    /// What is not valid of the policy, if this is the version before: its further targets, whose requests are refused. Only
    /// a folder leaves the version before in service.
    #[serde(skip)]
    pub pending: Option<Box<Self>>,
}

/// Spec of a RateLimitPolicy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RateLimitSpec {
    /// Gateways, ListenerSets and routes in the policy's namespace.
    pub target_refs: Vec<SectionTargetRef>,
    /// How it relates to policies of more specific targets.
    pub strategy: Strategy,
    /// Limits.
    pub rules: Vec<LimitRule>,
    /// How requests are refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<LimitResponse>,
}

/// A limit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LimitRule {
    /// Name, unique within the policy.
    pub name: String,
    /// The requests that are counted; absent means all.
    #[serde(rename = "match", skip_serializing_if = "Option::is_none")]
    pub condition: Option<HttpMatch>,
    /// What distinguishes requests that are counted apart.
    #[serde(default)]
    pub key: Vec<KeyPart>,
    /// Requests per period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<RequestLimit>,
    /// What a request takes of `limit`; absent means one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
    /// Concurrent requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrent: Option<u32>,
    /// Clients that are not counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exempt: Option<Exempt>,
    /// Whose requests are counted together: `Replica` or `Gateway`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// `Enforce` or `Audit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyPart {
    /// `ClientIP`, `Header`, `Cookie` or `Hostname`; in limits also `Client` and `Claim`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the header, cookie or claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Length of the prefix of IPv4 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v4_prefix: Option<u8>,
    /// Length of the prefix of IPv6 addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v6_prefix: Option<u8>,
}

/// What a request takes of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Cost {
    /// `Request`, `RequestBytes`, `ResponseBytes` or `ResponseHeader`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// A rate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct RequestLimit {
    /// Requests in the time, or what they cost.
    pub requests: u64,
    /// `Second`, `Minute`, `Hour` or `Day`.
    pub per: String,
    /// Requests at once; absent means `requests`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
}

/// Clients that are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Exempt {
    /// CIDRs.
    pub cidrs: Vec<String>,
}

/// How requests are refused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct LimitResponse {
    /// Status, 429 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// `None` or `Draft`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub headers: Option<String>,
}

inherited!(RateLimitPolicy, pending);
