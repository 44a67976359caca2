//! What `check` alone finds: of a running process, certificates and endpoints are what its table has now. Pure: the caller
//! passes the time.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::api::Resource;
use crate::api::core::SERVICE_NAME_LABEL;
use crate::api::route_policy::RoutePolicy;
use crate::finding::{Finding, Kind, Severity};
use crate::ir::route::{Action, BackendTarget, WeightedBackend};
use crate::ir::{Backend, BackendId, Filter, Ir, ObjectRef, Rule};
use crate::snapshot::Snapshot;
use crate::status::certificates::Validity;

/// Returns the findings about certificates and rules that depend on the time and on endpoints.
pub(super) fn of(snapshot: &Snapshot, ir: &Ir, now: Timestamp) -> BTreeSet<Finding> {
    let mut found = BTreeSet::new();
    for listener in ir.ports.iter().flat_map(|port| &port.listeners) {
        let tls = listener.tls().into_iter();
        let certificates = tls.flat_map(|tls| &tls.certificates);
        found.extend(certificates.filter_map(|certificate| {
            let (name, source) = (&listener.key.name, &certificate.source);
            let called = format!("listener {name}: the certificate of {source}");
            let validity = Validity::of(certificate, now)?;
            Some(validity.finding(&listener.key.origin, &called))
        }));
        for rule in listener.routes.iter().flat_map(|it| &it.route.rules) {
            found.extend(of_rule(snapshot, ir, rule));
        }
    }
    found
}

/// Returns the findings about servers that policies name and that have no endpoint.
pub(super) fn of_policy_servers(snapshot: &Snapshot, ir: &Ir) -> BTreeSet<Finding> {
    let servers = ir.policy_servers.iter();
    let servers = servers.flat_map(|(policy, of_gateways)| {
        let targets = of_gateways.0.values().flatten();
        targets.filter_map(move |target| Some((policy, target.backend()?)))
    });
    let found = servers.filter_map(|(policy, id)| {
        let (field, effect) = match &*policy.kind {
            RoutePolicy::KIND => ("spec.errorPages", "responses keep their own content"),
            _ => (
                "spec.external.backendRef",
                "requests that need its permission get status 503",
            ),
        };
        let backend = ir.backend(id).map(AsRef::as_ref);
        Some(without_endpoints(snapshot, id, backend, (policy, field))?.with_effect(effect))
    });
    found.collect()
}

/// Returns the findings about endpoint pickers that have no endpoint.
pub(super) fn of_pickers(snapshot: &Snapshot, ir: &Ir) -> BTreeSet<Finding> {
    let found = ir.backends.iter().filter_map(|pool| {
        let picker = pool.choice.picker()?;
        let id = picker.server.backend()?;
        let server = ir.backend(id).map(AsRef::as_ref);
        let named = (&pool.id.object, "spec.endpointPickerRef");
        let found = without_endpoints(snapshot, id, server, named)?;
        Some(found.with_effect(picker.failure_mode.effect()))
    });
    found.collect()
}

fn of_rule(snapshot: &Snapshot, ir: &Ir, rule: &Rule) -> Vec<Finding> {
    let field = format!("spec.rules[{}]", rule.id.index);
    let unavailable = match rule.is_of_grpc() {
        true => "calls get gRPC status UNAVAILABLE",
        false => "requests get status 503",
    };
    let shares: &[WeightedBackend] = match &rule.action {
        Action::Invalid(_) => return Vec::new(),
        Action::Forward(_) if rule.filters.iter().any(Filter::responds) => &[],
        Action::Forward(shares) => shares,
    };
    let used = || shares.iter().filter(|share| share.weight > 0);
    let of_shares = used().map(|share| (&share.target, unavailable, true));
    let filters = rule
        .filters
        .iter()
        .chain(used().flat_map(|share| &share.filters));
    let of_filters = filters.filter_map(|filter| {
        let outcome = match filter {
            Filter::ExternalAuth(_) => unavailable,
            Filter::Mirror(_) => "no copy is sent",
            _ => return None,
        };
        Some((filter.target()?, outcome, false))
    });
    of_shares
        .chain(of_filters)
        .filter_map(|(target, outcome, asks_picker)| {
            let BackendTarget::Backend(id) = target else {
                return None;
            };
            let backend = ir.backend(id).map(AsRef::as_ref);
            let found = without_endpoints(snapshot, id, backend, (&rule.id.route, &field))?;
            let may_pick = asks_picker && backend.is_some_and(has_unready);
            Some(match may_pick {
                true => found.with_effect(format!(
                    "{outcome} unless the endpoint picker chooses a pod that is not ready"
                )),
                false => found.with_effect(outcome),
            })
        })
        .collect()
}

