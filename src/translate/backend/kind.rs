//! What a kind of backend is: what it reads of a snapshot, how it is resolved, and its links. Must not know the kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use crate::api::core::{EndpointSlice, ServicePort};
use crate::api::{Object, Resource};
use crate::ir::{Backend, ObjectRef, RouteKind, Transport};
use crate::settings::location::Location;
use crate::settings::permissions::BackendKinds;
use crate::status::{Condition, ReleaseBackendStatus};
use crate::translate::backend::index::SlicesByOwner;
use crate::translate::backend::port::Port;
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::links::Collector;
use crate::translate::reason::{Fault, Reason};
use crate::translate::source::Source;

/// Group and kind of objects.
pub(super) type KindName = (&'static str, &'static str);

/// Returns the ports of an object; `None` if it does not exist.
pub(super) type Ports =
    for<'a> fn(&Input<'a>, Kinds, &BackendKinds, &ObjectRef) -> Option<&'a [ServicePort]>;

/// All kinds of backends, in the order of messages. Kinds that consist of others find these here.
#[derive(Clone, Copy)]
pub(super) struct Kinds(pub(super) &'static [&'static BackendKind]);

impl Kinds {
    /// Returns the enabled kinds, in the order in which the operator names them.
    pub(super) fn enabled(self, kinds: &BackendKinds) -> Vec<&'static BackendKind> {
        match kinds {
            BackendKinds::All => self.0.to_vec(),
            BackendKinds::Only(only) => {
                let only = only.iter();
                only.filter_map(|gvk| self.with_gvk(gvk)).collect()
            }
        }
    }

    /// Returns the kind with this key.
    pub(super) fn with_gvk(self, gvk: &str) -> Option<&'static BackendKind> {
        self.0.iter().copied().find(|kind| kind.gvk == gvk)
    }

    /// Returns the kind with this name.
    pub(super) fn find(self, group: &str, kind: &str) -> Option<&'static BackendKind> {
        let mut all = self.0.iter().copied();
        all.find(|known| known.is_named(group, kind))
    }

    /// Returns the keys of kinds that can be load balancers of ReleaseBackends.
    pub(super) fn balancing(self) -> impl Iterator<Item = &'static str> {
        let can = self.0.iter().filter(|kind| kind.load_balancer.is_some());
        can.map(|kind| kind.gvk)
    }

    /// Returns the objects whose endpoints an EndpointSlice contains.
    pub(super) fn owners(self, slice: &EndpointSlice) -> impl Iterator<Item = ObjectRef> {
        let metadata = &slice.metadata;
        self.0.iter().filter_map(|kind| {
            let name = metadata.labels.get(kind.endpoint_label?)?;
            Some(kind.object_ref(&metadata.namespace, name))
        })
    }
}

/// A kind of backend.
pub(in crate::translate) struct BackendKind {
    /// `group/version.Kind`, without `group/` for the core group.
    pub(super) gvk: &'static str,
    /// Group and kind, as in references.
    pub(super) name: KindName,
    /// Kinds of other objects that its backends depend on.
    pub(super) reads: &'static [KindName],
    /// The label by which an EndpointSlice names its object, in the same namespace.
    pub(super) endpoint_label: Option<&'static str>,
    /// Whether only routes of the same namespace may refer to objects, whatever ReferenceGrants permit.
    pub(in crate::translate) is_local: bool,
    /// Which routes may refer to objects.
    pub(super) carries: Carried,
    /// Returns the ports of an object, if policies on TLS may target the kind.
    pub(super) target_ports: Option<Ports>,
    /// Support as a load balancer of ReleaseBackends, if any.
    pub(super) load_balancer: Option<&'static LoadBalancerKind>,
    /// Whether the status of objects lists the Gateways that send requests to them.
    pub(in crate::translate) has_status: bool,
    /// Collects the references of an object.
    pub(super) links: fn(&Object, Kinds, &mut Collector<'_>),
    /// Creates a resolver.
    pub(super) resolver: fn() -> Box<dyn Resolver + Send>,
}

impl BackendKind {
    /// Reports whether routes of a kind may refer to objects.
    pub(in crate::translate) fn forwards(&self, requests: RouteKind) -> bool {
        let needed = match requests {
            RouteKind::Http | RouteKind::Grpc => Carried::Requests,
            RouteKind::Tls | RouteKind::Tcp => Carried::Connections,
            RouteKind::Udp => Carried::Datagrams,
        };
        self.carries >= needed
    }
}

/// What can be sent to the objects of a kind. Each value includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Carried {
    /// Requests of HTTP and gRPC.
    Requests,
    /// And any other connection of TCP.
    Connections,
    /// And datagrams of UDP.
    Datagrams,
}

impl Carried {
    /// Says what an object is for, to the author of a route that it is not for. Continues a sentence that begins with the name
    /// of the object.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Self::Requests => {
                "is a backend for HTTPRoutes and GRPCRoutes; use a Service for connections"
            }
            Self::Connections | Self::Datagrams => {
                "is a backend for TCP and what runs over it; use a Service for UDP"
            }
        }
    }
}

