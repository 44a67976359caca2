//! ReleaseBackend, a kind of ours: a backend whose endpoints come in releases that share the requests by weight. Its CRD is
//! deploy/crds/releasebackends.yaml.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::meta::{ObjectMeta, resource};
use super::object::without_nulls;
use super::parameters::GROUP;

/// A backend in releases.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ReleaseBackend {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: ReleaseBackendSpec,
}
resource!(ReleaseBackend, GROUP, "ReleaseBackend");

/// Spec of a [`ReleaseBackend`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReleaseBackendSpec {
    /// What balances the load, by kind as `version.Kind` or `group/version.Kind`: each kind reads its own value. None means
    /// the Service of the namespace that a label marks.
    #[serde(
        deserialize_with = "configurations",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub load_balancer: BTreeMap<String, Value>,
    /// The label of pods whose values are the releases.
    pub split_by: String,
    /// The releases that have a weight.
    pub releases: Vec<WeightedRelease>,
    /// What pods of other releases get.
    pub unlisted: Unlisted,
    /// How many ready endpoints a release needs; absent means 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ready: Option<u32>,
    /// What becomes of the share of a release with fewer.
    pub below_min_ready: BelowMinReady,
    /// Keeps clients on their releases; absent means that each request is drawn anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sticky: Option<Sticky>,
}

/// Reads a map of open values. A null means the same as no member, at any depth.
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
    /// The value of the label.
    pub value: String,
    /// The share, relative to the sum of all weights.
    pub weight: u32,
}

/// What pods get whose release is not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Unlisted {
    /// Nothing.
    #[default]
    Ignore,
    /// Each other release gets the same share, one part of as many as there are releases.
    Equal,
    /// All requests, while no listed release with a weight above 0 has a ready endpoint.
    Fallback,
}

/// What becomes of the share of a release that has too few ready endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum BelowMinReady {
    /// The other releases share it by their weights.
    #[default]
    Shift,
    /// Its requests get 503.
    Unavailable,
}

/// How clients are kept on their releases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Sticky {
    /// Name of the cookie that says which release a client is on.
    pub cookie: String,
}
