//! What the outputs of a translation are computed from: objects, and the outputs of earlier steps. Must not know the
//! steps.

use std::sync::Arc;

use crate::ir::ObjectRef;
use crate::ir::sharing::Text;

/// Something that an output is computed from. Small, since there are several for each route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Source {
    /// An object.
    Object(ObjectRef),
    /// Whether an object exists.
    Existence(ObjectRef),
    /// All objects of a kind in a namespace: a reference without a name.
    AllOf(ObjectRef),
    /// The pods of a namespace with this label.
    PodsLabelled(Arc<PodLabel>),
    /// The labels of a pod.
    LabelsOf(ObjectRef),
    /// All ReferenceGrants of this Namespace.
    GrantsOf(ObjectRef),
    /// The last good certificate of a Secret in the configuration that is being served.
    ServedCertificate(ObjectRef),
    /// The ListenerSets of a Gateway.
    ListenerSetsOf(ObjectRef),
    /// The ports that other Gateways hold before this one.
    PortsOf(ObjectRef),
    /// The listeners of a Gateway or ListenerSet, and the Secrets that they use.
    ListenersOf(ObjectRef),
    /// The default Gateways.
    DefaultGateways,
    /// The backends of an object, apart from their endpoints: its ports, settings and policies on TLS.
    Backend(ObjectRef),
    /// The EndpointSlices of an object.
    EndpointsOf(ObjectRef),
    /// The policy on traffic to an object.
    TrafficPolicyOf(ObjectRef),
    /// The BackendPolicies on an object and its ports.
    BackendPolicyOf(ObjectRef),
    /// The inherited policies on an object and its sections.
    PoliciesOn(ObjectRef),
    /// The names of these policies.
    PolicyNamesOn(ObjectRef),
    /// The policy on telemetry of a Gateway.
    TelemetryPolicyOf(ObjectRef),
    /// What is traced of the requests through a Gateway, or why nothing is.
    TracingOf(ObjectRef),
    /// The servers that a policy names, or why they cannot be used.
    ServersOf(ObjectRef),
    /// The requests of routes to an object.
    RequestsTo(ObjectRef),
    /// The listeners that a route is attached to.
    AttachmentOf(ObjectRef),
}

/// A label of pods.
#[derive(Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct PodLabel {
    pub(super) namespace: Text,
    pub(super) key: String,
    pub(super) value: String,
}

impl Source {
    /// All objects of a kind in a namespace.
    pub(super) fn all_of(kind: &str, namespace: &str) -> Self {
        Self::AllOf(ObjectRef::new("", kind, namespace, ""))
    }

    /// All ReferenceGrants of a namespace.
    pub(super) fn grants_of(namespace: &str) -> Self {
        Self::GrantsOf(ObjectRef::core("Namespace", "", namespace))
    }

    /// The pods of a namespace with this label.
    pub(super) fn pods_labelled(namespace: &str, key: &str, value: &str) -> Self {
        Self::PodsLabelled(Arc::new(PodLabel {
            namespace: namespace.into(),
            key: key.to_owned(),
            value: value.to_owned(),
        }))
    }
}
