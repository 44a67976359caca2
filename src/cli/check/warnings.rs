//! Warnings of `check` alone: of a running process, certificates and endpoints are what its table has now. Pure: the caller
//! passes the time.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::api::Resource;
use crate::api::core::SERVICE_NAME_LABEL;
use crate::api::route_policy::RoutePolicy;
use crate::ir::route::{Action, BackendTarget, WeightedBackend};
use crate::ir::{Backend, BackendId, Filter, Ir, ObjectRef, Rule};
use crate::snapshot::Snapshot;
use crate::status::certificates::validity;

/// The object that needs a change, and what is wrong.
pub(super) type Warning = (ObjectRef, String);

/// Returns the warnings about certificates and rules that depend on the time and on endpoints.
pub(super) fn of(snapshot: &Snapshot, ir: &Ir, now: Timestamp) -> BTreeSet<Warning> {
    let mut warnings = BTreeSet::new();
    for listener in ir.ports.iter().flat_map(|port| &port.listeners) {
        let tls = listener.tls().into_iter();
        let certificates = tls.flat_map(|tls| &tls.certificates);
        let of_listener = certificates.filter_map(|certificate| validity(certificate, now));
        warnings.extend(of_listener.map(|message| {
            let message = format!("listener {}: {message}", listener.key.name);
            (listener.key.origin.clone(), message)
        }));
        for rule in listener.routes.iter().flat_map(|it| &it.route.rules) {
            let of_rule = of_rule(snapshot, ir, rule).into_iter();
            warnings.extend(of_rule.map(|message| (rule.id.route.clone(), message)));
        }
    }
    warnings
}

/// Returns the warnings about servers that policies name and that have no endpoint.
pub(super) fn of_policy_servers(snapshot: &Snapshot, ir: &Ir) -> BTreeSet<Warning> {
    let servers = ir.policy_servers.iter();
    let servers = servers.flat_map(|(policy, of_gateways)| {
        let targets = of_gateways.0.values().flatten();
        targets.filter_map(move |target| Some((policy, target.backend()?)))
    });
    let warnings = servers.filter_map(|(policy, id)| {
        let why = without_endpoints(snapshot, id, ir.backend(id).map(AsRef::as_ref))?;
        let (field, effect) = match &*policy.kind {
            RoutePolicy::KIND => ("spec.errorPages", "responses keep their own content"),
            _ => (
                "spec.external.backendRef",
                "requests that need its permission get status 503",
            ),
        };
        let message = format!(
            "{field}: {}:{} has no ready endpoint: {why}; {effect}",
            id.object, id.port
        );
        Some((policy.clone(), message))
    });
    warnings.collect()
}

fn of_rule(snapshot: &Snapshot, ir: &Ir, rule: &Rule) -> Vec<String> {
    let index = rule.id.index;
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
    let of_shares = used().map(|share| (&share.target, unavailable));
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
        Some((filter.target()?, outcome))
    });
    of_shares
        .chain(of_filters)
        .filter_map(|(target, outcome)| {
            let BackendTarget::Backend(id) = target else {
                return None;
            };
            let why = without_endpoints(snapshot, id, ir.backend(id).map(AsRef::as_ref))?;
            Some(format!(
                "spec.rules[{index}]: {}:{} has no ready endpoint: {why}; {outcome}",
                id.object, id.port
            ))
        })
        .collect()
}

/// Returns why a backend has no endpoint; `None` if it has one.
fn without_endpoints(
    snapshot: &Snapshot,
    id: &BackendId,
    backend: Option<&Backend>,
) -> Option<String> {
    let endpoints = &backend?.endpoints;
    if endpoints.hostname().is_some() || !endpoints.addresses().is_empty() {
        return None;
    }
    let Some(service) = snapshot
        .services
        .get(&id.object.namespace, &id.object.name)
        .filter(|_| &*id.object.kind == "Service")
    else {
        return Some("none is configured".to_owned());
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
        return Some(format!(
            "no EndpointSlice has the label {SERVICE_NAME_LABEL}: {name}"
        ));
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
        return Some("none is ready".to_owned());
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
    Some(format!(
        "the port has {has}, but the EndpointSlices of the Service have only {}",
        names.join(", ")
    ))
}