/// Resolves references to objects of one kind. May keep parsed objects from one translation to the next.
pub(super) trait Resolver {
    /// Updates what has changed. Announces the objects of `kind` whose backends are others, and those with other
    /// endpoints than their own EndpointSlices tell.
    fn step(&mut self, kind: KindName, _: &Sources<'_, '_>, changes: &mut Changes) {
        for object in changes.named(kind) {
            changes.announce(Source::Backend(object));
        }
    }

    /// Finds a backend. The message of a fault continues a sentence that begins with the name of the object.
    fn resolve(
        &self,
        sources: &Sources<'_, '_>,
        name: &ObjectRef,
        port: PortRef,
    ) -> Result<Found, Fault>;

    /// Returns the conditions of an object for a Gateway that sends requests to it, for kinds with a status per
    /// Gateway.
    fn conditions(&self, _: &ObjectRef) -> Option<Vec<Condition>> {
        None
    }

    /// Returns the fault of an object that is served nevertheless. It continues a sentence that begins with the object's
    /// name.
    fn note(&self, _: &Sources<'_, '_>, _: &ObjectRef) -> Option<String> {
        None
    }

    /// Returns the status of an object with these users, for kinds with one status for all Gateways.
    fn status(&self, _: &ObjectRef, _: &Users<'_>) -> Option<ReleaseBackendStatus> {
        None
    }
}

impl BackendKind {
    /// Reports whether this is the group and kind of a reference.
    pub(super) fn is_named(&self, group: &str, kind: &str) -> bool {
        self.name == (group, kind)
    }

    /// Returns the name of an object of the kind.
    pub(super) fn object_ref(&self, namespace: &str, name: &str) -> ObjectRef {
        ObjectRef::new(self.name.0, self.name.1, namespace, name)
    }

    /// Reports whether policies on TLS may target objects of the kind.
    pub(in crate::translate) fn may_be_target(&self) -> bool {
        self.target_ports.is_some()
    }

    pub(super) fn is_made_of(&self, kind: KindName) -> bool {
        self.name == kind || self.reads.contains(&kind)
    }
}

/// Returns group and kind of a type of object.
pub(super) const fn name_of<T: Resource>() -> KindName {
    (T::GROUP, T::KIND)
}

/// The inputs from which a backend is resolved.
pub(super) struct Sources<'a, 'i> {
    pub(super) input: &'a Input<'i>,
    pub(super) slices: &'a SlicesByOwner,
    pub(super) kinds: Kinds,
}

impl<'a> Sources<'a, '_> {
    /// Returns the EndpointSlices with the endpoints of an object.
    pub(super) fn slices(&self, object: &ObjectRef) -> &'a [Arc<EndpointSlice>] {
        self.input.read(|| Source::EndpointsOf(object.clone()));
        self.slices.of(object)
    }

    /// Returns why a backend that is not there cannot be used.
    pub(super) fn absent(&self, name: &ObjectRef) -> Fault {
        Fault::new(Reason::BackendNotFound, self.input.absence(name))
    }

    /// Returns the zone and node of the data plane.
    pub(super) fn location(&self) -> &'a Location {
        &self.input.options.location
    }
}

/// The port that a reference names.
#[derive(Clone, Copy)]
pub(super) struct PortRef {
    /// Its number; `None` if the reference has none.
    pub(super) number: Option<u16>,
    pub(super) transport: Transport,
}

/// A port of an object to which requests can be sent.
pub(super) struct Found {
    /// In plain text, unless the kind of the object has TLS settings.
    pub(super) backend: Backend,
    pub(super) port: Port,
}

/// The users of a backend.
pub(super) struct Users<'a> {
    /// The Gateways whose routes refer to it.
    pub(super) gateways: &'a BTreeSet<ObjectRef>,
    /// Whether any of these routes can send requests to it.
    pub(super) is_served: bool,
}

/// The load-balancer support of a kind of backend.
pub(super) struct LoadBalancerKind {
    /// Parses the configuration of a ReleaseBackend in a namespace. Each fault is appended to the path of the
    /// configuration, for example `.name is missing`.
    pub(super) read: fn(&str, &Value) -> Result<LoadBalancer, Vec<String>>,
    /// Returns the labelled objects of a namespace, for ReleaseBackends without a configuration.
    pub(super) marked: fn(&Input<'_>, &str) -> Vec<LoadBalancer>,
    /// The labels of such objects, for messages.
    pub(super) marks: &'static str,
    /// Finds the ports and pods of a load balancer. Reason `Invalid` means that the configuration is at fault.
    pub(super) find: for<'a> fn(&Input<'a>, &LoadBalancer) -> Result<Balanced<'a>, Fault>,
}

/// A parsed configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoadBalancer {
    /// The object with the ports.
    pub(super) object: ObjectRef,
    /// The pods that are its endpoints.
    pub(super) pods: PodSelection,
}

/// The pods that are endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodSelection {
    /// The pods that the EndpointSlices of the object name.
    OfObject,
    /// The pods with these labels.
    Labels(BTreeMap<String, String>),
    /// The pods with the labels in the selector of the object, except for these keys.
    WithoutKeys(BTreeSet<String>),
}

/// The ports and pods of a load balancer.
#[derive(Clone, Debug)]
pub(super) struct Balanced<'a> {
    /// Its ports.
    pub(super) ports: &'a [ServicePort],
    /// The labels of the pods that are its endpoints; `None` if its EndpointSlices name them.
    pub(super) labels: Option<BTreeMap<String, String>>,
}
