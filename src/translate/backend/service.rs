//! Services as backends.

use crate::api::Key;
use crate::api::core::{EndpointSlice, SERVICE_NAME_LABEL, Service, ServicePort};
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;

use super::super::Input;
use super::super::reason::{Fault, Reason};
use super::registry::{BackendKind, Resolver, name_of};
use super::{Found, Sources, ports};

pub(super) const KIND: BackendKind = BackendKind {
    gvk: "v1.Service",
    name: name_of::<Service>(),
    reads: &[name_of::<EndpointSlice>()],
    endpoint_label: Some(SERVICE_NAME_LABEL),
    is_local: false,
    target_ports: Some(target_ports),
    has_status: false,
    links: |_, _| {},
    resolver: || Box::new(Services),
};

fn target_ports<'a>(snapshot: &'a Snapshot, name: &ObjectRef) -> Option<&'a [ServicePort]> {
    let service = snapshot.services.get(&name.namespace, &name.name)?;
    Some(&service.spec.ports)
}

/// Reads Services as they are needed.
struct Services;

impl Resolver for Services {
    fn follow(&mut self, input: &Input<'_>, before: &Snapshot) -> Vec<Key> {
        input.snapshot.services.keys_changed_since(&before.services)
    }

    fn resolve(
        &self,
        sources: &Sources<'_>,
        name: &ObjectRef,
        port: Option<u16>,
    ) -> Result<Found, Fault> {
        let services = &sources.snapshot.services;
        let found = services.get(&name.namespace, &name.name);
        let service = found.ok_or_else(|| Fault::new(Reason::BackendNotFound, "does not exist"))?;
        if service.spec.kind.as_deref() == Some("ExternalName") {
            let message =
                "is of type ExternalName, which is not served; use a Service with EndpointSlices";
            return Err(Fault::new(Reason::InvalidKind, message));
        }
        ports::resolve(name, &service.spec.ports, port, sources.slices)
    }
}
