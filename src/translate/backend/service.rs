//! Services as backends.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::api::Key;
use crate::api::core::{EndpointSlice, SERVICE_NAME_LABEL, Service, ServicePort};
use crate::ir::{Backend, Fallback, ObjectRef};
use crate::permissions::BackendKinds;
use crate::snapshot::Snapshot;

use super::super::Input;
use super::super::reason::{Fault, Reason};
use super::registry::{BackendKind, Resolver, name_of};
use super::service_load_balancer::LOAD_BALANCER;
use super::{Found, Sources, ports, slow_start};

/// The cluster IP of a headless Service.
const HEADLESS: &str = "None";

pub(super) const KIND: BackendKind = BackendKind {
    gvk: "v1.Service",
    name: name_of::<Service>(),
    reads: &[name_of::<EndpointSlice>()],
    endpoint_label: Some(SERVICE_NAME_LABEL),
    is_local: false,
    target_ports: Some(target_ports),
    load_balancer: Some(&LOAD_BALANCER),
    has_status: false,
    links: |_, _| {},
    resolver: || Box::new(Services::default()),
};

fn target_ports<'a>(
    snapshot: &'a Snapshot,
    _: &BackendKinds,
    name: &ObjectRef,
) -> Option<&'a [ServicePort]> {
    let service = snapshot.services.get(&name.namespace, &name.name)?;
    Some(&service.spec.ports)
}

/// Reports whether a Service is a DNS name without endpoints.
pub(super) fn is_external(service: &Service) -> bool {
    service.spec.kind.as_deref() == Some("ExternalName")
}

/// Returns where a Service answers for its endpoints: at its cluster IPs, or by its name in DNS if it is headless.
fn fallback(service: &Service, backend: &Backend) -> Option<Fallback> {
    let port = backend.id.port;
    let addresses = service.spec.cluster_ips.iter();
    let addresses = addresses.filter_map(|address| address.parse::<IpAddr>().ok());
    let addresses: Vec<_> = addresses
        .map(|address| SocketAddr::new(address, port))
        .collect();
    if !addresses.is_empty() {
        return Some(Fallback::Addresses(addresses));
    }
    let is_headless = service.spec.cluster_ips.iter().any(|it| it == HEADLESS);
    // The name has the addresses of pods, so that the port is theirs.
    let port = backend.endpoints.addresses().first()?.port();
    let ObjectRef {
        namespace, name, ..
    } = &backend.id.object;
    let hostname = format!("{name}.{namespace}.svc").into();
    is_headless.then_some(Fallback::Name { hostname, port })
}

/// Reads Services on demand.
#[derive(Default)]
struct Services {
    /// Faults in the annotations of Services.
    notes: BTreeMap<Key, String>,
}

impl Resolver for Services {
    fn follow(&mut self, input: &Input<'_>, before: &Snapshot) -> Vec<Key> {
        let changes = input.snapshot.services.changes_since(&before.services);
        for change in &changes {
            let window = change.after.map(|service| slow_start::read(service));
            match window {
                Some(Err(message)) => drop(self.notes.insert(change.key.clone(), message)),
                Some(Ok(_)) | None => drop(self.notes.remove(change.key)),
            }
        }
        let keys = changes.into_iter().map(|change| change.key.clone());
        keys.collect()
    }

    fn notes(&self) -> Vec<(Key, String)> {
        let notes = self.notes.iter();
        notes
            .map(|(key, note)| (key.clone(), note.clone()))
            .collect()
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
        if is_external(service) {
            let message =
                "is of type ExternalName, which is not served; use a Service with EndpointSlices";
            return Err(Fault::new(Reason::InvalidKind, message));
        }
        let mut found = ports::resolve(sources, name, &service.spec.ports, port)?;
        found.backend.slow_start = slow_start::read(service).unwrap_or_default();
        found.backend.fallback = fallback(service, &found.backend);
        Ok(found)
    }
}
