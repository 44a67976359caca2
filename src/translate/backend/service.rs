//! Services as backends.

use std::net::{IpAddr, SocketAddr};

use crate::api::core::{EndpointSlice, SERVICE_NAME_LABEL, Service, ServicePort};
use crate::ir::object_ref::ObjectName;
use crate::ir::{Backend, Fallback, ObjectRef};
use crate::settings::permissions::BackendKinds;

use super::super::input::Input;
use super::super::reason::{Fault, Reason};
use super::kind::{BackendKind, Carried, Found, Kinds, PortRef, Resolver, Sources, name_of};
use super::service_load_balancer::GVK;
use super::service_load_balancer::LOAD_BALANCER;
use super::{ports, slow_start};
use crate::translate::backend::service_load_balancer::is_external;

/// The cluster IP of a headless Service.
const HEADLESS: &str = "None";

pub(super) const KIND: BackendKind = BackendKind {
    gvk: GVK,
    name: name_of::<Service>(),
    reads: &[name_of::<EndpointSlice>()],
    endpoint_label: Some(SERVICE_NAME_LABEL),
    is_local: false,
    carries: Carried::Datagrams,
    target_ports: Some(target_ports),
    load_balancer: Some(&LOAD_BALANCER),
    has_status: false,
    links: |_, _, _| {},
    resolver: || Box::new(Services),
};

fn target_ports<'a>(
    input: &Input<'a>,
    _: Kinds,
    _: &BackendKinds,
    name: &ObjectRef,
) -> Option<&'a [ServicePort]> {
    let service = input.find::<Service>(name)?;
    Some(&service.spec.ports)
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
    let is_headless = service.spec.cluster_ips.iter().any(|it| **it == *HEADLESS);
    // The name has the addresses of pods, so that the port is theirs.
    let port = backend.endpoints.addresses().first()?.port();
    let ObjectName {
        namespace, name, ..
    } = &*backend.id.object;
    let hostname = format!("{name}.{namespace}.svc").into();
    is_headless.then_some(Fallback::Name { hostname, port })
}

/// Reads Services on demand.
struct Services;

impl Resolver for Services {
    fn note(&self, sources: &Sources<'_, '_>, name: &ObjectRef) -> Option<String> {
        slow_start::read(sources.input.find::<Service>(name)?).err()
    }

    fn resolve(
        &self,
        sources: &Sources<'_, '_>,
        name: &ObjectRef,
        port: PortRef,
    ) -> Result<Found, Fault> {
        let found = sources.input.find::<Service>(name);
        let service = found.ok_or_else(|| sources.absent(name))?;
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
