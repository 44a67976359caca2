//! The registry of backend kinds: what each kind reads of a snapshot, how it is resolved, and its links to other
//! objects. A new kind is a file beside this one and a line in [`KINDS`].

use rustc_hash::FxHashSet;

use crate::api::core::{ConfigMap, EndpointSlice, Secret, Service, ServicePort};
use crate::api::{self, Key, Object, Resource};
use crate::ir::ObjectRef;
use crate::permissions::BackendKinds;
use crate::snapshot::Snapshot;
use crate::status::{Condition, ReleaseBackendStatus};

use super::super::closure::Collector;
use super::super::reason::{Fault, Reason};
use super::super::{Input, Mode, Options};
use super::index::SlicesByOwner;
use super::load_balancer::LoadBalancerKind;
use super::statuses::Users;
use super::{Found, Sources, release_backend, service, service_import, xbackend};

const KINDS: &[&BackendKind] = &[
    &service::KIND,
    &service_import::KIND,
    &xbackend::KIND,
    &release_backend::KIND,
    #[cfg(test)]
    &super::config_map::KIND,
];

/// Kinds of objects that are also read for other purposes than backends.
const SHARED: &[KindName] = &[name_of::<ConfigMap>(), name_of::<Secret>()];
/// Kinds of objects from which the addresses of a Gateway with dedicated data planes are computed.
const ADDRESSES: &[KindName] = &[name_of::<Service>(), name_of::<EndpointSlice>()];

/// Group and kind of objects.
pub(super) type KindName = (&'static str, &'static str);

/// Returns the ports of an object; `None` if it does not exist.
type Ports = for<'a> fn(&'a Snapshot, &BackendKinds, &ObjectRef) -> Option<&'a [ServicePort]>;

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
    /// Returns the ports of an object, if policies on TLS may target the kind.
    pub(super) target_ports: Option<Ports>,
    /// Support as a load balancer of ReleaseBackends, if any.
    pub(super) load_balancer: Option<&'static LoadBalancerKind>,
    /// Whether the status of objects lists the Gateways that send requests to them.
    pub(in crate::translate) has_status: bool,
    /// Collects the references of an object.
    pub(super) links: fn(&Object, &mut Collector<'_>),
    /// Creates a resolver.
    pub(super) resolver: fn() -> Box<dyn Resolver + Send>,
}

/// Resolves references to objects of one kind. May keep parsed objects from one translation to the next.
pub(super) trait Resolver {
    /// Applies the changes between two snapshots. Returns the objects of the kind that changed, apart from their
    /// endpoints.
    fn follow(&mut self, input: &Input<'_>, before: &Snapshot) -> Vec<Key>;

    /// Finds a backend. The message of a fault continues a sentence that begins with the name of the object.
    fn resolve(
        &self,
        sources: &Sources<'_>,
        name: &ObjectRef,
        port: Option<u16>,
    ) -> Result<Found, Fault>;

    /// Returns the conditions of an object for a Gateway that sends requests to it, for kinds with a status per
    /// Gateway.
    fn conditions(&self, _: &Key) -> Option<Vec<Condition>> {
        None
    }

    /// Applies changes of other kinds' backends, for a kind whose objects consist of them. Called after `follow` of all
    /// kinds.
    fn follow_parts(&mut self, _: &PartChanges<'_>) -> Followed {
        Followed::default()
    }

    /// Returns faults of objects that are served nevertheless. Each continues a sentence that begins with the object's
    /// name.
    fn notes(&self) -> Vec<(Key, String)> {
        Vec::new()
    }

    /// Returns the status of an object with these users, for kinds with one status for all Gateways.
    fn status(&self, _: &Key, _: &Users<'_>) -> Option<ReleaseBackendStatus> {
        None
    }
}

/// Changes of backends and their endpoints.
pub(super) struct PartChanges<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) before: &'a Snapshot,
    /// Objects whose backends changed, apart from their endpoints.
    pub(super) objects: &'a FxHashSet<ObjectRef>,
    /// Objects whose EndpointSlices changed.
    pub(super) endpoint_changes: &'a [ObjectRef],
    pub(super) slices: &'a SlicesByOwner,
}

/// Changes of objects that consist of backends of other kinds.
#[derive(Default)]
pub(super) struct Followed {
    /// Objects that changed, apart from their endpoints.
    pub(super) objects: Vec<Key>,
    /// Objects whose endpoints or status may have changed.
    pub(super) endpoints: Vec<Key>,
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

    /// Reports whether objects of the kind may refer to Secrets.
    pub(in crate::translate) fn reads_secrets(&self) -> bool {
        self.reads.contains(&name_of::<Secret>())
    }

    fn is_made_of(&self, kind: KindName) -> bool {
        self.name == kind || self.reads.contains(&kind)
    }
}

/// Returns group and kind of a type of object.
pub(super) const fn name_of<T: Resource>() -> KindName {
    (T::GROUP, T::KIND)
}

/// Returns the built-in kinds of backends as `group/version.Kind`, without `group/` for the core group.
pub fn backend_kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.gvk)
}

/// Returns the kinds of objects to watch for translations with these options. Omits kinds that only disabled kinds of
/// backends depend on.
pub fn watched_kinds(options: &Options) -> impl Iterator<Item = &'static api::Kind> {
    let is_watched = |kind: &&'static api::Kind| {
        let name = (kind.group, kind.kind);
        let is_part = |backend: &&BackendKind| backend.is_made_of(name);
        let is_address = options.mode == Mode::Dedicated && ADDRESSES.contains(&name);
        !KINDS.iter().copied().any(|kind| is_part(&kind))
            || enabled(&options.permissions.backend_kinds).any(|kind| is_part(&kind))
            || is_address
            || SHARED.contains(&name)
    };
    api::Kind::all().iter().filter(is_watched)
}

