//! The registry of backend kinds: what each kind reads of a snapshot, how it is resolved, and its links to other
//! objects. A new kind is a file beside this one and a line in [`KINDS`].

use crate::api::core::{ConfigMap, EndpointSlice, Secret, Service, ServicePort};
use crate::api::{self, Object};
use crate::ir::ObjectRef;
use crate::settings::permissions::BackendKinds;

use super::super::input::{Input, Mode, Options};
use super::super::reason::{Fault, Reason};
use super::{inference_pool, release_backend, service, service_import, xbackend};
use crate::translate::backend::kind::{BackendKind, KindName, Kinds, name_of};
use crate::translate::links::Collector;

/// The kinds.
const KINDS: &[&BackendKind] = &[
    &service::KIND,
    &service_import::KIND,
    &xbackend::KIND,
    &release_backend::KIND,
    &inference_pool::KIND,
    #[cfg(test)]
    &super::config_map::KIND,
];

/// The kinds, as one another see them.
pub(super) const REGISTRY: Kinds = Kinds(KINDS);

/// Kinds of objects that are also read for other purposes than backends.
const SHARED: &[KindName] = &[name_of::<ConfigMap>(), name_of::<Secret>()];
/// Kinds of objects from which the addresses of a Gateway with dedicated data planes are computed.
const ADDRESSES: &[KindName] = &[name_of::<Service>(), name_of::<EndpointSlice>()];

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
            || REGISTRY
                .enabled(&options.permissions.backend_kinds)
                .iter()
                .any(is_part)
            || is_address
            || SHARED.contains(&name)
    };
    api::Kind::all().iter().filter(is_watched)
}

/// Returns the kind with this name, if it is enabled.
pub(in crate::translate) fn find_enabled(
    kinds: &BackendKinds,
    group: &str,
    kind: &str,
) -> Option<&'static BackendKind> {
    REGISTRY
        .find(group, kind)
        .filter(|kind| kinds.has(kind.gvk))
}

/// Returns the objects whose endpoints an EndpointSlice contains.
pub(in crate::translate) fn owners(slice: &EndpointSlice) -> impl Iterator<Item = ObjectRef> {
    REGISTRY.owners(slice)
}

/// Collects the references of an object that may be a backend.
pub(in crate::translate) fn links(object: &Object, collector: &mut Collector<'_>) {
    let kind = object.kind();
    if let Some(kind) = REGISTRY.find(kind.group, kind.kind) {
        (kind.links)(object, REGISTRY, collector);
    }
}

/// Reports whether policies on TLS may target objects of a kind.
pub(in crate::translate) fn is_target(kinds: &BackendKinds, group: &str, kind: &str) -> bool {
    find_enabled(kinds, group, kind).is_some_and(BackendKind::may_be_target)
}

/// Returns the ports of an object that policies on TLS may target; `None` if it does not exist.
pub(in crate::translate) fn target_ports<'a>(
    input: &Input<'a>,
    kinds: &BackendKinds,
    object: &ObjectRef,
) -> Option<&'a [ServicePort]> {
    let ports = REGISTRY.find(&object.group, &object.kind)?.target_ports?;
    ports(input, REGISTRY, kinds, object)
}

/// Returns the fault of a reference to an object that is not an enabled backend.
pub(super) fn unusable(name: &ObjectRef, field: &str) -> Fault {
    let (group, kind) = (&name.group, &name.kind);
    let message = match REGISTRY.find(&name.group, kind) {
        Some(known) => format!(
            "{field}: kind {kind} of group {group:?} is not enabled as a backend; --backend-kinds enables it as {}",
            known.gvk
        ),
        None => format!(
            "{field}: kind {kind} of group {group:?} is not supported as a backend; supported kinds: {}",
            backend_kinds().collect::<Vec<_>>().join(", ")
        ),
    };
    Fault::new(Reason::InvalidKind, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::service_import::OWNER_LABELS;

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
    fn labels_of_endpoint_slices_are_those_that_sources_know() {
        let labels = KINDS.iter().filter_map(|kind| kind.endpoint_label);
        assert!(labels.eq(OWNER_LABELS));
    }

    #[test]
    fn kinds_that_only_disabled_backends_need_are_not_watched() {
        let (cluster, dedicated) = (Mode::Kubernetes, Mode::Dedicated);
        let only = |gvk| BackendKinds::Only([gvk].into());
        let external = "gateway.networking.x-k8s.io/v1alpha1.XBackend";
        assert!(unwatched(BackendKinds::All, cluster).is_empty());
        let others = [
            "XBackend",
            "ReleaseBackend",
            "InferencePool",
            "ServiceImport",
            "Pod",
        ];
        assert_eq!(unwatched(only("v1.Service"), cluster), others);
        let others = [
            "ReleaseBackend",
            "InferencePool",
            "ServiceImport",
            "Service",
            "Pod",
            "EndpointSlice",
        ];
        assert_eq!(unwatched(only(external), cluster), others);
        // The addresses of Gateways come from Services and EndpointSlices.
        let others = ["ReleaseBackend", "InferencePool", "ServiceImport", "Pod"];
        assert_eq!(unwatched(only(external), dedicated), others);
    }
}
