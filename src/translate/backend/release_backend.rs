//! ReleaseBackends as backends: the endpoints of an application in releases that share the requests by weight. Keeps
//! parsed objects from one translation to the next. A change of a weight or of a pod changes only endpoints.

mod endpoints;
mod links;
mod parsed;
mod status;
mod weights;

use crate::api::core::{EndpointSlice, Service, ServicePort};
use crate::api::pod::Pod;
use crate::api::release_backend::ReleaseBackend;
use crate::ir::{Endpoints, ObjectRef};
use crate::settings::permissions::BackendKinds;
use crate::status::ReleaseBackendStatus;

use super::super::input::Input;
use super::super::reason::{Fault, Reason};
use super::kind::{
    BackendKind, Carried, Found, KindName, Kinds, PortRef, Resolver, Sources, Users, name_of,
};
use super::load_balancer::Chosen;
use super::{pods, ports};

use self::parsed::{ParsedReleaseBackend, chosen};
use crate::translate::changes::Changes;
use crate::translate::memo::Memo;
use crate::translate::source::Source;

pub(super) const KIND: BackendKind = BackendKind {
    gvk: "portcullis.dev/v1alpha1.ReleaseBackend",
    name: name_of::<ReleaseBackend>(),
    reads: &[
        name_of::<Service>(),
        name_of::<EndpointSlice>(),
        name_of::<Pod>(),
    ],
    endpoint_label: None,
    is_local: false,
    carries: Carried::Datagrams,
    target_ports: Some(target_ports),
    load_balancer: None,
    has_status: true,
    links: links::links,
    resolver: || Box::new(ReleaseBackends::default()),
};

/// Returns the ports of the load balancer; none while it does not exist.
fn target_ports<'a>(
    input: &Input<'a>,
    all: Kinds,
    kinds: &BackendKinds,
    name: &ObjectRef,
) -> Option<&'a [ServicePort]> {
    let object = input.find::<ReleaseBackend>(name)?;
    let Chosen { result, .. } = chosen(all, kinds, input, object);
    let found = result.and_then(|(kind, load_balancer)| (kind.find)(input, &load_balancer));
    Some(found.map_or(&[], |balanced| balanced.ports))
}

/// The parsed ReleaseBackends of a snapshot.
#[derive(Default)]
struct ReleaseBackends(Memo<ParsedReleaseBackend>);

impl Resolver for ReleaseBackends {
    fn step(&mut self, _: KindName, sources: &Sources<'_, '_>, changes: &mut Changes) {
        if !self.0.is_empty() {
            pods::announce(sources.input, changes);
        }
        let mut names = self.0.outdated(changes);
        names.extend(changes.of::<ReleaseBackend>());
        for name in names {
            let computed = sources
                .input
                .reading(|| ParsedReleaseBackend::read(sources, &name));
            let previous = self.0.replace(&name, computed).previous;
            let now = self.0.get(&name);
            let port = |entry: &ParsedReleaseBackend| match &entry.load_balancer {
                Ok(found) => Ok((found.object.clone(), found.ports.clone())),
                Err(fault) => Err(fault.clone()),
            };
            if previous.as_ref().map(port) != now.map(port) {
                changes.announce(Source::Backend(name.clone()));
            }
            changes.announce(Source::EndpointsOf(name));
        }
    }

    fn resolve(
        &self,
        sources: &Sources<'_, '_>,
        name: &ObjectRef,
        port: PortRef,
    ) -> Result<Found, Fault> {
        let entry = self.0.get(name).ok_or_else(|| sources.absent(name))?;
        let found = entry.load_balancer.as_ref().map_err(|fault| {
            let reason = match fault.reason {
                Reason::Invalid => Reason::BackendNotFound,
                reason => reason,
            };
            Fault::new(reason, format!("cannot be used: {}", fault.message))
        })?;
        ports::resolve_with(name, &found.ports, port, |port| {
            let groups = entry.groups(found, sources, port);
            Endpoints::Releases(entry.releases(&groups))
        })
    }

    fn status(&self, name: &ObjectRef, users: &Users<'_>) -> Option<ReleaseBackendStatus> {
        self.0.get(name).map(|entry| entry.status(users))
    }
}

#[cfg(test)]
mod tests;
