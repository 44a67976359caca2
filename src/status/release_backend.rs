//! The status of a ReleaseBackend: one for all Gateways, with the current share of each release.

use std::sync::Arc;

use serde::{Serialize, Serializer};

use super::condition::Condition;
use super::status_map::StatusMap;
use crate::ir::ObjectRef;

/// Statuses of ReleaseBackends.
pub type ReleaseBackendStatuses = StatusMap<ReleaseBackendStatus>;

/// Status of a ReleaseBackend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseBackendStatus {
    /// Conditions.
    pub conditions: Vec<Condition>,
    /// Releases that the spec lists or that pods have, in order of value.
    pub releases: Vec<ReleaseStatus>,
    /// The Gateways that send requests to it.
    #[serde(skip)]
    pub gateways: Vec<ObjectRef>,
}

/// Status of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseStatus {
    /// Value of the label that identifies the release.
    pub value: Arc<str>,
    /// Number of ready endpoints.
    pub ready: usize,
    /// The weight in the spec; 0 for a release that is not listed.
    pub weight: u32,
    /// Its current share of the requests to the backend.
    pub effective_percent: Percent,
}

/// A share in hundredths of a percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Percent(u32);

impl Percent {
    /// Returns the share of a part in a sum, rounded; 0 if the sum is 0.
    pub fn of(part: u64, sum: u64) -> Self {
        let (part, sum) = (u128::from(part), u128::from(sum));
        let hundredths = (part * 20_000 + sum).checked_div(2 * sum);
        Self(u32::try_from(hundredths.unwrap_or_default()).unwrap_or(u32::MAX))
    }
}

impl Serialize for Percent {
    /// Serializes whole numbers without a fraction, as the API server returns them. Otherwise the stored status would
    /// differ from the desired one forever.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 % 100 {
            0 => serializer.serialize_u32(self.0 / 100),
            _ => serializer.serialize_f64(f64::from(self.0) / 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn percents_are_rounded_to_two_decimals() {
        let shown = |part, sum| json!(Percent::of(part, sum));
        assert_eq!(shown(1, 10), json!(10));
        assert_eq!(shown(1, 3), json!(33.33));
        assert_eq!(shown(2, 3), json!(66.67));
        assert_eq!(shown(1, 80_000), json!(0));
        assert_eq!(shown(1, 20_000), json!(0.01));
        assert_eq!(shown(0, 0), json!(0));
        assert_eq!(shown(u64::MAX, u64::MAX), json!(100));
    }
}
