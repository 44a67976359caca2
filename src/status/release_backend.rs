//! The status of a ReleaseBackend: one for all Gateways, with the current share of each release.

use std::sync::Arc;

use imbl::OrdMap;
use serde::{Serialize, Serializer};

use super::condition::{Condition, ConditionStatus, ConditionType, Reason};
use super::report::StatusReport;
use crate::ir::ObjectRef;

/// Statuses of ReleaseBackends, by name. Backed by a persistent map: clones share unchanged entries.
pub type ReleaseBackendStatuses = OrdMap<ObjectRef, Arc<ReleaseBackendStatus>>;

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

impl StatusReport {
    /// Sets `Programmed` of ReleaseBackends to False while no Gateway that sends requests to them is programmed.
    pub(super) fn apply_gateways_to_release_backends(&mut self) {
        let is_programmed = |gateway: &ObjectRef| {
            let status = self.gateways.get(gateway);
            let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
            conditions.any(|it| holds(it, ConditionType::Programmed))
        };
        let waiting = |status: &&ReleaseBackendStatus| {
            let mut conditions = status.conditions.iter();
            conditions.any(|it| holds(it, ConditionType::Programmed))
                && !status.gateways.iter().any(is_programmed)
        };
        let all = self.release_backends.iter();
        let waiting = all.filter(|(_, status)| waiting(&&***status));
        let waiting: Vec<_> = waiting
            .map(|(name, it)| (name.clone(), it.clone()))
            .collect();
        for (name, status) in waiting {
            let mut status = ReleaseBackendStatus::clone(&status);
            for condition in &mut status.conditions {
                if condition.kind == ConditionType::Programmed {
                    let message = "no Gateway that sends requests to it is programmed yet";
                    let generation = condition.observed_generation;
                    *condition =
                        Condition::fails(condition.kind, Reason::Pending, message, generation);
                }
            }
            self.release_backends.insert(name, Arc::new(status));
        }
    }
}

fn holds(condition: &Condition, kind: ConditionType) -> bool {
    condition.kind == kind && condition.status == ConditionStatus::True
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status::GatewayStatus;

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

    #[test]
    fn is_programmed_once_one_of_its_gateways_is() {
        let (web, other) = (
            ObjectRef::gateway_api("Gateway", "infra", "web"),
            ObjectRef::gateway_api("Gateway", "infra", "other"),
        );
        let programmed = || Condition::holds(ConditionType::Programmed, Reason::Programmed, 1);
        let pending = || Condition::fails(ConditionType::Programmed, Reason::Pending, "", 1);
        let name = ObjectRef::new("portcullis.dev", "ReleaseBackend", "shop", "shop");
        let status = ReleaseBackendStatus {
            conditions: vec![programmed()],
            gateways: vec![web.clone(), other.clone()],
            ..ReleaseBackendStatus::default()
        };
        let reason = |web_condition: Condition| {
            let gateway = |condition| GatewayStatus {
                conditions: vec![condition],
                ..GatewayStatus::default()
            };
            let mut report = StatusReport {
                gateways: [
                    (web.clone(), gateway(web_condition)),
                    (other.clone(), gateway(pending())),
                ]
                .into(),
                release_backends: [(name.clone(), Arc::new(status.clone()))]
                    .into_iter()
                    .collect(),
                ..StatusReport::default()
            };
            report.apply_gateways_to_release_backends();
            report.release_backends[&name].conditions[0].reason
        };
        assert_eq!(reason(programmed()), Reason::Programmed);
        assert_eq!(reason(pending()), Reason::Pending);
    }
}
