//! ServiceImports as backends (GEP-1748).

use crate::api::core::{EndpointSlice, ServicePort};
use crate::api::service_import::{SERVICE_IMPORT_LABEL, ServiceImport};
use crate::ir::ObjectRef;
use crate::settings::permissions::BackendKinds;

use super::super::input::Input;
use super::super::reason::Fault;
use super::kind::{BackendKind, Carried, Found, Kinds, PortRef, Resolver, Sources, name_of};
use super::ports;

pub(super) const KIND: BackendKind = BackendKind {
    gvk: "multicluster.x-k8s.io/v1alpha1.ServiceImport",
    name: name_of::<ServiceImport>(),
    reads: &[name_of::<EndpointSlice>()],
    endpoint_label: Some(SERVICE_IMPORT_LABEL),
    is_local: false,
    carries: Carried::Datagrams,
    target_ports: Some(target_ports),
    load_balancer: None,
    has_status: false,
    links: |_, _, _| {},
    resolver: || Box::new(ServiceImports),
};

fn target_ports<'a>(
    input: &Input<'a>,
    _: Kinds,
    _: &BackendKinds,
    name: &ObjectRef,
) -> Option<&'a [ServicePort]> {
    ports_of(input, name)
}

fn ports_of<'a>(input: &Input<'a>, name: &ObjectRef) -> Option<&'a [ServicePort]> {
    let import = input.find::<ServiceImport>(name)?;
    Some(&import.spec.ports)
}

/// Reads ServiceImports on demand.
struct ServiceImports;

impl Resolver for ServiceImports {
    fn resolve(
        &self,
        sources: &Sources<'_, '_>,
        name: &ObjectRef,
        port: PortRef,
    ) -> Result<Found, Fault> {
        let found = ports_of(sources.input, name);
        let ports = found.ok_or_else(|| sources.absent(name))?;
        ports::resolve(sources, name, ports, port)
    }
}
