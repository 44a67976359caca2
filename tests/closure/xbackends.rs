//! The objects of XBackends that a closure may contain.

use std::collections::BTreeSet;

use portcullis::api::gateway::Gateway;
use portcullis::api::l4_route::L4Rule;
use portcullis::api::reference::{BackendObjectRef, BackendRef, SecretRef};
use portcullis::api::{ObjectRef, Resource};
use portcullis::snapshot::Snapshot;
use portcullis::status::StatusReport;

use crate::filters;
use crate::permitted::is_accepted;
use crate::properties::sets_of;

/// Returns the client certificates of XBackends that routes of their namespaces refer to. The Gateway or one of its
/// ListenerSets accepts the routes.
pub(crate) fn client_certificates(
    cluster: &Snapshot,
    report: &StatusReport,
    gateway: &Gateway,
) -> Vec<(ObjectRef, SecretRef)> {
    let name = gateway.object_ref();
    let sets = sets_of(cluster, &name).map(Resource::object_ref);
    let parents: BTreeSet<_> = sets.chain([name.clone()]).collect();
    let http = cluster.http_routes.iter().map(|route| {
        let rules = route.spec.rules.iter();
        let references: Vec<_> = rules
            .flat_map(|rule| filters::references(&rule.backend_refs, &rule.filters))
            .collect();
        (route.object_ref(), references)
    });
    let grpc = cluster.grpc_routes.iter().map(|route| {
        let rules = route.spec.rules.iter();
        let references: Vec<_> = rules
            .flat_map(|rule| filters::references(&rule.backend_refs, &rule.filters))
            .collect();
        (route.object_ref(), references)
    });
    // UDPRoutes cannot refer to XBackends.
    let tls = cluster.tls_routes.iter().map(|route| {
        let references = l4_references(&route.spec.rules);
        (route.object_ref(), references)
    });
    let tcp = cluster.tcp_routes.iter().map(|route| {
        let references = l4_references(&route.spec.rules);
        (route.object_ref(), references)
    });
    let routes = http.chain(grpc).chain(tls).chain(tcp);
    let routes = routes.filter(|(route, _)| {
        let statuses = report.routes.get(route);
        statuses.into_iter().flat_map(|it| it.iter()).any(|status| {
            let parent = &status.parent_ref;
            let namespace = parent.namespace.as_deref().unwrap_or(&route.namespace);
            let name = ObjectRef::new(&parent.group, &parent.kind, namespace, &parent.name);
            parents.contains(&name) && is_accepted(&status.conditions)
        })
    });
    let mut found = Vec::new();
    for (route, references) in routes {
        let namespace = &*route.namespace;
        for reference in references {
            let foreign = reference.namespace.as_ref();
            let foreign = foreign.is_some_and(|it| *it != *namespace);
            if reference.kind != "XBackend" || foreign {
                continue;
            }
            let backend = cluster.xbackends.get(namespace, &reference.name);
            let client = backend.and_then(|backend| {
                let tls = backend.spec.tls.as_ref()?;
                let tls = (tls.mode == "ClientAndServer").then_some(tls)?;
                Some((backend.object_ref(), tls.client_certificate_ref.clone()?))
            });
            found.extend(client);
        }
    }
    found
}

fn l4_references(rules: &[L4Rule]) -> Vec<BackendObjectRef> {
    let backend_refs = rules.iter().flat_map(|rule| &rule.backend_refs);
    backend_refs.map(BackendRef::backend).collect()
}
