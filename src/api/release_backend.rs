//! ReleaseBackend, a CRD of Portcullis: a backend whose endpoints are in releases that share the requests by weight. Its CRD
//! is deploy/crds/releasebackends.yaml.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::meta::ObjectMeta;
use super::nulls::without_nulls;

/// A backend with releases.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ReleaseBackend {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: ReleaseBackendSpec,
}

/// Spec of a [`ReleaseBackend`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReleaseBackendSpec {
    /// Load-balancer configurations by kind, written `version.Kind` or `group/version.Kind`; each kind reads its own
    /// value. Empty selects the Service in the namespace that has the label for it.
    #[serde(
        deserialize_with = "configurations",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub load_balancer: BTreeMap<String, Value>,
    /// Label of pods whose values are the releases.
    pub split_by: String,
    /// The releases with a weight.
    pub releases: Vec<WeightedRelease>,
    /// The share of releases that are not listed.
    pub unlisted: Unlisted,
    /// Minimum number of ready endpoints of a release; absent means 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ready: Option<u32>,
    /// What happens to the share of a release with fewer ready endpoints.
    pub below_min_ready: BelowMinReady,
    /// Keeps clients on their releases; absent means that each request draws a release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sticky: Option<Sticky>,
}

/// Reads a map of arbitrary values. A null means the same as an absent field, at any depth.
fn configurations<'de, D>(deserializer: D) -> Result<BTreeMap<String, Value>, D::Error>
where
    D: Deserializer<'de>,
{
    let read: Option<BTreeMap<String, Value>> = Option::deserialize(deserializer)?;
    let mut read = read.unwrap_or_default();
    read.retain(|_, value| !value.is_null());
    read.values_mut().for_each(without_nulls);
    Ok(read)
}

/// A release and its share of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct WeightedRelease {
    /// Value of the label.
    pub value: String,
    /// Share, relative to the sum of all weights.
    pub weight: u32,
}

/// The share of releases that are not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Unlisted {
    /// They get no requests.
    #[default]
    Ignore,
    /// Each of them gets an equal share: 1/n with n releases in total.
    Equal,
    /// They get all requests while no listed release with a weight above 0 has a ready endpoint.
    Fallback,
}

/// What happens to the share of a release with too few ready endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum BelowMinReady {
    /// The other releases get it, in proportion to their weights.
    #[default]
    Shift,
    /// Its requests get 503.
    Unavailable,
}

/// How clients are kept on their releases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Sticky {
    /// Name of the cookie that holds the release of a client.
    pub cookie: String,
}