/// Returns the enabled kinds of backends, in the order in which the operator names them.
pub(super) fn enabled(kinds: &BackendKinds) -> impl Iterator<Item = &'static BackendKind> {
    let (all, only) = match kinds {
        BackendKinds::All => (KINDS, &[][..]),
        BackendKinds::Only(only) => (&[][..], only.as_slice()),
    };
    let only = only.iter().filter_map(|gvk| backend_kind(gvk));
    all.iter().copied().chain(only)
}

/// Returns the kind with this key.
pub(super) fn backend_kind(gvk: &str) -> Option<&'static BackendKind> {
    let mut all = KINDS.iter().copied();
    all.find(|kind| kind.gvk == gvk)
}

/// Returns the keys of kinds that can be load balancers of ReleaseBackends.
pub(super) fn balancing_kinds() -> impl Iterator<Item = &'static str> {
    let can = KINDS.iter().filter(|kind| kind.load_balancer.is_some());
    can.map(|kind| kind.gvk)
}

/// Returns the kind with this name, if it is enabled.
pub(in crate::translate) fn find_enabled(
    kinds: &BackendKinds,
    group: &str,
    kind: &str,
) -> Option<&'static BackendKind> {
    find(group, kind).filter(|kind| kinds.has(kind.gvk))
}

fn find(group: &str, kind: &str) -> Option<&'static BackendKind> {
    let mut all = KINDS.iter().copied();
    all.find(|known| known.is_named(group, kind))
}

/// Returns the objects whose endpoints an EndpointSlice contains.
pub(in crate::translate) fn owners(slice: &EndpointSlice) -> impl Iterator<Item = ObjectRef> {
    let metadata = &slice.metadata;
    KINDS.iter().filter_map(|kind| {
        let name = metadata.labels.get(kind.endpoint_label?)?;
        Some(kind.object_ref(&metadata.namespace, name))
    })
}

/// Collects the references of an object that may be a backend.
pub(in crate::translate) fn links(object: &Object, collector: &mut Collector<'_>) {
    let kind = object.kind();
    if let Some(kind) = find(kind.group, kind.kind) {
        (kind.links)(object, collector);
    }
}

/// Reports whether policies on TLS may target objects of a kind.
pub(in crate::translate) fn is_target(kinds: &BackendKinds, group: &str, kind: &str) -> bool {
    find_enabled(kinds, group, kind).is_some_and(BackendKind::may_be_target)
}

/// Returns the ports of an object that policies on TLS may target; `None` if it does not exist.
pub(in crate::translate) fn target_ports<'a>(
    snapshot: &'a Snapshot,
    kinds: &BackendKinds,
    object: &ObjectRef,
) -> Option<&'a [ServicePort]> {
    let ports = find(&object.group, &object.kind)?.target_ports?;
    ports(snapshot, kinds, object)
}

/// Returns the fault of a reference to an object that is not an enabled backend.
pub(super) fn unusable(name: &ObjectRef, field: &str) -> Fault {
    let group = match &*name.group {
        "" => "core",
        group => group,
    };
    let kind = &name.kind;
    let message = match find(&name.group, kind) {
        Some(known) => format!(
            "{field}: kind {kind} of group {group} is not enabled as a backend; --backend-kinds enables it as {}",
            known.gvk
        ),
        None => format!(
            "{field}: kind {kind} of group {group} is not supported as a backend; supported kinds: {}",
            backend_kinds().collect::<Vec<_>>().join(", ")
        ),
    };
    Fault::new(Reason::InvalidKind, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gvk_names_a_watched_kind() {
        for kind in KINDS {
            let (group_version, name) = kind.gvk.rsplit_once('.').unwrap();
            let known = api::Kind::find(group_version, name).unwrap();
            assert_eq!((known.group, known.kind), kind.name);
            for (group, name) in kind.reads {
                let mut all = api::Kind::all().iter();
                assert!(
                    all.any(|it| (it.group, it.kind) == (*group, *name)),
                    "{name}"
                );
            }
        }
    }

    fn unwatched(kinds: BackendKinds, mode: Mode) -> Vec<&'static str> {
        let mut options = Options {
            mode,
            ..Options::default()
        };
        options.permissions.backend_kinds = kinds;
        let watched: Vec<_> = watched_kinds(&options).map(|kind| kind.kind).collect();
        let all = api::Kind::all().iter().map(|kind| kind.kind);
        all.filter(|kind| !watched.contains(kind)).collect()
    }

    #[test]
    fn kinds_that_only_disabled_backends_need_are_not_watched() {
        let (cluster, dedicated) = (Mode::Kubernetes, Mode::Dedicated);
        let only = |gvk| BackendKinds::Only([gvk].into());
        let external = "gateway.networking.x-k8s.io/v1alpha1.XBackend";
        assert!(unwatched(BackendKinds::All, cluster).is_empty());
        let others = ["XBackend", "ReleaseBackend", "ServiceImport", "Pod"];
        assert_eq!(unwatched(only("v1.Service"), cluster), others);
        let others = [
            "ReleaseBackend",
            "ServiceImport",
            "Service",
            "Pod",
            "EndpointSlice",
        ];
        assert_eq!(unwatched(only(external), cluster), others);
        // The addresses of Gateways come from Services and EndpointSlices.
        let others = ["ReleaseBackend", "ServiceImport", "Pod"];
        assert_eq!(unwatched(only(external), dedicated), others);
    }
}
