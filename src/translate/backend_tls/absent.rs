//! Status of policies that select no requests because their targets do not exist: which Gateways get an entry, and with
//! which message.

use std::collections::{BTreeMap, BTreeSet};

use crate::ir::ObjectRef;
use crate::ir::object_ref::GATEWAY_GROUP;
use crate::snapshot::Snapshot;

use super::super::Input;
use super::super::reason::{Fault, Reason};
use super::policy::{From, Policy};
use super::status::{Uses, missing};

/// The Gateways of this controller that send the requests of objects in `from`.
pub(in crate::translate) type Senders = BTreeMap<ObjectRef, BTreeSet<ObjectRef>>;

/// Returns the faults of targets that do not exist, by the Gateway that gets the entry. If the object in `from` exists,
/// it is the Gateway that sends its requests. Otherwise it is every Gateway that sends requests to the backend and that
/// the policy could select.
pub(super) fn absent(
    input: &Input<'_>,
    policy: &Policy,
    uses: &Uses,
    senders: &Senders,
) -> BTreeMap<ObjectRef, Vec<Fault>> {
    let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for target in &policy.targets {
        let Some(from) = &target.from else {
            continue;
        };
        let backend = &target.backend;
        let own = &policy.name.namespace;
        let (fault, gateways) = if !exists(input.snapshot, from) {
            let message = format!(
                "spec.targetRefs: {} of from does not exist, so no requests to {backend} are selected",
                from.object
            );
            let all = uses.get(backend).into_iter().flatten();
            let gateways = all.map(|one| &one.gateway);
            let selected = gateways.filter(|it| it.namespace == *own || backend.namespace == *own);
            let selected: BTreeSet<_> = selected.cloned().collect();
            (Fault::new(Reason::TargetNotFound, message), selected)
        } else if let Some(fault) = missing(input, target) {
            let gateways = senders.get(&from.object);
            (fault, gateways.cloned().unwrap_or_default())
        } else {
            continue;
        };
        for gateway in gateways {
            found.entry(gateway).or_default().push(fault.clone());
        }
    }
    found
}

fn exists(snapshot: &Snapshot, from: &From) -> bool {
    let ObjectRef {
        group,
        kind,
        namespace,
        name,
    } = &from.object;
    let is_route = |route: &crate::api::policy::UnservedRoute| {
        route.kind == **kind && route.metadata.name == **name
    };
    let is_known = match &**kind {
        "Gateway" => snapshot.gateways.get(namespace, name).is_some(),
        "ListenerSet" => snapshot.listener_sets.get(namespace, name).is_some(),
        "HTTPRoute" => snapshot.http_routes.get(namespace, name).is_some(),
        "GRPCRoute" => snapshot.grpc_routes.get(namespace, name).is_some(),
        _ => {
            let mut routes = snapshot.unserved_routes.in_namespace(namespace);
            routes.any(|route| is_route(route))
        }
    };
    &**group == GATEWAY_GROUP && is_known
}
