//! ServiceImports as backends (GEP-1748).

use crate::api::Key;
use crate::api::core::{EndpointSlice, ServicePort};
use crate::api::service_import::{SERVICE_IMPORT_LABEL, ServiceImport};
use crate::ir::ObjectRef;
use crate::permissions::BackendKinds;
use crate::snapshot::Snapshot;

use super::super::Input;
use super::super::reason::{Fault, Reason};
use super::registry::{BackendKind, Resolver, name_of};
use super::{Found, Sources, ports};

pub(super) const KIND: BackendKind = BackendKind {
    gvk: "multicluster.x-k8s.io/v1alpha1.ServiceImport",
    name: name_of::<ServiceImport>(),
    reads: &[name_of::<EndpointSlice>()],
    endpoint_label: Some(SERVICE_IMPORT_LABEL),
    is_local: false,
    target_ports: Some(target_ports),
    load_balancer: None,
    has_status: false,
    links: |_, _| {},
    resolver: || Box::new(ServiceImports),
};

fn target_ports<'a>(
    snapshot: &'a Snapshot,
    _: &BackendKinds,
    name: &ObjectRef,
) -> Option<&'a [ServicePort]> {
    ports_of(snapshot, name)
}

fn ports_of<'a>(snapshot: &'a Snapshot, name: &ObjectRef) -> Option<&'a [ServicePort]> {
    let import = snapshot.service_imports.get(&name.namespace, &name.name)?;
    Some(&import.spec.ports)
}

/// Reads ServiceImports on demand.
struct ServiceImports;

impl Resolver for ServiceImports {
    fn follow(&mut self, input: &Input<'_>, before: &Snapshot) -> Vec<Key> {
        let now = &input.snapshot.service_imports;
        now.keys_changed_since(&before.service_imports)
    }

    fn resolve(
        &self,
        sources: &Sources<'_>,
        name: &ObjectRef,
        port: Option<u16>,
    ) -> Result<Found, Fault> {
        let found = ports_of(sources.snapshot, name);
        let ports = found.ok_or_else(|| Fault::new(Reason::BackendNotFound, "does not exist"))?;
        ports::resolve(sources, name, ports, port)
    }
}
