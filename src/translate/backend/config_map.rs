//! ConfigMaps as backends, in tests only: `data.address` is the endpoint. The example of docs/adding-a-backend-kind.md,
//! which shows this file.

use std::net::SocketAddr;

use crate::api::core::ConfigMap;
use crate::ir::{Backend, BackendId, ObjectRef, UpstreamProtocol};

use super::super::reason::{Fault, Reason};
use super::kind::{BackendKind, Carried, Found, PortRef, Resolver, Sources, name_of};
use super::port::{Port, PortTls};

pub(super) const KIND: BackendKind = BackendKind {
    gvk: "v1.ConfigMap",
    name: name_of::<ConfigMap>(),
    reads: &[],
    endpoint_label: None,
    is_local: false,
    carries: Carried::Datagrams,
    target_ports: None,
    load_balancer: None,
    has_status: false,
    links: |_, _, _| {},
    resolver: || Box::new(ConfigMaps),
};

struct ConfigMaps;

impl Resolver for ConfigMaps {
    fn resolve(
        &self,
        sources: &Sources<'_, '_>,
        name: &ObjectRef,
        port: PortRef,
    ) -> Result<Found, Fault> {
        let fault = |message| Fault::new(Reason::BackendNotFound, message);
        let object = sources.input.find::<ConfigMap>(name);
        let object = object.ok_or_else(|| fault("does not exist"))?;
        let address = object.data.get("address").and_then(|it| it.parse().ok());
        let address: SocketAddr =
            address.ok_or_else(|| fault("has no data.address such as 10.0.0.1:80"))?;
        if port.number.is_some_and(|port| port != address.port()) {
            return Err(fault("has another port in data.address"));
        }
        let protocol = UpstreamProtocol::Http1;
        let id = BackendId::new(name.clone(), address.port());
        Ok(Found {
            backend: Backend::new(id, protocol, vec![address].into()),
            port: Port {
                zoned: None,
                name: None,
                protocol,
                refuses_grpc: None,
                tls: PortTls::Own(Ok(None)),
            },
        })
    }
}