/// Returns the finding about an object that names a backend without endpoints in this field. Without an EndpointSlice or a Pod
/// it is a warning: manifests for a cluster have none, so that nothing is known.
fn without_endpoints(
    snapshot: &Snapshot,
    id: &BackendId,
    backend: Option<&Backend>,
    (object, field): (&ObjectRef, &str),
) -> Option<Finding> {
    let endpoints = &backend?.endpoints;
    if endpoints.hostname().is_some() || !endpoints.addresses().is_empty() {
        return None;
    }
    let (severity, why) = match has_unready(backend?) {
        true => (Severity::Warning, "no pod is ready".to_owned()),
        false => why_empty(snapshot, id)?,
    };
    let (backend, port) = (&id.object, id.port);
    let cause = format!("{field}: {backend}:{port} has no ready endpoint ({why})");
    Some(Finding::of_object(Kind::Backend, object, cause).of_severity(severity))
}

/// Reports whether a backend has endpoints that only an endpoint picker may choose.
fn has_unready(backend: &Backend) -> bool {
    !backend.endpoints.unready().is_empty()
}

/// Returns why a backend has no endpoint, and how bad that is.
fn why_empty(snapshot: &Snapshot, id: &BackendId) -> Option<(Severity, String)> {
    let error = |why: &str| Some((Severity::Error, why.to_owned()));
    let Some(service) = snapshot
        .services
        .get(&id.object.namespace, &id.object.name)
        .filter(|_| &*id.object.kind == "Service")
    else {
        return Some((Severity::Warning, "none is configured".to_owned()));
    };
    let name = &service.metadata.name;
    let slices: Vec<_> = snapshot
        .endpoint_slices
        .in_namespace(&service.metadata.namespace)
        .filter(|slice| {
            let service = slice.metadata.labels.get(SERVICE_NAME_LABEL);
            service.is_some_and(|service| *name == *service)
        })
        .collect();
    if slices.is_empty() {
        let why = format!("no EndpointSlice has the label {SERVICE_NAME_LABEL}: {name}");
        return Some((Severity::Warning, why));
    }
    if slices.iter().all(|slice| slice.address_type == "FQDN") {
        return error(
            "its EndpointSlices have the addressType FQDN, which is not served: an XBackend has a hostname",
        );
    }
    let port = service
        .spec
        .ports
        .iter()
        .find(|port| port.port == id.port)?;
    let wanted = port.name.as_deref().unwrap_or_default();
    let of_slices = slices.iter().flat_map(|slice| &slice.ports);
    let names: BTreeSet<_> = of_slices
        .map(|port| port.name.as_deref().unwrap_or_default())
        .collect();
    if names.contains(wanted) || names.is_empty() {
        return error("none is ready");
    }
    let shown = |name: &str| match name {
        "" => "no name".to_owned(),
        name => name.to_owned(),
    };
    let names: Vec<_> = names.into_iter().map(shown).collect();
    let has = match wanted {
        "" => "no name".to_owned(),
        name => format!("the name {name}"),
    };
    error(&format!(
        "the port has {has}, but the EndpointSlices of the Service have only {}",
        names.join(", ")
    ))
}
