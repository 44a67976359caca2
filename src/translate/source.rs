//! What the outputs of a translation are computed from: objects, and the outputs of earlier steps. Must not know the
//! steps.

use crate::ir::ObjectRef;

/// Something that an output is computed from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Source {
    /// An object.
    Object(ObjectRef),
    /// Whether an object exists.
    Existence(ObjectRef),
    /// All objects of a kind in a namespace.
    AllOf(&'static str, String),
    /// The pods of a namespace with this label.
    PodsLabelled(String, String, String),
    /// The labels of a pod.
    LabelsOf(ObjectRef),
    /// All ReferenceGrants of a namespace.
    GrantsOf(String),
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
    /// The requests of routes to an object.
    RequestsTo(ObjectRef),
    /// The listeners that a route is attached to.
    AttachmentOf(ObjectRef),
}
