//! The status of every object after one translation. Plain data.

pub(super) mod binds;
pub(super) mod policies;
pub(super) mod release_backends;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;

use super::condition::{Condition, ConditionType, Reason};
use super::release_backend::ReleaseBackendStatuses;
use super::status_map::StatusMap;
use crate::api::reference::ParentRef;
use crate::ir::sharing::Text;
use crate::ir::{Bind, Hostname, ObjectRef};

/// Statuses of routes.
pub type RouteStatuses = StatusMap<Vec<ParentStatus>>;

/// Status of all objects that this controller manages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusReport {
    /// Conditions of GatewayClasses.
    pub gateway_classes: StatusMap<[Condition]>,
    /// Gateways.
    pub gateways: StatusMap<GatewayStatus>,
    /// ListenerSets.
    pub listener_sets: StatusMap<ListenerSetStatus>,
    /// Routes of all kinds: one entry per parentRef to a managed object.
    pub routes: RouteStatuses,
    /// Policies of all kinds: one entry per Gateway that the policy applies to.
    pub policies: StatusMap<[AncestorStatus]>,
    /// XBackends and InferencePools: one entry per Gateway that sends requests to it.
    pub backends: StatusMap<Vec<ParentStatus>>,
    /// ReleaseBackends.
    pub release_backends: ReleaseBackendStatuses,
    /// Gateways and ListenerSets of other controllers or of none. A Gateway may change to another class, and a ListenerSet
    /// may lose its Gateway: these statuses replace those that this controller wrote before, and no other ones.
    #[serde(skip_serializing_if = "Released::is_empty")]
    pub released: Released,
    /// Routes that are not attached to one of their parents.
    #[serde(skip)]
    pub unattached: StatusMap<Unattached>,
    /// Problems that no condition can hold, such as a Gateway that no controller serves.
    pub notes: Arc<[Note]>,
}

/// Statuses of objects that this controller does not manage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// Gateways.
    pub gateways: StatusMap<GatewayStatus>,
    /// ListenerSets.
    pub listener_sets: StatusMap<ListenerSetStatus>,
}

impl Released {
    fn is_empty(&self) -> bool {
        self.gateways.is_empty() && self.listener_sets.is_empty()
    }
}

/// Status of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GatewayStatus {
    /// Conditions of the Gateway.
    pub conditions: Vec<Condition>,
    /// Addresses where clients reach the Gateway, if known: usable requested addresses, or those
    /// that a cluster assigned.
    pub addresses: Vec<Address>,
    /// Number of accepted ListenerSets.
    pub attached_listener_sets: usize,
    /// Listeners, in spec order.
    pub listeners: Vec<ListenerStatus>,
}

/// An address of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "type", content = "value")]
pub enum Address {
    /// An IP address.
    IPAddress(IpAddr),
    /// A DNS name.
    Hostname(Arc<str>),
}

/// Status of a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerSetStatus {
    /// Conditions of the ListenerSet.
    pub conditions: Vec<Condition>,
    /// Listeners, in spec order; empty while the ListenerSet is not attached.
    pub listeners: Vec<ListenerStatus>,
}

/// Status of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenerStatus {
    /// Name.
    pub name: Text,
    /// Number of accepted routes.
    pub attached_routes: usize,
    /// Kinds of routes that may attach.
    pub supported_kinds: Arc<[RouteKind]>,
    /// Conditions. Versions of a status share those that are equal.
    pub conditions: Arc<Vec<Condition>>,
    /// Port of the spec.
    #[serde(skip)]
    pub port: u16,
    /// Hostname of the spec.
    #[serde(skip)]
    pub hostname: Hostname,
    /// Sockets to bind before the listener is programmed; empty if it cannot be served.
    #[serde(skip)]
    pub binds: Vec<Bind>,
}

/// Group and kind of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteKind {
    /// Group.
    pub group: Text,
    /// Kind.
    pub kind: Text,
}

/// Status of a route for one of its parents, or of a backend for one of the Gateways that send requests to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentStatus {
    /// The parentRef, exactly as in the route. For a backend: the Gateway.
    pub parent_ref: ParentRef,
    /// Name of the controller that owns the entry.
    pub controller_name: Arc<str>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// A route that is not attached to one of its parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unattached {
    /// Its kind.
    pub kind: crate::ir::RouteKind,
    /// The hosts that it is for.
    pub hostnames: Box<[Hostname]>,
    /// Places of these parents in its status. A parent that does not exist is in a note.
    pub parents: Box<[usize]>,
}

/// Status of a policy for one of its ancestor Gateways.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AncestorStatus {
    /// The ancestorRef.
    pub ancestor_ref: ParentRef,
    /// Name of the controller that owns the entry.
    pub controller_name: Arc<str>,
    /// Conditions.
    pub conditions: Vec<Condition>,
}

/// A note about an object whose status this controller does not write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Note {
    /// The object.
    pub object: ObjectRef,
    /// Note text.
    pub message: String,
}

impl GatewayStatus {
    /// Reports whether the Gateway is programmed.
    pub(super) fn is_programmed(&self) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.any(|it| it.is_true(ConditionType::Programmed))
    }
}

impl StatusReport {
    /// Adds the condition SupportedVersion to GatewayClasses, for the given version of the
    /// installed Gateway API CRDs. All 1.x versions are supported.
    #[must_use]
    pub fn with_bundle_version(mut self, version: Option<&str>) -> Self {
        let Some(version) = version else {
            return self;
        };
        let kind = ConditionType::SupportedVersion;
        let number = version.strip_prefix('v').unwrap_or(version);
        let condition = |generation| match number.starts_with("1.") {
            true => Condition::holds(kind, Reason::SupportedVersion, generation),
            false => {
                let message = format!(
                    "the installed Gateway API CRDs have version {version}; only 1.x is supported"
                );
                Condition::fails(kind, Reason::UnsupportedVersion, &message, generation)
            }
        };
        for (class, conditions) in self.gateway_classes.clone() {
            let generation = conditions
                .first()
                .map_or(0, |first| first.observed_generation);
            let conditions = conditions.iter().cloned().chain([condition(generation)]);
            self.gateway_classes.insert(class, conditions.collect());
        }
        self
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IPAddress(ip) => ip.fmt(f),
            Self::Hostname(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::condition::ConditionStatus;

    #[test]
    fn every_version_1_of_the_gateway_api_is_supported() {
        let class = ObjectRef::gateway_api("GatewayClass", "", "portcullis");
        let accepted = Condition::holds(ConditionType::Accepted, Reason::Accepted, 3);
        let report = StatusReport {
            gateway_classes: StatusMap::unit(class.clone(), [accepted].into()),
            ..StatusReport::default()
        };
        for (version, expected) in [
            (None, None),
            (Some("v1.0.0"), Some(ConditionStatus::True)),
            (Some("1.6.1"), Some(ConditionStatus::True)),
            (Some("v1.12.0-rc.1"), Some(ConditionStatus::True)),
            (Some("v0.8.1"), Some(ConditionStatus::False)),
            (Some("v2.0.0"), Some(ConditionStatus::False)),
            (Some("v11.0.0"), Some(ConditionStatus::False)),
        ] {
            let report = report.clone().with_bundle_version(version);
            let added = report.gateway_classes[&class].get(1);
            assert_eq!(added.map(|it| it.status), expected, "{version:?}");
            assert!(added.is_none_or(|it| it.observed_generation == 3));
        }
    }
}
