//! `jwks.remote.backendRef`: the Service that key sets are fetched from, its endpoints, and the TLS that policies ask for. Must
//! not fetch them.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::api::Resource;
use crate::api::access_policy::AccessPolicy;
use crate::api::core::{EndpointSlice, SERVICE_NAME_LABEL, Service, ServicePort};
use crate::api::reference::{BackendObjectRef, Role};
use crate::ir::{ClientTls, ObjectRef, Transport};
use crate::snapshot::Snapshot;

use crate::translate::endpoints::{EndpointState, addresses, state, transport};
use crate::translate::input::Input;
use crate::translate::policy::backend_tls::of_own_requests;
use crate::translate::reason::{Fault, Reason, invalid};
use crate::translate::reference_grant;

/// Maximum number of endpoints of a Service that are used: one of them is asked.
const MAX_ENDPOINTS: usize = 16;

/// A Service that key sets are fetched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyServer {
    /// Its ready endpoints, sorted.
    pub endpoints: Vec<SocketAddr>,
    /// The TLS that a policy on it asks for; without one, the URI decides.
    pub tls: Option<Arc<ClientTls>>,
}

/// A reference to a Service that key sets are fetched from.
pub(super) struct Resolved<'a> {
    service: ObjectRef,
    port: &'a ServicePort,
    /// The policy that asks for TLS, and its settings.
    pub(super) tls: Option<(ObjectRef, Arc<ClientTls>)>,
}

/// Resolves a reference of a policy at `field`.
pub(super) fn resolve<'a>(
    input: &Input<'a>,
    policy: &ObjectRef,
    reference: &BackendObjectRef,
    field: &str,
) -> Result<Resolved<'a>, Fault> {
    let service = reference.object_ref(&policy.namespace);
    if !service.is_core(Service::KIND) {
        let message = format!("{field} names {service}; name a Service of the core group");
        return Err(Fault::new(Reason::InvalidKind, message));
    }
    let Some(port) = reference.port else {
        return invalid(format!("{field}.port: it is missing"));
    };
    // Check the permission first: without one, the status must not disclose whether the object exists.
    reference_grant::check(input, policy, &service, field)?;
    let unusable = |reason, why: &str| Fault::new(reason, format!("{field}: {service} {why}"));
    let not_found = |why: &str| unusable(Reason::BackendNotFound, why);
    let found = input.find::<Service>(&service);
    let mut ports = found
        .ok_or_else(|| not_found(input.absence(&service)))?
        .spec
        .ports
        .iter();
    let is_wanted = |it: &&ServicePort| {
        it.port == port && transport(it.protocol.as_deref()) == Some(Transport::Tcp)
    };
    let found = ports.find(is_wanted);
    let port = found.ok_or_else(|| not_found(&format!("has no port {port} of TCP")))?;
    let tls = of_own_requests(input, policy, (&service, port.name.as_deref()));
    let tls = tls.map_err(|why| {
        let why = format!("is not asked: {why}");
        unusable(Reason::KeySetNotFetched, &why)
    })?;
    Ok(Resolved { service, port, tls })
}

/// Returns the server that a policy refers to. The error is a sentence.
pub(super) fn server(
    input: &Input<'_>,
    policy: &ObjectRef,
    reference: &BackendObjectRef,
) -> Result<KeyServer, String> {
    let found = resolve(input, policy, reference, "backendRef");
    let Resolved { service, port, tls } = found.map_err(|fault| fault.message)?;
    let slices = input.in_namespace::<EndpointSlice>(&service.namespace);
    let is_of_service = |slice: &&Arc<EndpointSlice>| {
        let owner = slice.metadata.labels.get(SERVICE_NAME_LABEL);
        owner.is_some_and(|owner| **owner == *service.name)
    };
    let slices: Vec<_> = slices.filter(is_of_service).cloned().collect();
    let all = addresses(&slices, port);
    let ready = all.filter(|(endpoint, _)| state(endpoint) == Some(EndpointState::Ready));
    let mut ready: Vec<_> = ready.map(|(_, address)| address).collect();
    ready.sort_unstable();
    ready.dedup();
    ready.truncate(MAX_ENDPOINTS);
    match ready.is_empty() {
        true => Err(format!("{service} has no ready endpoint")),
        false => Ok(KeyServer {
            endpoints: ready,
            tls: tls.map(|(_, tls)| tls),
        }),
    }
}

/// Returns the backends that a policy fetches keys from.
pub(in crate::translate) fn key_servers(policy: &AccessPolicy) -> Vec<ObjectRef> {
    let mut servers = Vec::new();
    policy.spec.references(&mut |field| {
        if field.role == Role::KeyServer {
            servers.push(field.object_ref(&policy.metadata.namespace));
        }
    });
    servers
}

/// Reports whether the Services that policies fetch keys from, or their TLS, may differ between snapshots.
pub fn key_backends_may_differ(previous: &Snapshot, now: &Snapshot) -> bool {
    let (services, grants) = (&now.services, &now.reference_grants);
    let (slices, secrets) = (&now.endpoint_slices, &now.secrets);
    let (policies, overrides) = (&now.backend_tls_policies, &now.backend_tls_overrides);
    let have_changed = !services.changes_since(&previous.services).is_empty()
        || !slices.changes_since(&previous.endpoint_slices).is_empty()
        || !grants.changes_since(&previous.reference_grants).is_empty()
        || !policies.changes_since(&previous.backend_tls_policies).is_empty()
        || !overrides.changes_since(&previous.backend_tls_overrides).is_empty()
        // Of certificate authorities.
        || !secrets.changes_since(&previous.secrets).is_empty();
    let mut all = now.access_policies.iter();
    have_changed && all.any(|policy| !key_servers(policy).is_empty())
}
